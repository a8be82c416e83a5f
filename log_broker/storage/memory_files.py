"""
A file system in memory whose disk forgets what was not synced: `files.OsFileSystem` for tests and simulation.

It keeps two states: what programs see, and what a power cut would leave. `sync` carries a file's content from the one
to the other, `sync_directory` its name, and that of a new directory in its parent; a directory without one above it is
there for good. `crash` goes back to the second, with any part of the unsynced bytes that the caller chooses, and with
the names of those directories that it chooses: real disks write pages and names on their own, in any order, and tear
the last page.

A failed sync is as treacherous as Linux's: what it could not write counts as clean from then on. It still reads as it
was written, the next sync succeeds without it, and only `drop_cached` or a crash shows that it never reached the disk.
"""

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

from log_broker.records.batch import Buffer

# What is found behind the synced part of a file after a power cut, given what was written there.
Survivors = Callable[[bytes], bytes]
# Whether the disk has written the names in a directory by itself before the power cut.
Journal = Callable[[Path], bool]


class ProcessKilled(BaseException):
    """The process is gone, what it has written is there: nothing of it that handles errors may run."""


class _Inode:
    """The content of a file, which handles share whatever becomes of its name."""

    __slots__ = ("_dropped", "durable", "modified_ms", "seen")

    def __init__(self, modified_ms: int) -> None:
        self.seen = bytearray()
        self.modified_ms = modified_ms
        self.durable = b""
        self._dropped = (0, 0)  # the part that a failed sync left behind

    def rewritten(self, start: int, end: int) -> None:
        """Bytes that are written again, or cut off, are dirty again."""
        first, last = self._dropped
        self._dropped = (max(first, end), last) if start <= first else (first, max(min(last, start), first))

    def sync(self) -> None:
        first, last = self._dropped
        durable = bytearray(self.seen)
        durable[first:last] = bytes(max(last - first, 0))
        self.durable = bytes(durable)

    def sync_failed(self) -> None:
        first, last = self._dropped
        synced = len(self.durable)
        self._dropped = (min(first, synced) if last > first else synced, len(self.seen))

    def drop_cached(self) -> None:
        first, last = self._dropped
        self.seen[first:last] = bytes(max(last - first, 0))
        self._dropped = (0, 0)


class MemoryFile:
    """A handle on a file in memory."""

    __slots__ = ("_inode", "_system")

    def __init__(self, inode: _Inode, system: "MemoryFileSystem") -> None:
        self._inode = inode
        self._system = system

    def size(self) -> int:
        return len(self._inode.seen)

    def read_at(self, position: int, length: int) -> bytes:
        self._system.fail_read_if_asked()
        return bytes(self._inode.seen[position : position + length])

    def send_at(self, position: int, length: int, descriptor: int) -> int:
        return 0

    def is_cached(self, position: int, length: int) -> bool:
        return True

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        seen = self._inode.seen
        room = self._system.take_room(len(data))
        if position > len(seen):
            seen.extend(bytes(position - len(seen)))
        seen[position : position + room] = data[:room]
        self._inode.rewritten(position, position + room)
        self._inode.modified_ms = self._system.clock_ms()
        if room < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")

    def truncate(self, size: int) -> None:
        self._inode.rewritten(size, len(self._inode.seen))
        self._inode.modified_ms = self._system.clock_ms()
        del self._inode.seen[size:]

    def sync(self) -> None:
        self._system.end_if_asked()
        try:
            self._system.fail_if_asked()
        except OSError:
            self._inode.sync_failed()
            raise
        self._inode.sync()

    def close(self) -> None:
        """Nothing to give back."""


class MemoryFileSystem:
    """Files by path, with a disk that can be full, fail its next syncs, and lose power; or the process can end."""

    def __init__(self, clock_ms: Callable[[], int] = lambda: 0) -> None:
        self.clock_ms = clock_ms
        self._seen: dict[Path, _Inode] = {}
        self._durable: dict[Path, _Inode] = {}
        self._directories: set[Path] = set()
        self._nameless: set[Path] = set()  # directories whose names no sync has covered
        self.room_bytes: int | None = None  # what may still be written; None: as much as you like
        self.failing_syncs = 0
        self.syncs_left: int | None = None  # before the process is killed at one; None: it is not
        self.failing_reads = 0

    def open(self, path: Path) -> MemoryFile:
        inode = self._seen.get(path)
        if inode is None:
            inode = self._seen[path] = _Inode(self.clock_ms())
        return MemoryFile(inode, self)

    def read(self, path: Path) -> bytes | None:
        inode = self._seen.get(path)
        return None if inode is None else bytes(inode.seen)

    def replace(self, path: Path, content: bytes, *, sync: bool = True) -> None:
        if self.take_room(len(content)) < len(content):
            raise OSError(errno.ENOSPC, "No space left on device")
        if sync:
            self.fail_if_asked()
        inode = self._seen[path] = _Inode(self.clock_ms())
        inode.seen[:] = content
        if sync:
            inode.durable = content
            self.end_if_asked()
            self._durable[path] = inode

    def names(self, directory: Path) -> list[str]:
        names = {path.relative_to(directory).parts[0] for path in self._seen if path.is_relative_to(directory)}
        names |= {path.name for path in self._directories if path.parent == directory}
        return sorted(names)

    def size(self, path: Path) -> int:
        return len(self._seen[path].seen)

    def modified_ms(self, path: Path) -> int:
        return self._seen[path].modified_ms

    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        self._seen[path].modified_ms = time_ms

    def make_directory(self, path: Path) -> None:
        if path not in self._directories:
            self._directories.add(path)
            if path.parent in self._directories:
                self._nameless.add(path)

    def rename(self, path: Path, to: Path) -> None:
        if path in self._seen:
            self._seen[to] = self._seen.pop(path)
            return  # a file's new name is on the disk when its directory is synced
        if path not in self._directories and not any(name.is_relative_to(path) for name in self._seen):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        for names in (self._seen, self._durable):
            for old in [name for name in names if name.is_relative_to(path)]:
                names[to / old.relative_to(path)] = names.pop(old)
        self._directories = {_moved(each, path, to) for each in self._directories}
        self._nameless = {_moved(each, path, to) for each in self._nameless}

    def remove(self, path: Path) -> None:
        self._seen.pop(path, None)

    def remove_tree(self, directory: Path) -> None:
        for names in (self._seen, self._durable):
            for name in [name for name in names if name.is_relative_to(directory)]:
                del names[name]
        self._directories = {path for path in self._directories if not path.is_relative_to(directory)}
        self._nameless &= self._directories

    def load(self, path: Path, position: int, length: int) -> None:
        """Everything is in memory."""

    def drop_cached(self, path: Path) -> None:
        self._seen[path].drop_cached()

    def sync_directory(self, directory: Path) -> None:
        self.end_if_asked()
        self.fail_if_asked()
        for names in [path for path in self._durable if path.parent == directory and path not in self._seen]:
            del self._durable[names]
        self._durable |= {path: inode for path, inode in self._seen.items() if path.parent == directory}
        self._nameless = {path for path in self._nameless if path.parent != directory}

    def crash(
        self, survivors: Survivors = lambda unsynced: b"", journal: Journal = lambda directory: False
    ) -> "MemoryFileSystem":
        """
        Return the file system as the next start finds it; handles on this one are dead.

        `survivors` says what is there of the bytes written behind the synced part of a file: none by default, but a
        real disk may have got to some of them, or to part of a page. `journal` says in which directories it has got to
        the names, without the content of the files that they stand for.
        """
        after = MemoryFileSystem(self.clock_ms)
        parents = {path.parent for path in (*self._seen, *self._durable, *self._nameless)}
        written = {directory: journal(directory) for directory in sorted(parents)}
        lost = {path for path in self._nameless if not written[path.parent]}
        after._directories = {path for path in self._directories if not _lies_in(path, lost)}
        kept = {path: inode for path, inode in self._durable.items() if not written[path.parent]}
        kept |= {path: inode for path, inode in self._seen.items() if written[path.parent]}
        for path, inode in kept.items():
            if _lies_in(path, lost):
                continue
            content = bytearray(inode.durable)
            unsynced = bytes(inode.seen[len(content) :])
            if unsynced:
                content += survivors(unsynced)
            copy = _Inode(inode.modified_ms)
            copy.seen[:] = content
            copy.durable = bytes(content)
            after._seen[path] = after._durable[path] = copy
        return after

    def is_on_disk(self, path: Path, size: int) -> bool:
        """Whether a power cut now would leave so many bytes of a file as they are."""
        inode = self._durable.get(path)
        return inode is not None and size <= len(inode.durable) and inode.durable[:size] == inode.seen[:size]

    def take_room(self, wanted: int) -> int:
        """Take space on the disk; return how much of it there was."""
        if self.room_bytes is None:
            return wanted
        taken = min(wanted, self.room_bytes)
        self.room_bytes -= taken
        return taken

    def end_if_asked(self) -> None:
        """Raise ProcessKilled once `syncs_left` are done."""
        if self.syncs_left is not None:
            if not self.syncs_left:
                raise ProcessKilled
            self.syncs_left -= 1

    def fail_if_asked(self) -> None:
        """Raise the error of a failing disk as often as `failing_syncs` says."""
        if self.failing_syncs:
            self.failing_syncs -= 1
            raise OSError(errno.EIO, "Input/output error")

    def fail_read_if_asked(self) -> None:
        """Likewise for reads, as often as `failing_reads` says."""
        if self.failing_reads:
            self.failing_reads -= 1
            raise OSError(errno.EIO, "Input/output error")


def _moved(path: Path, old: Path, new: Path) -> Path:
    return new / path.relative_to(old) if path.is_relative_to(old) else path


def _lies_in(path: Path, directories: set[Path]) -> bool:
    return any(path == each or path.is_relative_to(each) for each in directories)
