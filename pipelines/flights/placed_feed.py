"""A feed as the log of a topic with a given number of partitions: which record is which, and its exact bytes."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pipelines.flights.encode import FRAMING_BYTES, RowEncoder, framing
from pipelines.flights.feeds import Feed
from pipelines.flights.placement import offsets_of, partitions_of
from pipelines.flights.sender import Outgoing
from pipelines.flights.topic_log import ForeignLogError, StoredRecord

CHUNK_ROWS = 16_384


class PlacedFeed:
    """The records of a feed, each with its partition and offset."""

    def __init__(self, feed: Feed, *, partitions: int, schema_id: int) -> None:
        self.feed = feed
        self.partitions = partitions
        self._partition_of = partitions_of(feed.keys, feed.rows, partitions)
        self._offset_of = offsets_of(self._partition_of, partitions)
        self._encoder = RowEncoder(feed.schema)
        self._framing = framing(schema_id)
        self.ends: list[int] = np.bincount(self._partition_of, minlength=partitions).tolist()
        """The offset after the last record, for each partition."""

    def missing(self, held: Sequence[int]) -> Iterator[list[Outgoing]]:
        """Yield, in order and a chunk at a time, the records that a log with the ends `held` does not have."""
        missing = np.flatnonzero(self._offset_of >= np.asarray(held)[self._partition_of])
        for start in range(0, len(missing), CHUNK_ROWS):
            yield self._outgoing(missing[start : start + CHUNK_ROWS])

    def check(self, partition: int, offset: int, stored: StoredRecord | None) -> None:
        """Raise `ForeignLogError` unless `stored` is the feed's record of that place; its schema id may differ."""
        here = np.flatnonzero(self._partition_of == partition)
        expected = self._outgoing(here[offset : offset + 1])[0]
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
        return list(
            map(
                Outgoing,
                self._encoder.encode(self.feed.records.iloc[which], self._framing),
                [keys[at] for at in which.tolist()],
                self._partition_of[which].tolist(),
                self.feed.timestamps[which].tolist(),
            )
        )
