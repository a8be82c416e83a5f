"""
Rules of the metadata quorum, broken on purpose one by one: the simulation must notice each.

    python tests/sim/quorum_mutations.py [--seeds-max N] [--jobs J] [name …]

prints which check notices, and after how many seeds. A mutation replaces attributes of the real classes while it runs.
"""

import sys
from typing import Any
from unittest.mock import patch

from mutation_hunt import Patch, named, tell

from log_broker.core.raft import codec as raft_codec
from log_broker.core.raft.driver import RaftDriver
from log_broker.core.raft.effects import Propose, Proposed, QuorumState
from log_broker.core.raft.election import Candidate
from log_broker.core.raft.follower import Follower
from log_broker.core.raft.leader import Leader
from log_broker.core.raft.log import OffsetAndEpoch, RaftLog, Snapshot
from log_broker.core.raft.messages import NO_LEADER, FetchRequest, RaftResponse, VoteRequest, VoteResponse
from log_broker.core.raft.raft import Raft
from log_broker.core.raft.replica import EPOCH_MAX, Replica
from log_broker.core.raft.voters import ReplicaKey, VoterSet, replicated_offset
from log_broker.errors import ErrorCode
from log_broker.sim.cli import make_quorum
from log_broker.sim.quorum.world import QuorumWorld
from log_broker.storage.memory_files import MemoryFile
from log_broker.storage.quorum_store import QuorumStore


def _votes_twice() -> list[Patch]:
    def vote(self: Raft, token: Any, body: VoteRequest) -> None:
        self.replica.state = self.replica.state._replace(voted=None)
        real(self, token, body)

    real = Raft._vote
    return [(Raft, "_vote", vote)]


def _forgets_its_vote_at_restart() -> list[Patch]:
    def read_state(self: QuorumStore) -> QuorumState:
        return real(self)._replace(voted=None)

    real = QuorumStore._read_state
    return [(QuorumStore, "_read_state", read_state)]


def _forgets_its_epoch_at_restart() -> list[Patch]:
    return [(QuorumStore, "_read_state", lambda self: QuorumState())]


def _votes_before_it_is_remembered() -> list[Patch]:
    """Effects behind a SaveQuorumState do not wait for the disk."""

    def run(self: RaftDriver, effects: Any) -> None:
        self._around.wake_at(self.raft.next_deadline_ms())
        self._queue += effects
        while self._queue:
            self._carry_out(self._queue.popleft())

    return [(RaftDriver, "_run", run)]


def _votes_for_a_shorter_log() -> list[Patch]:
    def would_vote(self: Raft, request: VoteRequest) -> bool:
        best = VoteRequest(
            epoch=request.epoch,
            candidate=request.candidate,
            voter=request.voter,
            log_end=OffsetAndEpoch(2**62, 2**31),
            pre_vote=request.pre_vote,
        )
        return real(self, best)

    real = Raft._would_vote
    return [(Raft, "_would_vote", would_vote)]


def _counts_refusals_as_votes() -> list[Patch]:
    def on_response(self: Candidate, request_id: int, body: RaftResponse) -> None:
        if isinstance(body, VoteResponse):
            self._granted.add(body.voter)
            self._count()

    return [(Candidate, "on_response", on_response)]


def _commits_older_epochs_by_counting() -> list[Patch]:
    def decided_end(self: Leader) -> int:
        replica = self._replica
        voters = replica.voters.current
        ends = [replica.synced_end if key == replica.key else self.followers.match(key) for key in voters.keys]
        return max(replica.high_watermark, replicated_offset(ends, voters.majority))

    return [(Leader, "decided_end", decided_end)]


def _half_is_a_majority() -> list[Patch]:
    def init(self: VoterSet, voters: Any) -> None:
        real(self, voters)
        self.majority = max(1, len(self.keys) // 2)

    real = VoterSet.__init__
    return [(VoterSet, "__init__", init)]


def _counts_observers() -> list[Patch]:
    """Whoever fetches is counted among the voters, whose number stays."""

    def decided_end(self: Leader) -> int:
        replica = self._replica
        ends = [replica.synced_end, *(progress.match for progress in self.followers.all.values())]
        end = replicated_offset(ends, replica.voters.current.majority)
        return end if end > self.epoch_start else replica.high_watermark

    return [(Leader, "decided_end", decided_end)]


def _changes_voters_while_a_change_is_open() -> list[Patch]:
    return [(Leader, "_may_change", lambda self: self.has_begun)]


def _changes_voters_before_its_epoch_counts() -> list[Patch]:
    def may_change(self: Leader) -> bool:
        return self._change is None

    return [(Leader, "_may_change", may_change)]


def _keeps_counting_the_first_voters() -> list[Patch]:
    """Voter records are written but never take force."""
    return [(Replica, "_note_voters", lambda self, base_offset, entries: None)]


def _acknowledges_before_fsync() -> list[Patch]:
    def fetch_request(self: Replica, wait_ms: int = 0) -> FetchRequest:
        return FetchRequest(
            epoch=self.epoch,
            replica=self.key,
            log_end=self.log.end,
            high_watermark=self.high_watermark,
            wait_ms=wait_ms,
        )

    return [(Replica, "fetch_request", fetch_request)]


def _leader_counts_what_it_has_not_synced() -> list[Patch]:
    def decided_end(self: Leader) -> int:
        synced, self._replica.synced_end = self._replica.synced_end, self._replica.log.end_offset
        try:
            return real(self)
        finally:
            self._replica.synced_end = synced

    real = Leader.decided_end
    return [(Leader, "decided_end", decided_end)]


def _does_not_sync_its_log() -> list[Patch]:
    def append(self: QuorumStore, base_offset: int, entries: Any) -> None:
        with patch.object(MemoryFile, "sync", lambda self: None):
            real(self, base_offset, entries)

    real = QuorumStore.append
    return [(QuorumStore, "append", append)]


def _does_not_cut_a_torn_tail() -> list[Patch]:
    def valid(batch: Any, crc: int) -> bool:
        return True

    return [(raft_codec, "crc_is_valid", valid)]


def _leader_does_not_look_for_divergence() -> list[Patch]:
    def end_of_epoch(self: RaftLog, epoch: int) -> OffsetAndEpoch | None:
        return None if epoch < self.start.epoch else OffsetAndEpoch(self.end_offset, epoch)

    return [(RaftLog, "end_of_epoch", end_of_epoch)]


def _follower_does_not_truncate() -> list[Patch]:
    return [(Follower, "shared_end", lambda self, diverging: self._replica.log.end_offset)]


def _follower_truncates_too_much() -> list[Patch]:
    def shared_end(self: Follower, diverging: OffsetAndEpoch) -> int:
        return max(self._replica.log.start_offset, real(self, diverging) - 5)

    real = Follower.shared_end
    return [(Follower, "shared_end", shared_end)]


def _takes_answers_to_earlier_requests() -> list[Patch]:
    def on_response(self: Follower, request_id: int, body: RaftResponse) -> None:
        self._awaited = request_id
        real(self, request_id, body)

    real = Follower.on_response
    return [(Follower, "on_response", on_response)]


def _answers_before_it_is_committed() -> list[Patch]:
    def propose(self: Leader, event: Propose) -> None:
        real(self, event)
        if self._proposals and self._proposals[-1][2] is event.token:
            base_offset, _, token = self._proposals.pop()
            self._replica.out.append(Proposed(token, ErrorCode.NONE, base_offset))

    real = Leader.propose
    return [(Leader, "propose", propose)]


def _snapshot_without_its_voters() -> list[Patch]:
    def install(self: Replica, snapshot: Snapshot) -> None:
        real(self, Snapshot(id=snapshot.id, voters=self.bootstrap, data=snapshot.data))

    real = Replica.install
    return [(Replica, "install", install)]


def _snapshot_of_less_than_it_says() -> list[Patch]:
    def advance(self: Replica) -> None:
        end = self.high_watermark
        self.high_watermark = min(end + 1, self.synced_end)
        try:
            real(self)
        finally:
            self.high_watermark = end

    real = Replica._take_snapshot
    return [(Replica, "_take_snapshot", advance)]


def _a_lost_disk_keeps_its_name() -> list[Patch]:
    def disk_lost(self: QuorumWorld, address: int) -> None:
        self.checks.lost_disks += 1
        self.checks._told.pop(self.keys[address], None)  # so that only what follows from it is noticed

    return [(QuorumWorld, "disk_lost", disk_lost)]


def _no_pre_vote() -> list[Patch]:
    return [(Raft, "become_prospective", lambda self, last_leader: self.become_candidate())]


def _no_check_quorum() -> list[Patch]:
    def hears_quorum(self: Leader) -> bool:
        self._check_ms = self._replica.now_ms + 1_000
        return True

    return [(Leader, "_hears_quorum", hears_quorum)]


def _never_tells_who_leads() -> list[Patch]:
    """Neither by BeginQuorumEpoch nor in answers."""
    return [
        (Leader, "_announce", lambda self: setattr(self, "_announce_ms", self._replica.now_ms + 1_000)),
        (Raft, "_known_leader", -1),
    ]


def _an_epoch_is_taken_from_anybody() -> list[Patch]:
    """As it was: whatever a request says of an epoch is adopted."""

    def observe(self: Raft, epoch: int, leader_id: int) -> None:
        with patch.object(self, "epoch_max", lambda: EPOCH_MAX):
            real(self, epoch, leader_id)

    real = Raft._observe
    return [
        (Raft, "_observe", observe),
        (Raft, "_observe_request", lambda self, epoch, leader_id, by: self._observe(epoch, leader_id)),
        (Raft, "_told_of", lambda self, epoch, by: self._observe(epoch, NO_LEADER)),
    ]


def _a_vote_request_ends_an_epoch_that_has_a_leader() -> list[Patch]:
    return [(Raft, "_observe_request", lambda self, epoch, leader_id, by: self._observe(epoch, leader_id))]


def _a_fetch_ends_an_epoch() -> list[Patch]:
    return [(Raft, "_told_of", lambda self, epoch, by: self._observe(epoch, NO_LEADER))]


def _nobody_is_asked_back() -> list[Patch]:
    return [(Raft, "_told_of", lambda self, epoch, by: None)]


def _voters_hear_of_decisions_only() -> list[Patch]:
    """A leader gives everybody what is committed, also those who have yet to confirm it."""
    return [(Leader, "_visible_end", lambda self, key: self._replica.high_watermark)]


def _observers_are_never_told() -> list[Patch]:
    def visible_end(self: Leader, key: ReplicaKey) -> int:
        return real(self, key) if key in self._replica.voters.current else 0

    real = Leader._visible_end
    return [(Leader, "_visible_end", visible_end)]


MUTATIONS = named(
    _votes_twice,
    _forgets_its_vote_at_restart,
    _forgets_its_epoch_at_restart,
    _votes_before_it_is_remembered,
    _votes_for_a_shorter_log,
    _counts_refusals_as_votes,
    _commits_older_epochs_by_counting,
    _half_is_a_majority,
    _counts_observers,
    _changes_voters_while_a_change_is_open,
    _changes_voters_before_its_epoch_counts,
    _keeps_counting_the_first_voters,
    _acknowledges_before_fsync,
    _leader_counts_what_it_has_not_synced,
    _does_not_sync_its_log,
    _does_not_cut_a_torn_tail,
    _leader_does_not_look_for_divergence,
    _follower_does_not_truncate,
    _follower_truncates_too_much,
    _takes_answers_to_earlier_requests,
    _answers_before_it_is_committed,
    _snapshot_without_its_voters,
    _snapshot_of_less_than_it_says,
    _a_lost_disk_keeps_its_name,
    _no_pre_vote,
    _no_check_quorum,
    _never_tells_who_leads,
    _an_epoch_is_taken_from_anybody,
    _a_vote_request_ends_an_epoch_that_has_a_leader,
    _a_fetch_ends_an_epoch,
    _nobody_is_asked_back,
    _voters_hear_of_decisions_only,
    _observers_are_never_told,
)


if __name__ == "__main__":
    sys.exit(tell("python tests/sim/quorum_mutations.py", MUTATIONS, make_quorum, seeds_max=2_000))
