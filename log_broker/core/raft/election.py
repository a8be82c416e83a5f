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

from log_broker.core.raft.messages import RaftResponse, VoteRequest, VoteResponse
from log_broker.core.raft.replica import Replica, RoleChanges
from log_broker.core.raft.voters import ReplicaKey


class Unattached:
    """Knows of no leader: asks around for one, and as a voter stands for election when the time is up."""

    leads = False

    def __init__(self, replica: Replica, changes: RoleChanges, election_ms: int, ask_ms: int = 0) -> None:
        self._replica = replica
        self._changes = changes
        self._election_ms = replica.now_ms + election_ms
        self._ask_ms = replica.now_ms + ask_ms
        self._asked = 0

    def deadline_ms(self) -> int:
        return min(self._ask_ms, self._election_ms) if self._replica.is_voter else self._ask_ms

    def tick(self) -> None:
        replica = self._replica
        if replica.is_voter and replica.now_ms >= self._election_ms:
            self._changes.become_prospective(last_leader=None)
        elif replica.now_ms >= self._ask_ms:
            self._ask()

    def grants_pre_vote(self) -> bool:
        return True

    def granted_vote(self) -> None:
        """Give the candidate time to win."""
        self._election_ms = self._replica.now_ms + self._replica.election_ms()

    def on_response(self, request_id: int, body: RaftResponse) -> None:
        """Whatever it says of a leader has been looked at already."""

    def on_stored(self) -> None:
        """Nothing waits for the disk."""

    def _ask(self) -> None:
        replica = self._replica
        known = [voter.key.node_id for voter in (*replica.voters.current, *replica.bootstrap)]
        others = sorted({node_id for node_id in known if node_id != replica.key.node_id})
        request = replica.fetch_request()
        self._ask_ms = replica.now_ms + replica.config.fetch_wait_ms_max
        if others and request is not None:
            replica.request(others[self._asked % len(others)], request)
            self._asked += 1


class _Electioneer(ABC):
    """What Prospective and Candidate have in common: asking the voters, again and again, and counting."""

    leads = False
    pre_vote: bool

    def __init__(self, replica: Replica, changes: RoleChanges) -> None:
        self._replica = replica
        self._changes = changes
        self._granted = {replica.key}
        self._refused: set[ReplicaKey] = set()
        self._election_ms = replica.now_ms + replica.election_ms()
        self._ask_ms = replica.now_ms

    def start(self) -> None:
        """Ask everyone; a sole voter has won at once."""
        self._ask()
        self._count()

    def deadline_ms(self) -> int:
        return min(self._ask_ms, self._election_ms)

    def tick(self) -> None:
        if self._replica.now_ms >= self._election_ms:
            self.lost()
        elif self._replica.now_ms >= self._ask_ms:
            self._ask()

    def grants_pre_vote(self) -> bool:
        return True

    def granted_vote(self) -> None:
        self._election_ms = self._replica.now_ms + self._replica.election_ms()

    def on_response(self, request_id: int, body: RaftResponse) -> None:
        if isinstance(body, VoteResponse) and body.epoch == self._replica.epoch and self._is_ours(request_id):
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
        replica = self._replica
        self._ask_ms = replica.now_ms + replica.config.request_timeout_ms // 4
        for voter in replica.voters.current.others(replica.key):
            if voter in self._granted or voter in self._refused:
                continue
            request = VoteRequest(
                epoch=replica.epoch, candidate=replica.key, voter=voter, log_end=replica.log.end, pre_vote=self.pre_vote
            )
            request_id = replica.request(voter.node_id, request)
            self._first_request = self._first_request or request_id

    def _count(self) -> None:
        voters = self._replica.voters.current
        if voters.has_majority(self._granted):
            self.won()
        elif len(voters.keys - self._refused) < voters.majority:
            self._give_up()

    def _give_up(self) -> None:
        """Wait for the end of this attempt, drawn again, so that two who refused each other do not meet again."""
        backoff_ms = self._replica.jitter(self._replica.config.election_backoff_max_ms)
        self._election_ms = min(self._election_ms, self._replica.now_ms + backoff_ms)


class Prospective(_Electioneer):
    """Asks whether it would be elected. Goes back to `last_leader` when it would not."""

    pre_vote = True

    def __init__(self, replica: Replica, changes: RoleChanges, last_leader: int | None) -> None:
        super().__init__(replica, changes)
        self._last_leader = last_leader

    def won(self) -> None:
        self._changes.become_candidate()

    def lost(self) -> None:
        if self._last_leader is not None:
            self._changes.become_follower(self._replica.epoch, self._last_leader)
        else:
            self._changes.become_unattached(self._replica.epoch)


class Candidate(_Electioneer):
    """Stands for election in an epoch of its own, in which it has voted for itself."""

    pre_vote = False

    def won(self) -> None:
        self._changes.become_leader()

    def lost(self) -> None:
        self._changes.become_prospective(last_leader=None)
