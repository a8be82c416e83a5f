"""
One replica of a partition, leading or following: decides, and leaves the doing to whoever runs it.

`handle(event, now_ms)` returns effects, to be run in list order; there is no I/O and no clock in here. The life of a
batch:

    Append ──▶ checked, given its offset, gathered ──▶ AskTurn (once until written)
    TurnEnded ──▶ Write(everything gathered, sync?)       at most one Write is under way
    Written ──▶ high watermark moves, Reply…, and the next Write when more has gathered meanwhile
    WriteFailed ──▶ every gathered batch is refused and undone: offsets and producer state as after the last Written

So all that arrives while a disk is busy shares the next write and the next sync (group commit), and nothing is
visible to a reader or acknowledged to a producer before the write it depends on has been reported. With followers
(`core.replication`) acks=all is answered when the high watermark has passed the batch.

A follower takes its leader's batches as they are (`append_fetched`) along the same way. `become_leader` and
`become_follower` change the role; what is not decided then is answered with NOT_LEADER_OR_FOLLOWER, and may be in the
log of the next leader or not.
"""

from collections.abc import Sequence
from typing import Any

from log_broker.config.broker import TopicConfig
from log_broker.core.cluster.quarantine_topics import may_have_quarantine
from log_broker.core.partition.admission import CHECKED_AT_ONCE_BYTES_MAX, Admission, Admitted, refused_by_time
from log_broker.core.partition.epochs import LeaderEpochs
from log_broker.core.partition.producers import ProducerEntry, ProducerStates, StoredBatch
from log_broker.core.partition.protocol import (
    Append,
    AppendQuarantined,
    AppendResult,
    AppendUnsequenced,
    AskValidator,
    CheckAside,
    Effect,
    EndTransaction,
    Event,
    PendingBatch,
    Reply,
    TurnEnded,
    WriteFailed,
    Written,
)
from log_broker.core.partition.roles import ACKS_ALL, PartitionRoles
from log_broker.core.partition.transactions import Ending
from log_broker.core.partition.writing import NOTHING, UNBOUNDED_MS
from log_broker.core.raft.lease import Lease
from log_broker.errors import BrokerError, ErrorCode
from log_broker.interfaces import LearningValidator, RecordValidator
from log_broker.records.batch import (
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    place,
    read_header,
    stamp_log_append_time,
)
from log_broker.records.compression import CODEC_OF_NAME, DecompressionBoundError
from log_broker.records.contracts import Fault
from log_broker.records.control import build_marker
from log_broker.records.readable import TooManyHeadersError
from log_broker.records.validation import (
    QUARANTINED_MAX,
    READ_AT_ONCE_MAX,
    RecordRules,
    RecordsRefusedError,
    check_batch,
    check_section,
    side_checks,
)

GATHERED_BYTES_MAX = 1024 * 1024  # behind a slow disk, from producers that wait for no answer

_ADMITTED_ONLY_BY_RULES = TRANSACTIONAL | LOG_APPEND_TIME | DELETE_HORIZON


class Partition(PartitionRoles):
    """One replica, with what producers and coordinators ask of its leader."""

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
        high_watermark: int | None = None,
        ending: Sequence[Ending] = (),
        leads: bool = True,
        lease: Lease | None = None,
    ) -> None:
        super().__init__(
            topic,
            config,
            producers=producers,
            epochs=epochs,
            log_start_offset=log_start_offset,
            end_offset=end_offset,
            high_watermark=high_watermark,
            ending=ending,
            leads=leads,
            lease=lease,
        )
        self._validator = validator
        self.unsequenced_batches = 0  # of producers that are not idempotent: a retry of theirs may be there twice
        self.learn = validator.learn if isinstance(validator, LearningValidator) else None
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        """Take a new config; it holds from the next batch on."""
        self.config = config
        self._bytes_max = config.max_message_bytes
        self._set_role_rules()
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
            key_strategy=config.confluent_key_subject_name_strategy.rpartition(".")[2],
            value_strategy=config.confluent_value_subject_name_strategy.rpartition(".")[2],
            quarantines=config.fluvial_schema_violation == "quarantine" and may_have_quarantine(self.topic),
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
        # Most topics ask no more of a batch than that it is whole and of this time, and are spared a call for each.
        self._asks_more = self._looks_at_records or self._codec is not None or self._append_time

    @property
    def quarantines(self) -> bool:
        """Whether records that break their contract are put aside."""
        return self._rules.quarantines

    def admission(self, batch: memoryview, header: BatchHeader, now_ms: int, *, has_learned: bool = True) -> Admission:
        """Return what decides whether a batch may enter, as the contracts of the topic are known now."""
        return Admission(
            batch,
            header,
            self._rules,
            side_checks(self._rules, self._validator),
            now_ms,
            self._bytes_max,
            self._codec,
            self._compression_level,
            self._looks_at_records,
            self.learn is None or has_learned,
        )

    def handle(self, event: Event, now_ms: int) -> Sequence[Effect]:  # noqa: PLR0911 one for each event
        """Take one event at the given time and return what must be done, in order."""
        match event:
            case Append():
                return self.append(event.batch, event.acks, event.token, now_ms)
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
            case AppendQuarantined():
                return self._append_quarantined(event, now_ms)

    def append(
        self,
        batch: memoryview,
        acks: int,
        token: Any,
        now_ms: int,
        *,
        has_learned: bool = False,
        outcome: Admitted | BrokerError | None = None,
    ) -> Sequence[Effect]:
        """
        Do what `handle` does with an Append, without the cost of making one.

        `has_learned` says that the validator knows what is new, so that its word is the last. `outcome` is that of the
        batch's admission, where that was left to somebody else.
        """
        left_out: tuple[Fault, ...] | None = None
        try:
            if self._is_guarded:
                self._check_open(acks)
            is_unread = False
            try:
                header = check_batch(batch, bytes_max=self._bytes_max)
            except TooManyHeadersError:
                header, is_unread = read_header(batch), True
            duplicate = self.producers.check(header) if header.producer_id >= 0 else None
            if duplicate is not None:
                return self._repeat(duplicate, acks, token)
            if (
                self._asks_more
                or header.attributes & _ADMITTED_ONLY_BY_RULES
                or header.max_timestamp - now_ms > self._ahead_ms_max
                or header.record_count > READ_AT_ONCE_MAX
                or is_unread
            ):
                if outcome is None:
                    admission = self.admission(batch, header, now_ms, has_learned=has_learned)
                    found = self._admitted(admission._replace(is_unread=True) if is_unread else admission)
                    if isinstance(found, Admission):
                        return (CheckAside(batch, acks, token, found, has_learned),)
                    outcome = found
                elif isinstance(outcome, BrokerError):
                    raise outcome
                batch, left_out = outcome
                header = self._admit(batch, now_ms)
        except RecordsRefusedError as error:
            if self.learn is not None and not has_learned:
                return (AskValidator(batch, acks, token),)
            return (Reply(token, self._refusal(error)),)
        except BrokerError as error:
            return (Reply(token, self._refusal(error)),)
        base_offset = self.next_offset
        last_offset = base_offset + header.last_offset_delta
        place(batch, base_offset=base_offset, leader_epoch=self.epochs.current)
        previous = None
        if header.producer_id >= 0:
            previous = self.producers.record(header, base_offset, now_ms)
        else:
            self.unsequenced_batches += 1
        append_time = now_ms if self._append_time else -1
        result = AppendResult(ErrorCode.NONE, base_offset, append_time, self.log_start_offset, (), None, left_out)
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
                acks < 0 and self._leading is not None,
            )
        )
        return (Reply(token, result), *self._ask_turn()) if answered else self._ask_turn()

    def _admitted(self, admission: Admission) -> Admitted | Admission:
        """Apply what the topic's config demands of a batch, or return what does so if that takes too long here."""
        header = admission.header
        if header.attributes & DELETE_HORIZON:
            raise BrokerError(
                ErrorCode.INVALID_RECORD, "only compaction sets from when the tombstones of a batch may go"
            )
        if header.max_timestamp - admission.now_ms > self._ahead_ms_max:
            raise refused_by_time(admission._replace(looks_at_records=True))
        if header.attributes & LOG_APPEND_TIME and not self._append_time:
            raise BrokerError(ErrorCode.INVALID_TIMESTAMP, "only the broker sets the append time of a batch")
        if admission.is_long:
            return admission
        try:
            return admission.run(bytes_max=CHECKED_AT_ONCE_BYTES_MAX)
        except DecompressionBoundError:
            return admission

    def _admit(self, batch: memoryview, now_ms: int) -> BatchHeader:
        """Give a batch that may enter the time of the append and its place in a transaction; return its header."""
        header = read_header(batch)
        if self._append_time:
            stamp_log_append_time(batch, header.attributes, now_ms)
            header = read_header(batch)
        if header.attributes & TRANSACTIONAL:
            self.transactions.admit(header)
        return header

    def _append_quarantined(self, event: AppendQuarantined, now_ms: int) -> Sequence[Effect]:
        batch, token = event
        try:
            if self._is_guarded:
                self._check_open(ACKS_ALL)
            header = check_batch(batch, bytes_max=UNBOUNDED_MS)
            if header.record_count > QUARANTINED_MAX:
                raise BrokerError(ErrorCode.INVALID_RECORD, f"{header.record_count} records that were left out at once")
            if header.record_count > READ_AT_ONCE_MAX and not header.compression:
                check_section(batch, header)
            stored = self.producers.begun_with(header) if header.producer_id >= 0 else None
            if stored is not None:
                return self._repeat(stored, ACKS_ALL, token)
            if header.producer_id >= 0:
                self.producers.check_epoch(header.producer_id, header.producer_epoch)
            if header.attributes & TRANSACTIONAL:
                self.transactions.admit(header)
        except BrokerError as error:
            return (Reply(token, self._refusal(error)),)
        previous = None
        if header.producer_id >= 0:
            previous = self.producers.record(header, self.next_offset, now_ms)
        return self._gather_own(batch, header, token, previous)

    def _append_unsequenced(self, event: AppendUnsequenced, now_ms: int) -> Sequence[Effect]:
        batch, token = event
        header = read_header(batch)
        try:
            if self._is_guarded:
                self._check_open(ACKS_ALL)
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
            if self._is_guarded:
                self._check_open(ACKS_ALL)
            self.transactions.check_marker(producer_id, epoch, marker.coordinator_epoch, bumped=bumped)
        except BrokerError as error:
            return (Reply(token, self._refusal(error)),)
        batch = memoryview(build_marker(producer_id, epoch, marker, now_ms))
        self.transactions.forbid(producer_id, epoch, bumped=bumped)
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
                batch,
                base_offset,
                last_offset,
                header.max_timestamp,
                token,
                result,
                header.producer_id,
                previous,
                self._leading is not None,
            )
        )
        return self._ask_turn()

    def _repeat(self, stored: StoredBatch, acks: int, token: Any) -> Sequence[Effect]:
        """Answer a repeated batch with its first offset, not before the first one is as durable as it must be."""
        first_offset = stored.first_offset
        append_time = stored.timestamp if self._append_time else -1
        left_out = () if self._rules.quarantines else None
        result = AppendResult(ErrorCode.NONE, first_offset, append_time, self.log_start_offset, (), None, left_out)
        awaits_all = acks < 0 and self._leading is not None and stored.last_offset >= self.high_watermark
        if acks == 0 or not self._pending or first_offset < self._pending[0].base_offset:
            if awaits_all:
                self._awaiting.append((self.written_end, token, result))
                return NOTHING
            return (Reply(token, result),)
        at = self.next_offset
        self._pending.append(PendingBatch(None, at, at - 1, -1, token, result, -1, None, awaits_all))
        return self._ask_turn()


def _bound(limit_ms: int, append_time: bool) -> int | None:
    """Bounds hold for timestamps that clients set, and the largest one means none."""
    return None if append_time or limit_ms >= UNBOUNDED_MS else limit_ms
