"""What one event of a member costs a group, in operations: the same however many members there are."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from consumer_group_driver import GroupDriver
from test_core_group import Driver

from log_broker.core.groups.classic_group import GroupState
from log_broker.core.groups.consumer_events import ConsumerHeartbeat
from log_broker.errors import ErrorCode

FEW, MANY = 20, 400


def operations(run: Callable[[], Any]) -> int:
    """Count the bytecodes that are executed."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


class Quick(Driver):
    """Does without the driver's own look at every member."""

    def check(self) -> None:
        """Nothing."""


def stable(members: int) -> tuple[Quick, list[str]]:
    driver = Quick()
    return driver, driver.stable(members=members)


def preparing(members: int) -> tuple[Quick, list[str]]:
    """A rebalance for which all have joined again but the last four."""
    driver, ids = stable(members)
    for member_id in ids[:-4]:
        driver.join(member_id, protocols=(("range", b"other"),))
    assert driver.group.classic.state is GroupState.PREPARING
    return driver, ids


def completing(members: int) -> tuple[Quick, list[str]]:
    """A generation for which all but the leader and the last four have asked for their assignment."""
    driver, ids = preparing(members)
    for member_id in ids[-4:]:
        driver.join(member_id)
    for member_id in ids[1:-4]:
        driver.sync(member_id)
    assert driver.group.classic.state is GroupState.COMPLETING
    return driver, ids


Act = Callable[[], Any]


def heartbeat(members: int) -> tuple[Any, Act, Act]:
    driver, ids = stable(members)
    return driver, lambda: driver.heartbeat(ids[-1]), lambda: driver.heartbeat(ids[-2])


def commit(members: int) -> tuple[Any, Act, Act]:
    driver, ids = stable(members)
    generation = driver.group.classic.generation
    return driver, lambda: driver.commit(ids[-1], generation), lambda: driver.commit(ids[-2], generation)


def join(members: int) -> tuple[Any, Act, Act]:
    driver, ids = preparing(members)
    return driver, lambda: driver.join(ids[-1]), lambda: driver.join(ids[-2])


def newcomer(members: int) -> tuple[Any, Act, Act]:
    driver, _ = preparing(members)
    return driver, lambda: driver.join(id_round_trip=True), lambda: driver.join(id_round_trip=True)


def sync(members: int) -> tuple[Any, Act, Act]:
    driver, ids = completing(members)
    return driver, lambda: driver.sync(ids[-1]), lambda: driver.sync(ids[-2])


def lost(members: int) -> tuple[Any, Act, Act]:
    """Sessions end one after the other while a rebalance waits for the members."""
    driver, ids = preparing(members)
    for member_id in ids[-3:]:
        driver.now += 1
        driver.heartbeat(member_id)

    def end() -> None:
        driver.now = driver.group.next_deadline_ms()
        driver.run(driver.group.tick(driver.now))

    return driver, end, end


def beat_of_the_new_protocol(members: int) -> tuple[Any, Act, Act]:
    driver = GroupDriver()
    driver.create_topic("t", 1)
    for at in range(members):
        driver.ask(ConsumerHeartbeat, **first_heartbeat(f"m{at}"))
    quiet = {**first_heartbeat("m0"), "rebalance_timeout_ms": -1, "topics": None, "owned": None}

    def beat() -> None:
        quiet["member_epoch"] = driver.group.consumer.state.owned_by("m0").epoch
        answer = driver.ask(ConsumerHeartbeat, **quiet)
        assert answer.error is ErrorCode.NONE

    beat()
    return driver, beat, beat


def first_heartbeat(member_id: str) -> dict[str, Any]:
    return {
        "member_id": member_id,
        "fresh_id": member_id,
        "member_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "client_id": "c",
        "client_host": "/h",
        "topics": frozenset({"t"}),
        "owned": frozenset(),
    }


@pytest.mark.parametrize("event", [heartbeat, commit, join, newcomer, sync, lost, beat_of_the_new_protocol])
def test_an_event_looks_at_no_more_members_where_there_are_more(event) -> None:
    def cost(members: int) -> int:
        driver, *acts = event(members)
        # Now and then one clears away what has gathered in a heap.
        counts = [operations(lambda: (act(), driver.group.next_deadline_ms())) for act in acts]  # noqa: B023
        return min(filter(None, counts))  # Python 3.12.1 now and then traces nothing

    few, many = cost(FEW), cost(MANY)
    assert few > 10
    assert many < few * 1.5 + 100, "a heap of twenty times as many is a few steps deeper"
