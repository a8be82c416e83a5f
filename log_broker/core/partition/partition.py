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
(`core.partition.replication`) acks=all is answered when the high watermark has passed the batch; small writes that only
such answers wait for are two, without a sync and of nothing but a sync, so that followers fetch while the disk works.

A follower takes its leader's batches as they are (`Following`) along the same way. `Roles` changes the role; what is
not decided then is answered with NOT_LEADER_OR_FOLLOWER, and may be in the log of the next leader or not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from log_broker.config.broker import TopicConfig
from log_broker.core.cluster.quarantine_topics import may_have_quarantine
from log_broker.core.partition.admission import CHECKED_AT_ONCE_BYTES_MAX, Admission, Admitted, refused_by_time
from log_broker.core.partition.producers import ProducerEntry, StoredBatch
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
from log_broker.core.partition.roles import Following, Roles
from log_broker.core.partition.writing import ACKS_ALL, NOTHING, UNBOUNDED_MS, Commits, ReplicaState, Writes
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
from log_broker.records.compression import CODEC_OF_NAME, Codec, DecompressionBoundError
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
    too_large,
)

GATHERED_BYTES_MAX = 1024 * 1024  # behind a slow disk, from producers that wait for no answer

_ADMITTED_ONLY_BY_RULES = TRANSACTIONAL | LOG_APPEND_TIME | DELETE_HORIZON


@dataclass(frozen=True, slots=True)
class AppendRules:
    """What a topic's config demands of each batch that is appended."""

    records: RecordRules
    bytes_max: int
    codec: Codec | None
    compression_level: int | None
    append_time: bool  # whether the broker sets the timestamps
    looks_at_records: bool
    ahead_ms_max: int
    asks_more: bool  # most topics ask only that a batch is whole and of this time, and are spared a call for each
    takes_own: bool  # nothing is asked of uncompressed records that the broker has just written but that they have keys

    @classmethod
    def of(cls, topic: str, config: TopicConfig) -> "AppendRules":
        append_time = config.message_timestamp_type == "LogAppendTime"
        records = RecordRules(
            topic=topic,
            key_required="compact" in config.cleanup_policy,
            key_validation=config.fluvial_key_schema_validation,
            value_validation=config.fluvial_value_schema_validation,
            timestamp_before_ms_max=_bound(config.message_timestamp_before_max_ms, append_time),
            timestamp_after_ms_max=_bound(config.message_timestamp_after_max_ms, append_time),
            key_strategy=config.confluent_key_subject_name_strategy.rpartition(".")[2],
            value_strategy=config.confluent_value_subject_name_strategy.rpartition(".")[2],
            quarantines=config.fluvial_schema_violation == "quarantine" and may_have_quarantine(topic),
        )
        codec = CODEC_OF_NAME.get(config.compression_type)
        # A header names the largest timestamp of its batch, so a bound on the past needs every record.
        looks_beyond_keys = (
            records.key_validation != "none"
            or records.value_validation != "none"
            or records.timestamp_before_ms_max is not None
        )
        looks_at_records = records.key_required or looks_beyond_keys
        after_ms_max = records.timestamp_after_ms_max
        return cls(
            records,
            config.max_message_bytes,
            codec,
            config.compression_level,
            append_time,
            looks_at_records,
            UNBOUNDED_MS if after_ms_max is None else after_ms_max,
            looks_at_records or codec is not None or append_time,
            not (looks_beyond_keys or codec or append_time),
        )


def _bound(limit_ms: int, append_time: bool) -> int | None:
    """Bounds hold for timestamps that clients set, and the largest one means none."""
    return None if append_time or limit_ms >= UNBOUNDED_MS else limit_ms


class Appends:
    """The batches of producers: checked, given their offsets, gathered."""

    def __init__(
        self, state: ReplicaState, writes: Writes, commits: Commits, validator: RecordValidator | None
    ) -> None:
        self._state = state
        self._writes = writes
        self._commits = commits
        self._validator = validator
        self.learn = validator.learn if isinstance(validator, LearningValidator) else None
        self.unsequenced_batches = 0  # of producers that are not idempotent: a retry of theirs may be there twice
        self.rules = AppendRules.of(state.topic, state.config)

    def admission(self, batch: memoryview, header: BatchHeader, now_ms: int, *, has_learned: bool = True) -> Admission:
        """Return what decides whether a batch may enter, as the contracts of the topic are known now."""
        rules = self.rules
        return Admission(
            batch,
            header,
            rules.records,
            side_checks(rules.records, self._validator),
            now_ms,
            rules.bytes_max,
            rules.codec,
            rules.compression_level,
            rules.looks_at_records,
            self.learn is None or has_learned,
        )

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
        Do what `Partition.handle` does with an Append, without the cost of making one.

        `has_learned` says that the validator knows what is new, so that its word is the last. `outcome` is that of the
        batch's admission, where that was left to somebody else.
        """
        state, rules = self._state, self.rules
        left_out: tuple[Fault, ...] | None = None
        try:
            if state.is_guarded:
                state.check_open(acks)
            is_unread = False
            try:
                header = check_batch(batch, bytes_max=rules.bytes_max)
            except TooManyHeadersError:
                header, is_unread = read_header(batch), True
            duplicate = state.producers.check(header) if header.producer_id >= 0 else None
            if duplicate is not None:
                return self.repeat(duplicate, acks, token)
            if (
                rules.asks_more
                or header.attributes & _ADMITTED_ONLY_BY_RULES
                or header.max_timestamp - now_ms > rules.ahead_ms_max
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
            return (Reply(token, state.refusal(error)),)
        except BrokerError as error:
            return (Reply(token, state.refusal(error)),)
        base_offset = state.next_offset
        place(batch, base_offset=base_offset, leader_epoch=state.epochs.current)
        previous = None
        if header.producer_id >= 0:
            previous = state.producers.record(header, base_offset, now_ms)
        else:
            self.unsequenced_batches += 1
        append_time = now_ms if rules.append_time else -1
        result = AppendResult(ErrorCode.NONE, base_offset, append_time, state.log_start_offset, (), None, left_out)
        writes = self._writes
        # With too much gathered even acks=0 is answered only when it is written: that is what slows its sender down.
        answered = acks == 0 and writes.gathered_bytes + len(batch) <= GATHERED_BYTES_MAX
        writes.gather(
            PendingBatch(
                batch,
                base_offset,
                base_offset + header.last_offset_delta,
                header.max_timestamp,
                None if answered else token,
                result,
                header.producer_id,
                previous,
                acks < 0 and state.leading is not None,
            )
        )
        return (Reply(token, result), *writes.ask_turn()) if answered else writes.ask_turn()

    def repeat(self, stored: StoredBatch, acks: int, token: Any) -> Sequence[Effect]:
        """Answer a repeated batch with its first offset, not before the first one is as durable as it must be."""
        state, rules = self._state, self.rules
        first_offset = stored.first_offset
        append_time = stored.timestamp if rules.append_time else -1
        left_out = () if rules.records.quarantines else None
        result = AppendResult(ErrorCode.NONE, first_offset, append_time, state.log_start_offset, (), None, left_out)
        awaits_all = acks < 0 and state.leading is not None and stored.last_offset >= state.high_watermark
        if awaits_all and not self._writes.holds(first_offset):
            self._commits.wait(token, result)
            return NOTHING
        if acks == 0 or not self._writes.owes(first_offset):
            return (Reply(token, result),)
        at = state.next_offset
        self._writes.gather(PendingBatch(None, at, at - 1, -1, token, result, -1, None, awaits_all))
        return self._writes.ask_turn()

    def _admitted(self, admission: Admission) -> Admitted | Admission:
        """Apply what the topic's config demands of a batch, or return what does so if that takes too long here."""
        header, rules = admission.header, self.rules
        if header.attributes & DELETE_HORIZON:
            raise BrokerError(
                ErrorCode.INVALID_RECORD, "only compaction sets from when the tombstones of a batch may go"
            )
        if header.max_timestamp - admission.now_ms > rules.ahead_ms_max:
            raise refused_by_time(admission._replace(looks_at_records=True))
        if header.attributes & LOG_APPEND_TIME and not rules.append_time:
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
        if self.rules.append_time:
            stamp_log_append_time(batch, header.attributes, now_ms)
            header = read_header(batch)
        if header.attributes & TRANSACTIONAL:
            self._state.transactions.admit(header)
        return header


class BrokerAppends:
    """The batches that brokers make themselves: markers, offsets of groups in a transaction, quarantined records."""

    def __init__(self, state: ReplicaState, writes: Writes, appends: Appends) -> None:
        self._state = state
        self._writes = writes
        self._appends = appends

    def quarantined(self, event: AppendQuarantined, now_ms: int) -> Sequence[Effect]:
        batch, token = event
        state = self._state
        try:
            if state.is_guarded:
                state.check_open(ACKS_ALL)
            header = check_batch(batch, bytes_max=UNBOUNDED_MS)
            if header.record_count > QUARANTINED_MAX:
                raise BrokerError(ErrorCode.INVALID_RECORD, f"{header.record_count} records that were left out at once")
            if header.record_count > READ_AT_ONCE_MAX and not header.compression:
                check_section(batch, header)
            stored = state.producers.begun_with(header) if header.producer_id >= 0 else None
            if stored is not None:
                return self._appends.repeat(stored, ACKS_ALL, token)
            if header.producer_id >= 0:
                state.producers.check_epoch(header.producer_id, header.producer_epoch)
            if header.attributes & TRANSACTIONAL:
                state.transactions.admit(header)
        except BrokerError as error:
            return (Reply(token, state.refusal(error)),)
        previous = None
        if header.producer_id >= 0:
            previous = state.producers.record(header, state.next_offset, now_ms)
        return self._gather(batch, header, token, previous)

    def own(self, batch: memoryview, token: Any) -> Sequence[Effect]:
        """Append what the broker has just built for a topic that takes such as it is, see `AppendRules.takes_own`."""
        state, bytes_max = self._state, self._appends.rules.bytes_max
        try:
            if state.is_guarded:
                state.check_open(ACKS_ALL)
            if len(batch) > bytes_max:
                raise too_large(len(batch), bytes_max)
        except BrokerError as error:
            return (Reply(token, state.refusal(error)),)
        return self._gather(batch, read_header(batch), token, None)

    def unsequenced(self, event: AppendUnsequenced, now_ms: int) -> Sequence[Effect]:
        batch, token = event
        state = self._state
        header = read_header(batch)
        try:
            if state.is_guarded:
                state.check_open(ACKS_ALL)
            if len(batch) > self._appends.rules.bytes_max:
                raise too_large(len(batch), self._appends.rules.bytes_max)
            state.producers.check_epoch(header.producer_id, header.producer_epoch)
            state.transactions.admit(header)
        except BrokerError as error:
            return (Reply(token, state.refusal(error)),)
        previous = state.producers.record(header, state.next_offset, now_ms)
        return self._gather(batch, header, token, previous)

    def end_transaction(self, event: EndTransaction, now_ms: int) -> Sequence[Effect]:
        producer_id, epoch, marker, token, bumped = event
        state = self._state
        try:
            if state.is_guarded:
                state.check_open(ACKS_ALL)
            state.transactions.check_marker(producer_id, epoch, marker.coordinator_epoch, bumped=bumped)
        except BrokerError as error:
            return (Reply(token, state.refusal(error)),)
        batch = memoryview(build_marker(producer_id, epoch, marker, now_ms))
        state.transactions.forbid(producer_id, epoch, bumped=bumped)
        state.transactions.end(producer_id, state.next_offset, committed=marker.committed)
        previous = state.producers.mark(producer_id, epoch, marker, now_ms)
        return self._gather(batch, read_header(batch), token, previous)

    def _gather(
        self, batch: memoryview, header: BatchHeader, token: Any, previous: ProducerEntry | None
    ) -> Sequence[Effect]:
        state = self._state
        base_offset = state.next_offset
        place(batch, base_offset=base_offset, leader_epoch=state.epochs.current)
        result = AppendResult(ErrorCode.NONE, base_offset, -1, state.log_start_offset)
        self._writes.gather(
            PendingBatch(
                batch,
                base_offset,
                base_offset + header.last_offset_delta,
                header.max_timestamp,
                token,
                result,
                header.producer_id,
                previous,
                state.leading is not None,
            )
        )
        return self._writes.ask_turn()


class Partition:
    """One replica, put together of its state and of what is done with it."""

    def __init__(self, state: ReplicaState, validator: RecordValidator | None = None) -> None:
        self.state = state
        commits = Commits(state)
        self.commits = commits
        self.writes = Writes(state, commits)
        self.appends = Appends(state, self.writes, commits, validator)
        self.roles = Roles(state, self.writes, commits)
        self.following = Following(state, self.writes, commits)
        self.broker_appends = BrokerAppends(state, self.writes, self.appends)

    def configure(self, config: TopicConfig) -> None:
        """Take a new config; it holds from the next batch on."""
        self.state.configure(config)
        self.appends.rules = AppendRules.of(self.state.topic, config)

    def handle(self, event: Event, now_ms: int) -> Sequence[Effect]:  # noqa: PLR0911 one for each event
        """Take one event at the given time and return what must be done, in order."""
        match event:
            case Append():
                return self.appends.append(event.batch, event.acks, event.token, now_ms)
            case TurnEnded():
                return self.writes.turn_ended()
            case Written():
                return self.writes.written(event, now_ms)
            case WriteFailed():
                return self.writes.failed(event)
            case EndTransaction():
                return self.broker_appends.end_transaction(event, now_ms)
            case AppendUnsequenced():
                return self.broker_appends.unsequenced(event, now_ms)
            case AppendQuarantined():
                return self.broker_appends.quarantined(event, now_ms)
