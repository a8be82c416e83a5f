"""
Threads that wait for disks, so that the event loop does not.

Several partitions sync at once: the file system joins their journal commits, whereas one thread taking files in turn
would make each wait for all before it. A queue and bare threads, because an executor's futures cost more than a small
produce request does.
"""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

THREADS = 8

Work = Callable[[], None]
Done = Callable[[BaseException | None], None]


class SyncPool:
    """Runs blocking work; `done` is called in the event loop with the exception of the work, or None."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, threads: int = THREADS) -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[Work, Done] | None] = SimpleQueue()
        self._threads_max = threads
        self._threads: list[threading.Thread] = []
        self._waiting = 0  # work handed in and not done: starts no more threads than are needed

    def submit(self, work: Work, done: Done) -> None:
        """Run `work` in a thread as soon as one is free."""
        self._waiting += 1
        if len(self._threads) < min(self._waiting, self._threads_max):
            thread = threading.Thread(target=self._serve, name=f"log-sync-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put((work, done))

    def close(self) -> None:
        """Let the threads end once the work that was handed in is done."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            work, done = item
            try:
                work()
            except BaseException as error:
                self._loop.call_soon_threadsafe(self._finish, done, error)
            else:
                self._loop.call_soon_threadsafe(self._finish, done, None)
            # Or what was written last, given back to the budget of requests by now, stays as long as the thread waits.
            del item, work, done

    def _finish(self, done: Done, error: BaseException | None) -> None:
        self._waiting -= 1
        done(error)
