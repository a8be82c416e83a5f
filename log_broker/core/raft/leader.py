"""
The role that decides: appends, answers the fetches of all others, counts how far a majority has come.

A leader that a majority of voters no longer fetches from gives up (check-quorum), so that clients which only reach it
do not wait for ever. Entries of earlier epochs are decided by way of the first of its own (Raft §5.4.2), and only
then does it take proposals or change the voters, one at a time (KIP-853).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

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
from log_broker.core.raft.progress import Progress
from log_broker.core.raft.voters import ReplicaKey, VoterSet, replicated_offset
from log_broker.errors import ErrorCode

if TYPE_CHECKING:
    from log_broker.core.raft.raft import Raft


class _Parked:
    """A fetch that is answered when there is something to tell, or at its deadline."""

    __slots__ = ("body", "deadline_ms", "link", "token")

    def __init__(self, token: Any, body: FetchRequest, link: Any, deadline_ms: int) -> None:
        self.token = token
        self.body = body
        self.link = link
        self.deadline_ms = deadline_ms


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

    def __init__(self, raft: "Raft") -> None:
        self._raft = raft
        self.epoch_start = raft.log.end_offset
        self.has_begun = False  # whether an entry of this epoch is committed
        self.replicas: dict[ReplicaKey, Progress] = {
            key: Progress(raft.now_ms) for key in raft.voters.current.others(raft.key)
        }
        self._parked: dict[ReplicaKey, _Parked] = {}
        self._proposals: deque[tuple[int, int, Any]] = deque()  # (base offset, end offset, token)
        self._change: _VoterChange | None = None
        self._check_ms = raft.now_ms + self._quorum_timeout_ms
        self._announce_ms = raft.now_ms

    @property
    def changes_voters(self) -> bool:
        """Whether a change of the voters is under way."""
        return self._change is not None

    @property
    def _quorum_timeout_ms(self) -> int:
        return self._raft.config.fetch_timeout_ms * 3 // 2

    def start(self) -> None:
        """Tell the voters, and write the first entry of the epoch."""
        raft = self._raft
        self._announce()
        raft.append((Entry(raft.epoch, EntryKind.LEADER_CHANGE, b'{"version":0,"leader":%d}' % raft.key.node_id),))

    def deadline_ms(self) -> int:
        deadline = min(self._check_ms, self._announce_ms)
        if self._parked:
            deadline = min(deadline, self._first_parked.deadline_ms)
        if self._change is not None and self._change.offset is None:
            deadline = min(deadline, self._change.deadline_ms)
        return deadline

    def tick(self) -> None:
        now_ms = self._raft.now_ms
        if now_ms >= self._check_ms and not self._hears_quorum():
            self._raft.resign()
            return
        if now_ms >= self._announce_ms:
            self._announce()
        while self._parked and now_ms >= self._first_parked.deadline_ms:
            self._answer(self._parked.pop(self._first_parked.body.replica))
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
        raft = self._raft
        progress = self._heard(body.replica)
        progress.fetched(link)
        shared = raft.log.end_of_epoch(body.log_end.epoch)
        if shared is not None and shared.epoch == body.log_end.epoch and shared.offset >= body.log_end.offset:
            if body.log_end.offset >= raft.log.start_offset:
                progress.match = max(progress.match, body.log_end.offset)
                if progress.match >= raft.log.end_offset:
                    progress.caught_up_ms = raft.now_ms
                before = self._parked.pop(body.replica, None)  # the newest stands last
                if before is not None:
                    raft.answer(before.token, self._nothing_new())
                self._parked[body.replica] = _Parked(token, body, link, raft.now_ms + raft.config.fetch_wait_ms_max)
                self.advance()
                if body.replica in self._parked:
                    self._answer_if_news(self._parked[body.replica])
                return
            shared = None
        answer = replace(self._nothing_new(), diverging=shared)
        if shared is None:
            assert raft.snapshot is not None, "what is before the log is in a snapshot"
            answer = replace(answer, snapshot_id=raft.snapshot.id)
        progress.answered(raft.now_ms)
        raft.answer(token, answer)

    def on_fetch_snapshot(self, token: Any, body: FetchSnapshotRequest) -> None:
        """Give a part of the newest snapshot, the only one that is kept."""
        raft = self._raft
        self._heard(body.replica)
        snapshot = raft.snapshot
        error = ErrorCode.NONE
        if snapshot is None or snapshot.id != body.snapshot_id:
            error = ErrorCode.SNAPSHOT_NOT_FOUND
        elif not 0 <= body.position <= len(snapshot.data):
            error = ErrorCode.POSITION_OUT_OF_RANGE
        answer = FetchSnapshotResponse(
            error=error, epoch=raft.epoch, leader_id=raft.key.node_id, snapshot_id=body.snapshot_id
        )
        if snapshot is not None and error is ErrorCode.NONE:
            answer = replace(
                answer,
                size=len(snapshot.data),
                position=body.position,
                part=snapshot.data[body.position : body.position + raft.config.snapshot_part_bytes],
                voters=snapshot.voters.encode(),
            )
        raft.answer(token, answer)

    def propose(self, event: Propose) -> None:
        """Append entries that the state machine above has decided on."""
        raft = self._raft
        if event.epoch != raft.epoch or not self.has_begun:
            raft.out.append(Proposed(event.token, ErrorCode.NOT_CONTROLLER))
            return
        base_offset = raft.log.end_offset
        if base_offset + len(event.data) - raft.high_watermark > raft.config.uncommitted_entries_max:
            raft.out.append(Proposed(event.token, ErrorCode.THROTTLING_QUOTA_EXCEEDED))
            return
        raft.append(tuple(Entry(raft.epoch, EntryKind.DATA, data) for data in event.data))
        self._proposals.append((base_offset, raft.log.end_offset, event.token))
        self._answer_parked()

    def change_voters(self, event: AddVoter | RemoveVoter | UpdateVoter) -> None:
        """Begin to make an observer a voter, a voter an observer, or to write down where a voter listens."""
        raft = self._raft
        voters = raft.voters.current
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
            deadline_ms = raft.now_ms + raft.config.add_voter_timeout_ms
            joining = key if isinstance(event, AddVoter) else None
            self._change = _VoterChange(event.token, after, joining, deadline_ms)
            self._go_on_with_change()

    # What follows from it

    def advance(self) -> None:
        """Decide what a majority of voters has on its disks."""
        raft = self._raft
        end = self.decided_end()
        if end > raft.high_watermark:
            raft.commit(end)
            if not self.has_begun:
                self.has_begun = True
                raft.out.append(LeadershipBegan(raft.epoch))
            while self._proposals and self._proposals[0][1] <= end:
                base_offset, _, token = self._proposals.popleft()
                raft.out.append(Proposed(token, ErrorCode.NONE, base_offset))
            self._answer_parked()
        self._go_on_with_change()

    def decided_end(self) -> int:
        """Return how far the log is decided: on a majority's disks, and led there by an entry of this epoch."""
        raft = self._raft
        voters = raft.voters.current
        ends = [raft.synced_end if key == raft.key else self._match(key) for key in voters.keys]
        end = replicated_offset(ends, voters.majority)
        return end if end > self.epoch_start else raft.high_watermark

    def end(self) -> None:
        """Answer all that wait, on the way to another role."""
        raft = self._raft
        for parked in self._parked.values():
            raft.answer(
                parked.token,
                FetchResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, epoch=raft.epoch, leader_id=NO_LEADER),
            )
        for _, _, token in self._proposals:
            raft.out.append(Proposed(token, ErrorCode.NOT_CONTROLLER, in_doubt=True))
        self._parked.clear()
        self._proposals.clear()
        if self._change is not None:
            self._end_change(ErrorCode.NOT_CONTROLLER, "leadership ended; the change may or may not come about")
        raft.out.append(LeadershipEnded(raft.epoch))

    def say_goodbye(self) -> None:
        """Name the successors, those with the longest logs first."""
        raft = self._raft
        others = raft.voters.current.others(raft.key)
        successors = tuple(sorted(others, key=lambda key: (-self._match(key), key)))
        body = EndQuorumEpochRequest(epoch=raft.epoch, leader_id=raft.key.node_id, preferred_successors=successors)
        for voter in others:
            raft.request(voter.node_id, body)

    def _match(self, key: ReplicaKey) -> int:
        progress = self.replicas.get(key)
        return progress.match if progress is not None else 0

    def _heard(self, key: ReplicaKey) -> Progress:
        progress = self.replicas.get(key)
        if progress is None:
            self._forget_observers()
            progress = self.replicas[key] = Progress(self._raft.now_ms)
        progress.fetched_ms = self._raft.now_ms
        return progress

    def _forget_observers(self) -> None:
        """Forget those that fetch no more, and if there are too many whoever has not fetched for longest."""
        oldest_ms = self._raft.now_ms - self._raft.config.observer_session_ms
        voters = self._raft.voters.current
        if len(self.replicas) >= self._raft.config.observers_max + len(voters):
            fetched_ms = (progress.fetched_ms for key, progress in self.replicas.items() if key not in voters)
            oldest_ms = max(oldest_ms, min(fetched_ms) + 1)
        self.replicas = {
            key: progress
            for key, progress in self.replicas.items()
            if key in voters or progress.fetched_ms >= oldest_ms
        }

    def followed_ms(self, now_ms: int) -> int:
        """Since when less than a majority of the voters, this one among them, is known to have followed."""
        return self._majority_since(now_ms, lambda progress: progress.followed_ms)

    def _majority_since(self, now_ms: int, time_of: Callable[[Progress], int]) -> int:
        raft = self._raft
        voters = raft.voters.current
        times = [
            now_ms if key == raft.key else time_of(self.replicas[key]) if key in self.replicas else 0
            for key in voters.keys
        ]
        return replicated_offset(times, voters.majority)

    def _hears_quorum(self) -> bool:
        now_ms = self._raft.now_ms
        heard_ms = self._majority_since(now_ms, lambda progress: progress.fetched_ms)
        self._check_ms = heard_ms + self._quorum_timeout_ms
        return now_ms < self._check_ms

    def _announce(self) -> None:
        """Tell voters that do not fetch who leads."""
        raft = self._raft
        interval_ms = raft.config.fetch_timeout_ms // 2
        self._announce_ms = raft.now_ms + interval_ms
        for voter in raft.voters.current.others(raft.key):
            progress = self.replicas.get(voter)
            if not self.has_begun or progress is None or progress.fetched_ms <= raft.now_ms - interval_ms:
                body = BeginQuorumEpochRequest(epoch=raft.epoch, leader_id=raft.key.node_id, voter=voter)
                raft.request(voter.node_id, body)

    @property
    def _first_parked(self) -> _Parked:
        """The fetch that has waited longest: all wait equally long, so it is the first to be due."""
        return next(iter(self._parked.values()))

    def _answer_parked(self) -> None:
        for parked in list(self._parked.values()):
            self._answer_if_news(parked)

    def _answer_if_news(self, parked: _Parked) -> None:
        raft = self._raft
        body = parked.body
        if body.log_end.offset < raft.log.end_offset or body.high_watermark < raft.high_watermark:
            del self._parked[body.replica]
            self._answer(parked)

    def _nothing_new(self) -> FetchResponse:
        raft = self._raft
        return FetchResponse(epoch=raft.epoch, leader_id=raft.key.node_id, high_watermark=raft.high_watermark)

    def _answer(self, parked: _Parked) -> None:
        raft = self._raft
        offset = parked.body.log_end.offset
        if offset < raft.log.start_offset:  # the log's start has passed it meanwhile
            self.on_fetch(parked.token, parked.body, parked.link)
            return
        answer = replace(self._nothing_new(), entries=raft.log.read(offset, raft.config.fetch_bytes_max))
        if (progress := self.replicas.get(parked.body.replica)) is not None:
            progress.answered(raft.now_ms)
        raft.answer(parked.token, answer)

    def _may_change(self) -> bool:
        """Only with an entry of this epoch committed and no other change open do the old and new majorities overlap."""
        raft = self._raft
        return self.has_begun and self._change is None and raft.voters.current_offset < raft.high_watermark

    def _go_on_with_change(self) -> None:
        raft = self._raft
        change = self._change
        if change is None:
            return
        if change.offset is None:
            if change.joining is not None and self._match(change.joining) < max(1, raft.high_watermark):
                return
            change.offset = raft.log.end_offset
            raft.append((Entry(raft.epoch, EntryKind.VOTERS, change.voters.encode()),))
            self._answer_parked()
        elif raft.high_watermark > change.offset:
            self._end_change(ErrorCode.NONE, "")
            if not raft.is_voter:
                raft.resign()

    def _end_change(self, error: ErrorCode, message: str) -> None:
        assert self._change is not None
        self._changed(self._change.token, error, message)
        self._change = None

    def _changed(self, token: Any, error: ErrorCode, message: str) -> None:
        self._raft.out.append(VotersChanged(token, error, message))
