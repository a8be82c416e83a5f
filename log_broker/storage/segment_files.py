"""
The files of one segment: their names, the one that is open, and how they leave the disk.
"""

from contextlib import suppress
from pathlib import Path

from log_broker.storage.files import File, FileSystem
from log_broker.storage.index import OffsetIndex, TimeIndex

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
SNAPSHOT_SUFFIX = ".snapshot"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
DELETED_SUFFIX = ".deleted"

# The log last: an index without its log would be taken for rubbish anyway.
_OF_A_SEGMENT = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, SNAPSHOT_SUFFIX, LOG_SUFFIX)


def file_name(offset: int, suffix: str) -> str:
    """Return the name of a file that starts at `offset`: twenty digits, so that names sort as offsets do."""
    return f"{offset:020d}{suffix}"


class SegmentFiles:
    """The files by name; `log`, the file of batches, is opened on first use."""

    __slots__ = ("_files", "_log", "_written_ms", "base_offset", "directory")

    def __init__(self, files: FileSystem, directory: Path, base_offset: int, log: File | None = None) -> None:
        self._files = files
        self.directory = directory
        self.base_offset = base_offset
        self._log = log
        self._written_ms: int | None = None

    def path(self, suffix: str = LOG_SUFFIX) -> Path:
        return self.directory / file_name(self.base_offset, suffix)

    @property
    def log(self) -> File:
        if self._log is None:
            self._log = self._files.open(self.path())
        return self._log

    @property
    def is_open(self) -> bool:
        return self._log is not None

    @property
    def written_ms(self) -> int:
        """When the log was last written, by this machine's clock; raises OSError."""
        if self._written_ms is None:
            self._written_ms = self._files.modified_ms(self.path())
        return self._written_ms

    @written_ms.setter
    def written_ms(self, now_ms: int) -> None:
        self._written_ms = now_ms

    def read_indexes(self, segment_bytes: int) -> tuple[OffsetIndex, TimeIndex] | None:
        """Return what the index files of a segment of this size say, None when that cannot be; raises OSError."""
        index_content = self._files.read(self.path(INDEX_SUFFIX))
        times_content = self._files.read(self.path(TIME_INDEX_SUFFIX))
        if index_content is None or not times_content:
            return None
        index, times = OffsetIndex.from_bytes(index_content, segment_bytes), TimeIndex.from_bytes(times_content)
        return None if index is None or times is None else (index, times)

    def write_indexes(self, index: OffsetIndex, times: TimeIndex) -> None:
        """Write the index files. They need no sync: what is lost of them is made again. Raises OSError."""
        self._files.replace(self.path(INDEX_SUFFIX), index.to_bytes(), sync=False)
        self._files.replace(self.path(TIME_INDEX_SUFFIX), times.to_bytes(), sync=False)

    def remove_indexes(self) -> None:
        """Remove the index files; raises OSError."""
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            self._files.remove(self.path(suffix))

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def retire(self) -> list[Path]:
        """
        Take the files out of the log by another name, and return those that are to be removed later. Raises OSError.

        Should a crash bring the old names back, the segment lies before the log's start and goes once more.
        """
        self.close()
        retired = []
        for suffix in _OF_A_SEGMENT:
            path = self.path(suffix)
            doomed = path.with_name(path.name + DELETED_SUFFIX)
            with suppress(FileNotFoundError):
                self._files.rename(path, doomed)
                retired.append(doomed)
        return retired

    def remove(self) -> None:
        """Remove the files; raises OSError."""
        self.close()
        for suffix in _OF_A_SEGMENT:
            self._files.remove(self.path(suffix))
