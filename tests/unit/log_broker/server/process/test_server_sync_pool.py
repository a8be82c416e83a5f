"""The threads that wait for disks."""

import asyncio
import weakref

from log_broker.server.process.sync_pool import SyncPool


class _Write:
    """Stands for what a write holds: the bytes of requests that are answered when it is done."""

    def run(self) -> None: ...


async def _submitted(pool: SyncPool) -> "weakref.ref[_Write]":
    """Have a write done; return what tells whether anyone holds it still."""
    write, done = _Write(), asyncio.get_running_loop().create_future()
    pool.submit(write.run, done.set_result)
    assert await done is None
    return weakref.ref(write)


def test_a_thread_that_waits_keeps_nothing_of_what_it_has_written() -> None:
    async def run() -> None:
        pool = SyncPool(asyncio.get_running_loop())
        try:
            held = await _submitted(pool)
            # The thread has said that it is done before it waits for more, so it is let come to that.
            while held() is not None:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.001)
        finally:
            pool.close()

    asyncio.run(asyncio.wait_for(run(), 10))


def test_what_goes_wrong_is_told_and_the_thread_goes_on() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        pool = SyncPool(loop, threads=1)

        def fail() -> None:
            raise OSError("the disk is gone")

        try:
            told: asyncio.Future[BaseException | None] = loop.create_future()
            pool.submit(fail, told.set_result)
            assert str(await told) == "the disk is gone"
            await _submitted(pool)
        finally:
            pool.close()

    asyncio.run(run())
