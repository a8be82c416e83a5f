"""
The metadata quorum's Raft, as Kafka does it: followers pull (KIP-595).

A replica is in one role at a time, and each role is a class: Unattached, Prospective and Candidate (`raft.election`),
Follower (`raft.follower`), Leader (`raft.leader`). This module takes events in, sees to what holds in every role, and
changes roles. The rules that safety hangs on, and where they are kept:

    one vote an epoch, remembered before it is given     Replica.save, and the order of effects
    a vote only for a log that lacks nothing of ours     Raft._would_vote
    entries acknowledged only when they are on the disk  Replica.fetch_request
    decided by a majority, through the leader's epoch    Leader.decided_end
    a follower's log is a prefix of its leader's         Leader.on_fetch, Follower.shared_end
    voters change one at a time                          Leader._may_change

Nobody says who he is, so an epoch that a message names is not simply taken over (`_observe`, `_told_of`):

    Fetch, FetchSnapshot, EndQuorumEpoch    never raise the epoch
    Vote, BeginQuorumEpoch                  raise that of a replica that hears from no leader; the sender may be a voter
                                            that its log does not name yet (KIP-853)
    an answer                               raises it: it comes from the address at which the cluster knows a node
    any                                     not beyond `epoch_bound`

A replica that hears from a leader and is told of a higher epoch by a request asks the node that the request names.
"""

from collections.abc import Callable, Sequence
from typing import Any, assert_never

from log_broker.core.raft.effects import (
    AddVoter,
    Command,
    Effect,
    Event,
    Propose,
    Proposed,
    QuorumState,
    RemoveVoter,
    RequestReceived,
    Resign,
    ResponseReceived,
    SnapshotStored,
    Stored,
    UpdateVoter,
    VotersChanged,
)
from log_broker.core.raft.election import Candidate, Prospective, Unattached
from log_broker.core.raft.follower import Follower
from log_broker.core.raft.leader import Leader
from log_broker.core.raft.lease import DRIFT_SHARE
from log_broker.core.raft.messages import (
    NO_LEADER,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumEpochResponse,
    VoteRequest,
    VoteResponse,
)
from log_broker.core.raft.replica import EPOCH_MAX, RaftConfig, Recovered, Replica
from log_broker.core.raft.voters import ReplicaKey, VoterSet
from log_broker.errors import ErrorCode

Role = Unattached | Prospective | Candidate | Follower | Leader


class Raft:
    """
    One replica of the metadata quorum, voter or observer.

    `bootstrap` are the voters that the cluster was formatted with; a log with a voters record overrules them. `jitter`
    draws an int from 0 up to its argument: the only chance in here, and it only spreads timeouts. `epoch_max` tells
    the highest epoch that is believed now.
    """

    def __init__(
        self,
        key: ReplicaKey,
        config: RaftConfig,
        *,
        bootstrap: VoterSet,
        recovered: Recovered,
        jitter: Callable[[int], int],
        now_ms: int,
        epoch_max: Callable[[], int] = lambda: EPOCH_MAX,
    ) -> None:
        self.replica = Replica(key, config, bootstrap, recovered, jitter)
        self.epoch_max = epoch_max
        self.replica.now_ms = now_ms
        self._ask_back_ms = now_ms  # when a node may be asked next whether its epoch is what a request said
        # A leader that restarts has forgotten what it had not synced: it stands again, in another epoch.
        # The only voter has nobody to wait for.
        self.role: Role = Unattached(
            self.replica, self, 0 if self.replica.voters.current.keys == {key} else self.replica.election_ms()
        )

    @property
    def leader_id(self) -> int | None:
        """The leader of this epoch as far as this replica follows or is one."""
        match self.role:
            case Follower(leader_id=leader_id):
                return leader_id
            case Leader():
                return self.replica.key.node_id
        return None

    def handle(self, event: Event, now_ms: int) -> Sequence[Effect]:
        """Take one event and return what must be done, in order."""
        self.replica.now_ms = now_ms
        match event:
            case RequestReceived():
                self._request_received(event)
            case ResponseReceived():
                self._response_received(event)
            case Stored():
                self.replica.stored(event.number)
                self.role.on_stored()
            case SnapshotStored():
                self.replica.snapshot_stored(event.snapshot)
            case _:
                self._command(event)
        return self._effects()

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """Do what has become due by time alone."""
        self.replica.now_ms = now_ms
        if now_ms >= self.role.deadline_ms():
            self.role.tick()
        return self._effects()

    def next_deadline_ms(self) -> int:
        """When `tick` must be called next."""
        return self.role.deadline_ms()

    def surely_leads(self, now_ms: int) -> bool:
        """
        Whether no other replica can have been elected by now.

        Voters that have heard from their leader within the fetch timeout elect none. It counts from when it gave the
        answers that they are known to have had, on clocks that may run faster than its own by `DRIFT_SHARE`.
        """
        role, timeout_ms = self.role, self.replica.config.fetch_timeout_ms
        return isinstance(role, Leader) and now_ms < role.followed_ms(now_ms) + timeout_ms - timeout_ms // DRIFT_SHARE

    # Changes of role

    def become_unattached(self, epoch: int, *, soon: bool = False) -> None:
        """
        Have no leader; with `soon`, because the leader said that it is none, so that waiting gains nothing.

        Others may still name that leader: to ask them at once would be to go round in circles.
        """
        self._leave_role()
        if epoch > self.replica.epoch:
            self.replica.save(QuorumState(epoch=epoch))
        if soon:
            backoff_ms = 1 + self.replica.jitter(self.replica.config.election_backoff_max_ms)
            self.role = Unattached(self.replica, self, backoff_ms, ask_ms=self.replica.config.retry_backoff_ms)
        else:
            self.role = Unattached(self.replica, self, self.replica.election_ms())

    def become_prospective(self, *, last_leader: int | None) -> None:
        """Ask whether an election would be won."""
        self._leave_role()
        self.role = Prospective(self.replica, self, last_leader)
        self.role.start()

    def become_candidate(self) -> None:
        """Stand for election in the next epoch, unless that is one that nobody would believe yet."""
        if self.replica.epoch >= self.epoch_max():
            self.become_unattached(self.replica.epoch)
            return
        self._leave_role()
        self.replica.save(QuorumState(epoch=self.replica.epoch + 1, voted=self.replica.key))
        self.role = Candidate(self.replica, self)
        self.role.start()

    def become_leader(self) -> None:
        """Lead in this epoch, whose election is won."""
        self._leave_role()
        self.replica.save(self.replica.state._replace(leader_id=self.replica.key.node_id))
        self.role = Leader(self.replica, self)
        self.role.start()

    def become_follower(self, epoch: int, leader_id: int) -> None:
        """Follow the leader of an epoch, this one or a later."""
        self._leave_role()
        if epoch > self.replica.epoch:
            self.replica.save(QuorumState(epoch=epoch, leader_id=leader_id))
        else:
            self.replica.save(self.replica.state._replace(leader_id=leader_id))
        self.role = Follower(self.replica, self, leader_id)
        self.role.start()

    def resign(self) -> None:
        """Lead no more, tell the others, and give them time to elect one of them."""
        assert isinstance(self.role, Leader)
        self.role.say_goodbye()
        self.become_unattached(self.replica.epoch)

    def _leave_role(self) -> None:
        if isinstance(self.role, Leader):
            self.role.end()

    # What is asked here

    def _command(self, event: Command) -> None:
        """Have the leader see to it; who is none says so."""
        role = self.role
        leader = role if isinstance(role, Leader) else None
        match event:
            case Propose():
                if leader is None:
                    self.replica.out.append(Proposed(event.token, ErrorCode.NOT_CONTROLLER))
                else:
                    leader.propose(event)
            case AddVoter() | RemoveVoter() | UpdateVoter():
                if leader is None:
                    self.replica.out.append(VotersChanged(event.token, ErrorCode.NOT_CONTROLLER))
                else:
                    leader.change_voters(event)
            case Resign():
                if leader is not None:
                    self.resign()
            case _:
                assert_never(event)

    # What others send

    def _effects(self) -> Sequence[Effect]:
        effects, self.replica.out = self.replica.out, []
        return effects

    def _observe(self, epoch: int, leader_id: int) -> None:
        """Follow what a message says of epoch and leader, if it is new."""
        ours = self.replica.key.node_id
        is_newer = self.replica.epoch < epoch <= self.epoch_max()
        lacks_leader = self.leader_id is None and self.replica.state.leader_id != ours
        if leader_id not in {NO_LEADER, ours}:
            if is_newer or (epoch == self.replica.epoch and lacks_leader):
                self.become_follower(epoch, leader_id)
        elif is_newer:
            self.become_unattached(epoch)

    def _told_of(self, epoch: int, by: int) -> None:
        """Ask the node that a request names whether it is in the higher epoch that the request says."""
        # Our leader need not be asked: it tells with each answer, and a second fetch would spoil the first.
        is_other = by not in {self.replica.key.node_id, self.leader_id}
        if self.replica.epoch < epoch <= self.epoch_max() and is_other and self.replica.now_ms >= self._ask_back_ms:
            question = self.replica.fetch_request()
            if question is not None:
                self._ask_back_ms = self.replica.now_ms + self.replica.config.request_timeout_ms // 4
                self.replica.request(by, question)

    def _observe_request(self, epoch: int, leader_id: int, by: int) -> None:
        """Follow what a Vote or BeginQuorumEpoch says, unless there is a leader that it would take us away from."""
        if self.role.grants_pre_vote():
            self._observe(epoch, leader_id)
        else:
            self._told_of(epoch, by)

    def _response_received(self, event: ResponseReceived) -> None:
        body = event.body
        # Who would vote for us may still name the leader of old, whom both have lost.
        granted = isinstance(body, VoteResponse) and body.vote_granted
        self._observe(body.epoch, NO_LEADER if granted else body.leader_id)
        self.role.on_response(event.id, body)

    def _request_received(self, event: RequestReceived) -> None:
        token, body, link = event
        match body:
            case VoteRequest():
                self._vote(token, body)
            case BeginQuorumEpochRequest():
                self._epoch_began(token, body)
            case EndQuorumEpochRequest():
                self._epoch_ended(token, body)
            case FetchRequest() | FetchSnapshotRequest():
                role = self.role
                if not isinstance(role, Leader) or body.epoch != self.replica.epoch:
                    self._told_of(body.epoch, body.replica.node_id)
                    self.replica.answer(token, self._refused(body))
                elif isinstance(body, FetchRequest):
                    role.on_fetch(token, body, link)
                else:
                    role.on_fetch_snapshot(token, body)
            case _:
                assert_never(body)

    @property
    def _known_leader(self) -> int:
        leader_id = self.leader_id
        return NO_LEADER if leader_id is None else leader_id

    def _refused(self, body: FetchRequest | FetchSnapshotRequest) -> FetchResponse | FetchSnapshotResponse:
        error = self._epoch_error(body.epoch) or ErrorCode.NOT_LEADER_OR_FOLLOWER
        epoch, leader_id = self.replica.epoch, self._known_leader
        if isinstance(body, FetchRequest):
            return FetchResponse(error=error, epoch=epoch, leader_id=leader_id)
        return FetchSnapshotResponse(error=error, epoch=epoch, leader_id=leader_id, snapshot_id=body.snapshot_id)

    def _epoch_error(self, epoch: int) -> ErrorCode:
        if epoch == self.replica.epoch:
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < self.replica.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    def _epoch_answer(self, error: ErrorCode) -> QuorumEpochResponse:
        return QuorumEpochResponse(error=error, epoch=self.replica.epoch, leader_id=self._known_leader)

    def _vote(self, token: Any, body: VoteRequest) -> None:
        error = ErrorCode.NONE
        granted = False
        if body.voter != self.replica.key:
            error = ErrorCode.INVALID_VOTER_KEY
        else:
            self._observe_request(body.epoch, NO_LEADER, body.candidate.node_id)
            granted = body.epoch == self.replica.epoch and self._would_vote(body)
        if granted and not body.pre_vote:
            self.replica.save(self.replica.state._replace(voted=body.candidate))
            self.role.granted_vote()
        self.replica.answer(
            token,
            VoteResponse(
                error=error,
                epoch=self.replica.epoch,
                leader_id=self._known_leader,
                voter=self.replica.key,
                vote_granted=granted,
            ),
        )

    def _would_vote(self, request: VoteRequest) -> bool:
        """
        Whether this replica gives its vote, in the request's epoch, which is also its own.

        The candidate's log must be at least as good as ours: a leader never lacks what a majority has (Raft §5.4.1).
        """
        ours, theirs = self.replica.log.end, request.log_end
        if (theirs.epoch, theirs.offset) < (ours.epoch, ours.offset):
            return False
        if request.pre_vote:
            return self.role.grants_pre_vote()
        voted = self.replica.state.voted
        return self.leader_id is None if voted is None else voted == request.candidate

    def _epoch_began(self, token: Any, body: BeginQuorumEpochRequest) -> None:
        if body.voter != self.replica.key:
            self.replica.answer(token, self._epoch_answer(ErrorCode.INVALID_VOTER_KEY))
            return
        self._observe_request(body.epoch, body.leader_id, body.leader_id)
        self.replica.answer(token, self._epoch_answer(self._epoch_error(body.epoch)))

    def _epoch_ended(self, token: Any, body: EndQuorumEpochRequest) -> None:
        known = self.replica.state.leader_id in {NO_LEADER, body.leader_id}
        if body.epoch == self.replica.epoch and known and not isinstance(self.role, Leader):
            successors = body.preferred_successors
            self._leave_role()
            if self.replica.is_voter and successors and successors[0] == self.replica.key:
                self.become_prospective(last_leader=None)
            else:
                self.become_unattached(self.replica.epoch, soon=True)
        else:
            self._told_of(body.epoch, body.leader_id)
        self.replica.answer(token, self._epoch_answer(self._epoch_error(body.epoch)))
