"""
The role that decides: appends, answers the fetches of all others, counts how far a majority has come.

A leader that a majority of voters no longer fetches from gives up (check-quorum), so that clients which only reach it
do not wait for ever. Entries of earlier epochs are decided by way of the first of its own (Raft §5.4.2), and only
then does it take proposals or change the voters, one at a time (KIP-853).
"""

from collections import deque
from dataclasses import replace
from typing import Any

from log_broker.core.raft.effects import (
    AddVoter,
    LeadershipBegan,
    LeadershipEnded,
    Propose,
    Proposed,
    RemoveVoter,
    UpdateVoter,
    VotersChanged,
)
from log_broker.core.raft.log import Entry, EntryKind
from log_broker.core.raft.messages import (
    NO_LEADER,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftResponse,
)
from log_broker.core.raft.parked import Parked, ParkedFetches
from log_broker.core.raft.progress import Followers
from log_broker.core.raft.replica import Replica, RoleChanges
from log_broker.core.raft.voters import ReplicaKey, VoterSet, replicated_offset
from log_broker.errors import ErrorCode

_TOGETHER_MS = 20  # fetches that are due within this time of each other are answered at once


class _VoterChange:
    """The one change of voters under way: waits for `joining` to catch up, then for its record to be committed."""

    __slots__ = ("deadline_ms", "joining", "offset", "token", "voters")

    def __init__(self, token: Any, voters: VoterSet, joining: ReplicaKey | None, deadline_ms: int) -> None:
        self.token = token
        self.voters = voters
        self.joining = joining
        self.deadline_ms = deadline_ms
        self.offset: int | None = None


class Leader:
    """Leads in one epoch."""

    leads = True

    def __init__(self, replica: Replica, changes: RoleChanges) -> None:
        self._replica = replica
        self._changes = changes
        self.epoch_start = replica.log.end_offset
        self.has_begun = False  # whether an entry of this epoch is committed
        self.followers = Followers(replica)
        self._parked = ParkedFetches()
        self._proposals: deque[tuple[int, int, Any]] = deque()  # (base offset, end offset, token)
        self._change: _VoterChange | None = None
        self._check_ms = replica.now_ms + self._quorum_timeout_ms
        self._announce_ms = replica.now_ms

    @property
    def changes_voters(self) -> bool:
        """Whether a change of the voters is under way."""
        return self._change is not None

    @property
    def _quorum_timeout_ms(self) -> int:
        return self._replica.config.fetch_timeout_ms * 3 // 2

    def start(self) -> None:
        """Tell the voters, and write the first entry of the epoch."""
        replica = self._replica
        self._announce()
        replica.append(
            (Entry(replica.epoch, EntryKind.LEADER_CHANGE, b'{"version":0,"leader":%d}' % replica.key.node_id),)
        )

    def deadline_ms(self) -> int:
        deadline = min(self._check_ms, self._announce_ms)
        if (first := self._parked.first()) is not None:
            deadline = min(deadline, first.deadline_ms)
        if self._change is not None and self._change.offset is None:
            deadline = min(deadline, self._change.deadline_ms)
        return deadline

    def tick(self) -> None:
        now_ms = self._replica.now_ms
        if now_ms >= self._check_ms and not self._hears_quorum():
            self._changes.resign()
            return
        if now_ms >= self._announce_ms:
            self._announce()
        while (first := self._parked.first()) is not None and now_ms + _TOGETHER_MS >= first.deadline_ms:
            self._parked.remove(first)
            self._answer(first)
        change = self._change
        if change is not None and change.offset is None and now_ms >= change.deadline_ms:
            self._end_change(ErrorCode.REQUEST_TIMED_OUT, "the new voter did not catch up in time")

    def grants_pre_vote(self) -> bool:
        return False

    def granted_vote(self) -> None:
        """A leader has voted for itself."""

    def on_response(self, request_id: int, body: RaftResponse) -> None:
        """What BeginQuorumEpoch is answered does not matter: the fetches that follow do."""

    def on_stored(self) -> None:
        self.advance()

    # What others ask

    def on_fetch(self, token: Any, body: FetchRequest, link: Any) -> None:
        """Note how far a replica has come, and answer it now or when there is something to tell."""
        replica = self._replica
        progress = self.followers.heard(body.replica)
        progress.fetched(link)
        shared = replica.log.end_of_epoch(body.log_end.epoch)
        if shared is not None and shared.epoch == body.log_end.epoch and shared.offset >= body.log_end.offset:
            if body.log_end.offset >= replica.log.start_offset:
                progress.match = max(progress.match, body.log_end.offset)
                if progress.match >= self._visible_end(body.replica):
                    progress.caught_up_ms = replica.now_ms
                if (before := self._parked.get(body.replica)) is not None:
                    replica.answer(before.token, self._nothing_new())
                wait_ms = min(body.wait_ms, replica.config.observer_fetch_wait_ms_max)
                self._parked.put(Parked(token, body, link, replica.now_ms + wait_ms))
                self.advance()
                if (parked := self._parked.get(body.replica)) is not None:
                    self._answer_if_changes(parked)
                return
            shared = None
        answer = replace(self._nothing_new(), diverging=shared)
        if shared is None:
            assert replica.snapshot is not None, "what is before the log is in a snapshot"
            answer = replace(answer, snapshot_id=replica.snapshot.id)
        progress.answered(replica.now_ms)
        replica.answer(token, answer)

    def on_fetch_snapshot(self, token: Any, body: FetchSnapshotRequest) -> None:
        """Give a part of the newest snapshot, the only one that is kept."""
        replica = self._replica
        self.followers.heard(body.replica)
        snapshot = replica.snapshot
        error = ErrorCode.NONE
        if snapshot is None or snapshot.id != body.snapshot_id:
            error = ErrorCode.SNAPSHOT_NOT_FOUND
        elif not 0 <= body.position <= len(snapshot.data):
            error = ErrorCode.POSITION_OUT_OF_RANGE
        answer = FetchSnapshotResponse(
            error=error, epoch=replica.epoch, leader_id=replica.key.node_id, snapshot_id=body.snapshot_id
        )
        if snapshot is not None and error is ErrorCode.NONE:
            answer = replace(
                answer,
                size=len(snapshot.data),
                position=body.position,
                part=snapshot.data[body.position : body.position + replica.config.snapshot_part_bytes],
                voters=snapshot.voters.encode(),
            )
        replica.answer(token, answer)

    def propose(self, event: Propose) -> None:
        """Append entries that the state machine above has decided on."""
        replica = self._replica
        if event.epoch != replica.epoch or not self.has_begun:
            replica.out.append(Proposed(event.token, ErrorCode.NOT_CONTROLLER))
            return
        base_offset = replica.log.end_offset
        if base_offset + len(event.data) - replica.high_watermark > replica.config.uncommitted_entries_max:
            replica.out.append(Proposed(event.token, ErrorCode.THROTTLING_QUOTA_EXCEEDED))
            return
        replica.append(tuple(Entry(replica.epoch, EntryKind.DATA, data) for data in event.data))
        self._proposals.append((base_offset, replica.log.end_offset, event.token))
        self._tell_voters()

    def change_voters(self, event: AddVoter | RemoveVoter | UpdateVoter) -> None:
        """Begin to make an observer a voter, a voter an observer, or to write down where a voter listens."""
        replica = self._replica
        voters = replica.voters.current
        key = event.key if isinstance(event, RemoveVoter) else event.voter.key
        if isinstance(event, UpdateVoter) and voters.get(key.node_id) == event.voter:
            self._changed(event.token, ErrorCode.NONE, "")
        elif not self._may_change():
            self._changed(event.token, ErrorCode.REQUEST_TIMED_OUT, "another change of the voters is under way")
        elif isinstance(event, AddVoter) and voters.get(key.node_id) is not None:
            self._changed(event.token, ErrorCode.DUPLICATE_VOTER, "this node is a voter already; remove it first")
        elif not isinstance(event, AddVoter) and key not in voters:
            self._changed(event.token, ErrorCode.VOTER_NOT_FOUND, "not a voter")
        elif isinstance(event, RemoveVoter) and len(voters) == 1:
            self._changed(event.token, ErrorCode.INVALID_REQUEST, "the last voter cannot be removed")
        else:
            after = voters.without_voter(key) if isinstance(event, RemoveVoter) else voters.with_voter(event.voter)
            deadline_ms = replica.now_ms + replica.config.add_voter_timeout_ms
            joining = key if isinstance(event, AddVoter) else None
            self._change = _VoterChange(event.token, after, joining, deadline_ms)
            self._go_on_with_change()

    # What follows from it

    def advance(self) -> None:
        """Decide what a majority of voters has on its disks."""
        replica = self._replica
        end = self.decided_end()
        if end > replica.high_watermark:
            replica.commit(end)
            if not self.has_begun:
                self.has_begun = True
                replica.out.append(LeadershipBegan(replica.epoch))
            while self._proposals and self._proposals[0][1] <= end:
                base_offset, _, token = self._proposals.popleft()
                replica.out.append(Proposed(token, ErrorCode.NONE, base_offset))
            for parked in self._parked:
                self._answer_if_changes(parked)
        self._go_on_with_change()

    def decided_end(self) -> int:
        """Return how far the log is decided: on a majority's disks, and led there by an entry of this epoch."""
        replica = self._replica
        voters = replica.voters.current
        ends = [replica.synced_end if key == replica.key else self.followers.match(key) for key in voters.keys]
        end = replicated_offset(ends, voters.majority)
        return end if end > self.epoch_start else replica.high_watermark

    def end(self) -> None:
        """Answer all that wait, on the way to another role."""
        replica = self._replica
        for parked in self._parked:
            replica.answer(
                parked.token,
                FetchResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, epoch=replica.epoch, leader_id=NO_LEADER),
            )
        for _, _, token in self._proposals:
            replica.out.append(Proposed(token, ErrorCode.NOT_CONTROLLER, in_doubt=True))
        self._parked.clear()
        self._proposals.clear()
        if self._change is not None:
            self._end_change(ErrorCode.NOT_CONTROLLER, "leadership ended; the change may or may not come about")
        replica.out.append(LeadershipEnded(replica.epoch))

    def say_goodbye(self) -> None:
        """Name the successors, those with the longest logs first."""
        replica = self._replica
        others = replica.voters.current.others(replica.key)
        successors = tuple(sorted(others, key=lambda key: (-self.followers.match(key), key)))
        body = EndQuorumEpochRequest(
            epoch=replica.epoch, leader_id=replica.key.node_id, preferred_successors=successors
        )
        for voter in others:
            replica.request(voter.node_id, body)

    def followed_ms(self, now_ms: int) -> int:
        """Since when less than a majority of the voters, this one among them, is known to have followed."""
        return self.followers.majority_since(now_ms, lambda progress: progress.followed_ms)

    def _hears_quorum(self) -> bool:
        now_ms = self._replica.now_ms
        heard_ms = self.followers.majority_since(now_ms, lambda progress: progress.fetched_ms)
        self._check_ms = heard_ms + self._quorum_timeout_ms
        return now_ms < self._check_ms

    def _announce(self) -> None:
        """Tell voters that do not fetch who leads."""
        replica = self._replica
        interval_ms = replica.config.fetch_timeout_ms // 2
        self._announce_ms = replica.now_ms + interval_ms
        for voter in replica.voters.current.others(replica.key):
            progress = self.followers.all.get(voter)
            if not self.has_begun or progress is None or progress.fetched_ms <= replica.now_ms - interval_ms:
                body = BeginQuorumEpochRequest(epoch=replica.epoch, leader_id=replica.key.node_id, voter=voter)
                replica.request(voter.node_id, body)

    def _tell_voters(self) -> None:
        """Give what was appended to those who decide on it; the others have it when that is done."""
        replica = self._replica
        for voter in replica.voters.current.others(replica.key):
            if (parked := self._parked.get(voter)) is not None:
                self._answer_if_changes(parked)

    def _visible_end(self, key: ReplicaKey) -> int:
        """Return how much of the log a replica is given: an observer nothing that it could not replay yet."""
        replica = self._replica
        return replica.log.end_offset if key in replica.voters.current else replica.high_watermark

    def _answer_if_changes(self, parked: Parked) -> None:
        body = parked.body
        is_behind = body.log_end.offset < self._visible_end(body.replica)
        if is_behind or body.high_watermark < self._replica.high_watermark or not body.wait_ms:
            self._parked.remove(parked)
            self._answer(parked)

    def _nothing_new(self) -> FetchResponse:
        replica = self._replica
        return FetchResponse(epoch=replica.epoch, leader_id=replica.key.node_id, high_watermark=replica.high_watermark)

    def _answer(self, parked: Parked) -> None:
        replica = self._replica
        offset = parked.body.log_end.offset
        if offset < replica.log.start_offset:  # the log's start has passed it meanwhile
            self.on_fetch(parked.token, parked.body, parked.link)
            return
        entries = replica.log.read(offset, self._visible_end(parked.body.replica), replica.config.fetch_bytes_max)
        answer = replace(self._nothing_new(), entries=entries)
        if (progress := self.followers.all.get(parked.body.replica)) is not None:
            progress.answered(replica.now_ms)
        replica.answer(parked.token, answer)

    def _may_change(self) -> bool:
        """Only with an entry of this epoch committed and no other change open do the old and new majorities overlap."""
        replica = self._replica
        return self.has_begun and self._change is None and replica.voters.current_offset < replica.high_watermark

    def _go_on_with_change(self) -> None:
        replica = self._replica
        change = self._change
        if change is None:
            return
        if change.offset is None:
            if change.joining is not None and self.followers.match(change.joining) < max(1, replica.high_watermark):
                return
            change.offset = replica.log.end_offset
            replica.append((Entry(replica.epoch, EntryKind.VOTERS, change.voters.encode()),))
            self._tell_voters()
        elif replica.high_watermark > change.offset:
            self._end_change(ErrorCode.NONE, "")
            if not replica.is_voter:
                self._changes.resign()

    def _end_change(self, error: ErrorCode, message: str) -> None:
        assert self._change is not None
        self._changed(self._change.token, error, message)
        self._change = None

    def _changed(self, token: Any, error: ErrorCode, message: str) -> None:
        self._replica.out.append(VotersChanged(token, error, message))
