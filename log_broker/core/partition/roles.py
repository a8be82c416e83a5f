"""
What changes with the role of a replica, and what only one of the roles does; see `core.partition.partition`.
"""

from collections.abc import Sequence
from typing import Any

from log_broker.core.partition.following import Lost, fetched_batches
from log_broker.core.partition.producers import ProducerEntry, ProducerStates
from log_broker.core.partition.protocol import AppendResult, Effect, IsrWanted, PendingBatch, Reply
from log_broker.core.partition.replication import Leadership, Leading
from log_broker.core.partition.transactions import Ending, PartitionTransactions
from log_broker.core.partition.writing import NOTHING, Commits, ReplicaState, Writes
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import BatchHeader
from log_broker.records.control import read_marker


class Roles:
    """Who leads, and what a leader has to do with its followers. An older epoch never changes anything."""

    def __init__(self, state: ReplicaState, writes: Writes, commits: Commits) -> None:
        self._state = state
        self._writes = writes
        self._commits = commits
        self._epoch_lost: int | None = None  # in which this replica led and lost what it had given out

    def become_leader(
        self, leadership: Leadership, *, node_id: int, lag_ms_max: int, steady_ms: int
    ) -> Sequence[Effect]:
        """
        Lead in this epoch, or take the state that the controller has committed while leading in it.

        `steady_ms` is monotonic time.
        """
        state = self._state
        epoch = leadership.leader_epoch
        if epoch < state.epochs.current or epoch == self._epoch_lost:
            return NOTHING
        self._forgive_lost_epoch(epoch)
        if epoch == state.epochs.current and state.is_leader and state.leading is not None:
            return self.isr_settled(leadership, steady_ms=steady_ms)
        if not state.is_leader:
            # What a coordinator has allowed before may be over: another leader has its marker.
            state.transactions.forget_expected()
        state.is_leader, state.leader_id = True, node_id
        state.epochs.current = epoch
        state.epochs.begin(epoch, state.next_offset)
        state.leading = None
        self._commits.leads()
        if leadership.replicas != (node_id,):
            state.leading = Leading(
                node_id, leadership, epoch_start=state.next_offset, lag_ms_max=lag_ms_max, now_ms=steady_ms
            )
        state.set_role_rules()
        return self._after_change(steady_ms)

    def become_follower(self, leader_epoch: int, leader_id: int) -> Sequence[Effect]:
        """Follow in this epoch, or nobody (-1) until a leader is known."""
        state = self._state
        if leader_epoch < state.epochs.current or (leader_epoch == state.epochs.current and state.is_leader):
            return NOTHING
        self._forgive_lost_epoch(leader_epoch)
        state.epochs.current, state.leader_id = leader_epoch, leader_id
        # What the leader of before had committed may be lost, by a power cut of logs that are not synced.
        state.leader_watermark = state.high_watermark
        if not state.is_leader:
            return NOTHING
        state.is_leader, state.leading = False, None
        message = "another replica leads now"
        gathered = self._writes.disown(AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER, message=message))
        waiting = self._commits.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
        state.transactions.forget_expected()
        state.set_role_rules()
        return [*waiting, *gathered]

    def resume(self, old: "Roles") -> Sequence[Effect]:
        """
        Go on in the role of `old`, whose log was read from the disk again; return the answers that it still owes.

        A leader that has lost what followers may hold must not give out the same offsets again in the same epoch: it
        stays offline until another epoch begins.
        """
        state = self._state
        state.leader_id = old._state.leader_id
        leading = old._state.leading
        if leading is None:
            return NOTHING
        if state.written_end >= old._state.written_end:
            state.is_leader, state.leading = True, leading
            self._commits.take_over(old._commits)
            state.set_role_rules()
            return NOTHING
        self._epoch_lost = state.epochs.current
        state.offline_reason = f"records of epoch {self._epoch_lost} are lost that followers may have"
        # In doubt, as after a crash.
        return old._commits.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another replica is to lead")

    def abandon_waiting(self) -> Sequence[Effect]:
        """Answer what waits for followers, because this replica goes away."""
        return self._commits.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the replica is closed")

    def _forgive_lost_epoch(self, epoch: int) -> None:
        if self._epoch_lost is not None and epoch > self._epoch_lost:
            self._epoch_lost = self._state.offline_reason = None

    def follower_fetched(
        self, replica_id: int, broker_epoch: int, offset: int, log_start_offset: int, *, steady_ms: int
    ) -> Sequence[Effect]:
        """
        Take note that a replica holds all before `offset` of this very log.

        Only for a fetch that was answered with records or none: one that was found to diverge says nothing of the kind.
        """
        leading = self._state.leading
        if leading is None or not leading.fetched(
            replica_id, broker_epoch, offset, log_start_offset, leader_end=self._state.written_end, now_ms=steady_ms
        ):
            return NOTHING
        effects: list[Effect] = []
        replies: list[Effect] = []
        self._commits.advance(effects, replies)
        effects.extend(replies)
        if leading.joins_at(replica_id):
            self._propose(effects, steady_ms)
        return effects

    def isr_settled(self, leadership: Leadership, *, steady_ms: int) -> Sequence[Effect]:
        """Take the ISR that the controller has committed."""
        state = self._state
        if state.leading is None or not state.leading.settled(leadership, steady_ms):
            return NOTHING
        if len(state.leading.replicas) == 1:
            state.leading = None
            state.set_role_rules()
        return self._after_change(steady_ms)

    def isr_refused(self, error: ErrorCode, *, steady_ms: int) -> Sequence[Effect]:
        """Take the controller's refusal of the proposal, or any error that leaves open what became of it."""
        if self._state.leading is None:
            return NOTHING
        self._state.leading.refused(error, steady_ms)
        return self._after_change(steady_ms)

    def followers_deadline_ms(self) -> int | None:
        """When `check_followers` must be called next, in monotonic time."""
        leading = self._state.leading
        return None if leading is None else leading.next_deadline_ms()

    def check_followers(self, steady_ms: int) -> Sequence[Effect]:
        """Propose to go on without those that have fallen behind."""
        leading = self._state.leading
        if leading is None:
            return NOTHING
        leading.check(self._state.written_end, steady_ms)
        return self._after_change(steady_ms)

    def _after_change(self, steady_ms: int) -> Sequence[Effect]:
        """Do what follows from another ISR or role."""
        effects: list[Effect] = []
        replies: list[Effect] = []
        self._commits.advance(effects, replies)
        effects.extend(replies)
        self._propose(effects, steady_ms)
        return effects

    def _propose(self, effects: list[Effect], steady_ms: int) -> None:
        state = self._state
        if state.leading is not None:
            proposal = state.leading.wanted(state.high_watermark, state.written_end, steady_ms)
            if proposal is not None:
                effects.append(IsrWanted(proposal))


class Following:
    """What a follower takes from its leader, and gives up where the leader's log is another."""

    def __init__(self, state: ReplicaState, writes: Writes, commits: Commits) -> None:
        self._state = state
        self._writes = writes
        self._commits = commits
        self._epochs_cut = 0  # changes of the epochs as of the last cut

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
        state = self._state
        try:
            batches = self._checked(records, leader_epoch)
        except BrokerError as error:
            return (Reply(token, state.refusal(error)),)
        state.leader_watermark = max(state.leader_watermark, high_watermark)
        self._commits.follows(changed=bool(batches))
        result = AppendResult(ErrorCode.NONE, state.next_offset)
        if not batches:
            effects: list[Effect] = []
            self._commits.advance(effects, [])
            state.advance_log_start(log_start_offset)
            return [*effects, Reply(token, result)]
        last = len(batches) - 1
        for at, (batch, header) in enumerate(batches):
            previous = self._replay(batch, header, now_ms) if header.producer_id >= 0 else None
            state.epochs.begin(header.leader_epoch, header.base_offset)
            self._writes.gather(
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
        state.advance_log_start(log_start_offset)
        return self._writes.ask_turn()

    def _checked(self, records: memoryview, leader_epoch: int) -> Sequence[tuple[memoryview, BatchHeader]]:
        state = self._state
        if state.offline_reason is not None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, state.offline_reason)
        if state.is_leader or leader_epoch < state.epochs.current:
            raise BrokerError(ErrorCode.FENCED_LEADER_EPOCH, f"epoch {state.epochs.current} is followed or led here")
        if leader_epoch > state.epochs.current or state.is_truncating:
            raise BrokerError(ErrorCode.UNKNOWN_LEADER_EPOCH, "not yet followed here")
        return list(
            fetched_batches(
                records, next_offset=state.next_offset, epoch_min=state.epochs.latest, epoch_max=leader_epoch
            )
        )

    def _replay(self, batch: memoryview, header: BatchHeader, now_ms: int) -> ProducerEntry | None:
        """Take a batch of a producer into what is known of it; return what was known before."""
        producers = self._state.producers
        previous = producers.get(header.producer_id)
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None:
                self._state.transactions.end(header.producer_id, header.base_offset, committed=marker.committed)
            producers.replay_marker(header, marker)
        else:
            producers.replay(header, now_ms)
        return previous

    def truncate(self, offset: int) -> Lost | None:
        """
        Give up what lies at `offset` and behind, a batch boundary; say what that was.

        For an idle follower, whose log is being cut. What is known of producers does not hold until `truncated`.
        """
        self._begin_truncation()
        lost = self._commits.lost(offset) if offset < self._state.written_end else None
        self._set_ends(offset)
        self._state.epochs.truncate(offset)
        self._epochs_cut = self._state.epochs.changes
        return lost

    def restart_at(self, offset: int) -> None:
        """Give up everything, to begin again at `offset`; otherwise as `truncate`."""
        state = self._state
        self._begin_truncation()
        state.epochs.truncate(-1)
        self._epochs_cut = state.epochs.changes
        self._set_ends(offset)
        state.log_start_offset = state.high_watermark = state.leader_watermark = offset

    def truncated(self, producers: ProducerStates, ending: Sequence[Ending]) -> Sequence[Effect]:
        """The log is cut on the disk too, epochs included; `producers` and `ending` follow from what is left of it."""
        state = self._state
        state.producers = producers
        state.transactions = PartitionTransactions(producers, ending)
        self._writes.epochs_kept(self._epochs_cut)
        return self.truncation_ended()

    def truncation_ended(self) -> Sequence[Effect]:
        """
        Nothing is cut any more. By itself: the disk did not take it, so that nobody knows what is left of the log.

        What was known of transactions before it stands then: one whose records remain is at least as undecided there.
        """
        self._state.is_truncating = False
        self._state.set_role_rules()
        effects: list[Effect] = []
        self._commits.advance(effects, [])
        return effects

    def _begin_truncation(self) -> None:
        assert not self._state.is_leader, "a leader's log is not cut"
        assert self._writes.is_idle, "nothing is being written to a log that is cut"
        self._state.is_truncating = True
        self._state.set_role_rules()

    def _set_ends(self, offset: int) -> None:
        state = self._state
        state.written_end = state.synced_end = state.next_offset = offset
        state.high_watermark = min(state.high_watermark, offset)
        state.leader_watermark = state.high_watermark
        state.log_start_offset = min(state.log_start_offset, offset)
        self._writes.cut()
        self._commits.follows(changed=True)
