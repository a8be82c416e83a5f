"""
The aborted transactions of a log, a file beside each segment that ends any, in Kafka's format (`.txnindex`).

    version int16 (0), producer id int64, first offset int64, last offset int64, last stable offset int64

Entries stand in order of their last offsets, those of the markers, and lie with the segment of the marker. In memory
they are the bytes of the file: 34 for each aborted transaction that is still in the log. Unlike the other indexes a
missing one cannot be made again from its segment alone, so a file is on the disk before its segment is left behind; the
entries of the active segment are found again by recovery, which replays it.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path

from log_broker.core.partition.producers import AbortedTransaction
from log_broker.storage.files import FileSystem
from log_broker.storage.segment_files import TRANSACTION_INDEX_SUFFIX, file_name

_ENTRY = struct.Struct(">hqqqq")
_LAST_OFFSET = struct.Struct(">q")
_LAST_OFFSET_AT = 18
_VERSION = 0


class AbortedTransactions:
    """All of one log, by the base offset of the segment that holds the marker."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._entries: dict[int, bytearray] = {}
        self._bases: list[int] = []
        for name in files.names(directory):
            stem = name.removesuffix(TRANSACTION_INDEX_SUFFIX)
            if stem != name and stem.isdigit():
                content = files.read(directory / name)
                if content:
                    self._entries[int(stem)] = bytearray(content[: len(content) - len(content) % _ENTRY.size])
        self._bases = sorted(self._entries)

    def __bool__(self) -> bool:
        return bool(self._bases)

    def add(self, base_offset: int, transaction: AbortedTransaction) -> None:
        """Take one in whose marker is the latest; it reaches the disk with `save`."""
        if base_offset not in self._entries:
            self._entries[base_offset] = bytearray()
            self._bases.insert(bisect_left(self._bases, base_offset), base_offset)
        self._entries[base_offset] += _ENTRY.pack(_VERSION, *transaction)

    def save(self, base_offset: int) -> None:
        """Write the file of one segment and return once it is on the disk; raises OSError."""
        if base_offset in self._entries:
            self._files.replace(self._path(base_offset), bytes(self._entries[base_offset]))

    def forget_from(self, offset: int) -> None:
        """Drop those with markers at `offset` or behind, as recovery is about to find them again; raises OSError."""
        for base_offset in list(self._bases):
            entries = self._entries[base_offset]
            kept = _first_from(entries, offset)
            del entries[kept * _ENTRY.size :]
            if not entries:
                self.remove(base_offset)

    def cut(self, base_offset: int, end_offset: int) -> bytes:
        """
        Drop those with markers at `end_offset` or behind, of which `base_offset` is the last segment.

        Returns what the file of that segment is to hold; those of later segments are to go.
        """
        for other in [base for base in self._bases if base > base_offset or base >= end_offset]:
            self._drop(other)
        entries = self._entries.get(base_offset)
        if entries is None:
            return b""
        del entries[_first_from(entries, end_offset) * _ENTRY.size :]
        if not entries:
            self._drop(base_offset)
        return bytes(entries)

    def forget(self, base_offset: int) -> list[Path]:
        """Drop those of a segment that left the log; return the file, if there is one, which can be removed."""
        if base_offset not in self._entries:
            return []
        self._drop(base_offset)
        return [self._path(base_offset)]

    def remove(self, base_offset: int) -> None:
        """Drop those of one segment and its file; raises OSError."""
        if base_offset in self._entries:
            self._drop(base_offset)
            self._files.remove(self._path(base_offset))

    def of(self, base_offset: int) -> list[AbortedTransaction]:
        """List those of one segment."""
        return list(_unpack(self._entries.get(base_offset, b"")))

    def replace(self, sources: list[int], base_offset: int, transactions: Iterable[AbortedTransaction]) -> None:
        """
        Let `transactions` stand for those of `sources`, neighbours of which `base_offset` is the first.

        What they lack has no record left in the log, old or new, so this comes before the segments change places.
        Raises OSError.
        """
        fresh = bytearray()
        for transaction in transactions:
            fresh += _ENTRY.pack(_VERSION, *transaction)
        if fresh != self._entries.get(base_offset, b""):
            if fresh:
                self._files.replace(self._path(base_offset), bytes(fresh))
            else:
                self._files.remove(self._path(base_offset))
        for source in sources:
            if source in self._entries:
                self._drop(source)
                if source != base_offset:
                    self._files.remove(self._path(source))
        if fresh:
            self._entries[base_offset] = fresh
            self._bases.insert(bisect_left(self._bases, base_offset), base_offset)

    def between(self, from_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """
        Return (producer id, first offset) of the transactions with records in [from_offset, end_offset).

        A client drops the records of the producer from the first offset on until it meets the marker.
        """
        found: list[tuple[int, int]] = []
        # A marker may stand in any later segment; the entries say when there can be no more.
        for base_offset in self._bases[max(bisect_right(self._bases, from_offset) - 1, 0) :]:
            entries = self._entries[base_offset]
            for transaction in _unpack(memoryview(entries)[_first_from(entries, from_offset) * _ENTRY.size :]):
                if transaction.first_offset < end_offset:
                    found.append((transaction.producer_id, transaction.first_offset))
                if transaction.last_stable_offset >= end_offset:
                    return found
        return found

    def _drop(self, base_offset: int) -> None:
        del self._entries[base_offset]
        self._bases.remove(base_offset)

    def _path(self, base_offset: int) -> Path:
        return self._directory / file_name(base_offset, TRANSACTION_INDEX_SUFFIX)


def _unpack(entries: bytes | bytearray | memoryview) -> Iterator[AbortedTransaction]:
    for _, *fields in _ENTRY.iter_unpack(entries):
        yield AbortedTransaction(*fields)


def _first_from(entries: bytearray, offset: int) -> int:
    """Return the index of the first entry whose marker stands at `offset` or behind."""

    def last_offset(at: int) -> int:
        found: int = _LAST_OFFSET.unpack_from(entries, at * _ENTRY.size + _LAST_OFFSET_AT)[0]
        return found

    return bisect_left(range(len(entries) // _ENTRY.size), offset, key=last_offset)
