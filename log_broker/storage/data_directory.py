"""
The claim of one broker process on its data directory.

Two brokers on one directory would write into each other's segments, and a directory that cannot be written would show
only at the first append: both are found out at start.
"""

import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path

from log_broker.storage.files import DIRECTORY_MODE, FILE_MODE, OsFileSystem

_log = logging.getLogger(__name__)

LOCK_FILE = ".lock"


class DataDirectoryError(Exception):
    """The data directory cannot be used; the message says why and what repairs it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"data directory {path}: {reason}")
        self.path = path
        self.reason = reason


class DataDirectory:
    """Holds an exclusive lock on the directory from `acquire` to `release`; the kernel drops it if the process dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        """
        Create the directory if needed, keep other users out of it and lock it; raises DataDirectoryError.

        One that brokers have used before is closed to others here, with all that older versions left readable in it.
        """
        try:
            _make(self.path)
            if (self.path / LOCK_FILE).exists():
                _close_to_others(self.path)
            fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise DataDirectoryError(self.path, f"cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A lock needs no space; a byte does, so a full disk shows here as well.
            os.pwrite(fd, b"\n", 0)
        except BlockingIOError:
            os.close(fd)
            raise DataDirectoryError(self.path, "another broker process is using it") from None
        except OSError as error:
            os.close(fd)
            raise DataDirectoryError(self.path, f"cannot be written: {error.strerror}") from error
        self._fd = fd

    def release(self) -> None:
        """Give the lock back."""
        if self._fd is not None:
            # Explicitly: a process forked off meanwhile has the descriptor too and would keep the lock.
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = None


def _make(path: Path) -> None:
    """Make a directory with those above it, and have their names on the disk before anything is promised in them."""
    if path.is_dir():
        return
    _make(path.parent)
    path.mkdir(DIRECTORY_MODE, exist_ok=True)
    with suppress(PermissionError):  # a parent may be writable and not readable
        OsFileSystem().sync_directory(path.parent)


def _close_to_others(path: Path) -> None:
    mode = path.stat().st_mode & 0o777
    if mode & ~DIRECTORY_MODE:
        try:
            path.chmod(mode & DIRECTORY_MODE)
        except PermissionError:
            _log.warning("data directory %s: other users may look into it (mode %o), and it is not ours", path, mode)
        else:
            _log.info("data directory %s: mode %o is now %o", path, mode, mode & DIRECTORY_MODE)
