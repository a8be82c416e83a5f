"""
How a replica of a partition writes: its state, the batches on their way to the disk, and who waits for them.

Leaders and followers share all of it.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from log_broker.config.broker import TopicConfig
from log_broker.core.partition.epochs import LeaderEpochs
from log_broker.core.partition.following import Lost
from log_broker.core.partition.producers import ProducerEntry, ProducerRow, ProducerStates
from log_broker.core.partition.protocol import (
    AppendResult,
    AskTurn,
    Effect,
    LogEndMoved,
    PendingBatch,
    Reply,
    TransactionsAborted,
    WatermarkMoved,
    Write,
    WriteFailed,
    Written,
)
from log_broker.core.partition.replication import Leading, merged, records_in
from log_broker.core.partition.transactions import Ending, PartitionTransactions
from log_broker.core.raft.lease import Lease
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.validation import RecordsRefusedError

UNBOUNDED_MS = 2**63 - 1
NO_LEADER = -1
ACKS_ALL = -1
SHOWN_EARLY_BYTES_MAX = 1 << 16
"""A leader whose records are to be synced shows its followers so much before it syncs: writing it takes no time."""

NOTHING: tuple[Effect, ...] = ()
_ASK_TURN: tuple[Effect, ...] = (AskTurn(),)


class ReplicaState:
    """
    What one replica is and has. It leads alone until its role is set.

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
        high_watermark: int | None = None,
        ending: Sequence[Ending] = (),
        leads: bool = True,
        lease: Lease | None = None,
    ) -> None:
        """
        Without `leads` it follows nobody until its role is known.

        `high_watermark` is that of the last time, `ending` are the transactions whose markers lie behind it; without
        `lease` nothing is refused because of it.
        """
        self.topic = topic
        self.producers = producers
        self.transactions = PartitionTransactions(producers, ending)
        self.epochs = epochs
        self.log_start_offset = log_start_offset
        self.is_leader = leads
        self.leader_id = NO_LEADER  # of whom it follows
        self.lease = lease
        self.high_watermark = end_offset if high_watermark is None else high_watermark
        self.leader_watermark = self.high_watermark  # as the leader last said
        self.written_end = end_offset  # all before it is in the file
        self.synced_end = end_offset  # all before it survives a power cut
        self.next_offset = end_offset  # of the next batch; the gathered ones lie before it
        self.leading: Leading | None = None  # what a leader knows of its followers; None too where it has none
        self.is_truncating = False
        self._offline_reason: str | None = None
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        """Take a new config; it holds from the next batch on."""
        self.config = config
        self.set_role_rules()

    def set_role_rules(self) -> None:
        """Find what follows from the role and the config for each write; to be called whenever one of them changes."""
        level = self.config.fluvial_durability
        self.counts_synced = level == "fsync-quorum"
        self.syncs_each_write = level == "fsync-quorum" or (level == "fsync-leader" and self.is_leader)
        # Who leads alone and is well takes everything; others look closer.
        self.is_guarded = (
            not self.is_leader or self.leading is not None or self._offline_reason is not None or self.is_truncating
        )

    @property
    def offline_reason(self) -> str | None:
        """Why it takes no writes any more, if it does not."""
        return self._offline_reason

    @offline_reason.setter
    def offline_reason(self, reason: str | None) -> None:
        self._offline_reason = reason
        self.set_role_rules()

    @property
    def leader_epoch(self) -> int:
        return self.epochs.current

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

    def advance_log_start(self, offset: int) -> bool:
        """Move the first readable offset, which never moves back; say whether it moved."""
        offset = min(offset, self.high_watermark)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs.advance_start(offset)
        return True

    def check_open(self, acks: int) -> None:
        """Raise BrokerError when a batch that wants these acks cannot be taken now."""
        if self._offline_reason is not None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, self._offline_reason)
        if not self.is_leader or self.is_truncating:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this replica follows")
        leading = self.leading
        if leading is None:
            return
        if acks == ACKS_ALL:
            if leading.lacks_replicas(self.config.min_insync_replicas):
                least = self.config.min_insync_replicas
                raise BrokerError(
                    ErrorCode.NOT_ENOUGH_REPLICAS, f"{len(leading.isr)} replicas are in sync, and it takes {least}"
                )
        elif self.lease is not None and self.config.fluvial_durability != "memory" and not self.lease.valid:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "cut off from the controller, another may lead by now")

    def refusal(self, error: BrokerError) -> AppendResult:
        """Return what a producer is told of a batch that is not taken."""
        result = AppendResult(error.code, log_start_offset=self.log_start_offset, message=str(error))
        if isinstance(error, RecordsRefusedError):
            return result._replace(record_errors=error.record_errors, refused=error.faults)
        return result


class Commits:
    """
    The high watermark, and the producers' answers that wait for it.

    It also knows what was answered before others had it, at acks 0 or 1: that is what a change of leader may lose.
    """

    def __init__(self, state: ReplicaState) -> None:
        self._state = state
        self._awaiting: deque[tuple[int, Any, AppendResult]] = deque()  # acks=all: the end that must be passed, rising
        self._answered_alone: list[tuple[int, int]] = []  # behind the high watermark, yet answered at acks 0 or 1
        self._led_from: int | None = None  # all behind it was taken in by this process, leading
        self._has_followed = False  # what is here is the start of a leader's log, but for what this process took in

    def written(self, batch: PendingBatch, replies: list[Effect]) -> None:
        """Answer a batch that a leader with followers has written, or keep the answer until the watermark passes it."""
        if not batch.awaits_all:
            if batch.batch is not None:
                merged(self._answered_alone, batch.base_offset, self._state.written_end)
            if batch.token is not None:
                replies.append(Reply(batch.token, batch.result))
        elif batch.token is not None:
            self.wait(batch.token, batch.result)

    def wait(self, token: Any, result: AppendResult) -> None:
        """Give this answer when the high watermark has passed what is written now."""
        self._awaiting.append((self._state.written_end, token, result))

    def advance(self, effects: list[Effect], replies: list[Effect]) -> None:
        """Move the high watermark as far as the role allows, and answer what has waited for it."""
        state = self._state
        leading = state.leading
        if leading is None:
            end = state.written_end if state.is_leader else min(state.leader_watermark, state.written_end)
        elif leading.lacks_replicas(state.config.min_insync_replicas):
            if self._awaiting:
                replies += self.refuse(
                    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "replicas fell out of sync after the append"
                )
            return
        else:
            end = leading.watermark(state.synced_end if state.counts_synced else state.written_end)
        if end <= state.high_watermark:
            return
        state.high_watermark = end
        if state.transactions.ending:
            state.transactions.decided(end)
        effects.append(WatermarkMoved(end))
        while self._awaiting and self._awaiting[0][0] <= end:
            _, token, result = self._awaiting.popleft()
            replies.append(Reply(token, result))
        alone = self._answered_alone
        if alone and alone[0][1] <= end:
            del alone[: bisect_right(alone, end, key=itemgetter(1))]

    def refuse(self, error: ErrorCode, message: str) -> list[Effect]:
        """Answer what waits with an error."""
        result = AppendResult(error, message=message)
        replies: list[Effect] = [Reply(token, result) for _, token, _ in self._awaiting]
        self._awaiting.clear()
        return replies

    def leads(self) -> None:
        """What comes from now on is taken in by this process, as the leader."""
        if self._led_from is None:
            self._led_from = self._state.next_offset
            self._answered_alone.clear()

    def follows(self, *, changed: bool) -> None:
        """A leader has said how its log goes on here; it `changed` this log when there were records, or it was cut."""
        self._has_followed = True
        if changed:
            self._led_from = None

    def take_over(self, old: "Commits") -> None:
        """Go on where the object before this one was, for the same log."""
        self._awaiting, self._answered_alone, self._led_from = old._awaiting, old._answered_alone, old._led_from

    def lost(self, first: int) -> Lost:
        """Say what goes with the records from `first` on."""
        end = self._state.written_end
        ours = self._led_from is not None and first >= self._led_from
        acknowledged = records_in(self._answered_alone, first, end) if ours else None
        return Lost(first, end, max(min(self._state.high_watermark, end) - first, 0), acknowledged)

    def left_behind(self) -> Lost | None:
        """
        Say what goes if this replica does and may be nowhere else, although somebody was told that it is kept.

        That is what this process answered at acks 0 or 1 and others have not been seen to hold. What it found at its
        start may be of that kind as well, until a leader has said otherwise.
        """
        first, end = self._state.high_watermark, self._state.written_end
        if first >= end or (self._led_from is None and self._has_followed):
            return None
        acknowledged = None if self._led_from is None else records_in(self._answered_alone, first, end)
        return None if acknowledged == 0 else Lost(first, end, 0, acknowledged)


class Writes:
    """The batches that have their offsets and are being written, or will be with the next write."""

    def __init__(self, state: ReplicaState, commits: Commits) -> None:
        self._state = state
        self._commits = commits
        self.gathered_bytes = 0
        self._pending: deque[PendingBatch] = deque()
        self._turn_asked = False
        self._writing = False
        self._write_count = 0  # batches of the write under way
        self._write_epochs: int | None = None  # the changes of `epochs` that it keeps
        self._epoch_begun: int | None = None  # the epoch that is known to be among `epochs`
        self._epochs_kept = state.epochs.changes  # as of those on the disk
        self._has_gaps = False  # a leader that had compacted sent batches with offsets missing between them
        self._owes_sync = False  # of what followers were shown early, and nobody was told is kept
        self._unsynced_since_ms: int | None = None

    @property
    def is_writing(self) -> bool:
        return self._writing

    @property
    def is_idle(self) -> bool:
        """Whether every batch that was taken is written."""
        return not self._writing and not self._pending and not self._state.is_truncating

    @property
    def unsynced_since_ms(self) -> int | None:
        """When the oldest record that may not be synced was written, None when all are."""
        return self._unsynced_since_ms

    def next_deadline_ms(self) -> int | None:
        """When `tick` must be called next: flush.ms after the oldest record that is not synced."""
        if self._unsynced_since_ms is None:
            return None
        if self._state.syncs_each_write:
            return self._unsynced_since_ms  # written while the topic's level was memory: no longer good enough
        flush_ms = self._state.config.flush_ms
        return None if flush_ms >= UNBOUNDED_MS else self._unsynced_since_ms + flush_ms

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """Do what has become due by time alone."""
        deadline = self.next_deadline_ms()
        if deadline is None or now_ms < deadline or self._writing or self._state.is_truncating:
            return NOTHING
        return self._begin(sync=True)

    def holds(self, offset: int) -> bool:
        """Whether what is at `offset` has yet to be written."""
        return bool(self._pending) and offset >= self._pending[0].base_offset

    def owes(self, offset: int) -> bool:
        """Whether what is at `offset` has yet to be written, or synced although followers were shown it."""
        return self.holds(offset) or (self._owes_sync and offset >= self._state.synced_end)

    def gather(self, batch: PendingBatch) -> None:
        """Have a batch written; where nothing is being written yet, `ask_turn` says when."""
        state = self._state
        self._pending.append(batch)
        if batch.batch is not None:
            self.gathered_bytes += len(batch.batch)
        if batch.base_offset != state.next_offset:
            self._has_gaps = True
        state.next_offset = batch.last_offset + 1

    def ask_turn(self) -> Sequence[Effect]:
        """Have what is gathered written with all that comes in this turn; the write under way begins the next."""
        if self._turn_asked or self._writing:
            return NOTHING
        self._turn_asked = True
        return _ASK_TURN

    def turn_ended(self) -> Sequence[Effect]:
        """Write what the turn has gathered."""
        self._turn_asked = False
        return self._next()

    def producer_rows(self, before_offset: int) -> list[ProducerRow]:
        """List the producers as of the batches before `before_offset`, those gathered after it left out."""
        undone: dict[int, ProducerEntry | None] = {}
        for pending in reversed(self._pending):
            if pending.base_offset < before_offset:
                break
            if pending.producer_id >= 0 and pending.batch is not None:
                undone[pending.producer_id] = pending.previous
        return list(self._state.producers.rows(undone))

    def _next(self) -> Sequence[Effect]:
        if self._writing or not (self._pending or self._owes_sync):
            return NOTHING
        state = self._state
        if not self._pending:
            return self._begin(sync=True)
        if self._can_show_early():
            self._owes_sync = True
            return self._begin(sync=False)
        return self._begin(
            state.syncs_each_write or state.next_offset - state.synced_end >= state.config.flush_messages
        )

    def _can_show_early(self) -> bool:
        """
        Whether followers may fetch what is gathered while it is synced here (Ongaro's dissertation on Raft, 10.2.1).

        The high watermark waits for this replica's sync as for any other's, and all answers for the high watermark.
        """
        leading = self._state.leading
        if leading is None or not leading.waits_for_followers or not self._state.counts_synced:
            return False
        if self.gathered_bytes > SHOWN_EARLY_BYTES_MAX:
            return False
        return all(batch.awaits_all or batch.token is None for batch in self._pending)

    def _begin(self, sync: bool) -> Sequence[Effect]:
        epochs = self._state.epochs
        if self._epoch_begun != epochs.current and self._state.is_leader and self._pending:
            epochs.begin(epochs.current, self._state.written_end)
            self._epoch_begun = epochs.current
        batches = list(self._pending)
        self._writing = True
        self._write_count = len(batches)
        if epochs.changes == self._epochs_kept and not self._has_gaps:
            return (Write(batches, sync),)
        fresh = None if epochs.changes == self._epochs_kept else epochs.starts
        self._write_epochs = epochs.changes
        return (Write(batches, sync, fresh, self._has_gaps),)

    def written(self, event: Written, now_ms: int) -> Sequence[Effect]:
        """Take note of a write that has been done."""
        assert self._writing, "a write is reported once"
        self._writing = False
        if self._write_epochs is not None:
            self._epochs_kept, self._write_epochs = self._write_epochs, None
        state, commits, pending = self._state, self._commits, self._pending
        replies: list[Effect] = []
        effects: list[Effect] = []
        written_before = state.written_end
        leading = state.leading
        for _ in range(event.batches):
            done = pending.popleft()
            if done.batch is not None:
                self.gathered_bytes -= len(done.batch)
            state.written_end = done.last_offset + 1
            if leading is not None:
                commits.written(done, replies)
            elif done.token is not None:
                replies.append(Reply(done.token, done.result))
        if event.synced:
            state.synced_end = state.written_end
            self._unsynced_since_ms = None
            self._owes_sync = False
        elif self._unsynced_since_ms is None and state.written_end > state.synced_end and not self._owes_sync:
            self._unsynced_since_ms = now_ms
        if state.transactions.ending and (aborted := state.transactions.written(written_before, state.written_end)):
            effects.append(TransactionsAborted(aborted))
        if leading is not None:
            if state.written_end > written_before:
                effects.append(LogEndMoved(state.written_end))
            commits.advance(effects, replies)
        elif state.written_end > state.high_watermark:
            commits.advance(effects, replies)  # alone, or following as far as the leader has said
        # The next write starts before the replies are made: the disk works while they are.
        effects.extend(self._next())
        effects.extend(replies)
        return effects

    def failed(self, event: WriteFailed) -> Sequence[Effect]:
        """Undo and refuse everything that is gathered."""
        state = self._state
        self._writing = self._owes_sync = False
        self._write_epochs = None
        message = f"the log could not be written: {event.reason}"
        result = AppendResult(ErrorCode.KAFKA_STORAGE_ERROR, log_start_offset=state.log_start_offset, message=message)
        replies = self._undo(0, result)
        if event.lost_sync and state.written_end > state.synced_end:
            # After a failed sync the kernel may have dropped the pages, and these records have been acknowledged.
            # Only a restart, which reads what the disk really holds, can tell.
            state.offline_reason = message
        return replies

    def disown(self, result: AppendResult) -> list[Effect]:
        """
        Answer everything that is gathered with `result`, and undo what is not being written yet.

        A write under way cannot be called back: whether it stays is for the new leader's log to say.
        """
        undone = self._undo(self._write_count if self._writing else 0, result)
        replies: list[Effect] = [Reply(batch.token, result) for batch in self._pending if batch.token is not None]
        self._pending = deque(batch._replace(token=None) for batch in self._pending)
        return [*replies, *undone]

    def cut(self) -> None:
        """The log ends elsewhere; all that is left of it is synced."""
        self._unsynced_since_ms = None

    def epochs_kept(self, changes: int) -> None:
        """The epochs are on the disk as of so many changes."""
        self._epochs_kept = changes

    def _undo(self, keep: int, result: AppendResult) -> list[Effect]:
        """Undo what was gathered behind the first `keep` batches, and answer it with `result`."""
        state = self._state
        replies: list[Effect] = []
        while len(self._pending) > keep:
            failed = self._pending.pop()
            if failed.batch is not None:
                self.gathered_bytes -= len(failed.batch)
            if failed.producer_id >= 0:
                state.producers.restore(failed.producer_id, failed.previous)
            if failed.token is not None:
                replies.append(Reply(failed.token, result))
        state.next_offset = self._pending[-1].last_offset + 1 if self._pending else state.written_end
        state.transactions.undo(state.next_offset)
        state.epochs.truncate(state.next_offset)
        self._epoch_begun = None
        if state.is_leader and state.leading is not None:
            state.epochs.begin(state.epochs.current, state.next_offset)
            state.leading.epoch_start = min(state.leading.epoch_start, state.next_offset)
        replies.reverse()
        return replies
