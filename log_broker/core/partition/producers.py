"""
What a partition remembers of each idempotent producer, so that a repeated batch is stored once and a lost one noticed.

The rules are Kafka's (KIP-98, KIP-360):

- a batch equal in epoch and sequence range to one of the last five is a duplicate: it is answered with the offset of
  the first and not stored again;
- otherwise its first sequence must follow the last one stored, and 0 follows 2^31-1;
- a higher epoch starts again at sequence 0; a lower one is fenced;
- a producer of which nothing is known may start anywhere: its records may have left by retention.

A transactional batch opens a transaction of its producer in this partition, and a marker ends it. While one is open,
records outside it are refused. Batches that a coordinator writes for a producer have no sequence (-1): of them only
the epoch is checked.

How long a producer has been silent goes by the broker's clock, not by the times that it gives its records: one that
writes old records is not forgotten before its time, and one that writes future ones not kept beyond it. (Kafka goes by
the records' times.)
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import LOG_APPEND_TIME, NO_SEQUENCE, NO_TIMESTAMP, TRANSACTIONAL, BatchHeader
from log_broker.records.control import EndMarker

CACHED_BATCHES = 5  # as many as a producer may have in flight
SEQUENCE_MAX = 2**31 - 1
NO_COORDINATOR_EPOCH = -1
NO_TRANSACTION = -1
UNBOUNDED_MS = 2**63 - 1


class StoredBatch(NamedTuple):
    """
    One batch of a producer that is in the log; `last_sequence` belongs to the record at `last_offset`.

    `timestamp` is when a broker took it in.
    """

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


NO_BATCH = StoredBatch(NO_SEQUENCE, -1, 0, NO_TIMESTAMP)


class ProducerEntry(NamedTuple):
    """One producer: its latest epoch, the last batches of that epoch, oldest first, and its transaction."""

    epoch: int
    batches: tuple[StoredBatch, ...]
    timestamp: int = NO_TIMESTAMP  # when a broker took in the last batch or marker
    coordinator_epoch: int = NO_COORDINATOR_EPOCH  # of the last marker
    first_offset: int = NO_TRANSACTION  # of the open transaction


class ProducerRow(NamedTuple):
    """
    One stored batch of one producer, as a snapshot lists it: rows of one producer stand oldest first.

    A producer without a batch in its epoch has one row with NO_BATCH.
    """

    producer_id: int
    epoch: int
    batch: StoredBatch
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    first_offset: int = NO_TRANSACTION


class AbortedTransaction(NamedTuple):
    """
    A transaction that was aborted: its records lie between the two offsets, the last of which is the marker's.

    `last_stable_offset` is what that became with the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def advance(sequence: int, by: int) -> int:
    """Return the sequence `by` records later: 0 follows 2^31-1."""
    return (sequence + by) & SEQUENCE_MAX


def _back(sequence: int, by: int) -> int:
    return (sequence - by) & SEQUENCE_MAX


class ProducerStates:
    """
    All producers of one partition. `check` only reads; `record` and `mark` alone change, and `restore` takes it back.
    """

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        # Producer id -> first offset of its open transaction, rising. Only this class changes it.
        self.open_transactions: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def all(self) -> Mapping[int, ProducerEntry]:
        """Return every producer by its id."""
        return self._entries

    def check(self, header: BatchHeader) -> StoredBatch | None:
        """
        Return the stored batch that this one repeats, or None when it may be appended.

        Raises BrokerError(INVALID_PRODUCER_EPOCH) for a fenced producer, BrokerError(OUT_OF_ORDER_SEQUENCE_NUMBER)
        when batches are missing before this one and BrokerError(INVALID_TXN_STATE) for a batch outside the open
        transaction of its producer.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return None
        epoch, first = header.producer_epoch, header.base_sequence
        last_stored = entry.batches[-1].last_sequence if entry.batches else NO_SEQUENCE
        if epoch == entry.epoch:
            if first == (last_stored + 1) & SEQUENCE_MAX:
                if entry.first_offset >= 0 and not header.attributes & TRANSACTIONAL:
                    raise BrokerError(
                        ErrorCode.INVALID_TXN_STATE, f"producer {header.producer_id} has a transaction open here"
                    )
                return None
            last = advance(first, header.last_offset_delta)
            for stored in entry.batches:
                if stored.last_sequence == last and stored.offset_delta == header.last_offset_delta:
                    return stored
            raise BrokerError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {first} after {last_stored}",
            )
        self.check_epoch(header.producer_id, epoch)
        if first != 0:
            raise BrokerError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} starts its epoch {epoch} with sequence {first} in place of 0",
            )
        return None

    def begun_with(self, header: BatchHeader) -> StoredBatch | None:
        """Return the stored batch of this producer and epoch that begins with the same sequence, if there is one."""
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            return None
        return next((stored for stored in entry.batches if stored.first_sequence == header.base_sequence), None)

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raise BrokerError(INVALID_PRODUCER_EPOCH) for an epoch older than the latest seen."""
        entry = self._entries.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise BrokerError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} uses epoch {epoch}, but {entry.epoch} has been seen",
            )

    def record(self, header: BatchHeader, base_offset: int, timestamp: int) -> ProducerEntry | None:
        """Take a batch as stored at `base_offset`, `timestamp` being the broker's; return how `restore` undoes it."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        previous = self._entries.get(producer_id)
        batches: tuple[StoredBatch, ...] = ()
        if header.base_sequence >= 0:
            delta = header.last_offset_delta
            stored = StoredBatch((header.base_sequence + delta) & SEQUENCE_MAX, base_offset + delta, delta, timestamp)
            batches = (stored,)
        if previous is None:
            entry = ProducerEntry(epoch, batches, timestamp)
        else:
            if previous.epoch == epoch:
                batches = (*previous.batches[1 - CACHED_BATCHES :], *batches)
            entry = ProducerEntry(epoch, batches, timestamp, previous.coordinator_epoch, previous.first_offset)
        if header.attributes & TRANSACTIONAL and entry.first_offset < 0:
            entry = entry._replace(first_offset=base_offset)
            self.open_transactions[producer_id] = base_offset
        self._entries[producer_id] = entry
        return previous

    def mark(self, producer_id: int, epoch: int, marker: EndMarker, timestamp: int) -> ProducerEntry | None:
        """Take a marker as stored, which ends the producer's transaction; return what `restore` needs to undo it."""
        previous = self._entries.get(producer_id)
        batches = previous.batches if previous is not None and previous.epoch == epoch else ()
        self._entries[producer_id] = ProducerEntry(epoch, batches, timestamp, marker.coordinator_epoch)
        self.open_transactions.pop(producer_id, None)
        return previous

    def aborted(self, producer_id: int, marker_offset: int) -> AbortedTransaction | None:
        """Return what an abort marker at this offset, which is about to be taken, ends; None when nothing is open."""
        first_offset = self.open_transactions.get(producer_id)
        if first_offset is None:
            return None
        others = (offset for other, offset in self.open_transactions.items() if other != producer_id)
        return AbortedTransaction(producer_id, first_offset, marker_offset, next(others, marker_offset + 1))

    def replay(self, header: BatchHeader, seen_ms: int) -> None:
        """
        Take a batch read from the log at recovery or from a leader; one that a snapshot already held changes nothing.

        `seen_ms` is when this broker had it, by its own clock; a time of the batch counts only if a broker gave it.
        """
        if header.producer_id < 0 or header.is_control:
            return
        known = self._entries.get(header.producer_id)
        if known is None or not known.batches or header.last_offset > known.batches[-1].last_offset:
            if not header.record_count and header.attributes & TRANSACTIONAL and header.base_timestamp == NO_TIMESTAMP:
                # Compaction emptied it: its transaction has ended, and the marker may be gone. Of a batch that was
                # empty from the start, because all of its records were put aside, the time is left.
                header = header._replace(attributes=header.attributes & ~TRANSACTIONAL)
            by_broker = header.attributes & LOG_APPEND_TIME
            self.record(header, header.base_offset, header.max_timestamp if by_broker else seen_ms)

    def replay_marker(self, header: BatchHeader, marker: EndMarker | None) -> AbortedTransaction | None:
        """Take a control batch read from the log at recovery; return the transaction that it aborted, if any."""
        known = self._entries.get(header.producer_id)
        if marker is None:
            # Compaction emptied it and left it there for its epoch.
            if header.producer_id >= 0 and (known is None or known.epoch < header.producer_epoch):
                self._entries[header.producer_id] = ProducerEntry(header.producer_epoch, (), header.max_timestamp)
            return None
        ended = None if marker.committed else self.aborted(header.producer_id, header.base_offset)
        if known is None or header.producer_epoch >= known.epoch:
            self.mark(header.producer_id, header.producer_epoch, marker, header.max_timestamp)
        return ended

    def restore(self, producer_id: int, previous: ProducerEntry | None) -> None:
        """Put a producer back to what `record` or `mark` returned; undo the latest first."""
        if previous is None:
            self._entries.pop(producer_id, None)
        else:
            self._entries[producer_id] = previous
        first_offset = NO_TRANSACTION if previous is None else previous.first_offset
        if first_offset < 0:
            self.open_transactions.pop(producer_id, None)
        elif producer_id not in self.open_transactions:
            self.open_transactions[producer_id] = first_offset
            self._sort_open()

    def expire(self, before_timestamp: int) -> int:
        """
        Forget producers whose last batch was taken in before `before_timestamp`; return how many.

        One with an open transaction stays: what it has written must never become readable by being forgotten.
        """
        stale = [
            producer_id
            for producer_id, entry in self._entries.items()
            if entry.timestamp < before_timestamp and entry.first_offset < 0
        ]
        for producer_id in stale:
            del self._entries[producer_id]
        return len(stale)

    def rows(self, undone: dict[int, ProducerEntry | None] | None = None) -> Iterator[ProducerRow]:
        """Yield every stored batch; a producer in `undone` is listed as it was then."""
        entries: dict[int, ProducerEntry | None] = {**self._entries, **(undone or {})}
        for producer_id, entry in entries.items():
            if entry is not None:
                batches = entry.batches or (NO_BATCH._replace(timestamp=entry.timestamp),)
                if entry.batches and entry.timestamp != batches[-1].timestamp:
                    batches = (*batches[:-1], batches[-1]._replace(timestamp=entry.timestamp))
                for batch in batches:
                    yield ProducerRow(producer_id, entry.epoch, batch, entry.coordinator_epoch, entry.first_offset)

    def load(self, rows: Iterable[ProducerRow], *, latest_ms: int = UNBOUNDED_MS) -> None:
        """
        Replace everything by the rows of a snapshot.

        A time beyond `latest_ms` is none of a broker's: versions up to a0f39a4 took those of the records.
        """
        self._entries.clear()
        self.open_transactions.clear()
        for producer_id, epoch, batch, coordinator_epoch, first_offset in rows:
            known = self._entries.get(producer_id)
            batches = known.batches[1 - CACHED_BATCHES :] if known is not None and known.epoch == epoch else ()
            if batch.last_offset >= 0:
                batches = (*batches, batch)
            self._entries[producer_id] = ProducerEntry(
                epoch, batches, min(batch.timestamp, latest_ms), coordinator_epoch, first_offset
            )
            if first_offset >= 0:
                self.open_transactions[producer_id] = first_offset
        self._sort_open()

    def _sort_open(self) -> None:
        in_order = sorted(self.open_transactions.items(), key=lambda item: item[1])
        self.open_transactions.clear()
        self.open_transactions.update(in_order)
