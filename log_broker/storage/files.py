"""
What the log needs of a file system, and the real one.

A handful of methods, so that a simulated disk which forgets what was not synced can stand in (`storage.memory_files`).
What the interface does not promise: without `sync` nothing survives a power cut, and a file or directory that was
created, renamed or removed may not have been until `sync_directory` of where its name stands returns. Errors are
OSError, as the system raises them.

Records and password hashes lie in these files, so only their owner may read them: whatever is made here has FILE_MODE
or DIRECTORY_MODE, less what the umask takes.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from log_broker.records.batch import Buffer

IOV_MAX = 1024  # buffers that one writev takes on Linux
# The system reads ahead in pieces of at least half of this, so that what lies between two pages that are cached is too.
PROBE_BYTES = 256 * 1024
LOAD_BYTES = 1024 * 1024
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700


class File(Protocol):
    """One open file. `write_at` and `sync` may run in another thread than the rest."""

    def size(self) -> int: ...

    def read_at(self, position: int, length: int) -> bytes:
        """Read up to `length` bytes; fewer only at the end of the file."""
        ...

    def send_at(self, position: int, length: int, descriptor: int) -> int:
        """Have a socket take, unread, what it does at once of that part; return how many bytes, 0 where none."""
        ...

    def is_cached(self, position: int, length: int) -> bool:
        """Whether a read of that part waits for no disk, as far as a few of its pages tell."""
        ...

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers one behind the other; after an OSError any part of them may have been written."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return once the content is on the disk."""
        ...

    def close(self) -> None: ...


class FileSystem(Protocol):
    """Files by path. A file that is replaced is seen in its old or its new state, never between."""

    def open(self, path: Path) -> File:
        """Open for reading and writing; an absent file is created empty."""
        ...

    def read(self, path: Path) -> bytes | None:
        """Return the whole content, or None when there is no such file."""
        ...

    def replace(self, path: Path, content: bytes, *, sync: bool = True) -> None:
        """Put `content` in place of the file at once; with `sync` it also survives a power cut."""
        ...

    def names(self, directory: Path) -> list[str]:
        """List a directory; empty when there is none."""
        ...

    def size(self, path: Path) -> int: ...

    def modified_ms(self, path: Path) -> int:
        """When the file was last written, in ms since the epoch by this machine's clock."""
        ...

    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        """Have a copy of older content count as written when that was."""
        ...

    def make_directory(self, path: Path) -> None: ...

    def rename(self, path: Path, to: Path) -> None: ...

    def remove(self, path: Path) -> None:
        """Remove a file; an absent one is no error."""
        ...

    def remove_tree(self, directory: Path) -> None: ...

    def load(self, path: Path, position: int, length: int) -> None:
        """Have the page cache hold a part of a file, in any thread; an absent file is no error."""
        ...

    def drop_cached(self, path: Path) -> None:
        """
        Have the next reads of a file come from the disk.

        After a failed sync the system calls the pages clean that it could not write: they still read as if they were
        on the disk, and the next sync says that all is well.
        """
        ...

    def sync_directory(self, directory: Path) -> None:
        """Return once the names in this directory are on the disk."""
        ...


class OsFile:
    """A file of the operating system."""

    __slots__ = ("_fd",)

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)

    @property
    def descriptor(self) -> int:
        """What the system knows it by, until it is closed."""
        return self._fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read_at(self, position: int, length: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        while data:
            position += len(data)
            length -= len(data)
            data = os.pread(self._fd, length, position)
            parts.append(data)
        return b"".join(parts)

    def send_at(self, position: int, length: int, descriptor: int) -> int:
        if not hasattr(os, "sendfile"):
            return 0
        sent = 0
        try:
            while sent < length and (taken := os.sendfile(descriptor, self._fd, position + sent, length - sent)):
                sent += taken
        except OSError:
            pass  # it takes no more, or whoever reads or writes the rest is told why
        return sent

    def is_cached(self, position: int, length: int) -> bool:
        if not hasattr(os, "RWF_NOWAIT"):
            return True
        byte = bytearray(1)
        try:
            for at in (*range(position, position + length, PROBE_BYTES), position + length - 1):
                os.preadv(self._fd, (byte,), at, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:  # this file system cannot tell
            return True
        return True

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        for start in range(0, len(buffers), IOV_MAX):
            part = buffers[start : start + IOV_MAX] if len(buffers) > IOV_MAX else buffers
            written = os.pwritev(self._fd, part, position)
            position += written
            expected = sum(map(len, part))
            if written < expected:
                # A signal or a nearly full disk cut the write short; the rest says which, by success or by ENOSPC.
                rest = memoryview(b"".join(part))[written:]
                while rest:
                    written = os.pwrite(self._fd, rest, position)
                    position += written
                    rest = rest[written:]

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class OsFileSystem:
    """The operating system's files."""

    def open(self, path: Path) -> File:
        return OsFile(path)

    def read(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, path: Path, content: bytes, *, sync: bool = True) -> None:
        fresh = path.with_name(path.name + ".tmp")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        fresh.replace(path)
        if sync:
            self.sync_directory(path.parent)

    def names(self, directory: Path) -> list[str]:
        try:
            return os.listdir(directory)
        except FileNotFoundError:
            return []

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def modified_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        os.utime(path, ns=(time_ms * 1_000_000, time_ms * 1_000_000))

    def make_directory(self, path: Path) -> None:
        path.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)

    def rename(self, path: Path, to: Path) -> None:
        path.rename(to)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)

    def load(self, path: Path, position: int, length: int) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            end = min(position + length, os.fstat(fd).st_size)
            for at in range(position, end, LOAD_BYTES):
                os.pread(fd, min(LOAD_BYTES, end - at), at)
        finally:
            os.close(fd)

    def drop_cached(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)

    def sync_directory(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
