"""
A disk that stops working at its n-th operation, and what may be found on it after that.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from log_broker.records.batch import Buffer
from log_broker.storage.memory_files import MemoryFile, MemoryFileSystem

PAGE_BYTES = 64  # small, so that a batch has several


class PowerCut(BaseException):
    """The machine is gone: nothing that handles errors may run."""


class CountingFile(MemoryFile):
    """Counts what changes the disk; the write at which the power goes may have got anywhere."""

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        disk = self._system
        assert isinstance(disk, FailingDisk)
        if disk.is_last_step():
            super().write_at(position, [data[: disk.rng.randrange(len(data) + 1)]])
            raise PowerCut
        super().write_at(position, [data])

    def truncate(self, size: int) -> None:
        self._step()
        super().truncate(size)

    def sync(self) -> None:
        self._step()
        super().sync()

    def _step(self) -> None:
        assert isinstance(self._system, FailingDisk)
        self._system.step()


class FailingDisk(MemoryFileSystem):
    """Works for `steps` operations."""

    def __init__(self, steps: int, rng: random.Random) -> None:
        super().__init__()
        self.steps = steps
        self.rng = rng

    def is_last_step(self) -> bool:
        self.steps -= 1
        return self.steps < 0

    def step(self) -> None:
        if self.is_last_step():
            raise PowerCut

    def open(self, path: Path) -> MemoryFile:
        file = super().open(path)
        return CountingFile(file._inode, self)

    def replace(self, path: Path, content: bytes, *, sync: bool = True) -> None:
        self.step()
        super().replace(path, content, sync=sync)

    def rename(self, path: Path, to: Path) -> None:
        self.step()
        super().rename(path, to)

    def remove(self, path: Path) -> None:
        self.step()
        super().remove(path)

    def sync_directory(self, directory: Path) -> None:
        self.step()
        super().sync_directory(directory)


def survivors(rng: random.Random) -> Callable[[bytes], bytes]:
    """What a disk makes of bytes that no sync covered: any of the pages, the last perhaps torn."""

    def choose(unsynced: bytes) -> bytes:
        kind = rng.randrange(4)
        if kind == 0:
            return b""
        if kind == 1:
            return unsynced
        kept = bytearray(unsynced[: rng.randrange(len(unsynced) + 1)])
        if kind == 2:
            for start in range(0, len(kept), PAGE_BYTES):
                if rng.random() < 0.3:
                    kept[start : start + PAGE_BYTES] = bytes(len(kept[start : start + PAGE_BYTES]))
        return bytes(kept)

    return choose


def journal(rng: random.Random) -> Callable[[Path], bool]:
    """What a disk makes of names that no sync covered: in a directory it has got to all of them or to none."""
    return lambda directory: rng.random() < 0.5
