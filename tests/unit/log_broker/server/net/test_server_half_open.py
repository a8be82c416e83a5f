"""Connections that are not let in yet: what a flood of them has taken is given back once, when it is over."""

import asyncio
from typing import Any

import pytest

from log_broker.server.net import half_open
from log_broker.server.net.half_open import HalfOpen


class Pending:
    host = "10.0.0.1"

    def __init__(self) -> None:
        self.reason = ""

    def give_up(self, reason: str) -> None:
        self.reason = reason


@pytest.fixture
def given_back(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(half_open, "EBB_SECONDS", 0.0)
    return []


async def _come_and_go(some: HalfOpen, count: int) -> None:
    pending = [Pending() for _ in range(count)]
    for each in pending:
        some.enter(each)
    for each in pending:
        some.leave(each)
    for _ in range(3):
        await asyncio.sleep(0)
    await asyncio.get_running_loop().run_in_executor(None, lambda: None)


async def test_a_flood_that_is_over_gives_its_memory_back_once(given_back: list[str]) -> None:
    some = HalfOpen(asyncio.get_running_loop(), most=100, after_flood=lambda: given_back.append("all"))
    await _come_and_go(some, 20)
    assert given_back == []
    await _come_and_go(some, 40)
    await _until(lambda: given_back == ["all"])
    await _come_and_go(some, 20)
    assert given_back == ["all"]
    some.close()


async def test_beyond_the_most_the_oldest_goes() -> None:
    some = HalfOpen(asyncio.get_running_loop(), most=2)
    pending = [Pending() for _ in range(3)]
    for each in pending:
        some.enter(each)
    assert [bool(each.reason) for each in pending] == [True, False, False]
    some.close()
    assert all(each.reason for each in pending)


async def test_one_that_was_accepted_before_the_end_and_is_made_after_it_is_ended() -> None:
    some = HalfOpen(asyncio.get_running_loop())
    some.close()
    late = Pending()
    some.enter(late)
    assert late.reason
    assert len(some) == 0


async def _until(holds: Any) -> None:
    while not holds():  # noqa: ASYNC110 - a thread says it
        await asyncio.sleep(0.01)
