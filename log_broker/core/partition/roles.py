"""
The roles of a replica: leading with followers or alone, and following.

`become_leader` and `become_follower` change the role. What is not decided then is answered with
NOT_LEADER_OR_FOLLOWER: it may be in the log of the next leader or not.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from log_broker.core.partition.following import Lost, fetched_batches
from log_broker.core.partition.producers import ProducerEntry, ProducerStates
from log_broker.core.partition.protocol import AppendResult, Effect, IsrWanted, PendingBatch, Reply
from log_broker.core.partition.replication import Leadership, Leading, records_in
from log_broker.core.partition.transactions import Ending, PartitionTransactions
from log_broker.core.partition.writing import NOTHING, PartitionWriting
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import BatchHeader
from log_broker.records.control import read_marker

ACKS_ALL = -1


class PartitionRoles(PartitionWriting):
    """What changes with the role, and what only one of the roles does."""

    def become_leader(
        self, leadership: Leadership, *, node_id: int, lag_ms_max: int, steady_ms: int
    ) -> Sequence[Effect]:
        """
        Lead in this epoch, or take the state that the controller has committed while leading in it.

        An older epoch changes nothing. `steady_ms` is monotonic time.
        """
        epoch = leadership.leader_epoch
        if epoch < self.epochs.current or epoch == self._epoch_lost:
            return NOTHING
        self._forgive_lost_epoch(epoch)
        if epoch == self.epochs.current and self.is_leader and self._leading is not None:
            return self.isr_settled(leadership, steady_ms=steady_ms)
        self.is_leader, self.leader_id = True, node_id
        self.epochs.current = epoch
        self.epochs.begin(epoch, self.next_offset)
        self._leading = None
        if self._led_from is None:
            self._led_from = self.next_offset
            self._answered_alone.clear()
        if leadership.replicas != (node_id,):
            self._leading = Leading(
                node_id, leadership, epoch_start=self.next_offset, lag_ms_max=lag_ms_max, now_ms=steady_ms
            )
        self._set_role_rules()
        return self._after_change(steady_ms)

    def become_follower(self, leader_epoch: int, leader_id: int) -> Sequence[Effect]:
        """Follow in this epoch, or nobody (-1) until a leader is known. An older epoch changes nothing."""
        if leader_epoch < self.epochs.current or (leader_epoch == self.epochs.current and self.is_leader):
            return NOTHING
        self._forgive_lost_epoch(leader_epoch)
        self.epochs.current, self.leader_id = leader_epoch, leader_id
        if not self.is_leader:
            return NOTHING
        self.is_leader, self._leading = False, None
        self._leader_watermark = self.high_watermark
        result = AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER, message="another replica leads now")
        # What is being written cannot be called back; whether it stays is for the new leader's log to say.
        in_write = self._write_count if self._writing else 0
        dropped = self._drop_pending(in_write, result)
        replies: list[Effect] = [Reply(token, result) for _, token, _ in self._awaiting]
        self._awaiting.clear()
        replies += [Reply(pending.token, result) for pending in self._pending if pending.token is not None]
        self._pending = deque(pending._replace(token=None) for pending in self._pending)
        self.transactions.forget_expected()
        self._set_role_rules()
        return [*replies, *dropped]

    def resume(self, old: "PartitionRoles") -> Sequence[Effect]:
        """
        Go on in the role of `old`, whose log was read from the disk anew; return the answers that it still owes.

        A leader that has lost what followers may hold must not give out the same offsets again in the same epoch: it
        stays offline until another epoch begins.
        """
        self.leader_id = old.leader_id
        leading = old._leading
        if leading is None:
            return NOTHING
        if self.written_end >= old.written_end:
            self.is_leader, self._leading = True, leading
            self._awaiting, self._answered_alone, self._led_from = old._awaiting, old._answered_alone, old._led_from
            self._set_role_rules()
            return NOTHING
        self._epoch_lost = self.epochs.current
        self.offline_reason = f"records of epoch {self._epoch_lost} are lost that followers may have"
        result = AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER, message="another replica is to lead")
        return [Reply(token, result) for _, token, _ in old._awaiting]  # in doubt, as after a crash

    def abandon_waiting(self) -> Sequence[Effect]:
        """Answer what waits for followers, because this replica goes away."""
        result = AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER, message="the replica is closed")
        replies = [Reply(token, result) for _, token, _ in self._awaiting]
        self._awaiting.clear()
        return replies

    def _forgive_lost_epoch(self, epoch: int) -> None:
        if self._epoch_lost is not None and epoch > self._epoch_lost:
            self._epoch_lost = self.offline_reason = None

    def _check_open(self, acks: int) -> None:
        """Raise BrokerError when a batch that wants these acks cannot be taken now."""
        if self._offline_reason is not None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, self._offline_reason)
        if not self.is_leader or self._truncating:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this replica follows")
        leading = self._leading
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

    # A leader's followers.

    def follower_fetched(
        self, replica_id: int, broker_epoch: int, offset: int, log_start_offset: int, *, steady_ms: int
    ) -> Sequence[Effect]:
        """
        Take note that a replica holds all before `offset` of this very log.

        Only for a fetch that was answered with records or none: one that was found to diverge says nothing of the kind.
        """
        leading = self._leading
        if leading is None or not leading.fetched(
            replica_id, broker_epoch, offset, log_start_offset, leader_end=self.written_end, now_ms=steady_ms
        ):
            return NOTHING
        effects: list[Effect] = []
        replies: list[Effect] = []
        self._advance(effects, replies)
        effects.extend(replies)
        if leading.joins_at(replica_id):
            self._propose(effects, steady_ms)
        return effects

    def isr_settled(self, leadership: Leadership, *, steady_ms: int) -> Sequence[Effect]:
        """Take the ISR that the controller has committed; an older state changes nothing."""
        leading = self._leading
        if leading is None or not leading.settled(leadership, steady_ms):
            return NOTHING
        if len(leading.replicas) == 1:
            self._leading = None
            self._set_role_rules()
        return self._after_change(steady_ms)

    def isr_refused(self, error: ErrorCode, *, steady_ms: int) -> Sequence[Effect]:
        """Take the controller's refusal of the proposal, or any error that leaves open what became of it."""
        if self._leading is None:
            return NOTHING
        self._leading.refused(error, steady_ms)
        return self._after_change(steady_ms)

    def followers_deadline_ms(self) -> int | None:
        """When `check_followers` must be called next, in monotonic time."""
        return None if self._leading is None else self._leading.next_deadline_ms()

    def check_followers(self, steady_ms: int) -> Sequence[Effect]:
        """Propose to go on without those that have fallen behind."""
        if self._leading is None:
            return NOTHING
        self._leading.check(self.written_end, steady_ms)
        return self._after_change(steady_ms)

    def _after_change(self, steady_ms: int) -> Sequence[Effect]:
        """Do what follows from another ISR or role."""
        effects: list[Effect] = []
        replies: list[Effect] = []
        self._advance(effects, replies)
        effects.extend(replies)
        self._propose(effects, steady_ms)
        return effects

    def _propose(self, effects: list[Effect], steady_ms: int) -> None:
        leading = self._leading
        if leading is not None:
            proposal = leading.wanted(self.high_watermark, self.written_end, steady_ms)
            if proposal is not None:
                effects.append(IsrWanted(proposal))

    # Following.

    def append_fetched(
        self,
        records: memoryview,
        leader_epoch: int,
        high_watermark: int,
        log_start_offset: int,
        token: Any,
        *,
        now_ms: int,
    ) -> Sequence[Effect]:
        """
        Take what the leader of this epoch sent, with its high watermark and log start; answered once it is written.

        Errors: FENCED_LEADER_EPOCH and UNKNOWN_LEADER_EPOCH for another epoch than that followed, CORRUPT_MESSAGE for
        batches that do not go on from the end of this log; nothing of them is taken then.
        """
        try:
            if self._offline_reason is not None:
                raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, self._offline_reason)
            if self.is_leader or leader_epoch < self.epochs.current:
                raise BrokerError(ErrorCode.FENCED_LEADER_EPOCH, f"epoch {self.epochs.current} is followed or led here")
            if leader_epoch > self.epochs.current or self._truncating:
                raise BrokerError(ErrorCode.UNKNOWN_LEADER_EPOCH, "not yet followed here")
            batches = list(
                fetched_batches(
                    records,
                    next_offset=self.next_offset,
                    epoch_min=self.epochs.latest,
                    epoch_max=leader_epoch,
                )
            )
        except BrokerError as error:
            return (Reply(token, self._refusal(error)),)
        self._leader_watermark = max(self._leader_watermark, high_watermark)
        self._has_followed = True
        result = AppendResult(ErrorCode.NONE, self.next_offset)
        if not batches:
            effects: list[Effect] = []
            self._advance(effects, [])
            self.advance_log_start(log_start_offset)
            return [*effects, Reply(token, result)]
        last = len(batches) - 1
        for at, (batch, header) in enumerate(batches):
            previous = self._replay_fetched(batch, header, now_ms) if header.producer_id >= 0 else None
            self.epochs.begin(header.leader_epoch, header.base_offset)
            self._has_gaps = self._has_gaps or header.base_offset != self.next_offset
            self.next_offset = header.last_offset + 1
            self._gathered_bytes += len(batch)
            self._pending.append(
                PendingBatch(
                    batch,
                    header.base_offset,
                    header.last_offset,
                    header.max_timestamp,
                    token if at == last else None,
                    result,
                    header.producer_id,
                    previous,
                )
            )
        self._led_from = None
        self.advance_log_start(log_start_offset)
        return self._ask_turn()

    def _replay_fetched(self, batch: memoryview, header: BatchHeader, now_ms: int) -> ProducerEntry | None:
        """Take a batch of a producer into what is known of it; return what was known before."""
        previous = self.producers.get(header.producer_id)
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None:
                self.transactions.end(header.producer_id, header.base_offset, committed=marker.committed)
            self.producers.replay_marker(header, marker)
        else:
            self.producers.replay(header, now_ms)
        return previous

    def truncate(self, offset: int) -> Lost | None:
        """
        Give up what lies at `offset` and behind, a batch boundary; say what that was.

        For an idle follower, whose log is being cut. What is known of producers does not hold until `truncated`.
        """
        self._begin_truncation()
        lost = None
        if offset < self.written_end:
            first, end = offset, self.written_end
            ours = self._led_from is not None and first >= self._led_from
            acknowledged = records_in(self._answered_alone, first, end) if ours else None
            lost = Lost(first, end, max(min(self.high_watermark, end) - first, 0), acknowledged)
        self._set_ends(offset)
        self.epochs.truncate(offset)
        self._epochs_cut = self.epochs.changes
        return lost

    def left_behind(self) -> Lost | None:
        """
        Say what goes if this replica does and may be nowhere else, although somebody was told that it is kept.

        That is what this process answered at acks 0 or 1 and others have not been seen to hold. What it found at its
        start may be of that kind as well, until a leader has said otherwise.
        """
        first, end = self.high_watermark, self.written_end
        if first >= end or (self._led_from is None and self._has_followed):
            return None
        acknowledged = None if self._led_from is None else records_in(self._answered_alone, first, end)
        return None if acknowledged == 0 else Lost(first, end, 0, acknowledged)

    def restart_at(self, offset: int) -> None:
        """Give up everything, to begin again at `offset`; otherwise as `truncate`."""
        self._begin_truncation()
        self.epochs.truncate(-1)
        self._epochs_cut = self.epochs.changes
        self._set_ends(offset)
        self.log_start_offset = self.high_watermark = self._leader_watermark = offset

    def truncated(self, producers: ProducerStates, ending: Sequence[Ending]) -> Sequence[Effect]:
        """The log is cut on the disk too, epochs included; `producers` and `ending` follow from what is left of it."""
        self._truncating = False
        self._set_role_rules()
        self.producers = producers
        self.transactions = PartitionTransactions(producers, ending)
        self._epochs_kept = self._epochs_cut
        effects: list[Effect] = []
        self._advance(effects, [])
        return effects

    def _begin_truncation(self) -> None:
        assert not self.is_leader, "a leader's log is not cut"
        assert self.is_idle, "nothing is being written to a log that is cut"
        self._truncating = True
        self._set_role_rules()

    def _set_ends(self, offset: int) -> None:
        self.written_end = self.synced_end = self.next_offset = offset
        self._unsynced_since_ms = None
        self.high_watermark = min(self.high_watermark, offset)
        self._leader_watermark = self.high_watermark
        self.log_start_offset = min(self.log_start_offset, offset)
        self._led_from = None
        self._has_followed = True
