"""
One partition as its leader sees it: decides, and leaves the doing to whoever runs it.

`handle(event, now_ms)` returns effects, to be run in list order; there is no I/O and no clock in here. The life of a
batch:

    Append ──▶ checked, given its offset, gathered ──▶ AskTurn (once until written)
    TurnEnded ──▶ Write(everything gathered, sync?)       at most one Write is under way
    Written ──▶ high watermark moves, Reply…, and the next Write when more has gathered meanwhile
    WriteFailed ──▶ every gathered batch is refused and undone: offsets and producer state as after the last Written

So all that arrives while a disk is busy shares the next write and the next sync (group commit), and nothing is
visible to a reader or acknowledged to a producer before the write it depends on has been reported.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from log_broker.config import TopicConfig
from log_broker.core.epochs import LeaderEpochs
from log_broker.core.partition_transactions import PartitionTransactions
from log_broker.core.producer_state import AbortedTransaction, ProducerEntry, ProducerRow, ProducerStates
from log_broker.errors import BrokerError, ErrorCode
from log_broker.interfaces import RecordValidator
from log_broker.records.batch import (
    COMPRESSION_MASK,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    place,
    read_header,
    stamp_log_append_time,
)
from log_broker.records.compression import CODEC_OF_NAME
from log_broker.records.control import EndMarker, build_marker
from log_broker.records.record import recompress
from log_broker.records.validation import (
    RecordRules,
    RecordsRefusedError,
    check_batch,
    check_records,
    too_large,
)

UNBOUNDED_MS = 2**63 - 1
GATHERED_BYTES_MAX = 1024 * 1024  # behind a slow disk, from producers that wait for no answer

# Events and effects of a produce request are named tuples: values that cost a third of a frozen dataclass to make, and
# every microsecond here is several percent of a small request.


class AppendResult(NamedTuple):
    """What a producer is told. `record_errors` holds (index of the record in its batch, reason)."""

    error: ErrorCode
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: tuple[tuple[int, str], ...] = ()
    message: str | None = None


class Append(NamedTuple):
    """A produced batch, in memory that may be written to. `token` comes back in the Reply."""

    batch: memoryview
    acks: int
    token: Any


class AppendUnsequenced(NamedTuple):
    """A transactional batch that a coordinator of this broker writes for a producer: offsets of a group."""

    batch: memoryview
    token: Any


class EndTransaction(NamedTuple):
    """
    The producer's transaction has ended here: append the marker. `token` comes back in the Reply.

    `bumped` says that `producer_epoch` is already that of the next transaction (KIP-890).
    """

    producer_id: int
    producer_epoch: int
    marker: EndMarker
    token: Any
    bumped: bool = False


class TurnEnded(NamedTuple):
    """All requests that were ready together have been handled."""


class Written(NamedTuple):
    """The first `batches` of the last Write are in the file, and on the disk if it asked for a sync."""

    batches: int
    synced: bool


class WriteFailed(NamedTuple):
    """Nothing of the last Write is in the file any more. With `lost_sync`, earlier unsynced bytes are in doubt too."""

    reason: str
    lost_sync: bool = False


class AskTurn(NamedTuple):
    """Send TurnEnded once the requests that are ready now have been handled."""


class PendingBatch(NamedTuple):
    """A batch that has its offset and waits to be written; without bytes it only waits for those before it."""

    batch: memoryview | None
    base_offset: int
    last_offset: int
    max_timestamp: int
    token: Any  # None: already answered (acks=0)
    result: AppendResult
    producer_id: int
    previous: ProducerEntry | None  # the producer before this batch


class Write(NamedTuple):
    """Append `batches` to the log in one go; then sync what is unsynced, if asked. No batches: only sync."""

    batches: Sequence[PendingBatch]
    sync: bool


class Reply(NamedTuple):
    """Answer a producer."""

    token: Any
    result: AppendResult


class WatermarkMoved(NamedTuple):
    """Readers may now read up to here."""

    high_watermark: int


class TransactionsAborted(NamedTuple):
    """The markers of these are in the log: readers of committed records must be told to leave them out."""

    transactions: Sequence[AbortedTransaction]


class EpochBegan(NamedTuple):
    """The first batch of a leader epoch is in the log: keep `starts` where recovery finds it."""

    starts: Sequence[tuple[int, int]]


Event = Append | AppendUnsequenced | EndTransaction | TurnEnded | Written | WriteFailed
Effect = AskTurn | Write | Reply | WatermarkMoved | TransactionsAborted | EpochBegan

_NOTHING: tuple[Effect, ...] = ()
_ASK_TURN: tuple[Effect, ...] = (AskTurn(),)


class Partition:
    """
    The leader's state of one partition.

    Always: log_start_offset <= last_stable_offset <= high_watermark <= written_end <= next_offset, and
    synced_end <= written_end.
    """

    def __init__(
        self,
        topic: str,
        config: TopicConfig,
        *,
        producers: ProducerStates,
        epochs: LeaderEpochs,
        log_start_offset: int,
        end_offset: int,
        validator: RecordValidator | None = None,
    ) -> None:
        self.topic = topic
        self.producers = producers
        self.transactions = PartitionTransactions(producers)
        self.epochs = epochs
        self.log_start_offset = log_start_offset
        self.high_watermark = end_offset
        self.written_end = end_offset  # all before it is in the file
        self.synced_end = end_offset  # all before it survives a power cut
        self.next_offset = end_offset  # of the next batch; the gathered ones lie before it
        self.offline_reason: str | None = None
        self._validator = validator
        self._pending: deque[PendingBatch] = deque()
        self._gathered_bytes = 0
        self._turn_asked = False
        self._writing = False
        self._unsynced_since_ms: int | None = None
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        """Take a new config; it holds from the next batch on."""
        self.config = config
        self._bytes_max = config.max_message_bytes
        self._syncs_each_write = config.fluvial_durability != "memory"
        self._codec = CODEC_OF_NAME.get(config.compression_type)
        self._compression_level = config.compression_level
        self._append_time = config.message_timestamp_type == "LogAppendTime"
        rules = RecordRules(
            topic=self.topic,
            key_required="compact" in config.cleanup_policy,
            key_validation=config.fluvial_key_schema_validation,
            value_validation=config.fluvial_value_schema_validation,
            timestamp_before_ms_max=_bound(config.message_timestamp_before_max_ms, self._append_time),
            timestamp_after_ms_max=_bound(config.message_timestamp_after_max_ms, self._append_time),
        )
        self._rules = rules
        # A header names the largest timestamp of its batch, so a bound on the past needs every record.
        self._looks_at_records = (
            rules.key_required
            or rules.key_validation != "none"
            or rules.value_validation != "none"
            or rules.timestamp_before_ms_max is not None
        )
        self._ahead_ms_max = UNBOUNDED_MS if rules.timestamp_after_ms_max is None else rules.timestamp_after_ms_max

    @property
    def leader_epoch(self) -> int:
        return self.epochs.current

    @property
    def is_writing(self) -> bool:
        return self._writing

    @property
    def is_idle(self) -> bool:
        """Whether every batch that was taken is written and answered."""
        return not self._writing and not self._pending

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided; without open ones that is the high watermark."""
        if not self.producers.open_transactions and not self.transactions.ending:
            return self.high_watermark
        first = self.transactions.first_unstable_offset
        assert first is not None, "a transaction that is open or ending has a first offset"
        return max(min(first, self.high_watermark), self.log_start_offset)

    @property
    def unsynced_records(self) -> int:
        """The acknowledged records that a power cut would take: the range at risk."""
        return self.written_end - self.synced_end

    @property
    def unsynced_since_ms(self) -> int | None:
        """When the oldest record that may not be synced was written, None when all are."""
        return self._unsynced_since_ms

    def handle(self, event: Event, now_ms: int) -> Sequence[Effect]:
        """Take one event at the given time and return what must be done, in order."""
        match event:
            case Append():
                return self._append(event, now_ms)
            case TurnEnded():
                self._turn_asked = False
                return self._next_write(now_ms)
            case Written():
                return self._written(event, now_ms)
            case WriteFailed():
                return self._write_failed(event)
            case EndTransaction():
                return self._end_transaction(event, now_ms)
            case AppendUnsequenced():
                return self._append_unsequenced(event, now_ms)

    def next_deadline_ms(self) -> int | None:
        """When `tick` must be called next: flush.ms after the oldest record that is not synced."""
        if self._unsynced_since_ms is None:
            return None
        if self._syncs_each_write:
            return self._unsynced_since_ms  # written while the topic's level was memory: no longer good enough
        if self.config.flush_ms >= UNBOUNDED_MS:
            return None
        return self._unsynced_since_ms + self.config.flush_ms

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """Do what has become due by time alone."""
        deadline = self.next_deadline_ms()
        if deadline is None or now_ms < deadline or self._writing:
            return _NOTHING
        self._writing = True
        return (Write(list(self._pending), sync=True),)

    def advance_log_start(self, offset: int) -> bool:
        """Move the first readable offset, which never moves back; say whether it moved."""
        offset = min(offset, self.high_watermark)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs.advance_start(offset)
        return True

    def producer_rows(self, before_offset: int) -> list[ProducerRow]:
        """List the producers as of the batches before `before_offset`, those gathered after it left out."""
        undone: dict[int, ProducerEntry | None] = {}
        for pending in reversed(self._pending):
            if pending.base_offset < before_offset:
                break
            if pending.producer_id >= 0 and pending.batch is not None:
                undone[pending.producer_id] = pending.previous
        return list(self.producers.rows(undone))

    def _append(self, event: Append, now_ms: int) -> Sequence[Effect]:
        batch, acks, token = event
        try:
            if self.offline_reason is not None:
                raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline_reason)
            header = check_batch(batch, bytes_max=self._bytes_max)
            duplicate = self.producers.check(header) if header.producer_id >= 0 else None
            if duplicate is not None:
                return self._repeat(duplicate.first_offset, duplicate.timestamp, acks, token)
            batch, header = self._admit(batch, header, now_ms)
        except BrokerError as error:
            return (Reply(token, self._refusal(error)),)
        base_offset = self.next_offset
        last_offset = base_offset + header.last_offset_delta
        place(batch, base_offset=base_offset, leader_epoch=self.epochs.current)
        previous = None
        if header.producer_id >= 0:
            previous = self.producers.record(header, base_offset, now_ms if self._append_time else header.max_timestamp)
        result = AppendResult(ErrorCode.NONE, base_offset, now_ms if self._append_time else -1, self.log_start_offset)
        self.next_offset = last_offset + 1
        self._gathered_bytes += len(batch)
        # With too much gathered even acks=0 is answered only when it is written: that is what slows its sender down.
        answered = acks == 0 and self._gathered_bytes <= GATHERED_BYTES_MAX
        self._pending.append(
            PendingBatch(
                batch,
                base_offset,
                last_offset,
                header.max_timestamp,
                None if answered else token,
                result,
                header.producer_id,
                previous,
            )
        )
        return (Reply(token, result), *self._ask_turn()) if answered else self._ask_turn()

    def _admit(self, batch: memoryview, header: BatchHeader, now_ms: int) -> tuple[memoryview, BatchHeader]:
        """Apply what the topic's config demands; return the batch as it is to be stored."""
        is_ahead = header.max_timestamp - now_ms > self._ahead_ms_max
        if self._looks_at_records or is_ahead:
            check_records(batch, header, self._rules, self._validator, now_ms)
            if is_ahead:
                raise BrokerError(ErrorCode.INVALID_TIMESTAMP, "the header names a timestamp that no record has")
        if self._codec is not None and header.attributes & COMPRESSION_MASK != self._codec:
            batch = memoryview(recompress(batch, self._codec, level=self._compression_level))
            if len(batch) > self._bytes_max:
                raise too_large(len(batch), self._bytes_max)
            header = read_header(batch)
        if self._append_time:
            stamp_log_append_time(batch, header.attributes, now_ms)
            header = read_header(batch)
        elif header.attributes & LOG_APPEND_TIME:
            raise BrokerError(ErrorCode.INVALID_TIMESTAMP, "only the broker sets the append time of a batch")
        if header.attributes & TRANSACTIONAL:
            self.transactions.admit(header)
        return batch, header

    def _append_unsequenced(self, event: AppendUnsequenced, now_ms: int) -> Sequence[Effect]:
        batch, token = event
        header = read_header(batch)
        try:
            if self.offline_reason is not None:
                raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline_reason)
            if len(batch) > self._bytes_max:
                raise BrokerError(ErrorCode.MESSAGE_TOO_LARGE, f"the batch has {len(batch)} bytes")
            self.producers.check_epoch(header.producer_id, header.producer_epoch)
            self.transactions.admit(header)
        except BrokerError as error:
            return (Reply(token, self._refusal(error)),)
        previous = self.producers.record(header, self.next_offset, now_ms)
        return self._gather_own(batch, header, token, previous)

    def _end_transaction(self, event: EndTransaction, now_ms: int) -> Sequence[Effect]:
        producer_id, epoch, marker, token, bumped = event
        try:
            if self.offline_reason is not None:
                raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline_reason)
            self.transactions.check_marker(producer_id, epoch, marker.coordinator_epoch, bumped=bumped)
        except BrokerError as error:
            return (Reply(token, self._refusal(error)),)
        batch = memoryview(build_marker(producer_id, epoch, marker, now_ms))
        self.transactions.end(producer_id, self.next_offset, committed=marker.committed)
        previous = self.producers.mark(producer_id, epoch, marker, now_ms)
        return self._gather_own(batch, read_header(batch), token, previous)

    def _gather_own(
        self, batch: memoryview, header: BatchHeader, token: Any, previous: ProducerEntry | None
    ) -> Sequence[Effect]:
        """Give a batch that the broker itself made its offset, and have it written."""
        base_offset = self.next_offset
        last_offset = base_offset + header.last_offset_delta
        place(batch, base_offset=base_offset, leader_epoch=self.epochs.current)
        result = AppendResult(ErrorCode.NONE, base_offset, -1, self.log_start_offset)
        self.next_offset = last_offset + 1
        self._gathered_bytes += len(batch)
        self._pending.append(
            PendingBatch(
                batch, base_offset, last_offset, header.max_timestamp, token, result, header.producer_id, previous
            )
        )
        return self._ask_turn()

    def _repeat(self, first_offset: int, timestamp: int, acks: int, token: Any) -> Sequence[Effect]:
        """Answer a repeated batch with its first offset, not before the first one is as durable as it must be."""
        append_time = timestamp if self._append_time else -1
        result = AppendResult(ErrorCode.NONE, first_offset, append_time, self.log_start_offset)
        if acks == 0 or not self._pending or first_offset < self._pending[0].base_offset:
            return (Reply(token, result),)
        at = self.next_offset
        self._pending.append(PendingBatch(None, at, at - 1, -1, token, result, -1, None))
        return self._ask_turn()

    def _refusal(self, error: BrokerError) -> AppendResult:
        errors = error.record_errors if isinstance(error, RecordsRefusedError) else ()
        return AppendResult(error.code, -1, -1, self.log_start_offset, errors, str(error))

    def _ask_turn(self) -> Sequence[Effect]:
        if self._turn_asked or self._writing:
            return _NOTHING
        self._turn_asked = True
        return _ASK_TURN

    def _next_write(self, now_ms: int) -> Sequence[Effect]:
        if self._writing or not self._pending:
            return _NOTHING
        sync = self._syncs_each_write or self.next_offset - self.synced_end >= self.config.flush_messages
        self._writing = True
        return (Write(list(self._pending), sync),)

    def _written(self, event: Written, now_ms: int) -> Sequence[Effect]:
        assert self._writing, "a write is reported once"
        self._writing = False
        pending = self._pending
        replies: list[Effect] = []
        effects: list[Effect] = []
        if event.batches and self.epochs.latest != self.epochs.current:
            self.epochs.begin(self.epochs.current, self.written_end)
            effects.append(EpochBegan(self.epochs.starts))
        written_before = self.written_end
        for _ in range(event.batches):
            done = pending.popleft()
            if done.batch is not None:
                self._gathered_bytes -= len(done.batch)
            self.written_end = done.last_offset + 1
            if done.token is not None:
                replies.append(Reply(done.token, done.result))
        if event.synced:
            self.synced_end = self.written_end
            self._unsynced_since_ms = None
        elif self._unsynced_since_ms is None and self.written_end > self.synced_end:
            self._unsynced_since_ms = now_ms
        if self.transactions.ending and (aborted := self.transactions.written(written_before, self.written_end)):
            effects.append(TransactionsAborted(aborted))
        if self.written_end > self.high_watermark:
            self.high_watermark = self.written_end
            if self.transactions.ending:
                self.transactions.decided(self.high_watermark)
            effects.append(WatermarkMoved(self.high_watermark))
        # The next write starts before the replies are made: the disk works while they are.
        effects.extend(self._next_write(now_ms))
        effects.extend(replies)
        return effects

    def _write_failed(self, event: WriteFailed) -> Sequence[Effect]:
        self._writing = False
        message = f"the log could not be written: {event.reason}"
        result = AppendResult(ErrorCode.KAFKA_STORAGE_ERROR, log_start_offset=self.log_start_offset, message=message)
        replies: list[Effect] = []
        while self._pending:
            failed = self._pending.pop()
            if failed.producer_id >= 0:
                self.producers.restore(failed.producer_id, failed.previous)
            if failed.token is not None:
                replies.append(Reply(failed.token, result))
        self._gathered_bytes = 0
        self.next_offset = self.written_end
        self.transactions.undo(self.written_end)
        if event.lost_sync and self.written_end > self.synced_end:
            # After a failed sync the kernel may have dropped the pages, and these records have been acknowledged.
            # Only a restart, which reads what the disk really holds, can tell.
            self.offline_reason = message
        replies.reverse()
        return replies


def _bound(limit_ms: int, append_time: bool) -> int | None:
    """Bounds hold for timestamps that clients set, and the largest one means none."""
    return None if append_time or limit_ms >= UNBOUNDED_MS else limit_ms
