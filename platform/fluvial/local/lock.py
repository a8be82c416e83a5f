"""
Locks that say which process works in a folder.

The kernel drops a lock when its process ends, however it ends. A stale file, a zombie and a process that got the same
id later hold none, so whoever holds the lock of a node's folder is that node, and the id in the file is its own.
"""

import fcntl
import os
import time
from pathlib import Path
from typing import Self

from fluvial.local.rights import FILE_MODE

NODE_LOCK = "node.pid"
PLATFORM_LOCK = "platform.lock"

_POLL_SECONDS = 0.02
_READS_MAX = 50


class FolderLock:
    """An exclusive lock on a file, held from `acquire` to `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, timeout_seconds: float = 0.0) -> bool:
        """Take the lock and write our process id into the file; False when another process keeps it. Raises OSError."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        deadline = time.monotonic() + timeout_seconds
        while not _try_lock(descriptor):
            if time.monotonic() >= deadline:
                os.close(descriptor)
                return False
            time.sleep(_POLL_SECONDS)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Give the lock back; the file stays, so that two waiters never lock two different files of one name."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def holder(path: Path) -> int | None:
    """Return the id of the process that holds the lock at `path`, None when nobody does."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        for _ in range(_READS_MAX):
            if _try_lock(descriptor):
                return None
            text = os.pread(descriptor, 32, 0).decode("ascii", errors="replace").strip()
            if text.isdecimal():
                return int(text)
            # It has locked the file and not yet written its id.
            time.sleep(_POLL_SECONDS)
        return None
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Lock by `fcntl`, not `flock`: a forked worker does not inherit the lock and cannot outlive its node with it."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
