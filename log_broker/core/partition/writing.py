"""
How a replica of a partition writes: gathers batches, has them written together, and moves what depends on it.

This is the part of `core.partition` that leaders and followers share.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from log_broker.config.broker import TopicConfig
from log_broker.core.partition.epochs import LeaderEpochs
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
from log_broker.core.partition.replication import Leading, merged
from log_broker.core.partition.transactions import Ending, PartitionTransactions
from log_broker.core.raft.lease import Lease
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.validation import RecordsRefusedError

UNBOUNDED_MS = 2**63 - 1
NO_LEADER = -1

NOTHING: tuple[Effect, ...] = ()
_ASK_TURN: tuple[Effect, ...] = (AskTurn(),)


class PartitionWriting:
    """
    The state of one replica. It leads alone until it is told otherwise.

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
        self.written_end = end_offset  # all before it is in the file
        self.synced_end = end_offset  # all before it survives a power cut
        self.next_offset = end_offset  # of the next batch; the gathered ones lie before it
        self._offline_reason: str | None = None
        self._leading: Leading | None = None  # None too for a leader without followers
        self._leader_watermark = self.high_watermark  # as the leader last said
        self._awaiting: deque[tuple[int, Any, AppendResult]] = deque()  # acks=all: the end that must be passed, rising
        self._answered_alone: list[tuple[int, int]] = []  # behind the high watermark, yet answered at acks 0 or 1
        self._led_from: int | None = None  # all behind it was taken in by this process, leading
        self._has_followed = False  # what is here is the start of a leader's log, but for what this process took in
        self._epoch_lost: int | None = None  # in which this replica led and lost what it had given out
        self._epoch_begun: int | None = None  # the epoch that is known to be among `epochs`
        self._epochs_kept = epochs.changes  # as of those on the disk
        self._truncating = False
        self._epochs_cut = 0  # changes of `epochs` as of the last cut
        self._has_gaps = False  # a leader that had compacted sent batches with offsets missing between them
        self._pending: deque[PendingBatch] = deque()
        self._gathered_bytes = 0
        self._turn_asked = False
        self._writing = False
        self._write_count = 0  # batches of the write under way
        self._write_epochs: int | None = None  # the changes of `epochs` that it keeps
        self._unsynced_since_ms: int | None = None
        self.config = config
        self._set_role_rules()

    def _set_role_rules(self) -> None:
        level = self.config.fluvial_durability
        self._counts_synced = level == "fsync-quorum"
        self._syncs_each_write = level == "fsync-quorum" or (level == "fsync-leader" and self.is_leader)
        # Who leads alone and is well takes everything; others look closer.
        self._is_guarded = (
            not self.is_leader or self._leading is not None or self._offline_reason is not None or self._truncating
        )

    @property
    def offline_reason(self) -> str | None:
        """Why it takes no writes any more, if it does not."""
        return self._offline_reason

    @offline_reason.setter
    def offline_reason(self, reason: str | None) -> None:
        self._offline_reason = reason
        self._set_role_rules()

    @property
    def leading(self) -> Leading | None:
        """What a leader knows of its followers; None for one that has none, and for a follower."""
        return self._leading

    @property
    def leader_epoch(self) -> int:
        return self.epochs.current

    @property
    def is_writing(self) -> bool:
        return self._writing

    @property
    def is_idle(self) -> bool:
        """Whether every batch that was taken is written."""
        return not self._writing and not self._pending and not self._truncating

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
        if deadline is None or now_ms < deadline or self._writing or self._truncating:
            return NOTHING
        return self._begin_write(sync=True)

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

    def _refusal(self, error: BrokerError) -> AppendResult:
        errors = error.record_errors if isinstance(error, RecordsRefusedError) else ()
        return AppendResult(error.code, -1, -1, self.log_start_offset, errors, str(error))

    def _ask_turn(self) -> Sequence[Effect]:
        if self._turn_asked or self._writing:
            return NOTHING
        self._turn_asked = True
        return _ASK_TURN

    def _next_write(self, now_ms: int) -> Sequence[Effect]:
        if self._writing or not self._pending:
            return NOTHING
        return self._begin_write(
            self._syncs_each_write or self.next_offset - self.synced_end >= self.config.flush_messages
        )

    def _begin_write(self, sync: bool) -> Sequence[Effect]:
        epochs = self.epochs
        if self._epoch_begun != epochs.current and self.is_leader and self._pending:
            epochs.begin(epochs.current, self.written_end)
            self._epoch_begun = epochs.current
        batches = list(self._pending)
        self._writing = True
        self._write_count = len(batches)
        if epochs.changes == self._epochs_kept and not self._has_gaps:
            return (Write(batches, sync),)
        fresh = None if epochs.changes == self._epochs_kept else epochs.starts
        self._write_epochs = epochs.changes
        return (Write(batches, sync, fresh, self._has_gaps),)

    def _written(self, event: Written, now_ms: int) -> Sequence[Effect]:
        assert self._writing, "a write is reported once"
        self._writing = False
        if self._write_epochs is not None:
            self._epochs_kept, self._write_epochs = self._write_epochs, None
        pending = self._pending
        replies: list[Effect] = []
        effects: list[Effect] = []
        written_before = self.written_end
        leading = self._leading
        for _ in range(event.batches):
            done = pending.popleft()
            if done.batch is not None:
                self._gathered_bytes -= len(done.batch)
            self.written_end = done.last_offset + 1
            if leading is not None:
                self._await_others(done, replies)
            elif done.token is not None:
                replies.append(Reply(done.token, done.result))
        if event.synced:
            self.synced_end = self.written_end
            self._unsynced_since_ms = None
        elif self._unsynced_since_ms is None and self.written_end > self.synced_end:
            self._unsynced_since_ms = now_ms
        if self.transactions.ending and (aborted := self.transactions.written(written_before, self.written_end)):
            effects.append(TransactionsAborted(aborted))
        if leading is not None:
            effects.append(LogEndMoved(self.written_end))
            self._advance(effects, replies)
        elif self.written_end > self.high_watermark:
            self._advance(effects, replies)  # alone, or following as far as the leader has said
        # The next write starts before the replies are made: the disk works while they are.
        effects.extend(self._next_write(now_ms))
        effects.extend(replies)
        return effects

    def _await_others(self, done: PendingBatch, replies: list[Effect]) -> None:
        """Answer a batch that this leader has written, or keep the answer until the high watermark has passed it."""
        if not done.awaits_all:
            if done.batch is not None:
                merged(self._answered_alone, done.base_offset, self.written_end)
            if done.token is not None:
                replies.append(Reply(done.token, done.result))
        elif done.token is not None:
            self._awaiting.append((self.written_end, done.token, done.result))

    def _advance(self, effects: list[Effect], replies: list[Effect]) -> None:
        """Move the high watermark as far as the role allows, and answer what has waited for it."""
        leading = self._leading
        if leading is None:
            end = self.written_end if self.is_leader else min(self._leader_watermark, self.written_end)
        elif leading.lacks_replicas(self.config.min_insync_replicas):
            if self._awaiting:
                result = AppendResult(
                    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, message="replicas fell out of sync after the append"
                )
                replies += [Reply(token, result) for _, token, _ in self._awaiting]
                self._awaiting.clear()
            return
        else:
            end = leading.watermark(self.synced_end if self._counts_synced else self.written_end)
        if end <= self.high_watermark:
            return
        self.high_watermark = end
        if self.transactions.ending:
            self.transactions.decided(end)
        effects.append(WatermarkMoved(end))
        while self._awaiting and self._awaiting[0][0] <= end:
            _, token, result = self._awaiting.popleft()
            replies.append(Reply(token, result))
        alone = self._answered_alone
        if alone and alone[0][1] <= end:
            del alone[: bisect_right(alone, end, key=itemgetter(1))]

    def _write_failed(self, event: WriteFailed) -> Sequence[Effect]:
        self._writing = False
        self._write_epochs = None
        message = f"the log could not be written: {event.reason}"
        result = AppendResult(ErrorCode.KAFKA_STORAGE_ERROR, log_start_offset=self.log_start_offset, message=message)
        replies = self._drop_pending(0, result)
        if event.lost_sync and self.written_end > self.synced_end:
            # After a failed sync the kernel may have dropped the pages, and these records have been acknowledged.
            # Only a restart, which reads what the disk really holds, can tell.
            self.offline_reason = message
        return replies

    def _drop_pending(self, keep: int, result: AppendResult) -> list[Effect]:
        """Undo what was gathered behind the first `keep` batches, and answer it with `result`."""
        replies: list[Effect] = []
        while len(self._pending) > keep:
            failed = self._pending.pop()
            if failed.batch is not None:
                self._gathered_bytes -= len(failed.batch)
            if failed.producer_id >= 0:
                self.producers.restore(failed.producer_id, failed.previous)
            if failed.token is not None:
                replies.append(Reply(failed.token, result))
        self.next_offset = self._pending[-1].last_offset + 1 if self._pending else self.written_end
        self.transactions.undo(self.next_offset)
        self.epochs.truncate(self.next_offset)
        self._epoch_begun = None
        if self.is_leader and self._leading is not None:
            self.epochs.begin(self.epochs.current, self.next_offset)
            self._leading.epoch_start = min(self._leading.epoch_start, self.next_offset)
        replies.reverse()
        return replies
