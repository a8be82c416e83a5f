"""
The roles without a leader: Unattached, Prospective and Candidate.

    Unattached ── election timeout ──▶ Prospective ── a majority would vote ──▶ Candidate ── it does ──▶ Leader
        ▲                                │    ▲                                    │
        └── (anyone) a higher epoch      │    └───────── lost, or timed out ───────┘
                                         └── a leader is known ──▶ Follower

Epochs grow in Candidate only, so a replica that nobody hears cannot raise its own and upset the others when it comes
back (pre-vote, KIP-996). Observers stay Unattached and ask around for the leader.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from log_broker.core.raft.messages import RaftResponse, VoteRequest, VoteResponse
from log_broker.core.raft.voters import ReplicaKey

if TYPE_CHECKING:
    from log_broker.core.raft.raft import Raft


class Unattached:
    """Knows of no leader: asks around for one, and as a voter stands for election when the time is up."""

    leads = False

    def __init__(self, raft: "Raft", election_ms: int, ask_ms: int = 0) -> None:
        self._raft = raft
        self._election_ms = raft.now_ms + election_ms
        self._ask_ms = raft.now_ms + ask_ms
        self._asked = 0

    def deadline_ms(self) -> int:
        return min(self._ask_ms, self._election_ms) if self._raft.is_voter else self._ask_ms

    def tick(self) -> None:
        raft = self._raft
        if raft.is_voter and raft.now_ms >= self._election_ms:
            raft.become_prospective(last_leader=None)
        elif raft.now_ms >= self._ask_ms:
            self._ask()

    def grants_pre_vote(self) -> bool:
        return True

    def granted_vote(self) -> None:
        """Give the candidate time to win."""
        self._election_ms = self._raft.now_ms + self._raft.election_ms()

    def on_response(self, request_id: int, body: RaftResponse) -> None:
        """Whatever it says of a leader has been looked at already."""

    def on_stored(self) -> None:
        """Nothing waits for the disk."""

    def _ask(self) -> None:
        raft = self._raft
        known = [voter.key.node_id for voter in (*raft.voters.current, *raft.bootstrap)]
        others = sorted({node_id for node_id in known if node_id != raft.key.node_id})
        request = raft.fetch_request()
        self._ask_ms = raft.now_ms + raft.config.fetch_wait_ms_max
        if others and request is not None:
            raft.request(others[self._asked % len(others)], request)
            self._asked += 1


class _Electioneer(ABC):
    """What Prospective and Candidate have in common: asking the voters, again and again, and counting."""

    leads = False
    pre_vote: bool

    def __init__(self, raft: "Raft") -> None:
        self._raft = raft
        self._granted = {raft.key}
        self._refused: set[ReplicaKey] = set()
        self._election_ms = raft.now_ms + raft.election_ms()
        self._ask_ms = raft.now_ms

    def start(self) -> None:
        """Ask everyone; a sole voter has won at once."""
        self._ask()
        self._count()

    def deadline_ms(self) -> int:
        return min(self._ask_ms, self._election_ms)

    def tick(self) -> None:
        if self._raft.now_ms >= self._election_ms:
            self.lost()
        elif self._raft.now_ms >= self._ask_ms:
            self._ask()

    def grants_pre_vote(self) -> bool:
        return True

    def granted_vote(self) -> None:
        self._election_ms = self._raft.now_ms + self._raft.election_ms()

    def on_response(self, request_id: int, body: RaftResponse) -> None:
        if isinstance(body, VoteResponse) and body.epoch == self._raft.epoch and self._is_ours(request_id):
            (self._granted if body.vote_granted else self._refused).add(body.voter)
            self._count()

    def on_stored(self) -> None:  # noqa: B027 a role may have nothing to do then
        """Nothing waits for the disk."""

    @abstractmethod
    def won(self) -> None:
        """Go on with a majority behind it."""

    @abstractmethod
    def lost(self) -> None:
        """Go on after this attempt came to nothing."""

    def _is_ours(self, request_id: int) -> bool:
        return request_id >= self._first_request

    _first_request = 0

    def _ask(self) -> None:
        raft = self._raft
        self._ask_ms = raft.now_ms + raft.config.request_timeout_ms // 4
        for voter in raft.voters.current.others(raft.key):
            if voter in self._granted or voter in self._refused:
                continue
            request = VoteRequest(
                epoch=raft.epoch, candidate=raft.key, voter=voter, log_end=raft.log.end, pre_vote=self.pre_vote
            )
            request_id = raft.request(voter.node_id, request)
            self._first_request = self._first_request or request_id

    def _count(self) -> None:
        voters = self._raft.voters.current
        if voters.has_majority(self._granted):
            self.won()
        elif len(voters.keys - self._refused) < voters.majority:
            self._give_up()

    def _give_up(self) -> None:
        """Wait for the end of this attempt, drawn anew, so that two who refused each other do not meet again."""
        backoff_ms = self._raft.jitter(self._raft.config.election_backoff_max_ms)
        self._election_ms = min(self._election_ms, self._raft.now_ms + backoff_ms)


class Prospective(_Electioneer):
    """Asks whether it would be elected. Goes back to `last_leader` when it would not."""

    pre_vote = True

    def __init__(self, raft: "Raft", last_leader: int | None) -> None:
        super().__init__(raft)
        self._last_leader = last_leader

    def won(self) -> None:
        self._raft.become_candidate()

    def lost(self) -> None:
        if self._last_leader is not None:
            self._raft.become_follower(self._raft.epoch, self._last_leader)
        else:
            self._raft.become_unattached(self._raft.epoch)


class Candidate(_Electioneer):
    """Stands for election in an epoch of its own, in which it has voted for itself."""

    pre_vote = False

    def won(self) -> None:
        self._raft.become_leader()

    def lost(self) -> None:
        self._raft.become_prospective(last_leader=None)


def would_vote(raft: "Raft", request: VoteRequest) -> bool:
    """
    Whether this replica gives its vote, in the request's epoch, which is also its own.

    The candidate's log must be at least as good as ours: a leader never lacks what a majority has (Raft §5.4.1).
    """
    log = raft.log.end
    if (request.log_end.epoch, request.log_end.offset) < (log.epoch, log.offset):
        return False
    if request.pre_vote:
        return raft.role.grants_pre_vote()
    if raft.state.voted is not None:
        return raft.state.voted == request.candidate
    return raft.leader_id is None
