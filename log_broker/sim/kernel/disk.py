"""
The disk of a simulated node: jobs that take their time, on files that forget what was not synced.

The files are those of `storage.memory_files`, so the code that reads and writes them is the one of production. A job
does its work at some moment of its time and is told to have ended at the end of it, so that a sync covers what was
written before, and not what is written while it is under way. With several threads jobs overtake each other.

A power cut tears what is under way: part of what was written may be there afterwards, whole, garbled or with pages of
zeros, and so may be names that no sync has covered. A process that is killed leaves what it has written to the system,
which goes on to the disk, and syncs that it never did.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress

from log_broker.sim.kernel.kernel import Kernel
from log_broker.storage.memory_files import MemoryFileSystem, ProcessKilled

PAGE_BYTES = 64  # far less than those of a real disk, as the files are
SYNCS_OF_A_JOB = 4  # after one of which a process is killed
SLOW_US = 100_000  # as the sync of a large file

Job = Callable[[], None]


class _UnderWay:
    """A job that a thread has taken up."""

    __slots__ = ("ended", "error", "is_done", "is_dropped", "job")

    def __init__(self, job: Job, ended: Callable[[OSError | None], None]) -> None:
        self.job = job
        self.ended = ended
        self.is_done = False  # its work, although nobody has been told
        self.is_dropped = False  # with its process
        self.error: OSError | None = None


class SimulatedDisk:
    """Files, and a queue of what is to be done to them by so many threads."""

    def __init__(self, kernel: Kernel, name: str, *, threads: int = 1) -> None:
        self.files = MemoryFileSystem(lambda: kernel.now_us // 1000)
        self.job_us = (100, 2_000)
        self.room_max: int | None = None  # bytes that there may be room for with each job; None: as many as you like
        self.threads = threads
        self.slow_share = 0.0  # of the jobs take up to SLOW_US
        self._kernel = kernel
        self._random = kernel.stream(f"disk/{name}")
        self._waiting: deque[tuple[Job, Callable[[OSError | None], None]]] = deque()
        self._under_way: list[_UnderWay] = []

    def submit(self, job: Job, ended: Callable[[OSError | None], None]) -> None:
        """Do `job` once a thread is free; then tell how it ended."""
        self._waiting.append((job, ended))
        self._take_up()

    def kill(self) -> None:
        """The process ends: of what is under way each ends wholly, before one of its syncs or not at all."""
        self._end_within(0.5)
        self._drop_jobs()

    def abandon(self) -> None:
        """The process ends because a job has failed: the others never begin."""
        self._drop_jobs()

    def cut_power(self) -> None:
        """Everything unsynced is in doubt."""
        self._end_within(0.8)
        self._drop_jobs()
        self.files = self.files.crash(self._survivors, lambda directory: self._random.random() < 0.5)

    def lose(self) -> None:
        """Replace the disk by an empty one."""
        self._drop_jobs()
        self.files = MemoryFileSystem(self.files.clock_ms)

    def _take_up(self) -> None:
        while self._waiting and len(self._under_way) < self.threads:
            begun = _UnderWay(*self._waiting.popleft())
            self._under_way.append(begun)
            self._begin(begun)

    def _begin(self, begun: _UnderWay) -> None:
        low, high = self.job_us
        takes_us = self._random.randint(low, high)
        if self.slow_share and self._random.random() < self.slow_share:
            takes_us = max(takes_us, self._random.randint(0, SLOW_US))
        if self.threads > 1 and self._random.random() < 0.5:
            self._kernel.after(int(takes_us * self._random.random()), lambda: self._do(begun))
        self._kernel.after(takes_us, lambda: self._end(begun))

    def _do(self, begun: _UnderWay) -> None:
        if not begun.is_done and not begun.is_dropped:
            begun.is_done = True
            begun.error = self._try(begun.job)

    def _end(self, begun: _UnderWay) -> None:
        if begun.is_dropped:
            return  # a job of a process that is gone
        self._do(begun)
        self._under_way.remove(begun)
        self._take_up()
        begun.ended(begun.error)

    def _try(self, job: Job) -> OSError | None:
        self.files.room_bytes = None if self.room_max is None else self._random.randint(0, self.room_max)
        try:
            job()
        except OSError as error:
            return error
        return None

    def _end_within(self, share: float) -> None:
        """Do the jobs of a process that may be gone before they have done all of their syncs."""
        for begun in self._under_way:
            if not begun.is_done and self._random.random() < share:
                first = self._random.random() < 0.7
                self.files.syncs_left = 0 if first else self._random.randint(1, SYNCS_OF_A_JOB)
                with suppress(ProcessKilled):
                    self._try(begun.job)
                self.files.syncs_left = None

    def _drop_jobs(self) -> None:
        for begun in self._under_way:
            begun.is_dropped = True
        self._under_way.clear()
        self._waiting.clear()

    def _survivors(self, unsynced: bytes) -> bytes:
        whole = self._random.random() < 0.4
        kept = bytearray(unsynced if whole else unsynced[: self._random.randint(0, len(unsynced))])
        if kept and self._random.random() < 0.5:
            kept[self._random.randrange(len(kept))] ^= 0xFF
        if kept and self._random.random() < 0.3:
            for start in range(0, len(kept), PAGE_BYTES):
                if self._random.random() < 0.5:
                    kept[start : start + PAGE_BYTES] = bytes(len(kept[start : start + PAGE_BYTES]))
        return bytes(kept)
