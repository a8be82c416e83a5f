"""A feed as the log of a topic with a given number of partitions: which record is which, and its exact bytes."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from fluvial_demo.encode import FRAMING_BYTES, RowEncoder, framing
from fluvial_demo.feeds import Feed
from fluvial_demo.placement import offsets_of, partitions_of
from fluvial_demo.sender import Outgoing
from fluvial_demo.topic_log import ForeignLogError, StoredRecord

CHUNK_ROWS = 16_384
UNREGISTERED_ID = 2**31 - 1


class PlacedFeed:
    """
    The records of a feed, each with its partition and its number there, which is its offset where nothing is damaged.

    With `damages` those that the feed names are damaged. A log that puts them aside has gaps in their place, and behind
    the first day the repaired ones and what came with them; `shifts` says how many offsets that takes in each one.
    """

    def __init__(self, feed: Feed, *, partitions: int, schema_id: int, damages: bool = False) -> None:
        self.feed = feed
        self._damaged = feed.damaged if damages else frozenset()
        self.partitions = partitions
        self._partition_of = partitions_of(feed.keys, feed.rows, partitions)
        self._offset_of = offsets_of(self._partition_of, partitions)
        self._encoder = RowEncoder(feed.schema)
        self._framing = framing(schema_id)
        self.ends: list[int] = np.bincount(self._partition_of, minlength=partitions).tolist()
        """How many records each partition has."""
        self.first_day: list[int] = np.bincount(
            self._partition_of[: feed.first_day if damages else 0], minlength=partitions
        ).tolist()
        """How many of them are of the first day, where something is damaged."""
        self.shifts = [0] * partitions

    @property
    def log_ends(self) -> list[int]:
        """The offset after the last record, for each partition."""
        return [own + shift for own, shift in zip(self.ends, self.shifts, strict=True)]

    def held(self, ends: Sequence[int]) -> list[int]:
        """Return how many of each partition's records a log with these ends has."""
        places = zip(ends, self.ends, self.first_day, self.shifts, strict=True)
        return [min(end if end <= first else max(first, end - shift), own) for end, own, first, shift in places]

    def offset(self, partition: int, number: int) -> int:
        """Return where in the log a partition's record is."""
        return number if number < self.first_day[partition] else number + self.shifts[partition]

    def repaired(self, partition: int, number: int) -> bytes:
        """Return a damaged record as its producer should have sent it; raises `ForeignLogError` for any other."""
        here = np.flatnonzero(self._partition_of == partition)
        if number >= len(here) or int(here[number]) not in self._damaged:
            raise ForeignLogError(self.feed.topic, partition, f"had a bad record at offset {number}")
        return self._encoder.encode(self.feed.records.iloc[here[number : number + 1]], self._framing)[0]

    def missing(self, held: Sequence[int], *, first_day: bool = False) -> Iterator[list[Outgoing]]:
        """Yield, in order and a chunk at a time, the records that a log lacks; only those of the first day if asked."""
        missing = np.flatnonzero(self._offset_of >= np.asarray(held)[self._partition_of])
        if first_day:
            missing = missing[missing < self.feed.first_day]
        for start in range(0, len(missing), CHUNK_ROWS):
            yield self._outgoing(missing[start : start + CHUNK_ROWS])

    def check(self, partition: int, number: int, stored: StoredRecord | None) -> None:
        """Raise `ForeignLogError` unless `stored` is the feed's record of that place; its schema id may differ."""
        here = np.flatnonzero(self._partition_of == partition)
        offset = self.offset(partition, number)
        if int(here[number]) in self._damaged:
            if stored is not None and stored.offset == offset:
                raise ForeignLogError(self.feed.topic, partition, f"holds a damaged record at offset {offset}")
            return
        expected = self._outgoing(here[number : number + 1])[0]
        if stored is None or stored.offset != offset:
            raise ForeignLogError(self.feed.topic, partition, f"has no record at offset {offset}")
        if (
            stored.value is None
            or stored.value[FRAMING_BYTES:] != expected.value[FRAMING_BYTES:]
            or stored.key != expected.key
            or stored.timestamp_ms != expected.timestamp_ms
        ):
            raise ForeignLogError(self.feed.topic, partition, f"holds another record at offset {offset}")

    def _outgoing(self, which: npt.NDArray[np.int64]) -> list[Outgoing]:
        keys = self.feed.keys
        values = self._encoder.encode(self.feed.records.iloc[which], self._framing)
        if not self._damaged.isdisjoint(places := which.tolist()):
            values = [
                damaged(value, at) if at in self._damaged else value for at, value in zip(places, values, strict=True)
            ]
        return list(
            map(
                Outgoing,
                values,
                [keys[at] for at in which.tolist()],
                self._partition_of[which].tolist(),
                self.feed.timestamps[which].tolist(),
            )
        )


def damaged(value: bytes, number: int) -> bytes:
    """Return a value as faulty producers send it: cut short, under an id that nobody has, or with more behind it."""
    match number % 3:
        case 0:
            return value[:-4]
        case 1:
            return framing(UNREGISTERED_ID) + value[FRAMING_BYTES:]
        case _:
            return value + b"\0\0"
