"""
Threads that wait for disks, so that the event loop does not.

Several partitions sync at once: the file system joins their journal commits, whereas one thread taking files in turn
would make each wait for all before it. A queue and bare threads, because an executor's futures cost more than a small
produce request does.

Appends, the most frequent work by far, are done by threads of `_disk_threads.c` where this installation was built
beside a C compiler: those take no turns with the event loop's thread for Python's lock.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from log_broker.records.compiled import IS_WANTED
from log_broker.storage.append_job import AppendJob

__all__ = ["THREADS", "Done", "SyncPool", "Work", "compiled"]

THREADS = 8

Work = Callable[[], None]
Done = Callable[[BaseException | None], None]

try:
    if not IS_WANTED:
        raise ImportError("Python alone was asked for")
    from log_broker.server.process import _disk_threads as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]


class SyncPool:
    """Runs blocking work; `done` is called in the event loop with the exception of the work, or None."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, threads: int = THREADS) -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[Work, Done] | None] = SimpleQueue()
        self._threads_max = threads
        self._threads: list[threading.Thread] = []
        self._waiting = 0  # work handed in and not done: starts no more threads than are needed
        self._disk = None if compiled is None else compiled.DiskThreads(threads)
        if self._disk is not None:
            loop.add_reader(self._disk.fileno(), self._written)

    def submit(self, work: Work, done: Done) -> None:
        """Run `work` in a thread as soon as one is free."""
        if self._disk is not None and isinstance(work, AppendJob) and (calls := work.system_calls()) is not None:
            self._disk.submit(done, *calls)
            return
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
        if self._disk is not None:
            self._disk.close()
            self._loop.remove_reader(self._disk.fileno())
            self._loop.call_soon(self._written)

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

    def _written(self) -> None:
        assert self._disk is not None
        for done, number in self._disk.finished():
            self._loop.call_soon(done, OSError(number, os.strerror(number)) if number else None)
