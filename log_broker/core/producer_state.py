"""
What a partition remembers of each idempotent producer, so that a repeated batch is stored once and a lost one noticed.

The rules are Kafka's (KIP-98, KIP-360):

- a batch equal in epoch and sequence range to one of the last five is a duplicate: it is answered with the offset of
  the first and not stored again;
- otherwise its first sequence must follow the last one stored, and 0 follows 2^31-1;
- a higher epoch starts again at sequence 0; a lower one is fenced;
- a producer of which nothing is known may start anywhere: its records may have left by retention.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import BatchHeader

CACHED_BATCHES = 5  # as many as a producer may have in flight
SEQUENCE_MAX = 2**31 - 1


class StoredBatch(NamedTuple):
    """One batch of a producer that is in the log; `last_sequence` belongs to the record at `last_offset`."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        return _back(self.last_sequence, self.offset_delta)


class ProducerEntry(NamedTuple):
    """One producer: its latest epoch and the last batches of that epoch, oldest first, at least one."""

    epoch: int
    batches: tuple[StoredBatch, ...]


class ProducerRow(NamedTuple):
    """One stored batch of one producer, as a snapshot lists it: rows of one producer stand oldest first."""

    producer_id: int
    epoch: int
    batch: StoredBatch


def advance(sequence: int, by: int) -> int:
    """Return the sequence `by` records later: 0 follows 2^31-1."""
    return (sequence + by) & SEQUENCE_MAX


def _back(sequence: int, by: int) -> int:
    return (sequence - by) & SEQUENCE_MAX


class ProducerStates:
    """All producers of one partition. `check` only reads; `record` alone changes, and `restore` takes it back."""

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def check(self, header: BatchHeader) -> StoredBatch | None:
        """
        Return the stored batch that this one repeats, or None when it may be appended.

        Raises BrokerError(INVALID_PRODUCER_EPOCH) for a fenced producer and BrokerError(OUT_OF_ORDER_SEQUENCE_NUMBER)
        when batches are missing before this one.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return None
        epoch, first = header.producer_epoch, header.base_sequence
        last_stored = entry.batches[-1].last_sequence
        if epoch == entry.epoch:
            if first == (last_stored + 1) & SEQUENCE_MAX:
                return None
            last = advance(first, header.last_offset_delta)
            for stored in entry.batches:
                if stored.last_sequence == last and stored.offset_delta == header.last_offset_delta:
                    return stored
            raise BrokerError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {first} after {last_stored}",
            )
        if epoch < entry.epoch:
            raise BrokerError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} uses epoch {epoch}, but {entry.epoch} has been seen",
            )
        if first != 0:
            raise BrokerError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} starts its epoch {epoch} with sequence {first} in place of 0",
            )
        return None

    def record(self, header: BatchHeader, base_offset: int, timestamp: int) -> ProducerEntry | None:
        """Take a batch as stored at `base_offset`; return what `restore` needs to undo it."""
        previous = self._entries.get(header.producer_id)
        delta = header.last_offset_delta
        stored = StoredBatch((header.base_sequence + delta) & SEQUENCE_MAX, base_offset + delta, delta, timestamp)
        if previous is None or previous.epoch != header.producer_epoch:
            batches: tuple[StoredBatch, ...] = (stored,)
        else:
            batches = (*previous.batches[1 - CACHED_BATCHES :], stored)
        self._entries[header.producer_id] = ProducerEntry(header.producer_epoch, batches)
        return previous

    def replay(self, header: BatchHeader) -> None:
        """Take a batch read from the log at recovery; one that a snapshot already held changes nothing."""
        if header.producer_id < 0 or header.is_control:
            return
        known = self._entries.get(header.producer_id)
        if known is None or header.last_offset > known.batches[-1].last_offset:
            self.record(header, header.base_offset, header.max_timestamp)

    def restore(self, producer_id: int, previous: ProducerEntry | None) -> None:
        """Put a producer back to what `record` returned; undo the latest first."""
        if previous is None:
            self._entries.pop(producer_id, None)
        else:
            self._entries[producer_id] = previous

    def expire(self, before_timestamp: int) -> int:
        """Forget producers whose last batch is older than `before_timestamp`; return how many."""
        stale = [pid for pid, entry in self._entries.items() if entry.batches[-1].timestamp < before_timestamp]
        for producer_id in stale:
            del self._entries[producer_id]
        return len(stale)

    def rows(self, undone: dict[int, ProducerEntry | None] | None = None) -> Iterator[ProducerRow]:
        """Yield every stored batch; a producer in `undone` is listed as it was then."""
        entries: dict[int, ProducerEntry | None] = {**self._entries, **(undone or {})}
        for producer_id, entry in entries.items():
            if entry is not None:
                for batch in entry.batches:
                    yield ProducerRow(producer_id, entry.epoch, batch)

    def load(self, rows: Iterable[ProducerRow]) -> None:
        """Replace everything by the rows of a snapshot."""
        self._entries.clear()
        for producer_id, epoch, batch in rows:
            known = self._entries.get(producer_id)
            batches = known.batches if known is not None and known.epoch == epoch else ()
            self._entries[producer_id] = ProducerEntry(epoch, (*batches[1 - CACHED_BATCHES :], batch))
