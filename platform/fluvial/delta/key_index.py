"""
Where each key of a table lies: a cache of one version, kept in the driver so that a batch need not search the table.

A key is known by a digest of 16 bytes (BLAKE2b): two keys of a table share one with a chance of about 1 in 10^24 even
among ten million, less than that of memory forgetting a bit. 36 bytes a key, in sorted arrays: a large one that seldom
changes and a small one for keys that are new, which is merged into it now and then.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

BYTES_A_KEY = 36
GONE = -1
# New keys go among a few at first, so that the many are moved seldom.
_YOUNG_MIN = 1 << 16
_YOUNG_SHARE = 8

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Digests:
    """The digests of some keys: the first and the second half of each, as unsigned numbers."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.high)

    @classmethod
    def of(cls, keys: Iterable[str]) -> Self:
        """Digest keys, about a microsecond each."""
        joined = b"".join(blake2b(key.encode(), digest_size=16).digest() for key in keys)
        halves = np.frombuffer(joined, dtype=">u8").astype(np.uint64).reshape(-1, 2)
        return cls(np.ascontiguousarray(halves[:, 0]), np.ascontiguousarray(halves[:, 1]))

    def take(self, which: Any) -> Self:
        return type(self)(self.high[which], self.low[which])


@dataclass(frozen=True, slots=True)
class RowLocations:
    """Where some rows lie (`file` is a number that the index gave, GONE for none) and which record made each."""

    file: Numbers
    row: Numbers
    partition: Numbers
    offset: Numbers

    def __len__(self) -> int:
        return len(self.file)

    def take(self, which: Any) -> "RowLocations":
        return RowLocations(self.file[which], self.row[which], self.partition[which], self.offset[which])


class _Sorted:
    """Keys sorted by digest, each with the location of its row."""

    def __init__(self, digests: Digests, locations: RowLocations) -> None:
        self.high, self.low = digests.high, digests.low
        self.file: NDArray[Any] = locations.file.astype(np.int32, copy=False)
        self.row = locations.row
        self.partition: NDArray[Any] = locations.partition.astype(np.int32, copy=False)
        self.offset = locations.offset

    @classmethod
    def nothing(cls) -> Self:
        numbers = np.empty(0, np.int64)
        return cls(Digests.of(()), RowLocations(numbers, numbers, numbers, numbers))

    def __len__(self) -> int:
        return len(self.high)

    def find(self, wanted: Digests) -> Numbers:
        """The slot of each digest, -1 where there is none."""
        slots = np.searchsorted(self.high, wanted.high).astype(np.int64)
        found = np.full(len(wanted), -1, np.int64)
        open_ = np.arange(len(wanted))
        # Almost always once round: digests that share their first half follow each other.
        while len(open_):
            at = slots[open_]
            inside = at < len(self)
            open_, at = open_[inside], at[inside]
            same = self.high[at] == wanted.high[open_]
            open_, at = open_[same], at[same]
            hit = self.low[at] == wanted.low[open_]
            found[open_[hit]] = at[hit]
            open_ = open_[~hit]
            slots[open_] += 1
        return found

    def put(self, slots: Numbers, locations: RowLocations) -> None:
        self.file[slots] = locations.file
        self.row[slots] = locations.row
        self.partition[slots] = locations.partition
        self.offset[slots] = locations.offset

    def locations(self, slots: Numbers) -> RowLocations:
        return RowLocations(
            self.file[slots].astype(np.int64),
            self.row[slots],
            self.partition[slots].astype(np.int64),
            self.offset[slots],
        )

    def insert(self, digests: Digests, locations: RowLocations) -> None:
        """Add keys that are not there, in any order; raises ValueError for one that comes twice."""
        order = np.lexsort((digests.low, digests.high))
        digests, locations = digests.take(order), locations.take(order)
        if ((digests.high[1:] == digests.high[:-1]) & (digests.low[1:] == digests.low[:-1])).any():
            raise ValueError("a key has two rows")
        at = np.searchsorted(self.high, digests.high)
        self.high = np.insert(self.high, at, digests.high)
        self.low = np.insert(self.low, at, digests.low)
        self.file = np.insert(self.file, at, locations.file)
        self.row = np.insert(self.row, at, locations.row)
        self.partition = np.insert(self.partition, at, locations.partition)
        self.offset = np.insert(self.offset, at, locations.offset)


class KeyIndex:
    """Where the keys of `version` of a table lie. It says nothing of any other version."""

    def __init__(self, version: int) -> None:
        self.version = version
        self._files: list[str] = []
        self._numbers: dict[str, int] = {}
        self._old = _Sorted.nothing()
        self._young = _Sorted.nothing()
        self._alive = 0

    @classmethod
    def of(cls, version: int, files: Sequence[str], digests: Digests, locations: RowLocations) -> Self:
        """
        The index with these keys, each once, in the order of their digests; `locations.file` counts in `files`.
        """
        index = cls(version)
        for name in files:
            index.file_number(name)
        index._old = _Sorted(digests, locations)
        index._alive = len(digests)
        return index

    def entries(self) -> tuple[Digests, RowLocations]:
        """All keys in the order of their digests, and where they lie: not to be changed, and right until `put`."""
        self._merge()
        old = self._old
        return Digests(old.high, old.low), RowLocations(old.file, old.row, old.partition, old.offset)

    def __len__(self) -> int:
        return self._alive

    @property
    def file_names(self) -> Sequence[str]:
        """By number."""
        return tuple(self._files)

    @property
    def nbytes(self) -> int:
        """About how much memory this takes."""
        return (len(self._old) + len(self._young)) * BYTES_A_KEY

    def file_name(self, number: int) -> str:
        return self._files[number]

    def file_number(self, name: str) -> int:
        """The number that identifies a file in `RowLocations`; a new file gets a new one."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._files)
            self._files.append(name)
        return number

    def find(self, digests: Digests) -> RowLocations:
        """The location of each key's row; keys that the table does not have are GONE."""
        old, young = self._old.find(digests), self._young.find(digests)
        locations = RowLocations(*(np.full(len(digests), GONE, np.int64) for _ in range(4)))
        for part, slots in ((self._old, old), (self._young, young)):
            hit = slots >= 0
            found = part.locations(slots[hit])
            locations.file[hit] = found.file
            locations.row[hit] = found.row
            locations.partition[hit] = found.partition
            locations.offset[hit] = found.offset
        return locations

    def put(self, digests: Digests, locations: RowLocations) -> None:
        """Say where keys lie from now on, or that they are GONE; each key once. Raises ValueError otherwise."""
        before = 0
        missing = np.ones(len(digests), bool)
        for part in (self._old, self._young):
            slots = part.find(digests)
            hit = slots >= 0
            before += int((part.file[slots[hit]] != GONE).sum())
            part.put(slots[hit], locations.take(hit))
            missing &= ~hit
        fresh = missing & (locations.file != GONE)
        self._young.insert(digests.take(fresh), locations.take(fresh))
        self._alive += int((locations.file != GONE).sum()) - before
        if len(self._young) > max(_YOUNG_MIN, len(self._old) // _YOUNG_SHARE):
            self._merge()

    def rows_by_file(self, locations: RowLocations) -> dict[str, Numbers]:
        """The row numbers of locations that are not GONE, by file name."""
        kept = locations.take(locations.file != GONE)
        order = np.argsort(kept.file, kind="stable")
        numbers, starts = np.unique(kept.file[order], return_index=True)
        rows: Sequence[Numbers] = np.split(kept.row[order], starts[1:])
        return {self._files[number]: part for number, part in zip(numbers.tolist(), rows, strict=False)}

    def _merge(self) -> None:
        """Bring the new keys among the many, and drop what is gone from both."""
        young, self._young = self._young, _Sorted.nothing()
        for part in (self._old, young):
            kept = part.file != GONE
            if not kept.all():
                for name in ("high", "low", "file", "row", "partition", "offset"):
                    setattr(part, name, getattr(part, name)[kept])
        everything = np.arange(len(young))
        self._old.insert(Digests(young.high, young.low), young.locations(everything))
