"""
The disk of a simulated node: jobs in order, each taking its time, on files that forget what was not synced.

The files are those of `storage.memory_files`, so the code that reads and writes them is the one of production. A power
cut tears the job under way: part of what it wrote may be there afterwards, whole or garbled. A process that is killed
leaves what it has written to the system, which goes on to the disk.
"""

from collections import deque
from collections.abc import Callable

from log_broker.sim.kernel import Kernel
from log_broker.storage.memory_files import MemoryFileSystem

Job = Callable[[], None]


class SimulatedDisk:
    """Files, and a queue of what is to be done to them."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.files = MemoryFileSystem()
        self.job_us = (100, 2_000)
        self.is_full = False
        self._kernel = kernel
        self._random = kernel.stream(f"disk/{name}")
        self._jobs: deque[tuple[Job, Callable[[OSError | None], None]]] = deque()
        self._generation = 0

    def submit(self, job: Job, ended: Callable[[OSError | None], None]) -> None:
        """Do `job` behind those before it; then tell how it ended."""
        self._jobs.append((job, ended))
        if len(self._jobs) == 1:
            self._begin()

    def kill(self) -> None:
        """The process ends: its job under way ends wholly or not at all, the others never begin."""
        if self._jobs and self._random.random() < 0.5:
            self._try(self._jobs[0][0])
        self._drop_jobs()

    def abandon(self) -> None:
        """The process ends because a job has failed: the others never begin."""
        self._drop_jobs()

    def cut_power(self) -> None:
        """Everything unsynced is in doubt."""
        if self._jobs and self._random.random() < 0.8:
            self.files.failing_syncs = 1
            self._try(self._jobs[0][0])
        self._drop_jobs()
        self.files = self.files.crash(self._survivors)

    def lose(self) -> None:
        """Replace the disk by an empty one."""
        self._drop_jobs()
        self.files = MemoryFileSystem()

    def _begin(self) -> None:
        generation = self._generation
        low, high = self.job_us
        self._kernel.after(self._random.randint(low, high), lambda: self._end(generation))

    def _end(self, generation: int) -> None:
        if generation != self._generation:
            return  # a job of a process that is gone
        job, ended = self._jobs.popleft()
        if self._jobs:
            self._begin()
        ended(self._try(job))

    def _try(self, job: Job) -> OSError | None:
        self.files.room_bytes = self._random.randint(0, 100) if self.is_full else None
        try:
            job()
        except OSError as error:
            return error
        return None

    def _drop_jobs(self) -> None:
        self._jobs.clear()
        self._generation += 1

    def _survivors(self, unsynced: bytes) -> bytes:
        whole = self._random.random() < 0.4
        kept = bytearray(unsynced if whole else unsynced[: self._random.randint(0, len(unsynced))])
        if kept and self._random.random() < 0.5:
            kept[self._random.randrange(len(kept))] ^= 0xFF
        return bytes(kept)
