"""
A classic group under everything at once: members that come, go, crash and restart, a disk that fails, a coordinator
that begins anew from its log, time.

Always: no partition is read by two members; generations only grow. In the end: every partition is read.
"""

import json
from typing import Any

from consumer_group_driver import GroupDriver
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from log_broker.core.group_members import GroupState
from log_broker.core.group_protocol import Heartbeat, Join, JoinAnswer, Leave, Sync, SyncAnswer
from log_broker.errors import ErrorCode

SESSION_MS = 10_000
REBALANCE_MS = 30_000
PARTITIONS = frozenset(range(5))
START_AGAIN = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.MEMBER_ID_REQUIRED}


class EagerMember:
    """A client that stops reading before it joins, and reads what its sync brings."""

    def __init__(self, driver: GroupDriver, number: int, instance_id: str | None) -> None:
        self.driver = driver
        self.number = number
        self.ids = 0
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.seen = -1  # the highest one, of this coordinator
        self.owned: frozenset[int] = frozenset()
        self.waits_for: Any = None
        self.heard_ms = driver.now
        self.is_in = False  # whether it has an assignment of its generation

    def join(self) -> None:
        self.owned = frozenset()
        self.is_in = False
        self.ids += 1
        self.waits_for = self.driver.send(
            Join,
            member_id=self.member_id,
            fresh_id=f"m{self.number}.{self.ids}",
            instance_id=self.instance_id,
            client_id="c",
            client_host="/h",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=(("range", b""),),
            id_round_trip=True,
        )
        self.take()

    def take(self) -> None:
        """Go on with an answer that has come."""
        answer = self.driver.answers.get(self.waits_for)
        if answer is None:
            return
        self.waits_for = None
        self.heard_ms = self.driver.now
        if answer.error in START_AGAIN:
            self.member_id = answer.member_id if answer.error is ErrorCode.MEMBER_ID_REQUIRED else ""
            self.join()
        elif isinstance(answer, JoinAnswer) and answer.error is ErrorCode.NONE:
            assert answer.member_id != self.member_id or answer.generation >= self.seen
            self.member_id = answer.member_id
            self.generation = self.seen = answer.generation
            self.waits_for = self.driver.send(
                Sync,
                member_id=self.member_id,
                generation=self.generation,
                instance_id=self.instance_id,
                assignments=assign([member.member_id for member in answer.members]),
            )
            self.take()
        elif isinstance(answer, SyncAnswer) and answer.error is ErrorCode.NONE:
            self.owned = frozenset(json.loads(answer.assignment or b"[]"))
            self.is_in = True

    def heartbeat(self) -> None:
        if not self.is_in:
            self.join()
            return
        error = self.driver.ask(
            Heartbeat, member_id=self.member_id, generation=self.generation, instance_id=self.instance_id
        )
        if error is ErrorCode.NONE:
            self.heard_ms = self.driver.now
            return
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self.owned = frozenset()
        self.is_in = False

    def lose_connection(self) -> None:
        if self.waits_for is not None:
            self.waits_for = None
            self.is_in = False


def assign(members: list[str]) -> dict[str, bytes]:
    return {
        member_id: json.dumps([number for number in PARTITIONS if number % len(members) == index]).encode()
        for index, member_id in enumerate(members)
    }


class ClassicGroupModel(RuleBasedStateMachine):
    members = Bundle("members")

    def __init__(self) -> None:
        super().__init__()
        self.driver = GroupDriver()
        self.alive: list[EagerMember] = []
        self.count = 0
        self.generation = 0

    def step(self, member: EagerMember) -> None:
        if member.waits_for is None:
            member.heartbeat()
        self.deliver()

    def deliver(self) -> None:
        for member in self.alive:
            member.take()

    @rule(target=members, static=st.booleans())
    def begin(self, static: bool) -> EagerMember:
        self.count += 1
        member = EagerMember(self.driver, self.count, f"i{self.count}" if static else None)
        self.alive.append(member)
        self.step(member)
        return member

    @rule(member=members)
    def go_on(self, member: EagerMember) -> None:
        if member in self.alive:
            self.step(member)

    @rule(member=members)
    def leave(self, member: EagerMember) -> None:
        if member in self.alive and member.member_id:
            self.alive.remove(member)
            self.driver.ask(Leave, members=((member.member_id, member.instance_id),))
            self.deliver()

    @rule(member=members)
    def crash(self, member: EagerMember) -> None:
        if member in self.alive:
            self.alive.remove(member)

    @rule(member=members)
    def static_member_restarts(self, member: EagerMember) -> None:
        if member in self.alive and member.instance_id is not None:
            member.lose_connection()
            member.member_id = ""
            member.join()
            self.deliver()

    @rule(milliseconds=st.integers(1, 9_000))
    def time_passes(self, milliseconds: int) -> None:
        self.driver.advance(milliseconds)
        self.deliver()
        for member in self.alive:
            if self.driver.now - member.heard_ms >= SESSION_MS:
                member.owned = frozenset()  # it could not reach its coordinator for a session

    @rule()
    def the_disk_fails_once(self) -> None:
        self.driver.fails = True
        for member in list(self.alive):
            self.step(member)
        self.driver.fails = False

    @precondition(lambda self: self.driver.group.state is not GroupState.DEAD)
    @rule()
    def the_coordinator_restarts(self) -> None:
        for member in self.alive:
            member.lose_connection()
            member.seen = -1  # a generation that was not finished was not stored either, and its number comes again
        self.driver.restart()
        self.generation = self.driver.group.generation

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        reading = [number for member in self.alive for number in member.owned]
        assert len(reading) == len(set(reading))

    @invariant()
    def generations_only_grow(self) -> None:
        assert self.driver.group.generation >= self.generation
        self.generation = self.driver.group.generation

    def teardown(self) -> None:
        for _ in range(12):
            for member in self.alive:
                self.step(member)
            self.driver.advance(SESSION_MS // 2)
            self.deliver()
        if self.alive:
            assert self.driver.group.state is GroupState.STABLE
            assert frozenset().union(*(member.owned for member in self.alive)) == PARTITIONS
            assert self.driver.group.members.keys() == {member.member_id for member in self.alive}


ClassicGroupModel.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
test_a_classic_group_under_everything_at_once = ClassicGroupModel.TestCase
