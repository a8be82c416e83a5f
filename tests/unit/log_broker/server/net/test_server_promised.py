"""Answers that are given later, without a task that waits for them."""

import asyncio
import gc
import weakref

from log_broker.server.net.promised import Promised


def test_it_tells_in_the_moment_of_the_result() -> None:
    promised = Promised(lambda result: {"error_code": result})
    told: list[object] = []
    promised.on_result(lambda: told.append(promised.values()))
    assert not promised.done()
    promised.set_result(7)
    assert promised.done()
    assert told == [{"error_code": 7}]


def test_it_tells_who_asks_after_the_result() -> None:
    promised = Promised(lambda result: {"error_code": result})
    promised.set_result(7)
    told: list[object] = []
    promised.on_result(lambda: told.append(promised.values()))
    assert told == [{"error_code": 7}]


async def test_it_can_be_awaited() -> None:
    promised = Promised(lambda result: {"error_code": result})
    asyncio.get_running_loop().call_soon(promised.set_result, 7)
    assert await promised() == {"error_code": 7}


def test_it_is_gone_with_its_answer() -> None:
    class Answer(Promised):
        """One that can be looked for."""

    gc.disable()
    try:
        promised = Answer(lambda result: {"error_code": result})
        promised.on_result(promised.values)
        promised.set_result(7)
        seen = weakref.ref(promised)
        del promised
        assert seen() is None
    finally:
        gc.enable()
