"""
What of a log no sync has covered: bytes, names of files, and the word of whose records they are.
"""

from collections.abc import Sequence
from pathlib import Path

from log_broker.storage.append_job import SealedSync
from log_broker.storage.files import FileSystem
from log_broker.storage.segment import Segment


class Unsynced:
    """
    A ledger of what the next sync is to cover.

    `segments` are those with bytes, each with how much of it was synced when it came in here, `directories` those with
    names of files. All before `recovery_point` survives a power cut. `metadata`, what partition.metadata is to say, is
    on the disk before the next record: no record is ever found without a word of whose it is.
    """

    __slots__ = ("_directory", "_is_on_disk", "directories", "metadata", "recovery_point", "segments")

    def __init__(self, directory: Path, recovery_point: int, *, is_on_disk: bool, metadata: bytes | None) -> None:
        self.segments: dict[Segment, int] = {}
        self.directories: dict[Path, None] = {}
        self.recovery_point = recovery_point
        self.metadata = metadata
        self._directory = directory
        self._is_on_disk = is_on_disk  # the name of the directory, in its parent

    @property
    def size_bytes(self) -> int:
        return sum(segment.size - synced for segment, synced in self.segments.items())

    def add(self, segment: Segment) -> None:
        """Take note of a write to come; the first to a file may create it."""
        if not segment.files.is_open:
            # Its name needs a sync of the directory, and the directory's own one of its parent.
            self.directories[self._directory] = None
            if not self._is_on_disk:
                self._is_on_disk = True
                self.directories[self._directory.parent] = None
        if segment not in self.segments:
            self.segments[segment] = segment.size

    def sync(self, files: FileSystem) -> None:
        """Sync all of it, and wait for that; raises OSError."""
        for segment in self.segments:
            segment.file.sync()
        for directory in self.directories:
            files.sync_directory(directory)

    def all_synced(self, end_offset: int) -> Sequence[Segment]:
        """Take note of a sync up to the end of the log; return the segments that it covered."""
        covered = list(self.segments)
        self.segments.clear()
        self.directories.clear()
        self.recovery_point = end_offset
        return covered

    def sealed_sync(self, files: FileSystem, active: Segment) -> SealedSync | None:
        """Return what brings all but the active segment to the disk, None when there is nothing else."""
        sealed = [segment for segment in self.segments if segment is not active]
        return SealedSync(files, sealed, list(self.directories)) if sealed else None

    def sealed_synced(self, sync: SealedSync, active: Segment) -> Sequence[Segment]:
        """Take note that `sync` has run; return the segments that it covered."""
        covered = [segment for segment in sync.segments if self.segments.pop(segment, None) is not None]
        # One that became full while the sync ran is not covered by it.
        first_dirty = min((segment.base_offset for segment in self.segments), default=active.base_offset)
        self.recovery_point = max(self.recovery_point, first_dirty)
        return covered

    def shortened(self, active: Segment, end_offset: int) -> None:
        """Take note that a cut, which syncs what it leaves, has brought the log's end to the disk."""
        self.segments.pop(active, None)
        self.directories.pop(self._directory, None)
        if not self.segments and not self.directories:
            self.recovery_point = end_offset
