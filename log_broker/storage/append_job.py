"""
Work on a log's files that may run outside the event loop's thread: it touches nothing but files.
"""

import errno
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from log_broker.core.partition.protocol import PendingBatch
from log_broker.records.batch import Buffer
from log_broker.storage.files import File, FileSystem, OsFile
from log_broker.storage.segment import Segment


class AppendJob:
    """One write under way. It may be called from any thread; everything else is done before and after it."""

    __slots__ = (
        "_directories",
        "_files",
        "_gate",
        "_is_cancelled",
        "_sync_files",
        "batches",
        "buffers",
        "marks",
        "position",
        "segment",
        "synced",
        "target",
    )

    def __init__(
        self,
        files: FileSystem,
        *,
        segment: Segment | None,
        batches: Sequence[PendingBatch],
        buffers: Sequence[Buffer],
        sync_files: Sequence[File],
        directories: Sequence[Path],
        sync: bool,
        marks: Sequence[tuple[Path, bytes]] = (),
    ) -> None:
        """`marks` are small files, (path, content), that are on the disk before the first batch is in the log."""
        self._files = files
        self.marks = marks
        self._gate = Lock() if marks else None
        self._is_cancelled = False
        self._sync_files = sync_files
        self._directories = directories
        self.segment = segment
        self.target = segment.files.log if segment is not None else None
        self.position = segment.size if segment is not None else 0
        self.batches = batches
        self.buffers = buffers
        self.synced = sync

    @property
    def waits_for_disk(self) -> bool:
        """Whether the call waits for the disk, so that the event loop must not."""
        return self.synced or bool(self.marks)

    def cancel(self) -> None:
        """Touch nothing more by name, as it may belong to another log soon; returns once no such step is under way."""
        if self._gate is not None:
            with self._gate:
                self._is_cancelled = True

    def system_calls(self) -> tuple[int, int, tuple[Buffer, ...], tuple[int, ...]] | None:
        """
        Return what is written, as descriptor, position and buffers, and which descriptors are synced then.

        None where the call does more, or with files that are not of the operating system.
        """
        if self.marks or self._directories:
            return None
        target = self.target
        if target is not None and type(target) is not OsFile:
            return None
        synced = []
        for file in self._sync_files if self.synced else ():
            if type(file) is not OsFile:
                return None
            synced.append(file.descriptor)
        return -1 if target is None else target.descriptor, self.position, tuple(self.buffers), tuple(synced)

    def __call__(self) -> None:
        """Write, then sync; raises OSError."""
        if self._gate is not None:
            with self._gate:
                if self._is_cancelled:
                    raise FileNotFoundError(errno.ENOENT, "the partition was deleted")
                for path, content in self.marks:
                    self._files.replace(path, content)
        if self.target is not None:
            self.target.write_at(self.position, self.buffers)
        if self.synced:
            for file in self._sync_files:
                file.sync()
            for directory in self._directories:
                self._files.sync_directory(directory)


class SealedSync:
    """A sync of sealed segments by file handles of its own, for a thread beside the appends."""

    __slots__ = ("_directories", "_files", "_paths", "segments")

    def __init__(self, files: FileSystem, segments: Sequence[Segment], directories: Sequence[Path]) -> None:
        self._files = files
        self._paths = [segment.path() for segment in segments]
        self._directories = directories
        self.segments = segments

    def run(self) -> None:
        """Raises OSError."""
        for path in self._paths:
            file = self._files.open(path)
            try:
                file.sync()
            finally:
                file.close()
        for directory in self._directories:
            self._files.sync_directory(directory)
