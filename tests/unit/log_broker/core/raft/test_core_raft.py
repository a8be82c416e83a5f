"""The metadata quorum's Raft: its rules one by one, and its stories among a few replicas without any fault injected."""

from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from log_broker.core.raft.description import describe_quorum
from log_broker.core.raft.effects import (
    AddVoter,
    AppendEntries,
    Committed,
    Effect,
    InstallSnapshot,
    LeadershipBegan,
    LeadershipEnded,
    Propose,
    Proposed,
    QuorumState,
    RemoveVoter,
    RequestReceived,
    Resign,
    ResponseReceived,
    SaveQuorumState,
    SendRequest,
    SendResponse,
    SnapshotStored,
    Stored,
    TakeSnapshot,
    TruncateLog,
    VotersChanged,
)
from log_broker.core.raft.election import Prospective, Unattached
from log_broker.core.raft.follower import Follower
from log_broker.core.raft.leader import Leader
from log_broker.core.raft.log import Entry, EntryKind, OffsetAndEpoch, RaftLog, Snapshot
from log_broker.core.raft.messages import FetchRequest, FetchResponse, RaftRequest, RaftResponse, VoteRequest
from log_broker.core.raft.progress import Progress
from log_broker.core.raft.raft import Raft
from log_broker.core.raft.replica import RaftConfig, Recovered
from log_broker.core.raft.voters import ReplicaKey, Voter, VoterHistory, VoterSet, replicated_offset
from log_broker.errors import ErrorCode

CONFIG = RaftConfig(snapshot_entries=10, snapshot_trailing_entries=2, snapshot_part_bytes=4)


def key(node_id: int, disk: str = "a") -> ReplicaKey:
    return ReplicaKey(node_id, disk)


def voters(*node_ids: int) -> VoterSet:
    return VoterSet(Voter(key=key(node_id)) for node_id in node_ids)


def data(epoch: int, *values: bytes) -> tuple[Entry, ...]:
    return tuple(Entry(epoch, EntryKind.DATA, value) for value in values)


def a_raft(
    node_id: int = 1,
    bootstrap: VoterSet | None = None,
    recovered: Recovered | None = None,
    config: RaftConfig = CONFIG,
) -> Raft:
    return Raft(
        key(node_id),
        config,
        bootstrap=bootstrap or voters(1, 2, 3),
        recovered=recovered or Recovered(),
        jitter=lambda bound: bound * node_id // 10,
        now_ms=0,
    )


def answers(effects: Any) -> list[RaftResponse]:
    return [effect.body for effect in effects if isinstance(effect, SendResponse)]


def requests(effects: Any, kind: type[RaftRequest]) -> list[Any]:
    return [effect.body for effect in effects if isinstance(effect, SendRequest) and isinstance(effect.body, kind)]


class Replicas:
    """Replicas with quick disks on a network without delay; `cut` names those that nobody hears and who hear nobody."""

    def __init__(self, *node_ids: int, observers: tuple[int, ...] = (), config: RaftConfig = CONFIG) -> None:
        self.bootstrap = voters(*node_ids)
        self.config = config
        self.now = 0
        self.cut: set[int] = set()
        self.rafts: dict[int, Raft] = {}
        self.committed: dict[int, list[bytes]] = {}
        self.told: list[Effect] = []
        self._todo: deque[tuple[int, Any]] = deque()
        for node_id in (*node_ids, *observers):
            self.join(a_raft(node_id, self.bootstrap, config=config))

    def join(self, raft: Raft) -> None:
        self.rafts[raft.replica.key.node_id] = raft
        self.committed[raft.replica.key.node_id] = []

    @property
    def leader(self) -> Raft | None:
        leading = [raft for raft in self.rafts.values() if raft.role.leads and raft.replica.key.node_id not in self.cut]
        return max(leading, key=lambda raft: raft.replica.epoch, default=None)

    def do(self, node_id: int, event: Any) -> None:
        self._todo.append((node_id, event))
        while self._todo:
            target, event = self._todo.popleft()
            self._carry_out(target, self.rafts[target].handle(event, self.now))

    def pass_time(self, by_ms: int) -> None:
        end = self.now + by_ms
        while (due := min(raft.next_deadline_ms() for raft in self.rafts.values())) <= end:
            self.now = max(self.now, due)
            for node_id, raft in self.rafts.items():
                self._carry_out(node_id, raft.tick(self.now))
                while self._todo:
                    target, event = self._todo.popleft()
                    self._carry_out(target, self.rafts[target].handle(event, self.now))
        self.now = end

    def elect(self) -> Raft:
        self.pass_time(10_000)
        assert self.leader is not None
        return self.leader

    def propose(self, *values: bytes) -> None:
        leader = self.leader
        assert leader is not None
        self.do(leader.replica.key.node_id, Propose(leader.replica.epoch, values, values))

    def results(self, kind: type) -> list[Any]:
        return [effect for effect in self.told if isinstance(effect, kind)]

    def _reaches(self, source: int, target: int) -> bool:
        return target in self.rafts and not {source, target} & self.cut

    def _carry_out(self, node_id: int, effects: Any) -> None:
        for effect in effects:
            match effect:
                case SendRequest(to, request_id, body):
                    if self._reaches(node_id, to):
                        self._todo.append((to, RequestReceived((node_id, to, request_id), body)))
                case SendResponse((asker, answerer, request_id), body):
                    if self._reaches(answerer, asker):
                        self._todo.append((asker, ResponseReceived(request_id, body)))
                case AppendEntries(number):
                    self._todo.append((node_id, Stored(number)))
                case InstallSnapshot(number, snapshot):
                    self.committed[node_id] = [bytes([byte]) for byte in snapshot.data]
                    self._todo.append((node_id, Stored(number)))
                case Committed(_, entries):
                    self.committed[node_id] += [entry.data for entry in entries if entry.kind is EntryKind.DATA]
                case TakeSnapshot(name, encoded):
                    content = b"".join(self.committed[node_id])
                    taken = Snapshot(id=name, voters=VoterSet.decode(encoded), data=content)
                    self._todo.append((node_id, SnapshotStored(taken)))
                case _:
                    self.told.append(effect)


# The log


def test_an_epoch_ends_where_the_next_begins() -> None:
    log = RaftLog(OffsetAndEpoch(10, 2), data(2, b"a") + data(5, b"b", b"c"))
    assert log.end_of_epoch(1) is None
    assert log.end_of_epoch(2) == (11, 2)
    assert log.end_of_epoch(4) == (11, 2)
    assert log.end_of_epoch(5) == log.end_of_epoch(9) == (13, 5)


def test_truncation_takes_epochs_along() -> None:
    log = RaftLog(OffsetAndEpoch(0, 0), data(1, b"a") + data(2, b"b"))
    log.truncate(1)
    assert (log.end, log.end_of_epoch(2)) == ((1, 1), (1, 1))
    log.append(data(3, b"c"))
    assert log.end_of_epoch(2) == (1, 1)


def test_a_log_remembers_the_epoch_before_its_start() -> None:
    log = RaftLog(OffsetAndEpoch(0, 0), data(1, b"a", b"b") + data(2, b"c"))
    log.advance_start(2)
    assert (log.start, log.end, log.epoch_at(1)) == ((2, 1), (3, 2), 1)
    log.advance_start(3)
    assert (log.start, log.end) == ((3, 2), (3, 2))
    assert log.end_of_epoch(1) is None


def test_an_entry_of_an_older_epoch_is_never_appended() -> None:
    with pytest.raises(AssertionError, match="behind one of epoch 2"):
        RaftLog(OffsetAndEpoch(0, 0), data(2, b"a") + data(1, b"b"))


def test_a_read_is_bounded_and_gives_at_least_one_entry() -> None:
    log = RaftLog(OffsetAndEpoch(0, 0), data(1, b"aaaa", b"bb", b"cc"))
    assert [len(log.read(0, 3, size)) for size in (1, 4, 6, 8)] == [1, 1, 2, 3]
    assert log.read(3, 3, 10) == log.read(0, 0, 10) == ()
    assert len(log.read(0, 2, 100)) == 2


# The voters


@pytest.mark.parametrize(("count", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority_is_more_than_half(count: int, majority: int) -> None:
    assert voters(*range(count)).majority == majority


def test_the_replicated_offset_is_what_a_majority_has() -> None:
    assert replicated_offset([5, 9, 7], 2) == 7
    assert replicated_offset([5, 9, 7, 1], 3) == 5


def test_voters_of_a_truncated_record_lose_force() -> None:
    history = VoterHistory(voters(1))
    history.add(4, voters(1, 2))
    history.add(7, voters(1, 2, 3))
    history.truncate(7)
    assert history.current == voters(1, 2)
    assert history.before(4) == voters(1)
    assert history.before(5) == voters(1, 2)


def test_voters_are_read_as_they_were_written() -> None:
    one = VoterSet([Voter(key=key(1), host="h", port=9093)])
    assert VoterSet.decode(one.encode()) == one
    with pytest.raises(ValueError, match="not a voters record"):
        VoterSet.decode(b'{"version":0}')


# Votes


def vote_request(epoch: int, end: tuple[int, int], *, pre_vote: bool = False, candidate: int = 2) -> VoteRequest:
    return VoteRequest(
        epoch=epoch, candidate=key(candidate), voter=key(1), log_end=OffsetAndEpoch(*end), pre_vote=pre_vote
    )


@pytest.mark.parametrize(
    ("end", "granted"),
    [((0, 0), False), ((9, 1), False), ((1, 2), False), ((2, 2), True), ((3, 2), True), ((1, 3), True)],
)
@pytest.mark.parametrize("pre_vote", [True, False])
def test_a_vote_goes_to_a_log_that_lacks_nothing(end: tuple[int, int], granted: bool, pre_vote: bool) -> None:
    raft = a_raft(recovered=Recovered(state=QuorumState(epoch=4), entries=data(1, b"a") + data(2, b"b")))
    effects = raft.handle(RequestReceived("t", vote_request(4, end, pre_vote=pre_vote)), 0)
    assert [answer.vote_granted for answer in answers(effects)] == [granted]  # type: ignore[union-attr]


def test_a_vote_is_remembered_before_it_is_given() -> None:
    effects = a_raft().handle(RequestReceived("t", vote_request(1, (0, 0))), 0)
    kinds = [type(effect) for effect in effects]
    assert kinds.index(SaveQuorumState) < kinds.index(SendResponse)
    saved = [effect.state for effect in effects if isinstance(effect, SaveQuorumState)]
    assert saved[-1] == QuorumState(epoch=1, voted=key(2))


def test_one_vote_an_epoch_also_after_a_restart() -> None:
    raft = a_raft(recovered=Recovered(state=QuorumState(epoch=1, voted=key(2))))
    asked = [vote_request(1, (0, 0), candidate=candidate) for candidate in (3, 2)]
    granted = [answers(raft.handle(RequestReceived("t", body), 0))[0] for body in asked]
    assert [answer.vote_granted for answer in granted] == [False, True]  # type: ignore[union-attr]


def test_a_pre_vote_binds_nobody() -> None:
    raft = a_raft()
    effects = raft.handle(RequestReceived("t", vote_request(0, (0, 0), pre_vote=True)), 0)
    assert not any(isinstance(effect, SaveQuorumState) for effect in effects)
    assert raft.replica.state == QuorumState()


def test_a_vote_asked_of_the_disk_before_is_refused() -> None:
    body = replace(vote_request(1, (0, 0)), voter=key(1, "the disk before"))
    (answer,) = answers(a_raft().handle(RequestReceived("t", body), 0))
    assert (answer.error, answer.vote_granted) == (ErrorCode.INVALID_VOTER_KEY, False)  # type: ignore[union-attr]


# Elections


def test_a_sole_voter_elects_itself_and_decides_what_is_synced() -> None:
    raft = a_raft(bootstrap=voters(1))
    effects: list[Effect] = []
    while not isinstance(raft.role, Leader):
        effects = list(raft.tick(raft.next_deadline_ms()))
    appended = next(effect for effect in effects if isinstance(effect, AppendEntries))
    assert not any(isinstance(effect, Committed) for effect in effects)
    effects = list(raft.handle(Stored(appended.number), 5_000))
    assert [type(effect) for effect in effects] == [Committed, LeadershipBegan]


def test_an_isolated_voter_does_not_raise_its_epoch() -> None:
    raft = a_raft()
    now = 0
    for _ in range(200):
        now = raft.next_deadline_ms()
        raft.tick(now)
    assert now > 20_000
    assert raft.replica.epoch == 0


def test_three_replicas_elect_one_leader_whom_all_follow() -> None:
    replicas = Replicas(1, 2, 3)
    leader = replicas.elect()
    assert {raft.leader_id for raft in replicas.rafts.values()} == {leader.replica.key.node_id}
    assert {raft.replica.epoch for raft in replicas.rafts.values()} == {leader.replica.epoch}


def test_a_follower_with_a_leader_refuses_pre_votes() -> None:
    replicas = Replicas(1, 2, 3)
    leader = replicas.elect()
    follower = next(raft for raft in replicas.rafts.values() if raft is not leader)
    body = replace(vote_request(leader.replica.epoch, (99, 99), pre_vote=True), voter=follower.replica.key)
    for asked in (leader, follower):
        body = replace(body, voter=asked.replica.key)
        (answer,) = answers(asked.handle(RequestReceived("t", body), replicas.now))
        assert not answer.vote_granted  # type: ignore[union-attr]


def test_a_leader_whom_nobody_hears_resigns_and_the_others_go_on() -> None:
    replicas = Replicas(1, 2, 3)
    old = replicas.elect()
    replicas.cut = {old.replica.key.node_id}
    new = replicas.elect()
    assert new is not old
    assert isinstance(old.role, Unattached | Prospective)
    assert any(isinstance(effect, LeadershipEnded) for effect in replicas.told)
    epoch = new.replica.epoch
    replicas.cut = set()
    replicas.pass_time(5_000)
    assert (new.replica.epoch, old.leader_id) == (epoch, new.replica.key.node_id)


def test_an_observer_follows_and_never_stands_for_election() -> None:
    replicas = Replicas(1, observers=(7,))
    replicas.elect()
    replicas.propose(b"x")
    assert replicas.committed[7] == [b"x"]
    replicas.cut = {1}
    replicas.pass_time(30_000)
    assert isinstance(replicas.rafts[7].role, Unattached)
    assert replicas.rafts[7].replica.epoch == replicas.rafts[1].replica.epoch


class _LeaderOfTwo:
    """Node 1 leads, node 2 votes, node 7 observes; all that it has written is known by all to be committed."""

    def __init__(self) -> None:
        self.raft = a_raft(bootstrap=voters(1, 2))
        self.raft.become_candidate()
        self.raft.become_leader()
        self.raft.handle(Stored(1), 0)
        self.fetch(2, 1)

    @property
    def high_watermark(self) -> int:
        return self.raft.replica.high_watermark

    def fetch(self, node_id: int, end: int, high_watermark: int = 0, *, wait_ms: int = 500, at_ms: int = 0) -> Any:
        """Have a replica fetch and return what all who fetch are answered, by node id."""
        epoch = self.raft.replica.log.epoch_at(end - 1) if end else 0
        body = FetchRequest(
            epoch=self.raft.replica.epoch,
            replica=key(node_id),
            log_end=OffsetAndEpoch(end, epoch),
            high_watermark=high_watermark,
            wait_ms=wait_ms,
        )
        return by_asker(self.raft.handle(RequestReceived(node_id, body), at_ms))

    def propose(self, value: bytes) -> Any:
        effects = self.raft.handle(Propose(self.raft.replica.epoch, (value,), "t"), 0)
        number = next(effect.number for effect in effects if isinstance(effect, AppendEntries))
        return by_asker([*effects, *self.raft.handle(Stored(number), 0)])


def by_asker(effects: Any) -> dict[int, tuple[int, int]]:
    """Return how many entries each is sent, and with which high watermark."""
    return {
        effect.token: (len(effect.body.entries), effect.body.high_watermark)
        for effect in effects
        if isinstance(effect, SendResponse)
    }


def test_an_observer_is_told_once_of_what_is_decided_and_a_voter_at_once() -> None:
    leader = _LeaderOfTwo()
    assert leader.fetch(2, 1, 1) == leader.fetch(7, 1, 1) == {}
    assert leader.propose(b"x") == {2: (1, 1)}
    assert leader.fetch(2, 2, 1) == {2: (0, 2), 7: (1, 2)}
    assert leader.fetch(7, 2, 2) == {}


def test_an_observer_that_asks_late_is_given_no_more_than_is_decided() -> None:
    leader = _LeaderOfTwo()
    leader.propose(b"x")
    assert leader.high_watermark == 1
    assert leader.fetch(7, 0) == {7: (1, 1)}
    assert leader.fetch(7, 1, 1) == {}
    # One whose log is longer, as a former leader may have told it more, is not behind.
    assert leader.fetch(8, 2, 1) == {}
    assert leader.fetch(2, 2, 1) == {2: (0, 2), 7: (1, 2), 8: (0, 2)}


def test_an_observers_tail_that_was_decided_against_is_found_at_once() -> None:
    leader = _LeaderOfTwo()
    leader.propose(b"x")
    body = FetchRequest(
        epoch=leader.raft.replica.epoch, replica=key(7), log_end=OffsetAndEpoch(5, 0), high_watermark=0, wait_ms=500
    )
    (answer,) = answers(leader.raft.handle(RequestReceived(7, body), 0))
    assert answer.diverging == (0, 0)


def test_who_is_made_a_voter_gets_the_record_that_it_must_confirm() -> None:
    leader = _LeaderOfTwo()
    assert leader.fetch(7, 1, 1) == leader.fetch(2, 1, 1) == {}
    effects = leader.raft.handle(AddVoter(Voter(key=key(7)), "add"), 0)
    assert by_asker(effects) == {2: (1, 1), 7: (1, 1)}
    assert leader.high_watermark == 1


def test_who_is_no_voter_any_more_hears_of_it_when_that_is_decided() -> None:
    leader = _LeaderOfTwo()
    assert leader.fetch(2, 1, 1) == {}
    effects = leader.raft.handle(RemoveVoter(key(2), "remove"), 0)
    number = next(effect.number for effect in effects if isinstance(effect, AppendEntries))
    assert by_asker(effects) == {}
    assert by_asker(leader.raft.handle(Stored(number), 0)) == {2: (1, 2)}


def test_a_fetch_waits_for_as_long_as_it_says_within_bounds() -> None:
    leader = _LeaderOfTwo()
    most = CONFIG.observer_fetch_wait_ms_max
    waits = {7: most, 8: 300, 9: 2**31 - 1}
    assert leader.fetch(6, 1, 1, wait_ms=0) == {6: (0, 1)}
    assert [leader.fetch(node_id, 1, 1, wait_ms=wait_ms) for node_id, wait_ms in waits.items()] == [{}, {}, {}]
    assert leader.raft.next_deadline_ms() == 300
    assert by_asker(leader.raft.tick(300)) == {8: (0, 1)}
    assert by_asker(leader.raft.tick(most)) == {7: (0, 1), 9: (0, 1)}


def test_an_observer_waits_longer_than_a_voter_and_who_looks_for_a_leader_not_at_all() -> None:
    for node_id, wait_ms in ((2, CONFIG.fetch_wait_ms_max), (7, CONFIG.observer_fetch_wait_ms_max)):
        raft = a_raft(node_id)
        (looking,) = requests(raft.tick(0), FetchRequest)
        raft.become_follower(1, 1)
        (following,) = requests(raft.tick(0), FetchRequest)
        assert (looking.wait_ms, following.wait_ms) == (0, wait_ms)


def test_observers_that_wait_are_told_at_once_that_their_leader_leads_no_more() -> None:
    leader = _LeaderOfTwo()
    assert leader.fetch(7, 1, 1, wait_ms=1_000) == {}
    (answer,) = answers(leader.raft.handle(Resign(), 1))
    assert answer.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_leader_surely_leads_for_as_long_as_its_voters_elect_no_other() -> None:
    replicas = Replicas(1, 2, 3)
    leader = replicas.elect()
    replicas.pass_time(1_000)
    assert leader.surely_leads(replicas.now)
    assert isinstance(leader.role, Leader)
    for_ms = CONFIG.fetch_timeout_ms * 9 // 10
    followed = max(progress.followed_ms for progress in leader.role.followers.all.values())
    assert leader.surely_leads(followed + for_ms - 1)
    assert not leader.surely_leads(followed + for_ms)
    follower = next(raft for raft in replicas.rafts.values() if raft is not leader)
    assert not follower.surely_leads(replicas.now)


def test_a_voter_that_is_alone_surely_leads() -> None:
    alone = a_raft(bootstrap=voters(1))
    alone.tick(10_000)
    assert isinstance(alone.role, Leader)
    assert alone.surely_leads(10**9)


def test_a_leader_that_resigns_is_followed_at_once_by_the_best_informed() -> None:
    replicas = Replicas(1, 2, 3)
    old = replicas.elect()
    began = replicas.now
    replicas.do(old.replica.key.node_id, Resign())
    while replicas.leader is None:
        replicas.pass_time(10)
    assert replicas.leader is not old
    assert replicas.now - began < CONFIG.fetch_timeout_ms


def test_a_leader_of_before_a_restart_leads_no_more_in_that_epoch() -> None:
    raft = a_raft(recovered=Recovered(state=QuorumState(epoch=3, leader_id=1, voted=key(1))))
    (answer,) = answers(
        raft.handle(
            RequestReceived("t", FetchRequest(epoch=3, replica=key(2), log_end=OffsetAndEpoch(0, 0), high_watermark=0)),
            0,
        )
    )
    assert answer.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


# Replication


def test_a_proposal_is_answered_after_it_is_handed_over() -> None:
    replicas = Replicas(1, 2, 3)
    replicas.elect()
    replicas.propose(b"x", b"y")
    (result,) = replicas.results(Proposed)
    assert (result.token, result.error) == ((b"x", b"y"), ErrorCode.NONE)
    replicas.pass_time(1_000)
    assert list(replicas.committed.values()) == [[b"x", b"y"]] * 3


def test_nothing_is_decided_without_a_majority() -> None:
    replicas = Replicas(1, 2, 3)
    leader = replicas.elect()
    replicas.cut = set(replicas.rafts) - {leader.replica.key.node_id}
    replicas.propose(b"x")
    assert replicas.results(Proposed) == []
    replicas.pass_time(10_000)
    (result,) = replicas.results(Proposed)
    assert (result.error, result.in_doubt) == (ErrorCode.NOT_CONTROLLER, True)


@pytest.mark.parametrize(("count", "survives"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)])
def test_a_quorum_survives_what_leaves_it_a_majority(count: int, survives: int) -> None:
    """Two failures need five nodes, and a fourth gains nothing over three."""
    replicas = Replicas(*range(1, count + 1))
    first = replicas.elect()
    first_id = first.replica.key.node_id
    order = [first_id, *(node_id for node_id in replicas.rafts if node_id != first_id)]
    replicas.cut = set(order[:survives])
    assert isinstance(replicas.elect().role, Leader)
    replicas.propose(b"decided")
    assert [result.error for result in replicas.results(Proposed)] == [ErrorCode.NONE]
    replicas.cut = set(order[: survives + 1])
    replicas.pass_time(20_000)
    assert not any(raft.role.leads for raft in replicas.rafts.values()) or count == 1


def test_a_decision_of_another_epoch_is_not_appended() -> None:
    replicas = Replicas(1)
    leader = replicas.elect()
    end = leader.replica.log.end_offset
    replicas.do(1, Propose(leader.replica.epoch - 1, (b"x",), "t"))
    assert replicas.results(Proposed) == [Proposed("t", ErrorCode.NOT_CONTROLLER)]
    assert leader.replica.log.end_offset == end


def test_a_follower_asks_on_only_when_its_disk_has_it_all() -> None:
    raft = a_raft()
    raft.become_follower(1, 2)
    effects = raft.handle(ResponseReceived(0, FetchResponse(epoch=1, leader_id=2)), 0)
    fetch = next(effect for effect in effects if isinstance(effect, SendRequest))
    body = FetchResponse(epoch=1, leader_id=2, entries=data(1, b"x"), high_watermark=0)
    effects = raft.handle(ResponseReceived(fetch.id, body), 0)
    assert requests(effects, FetchRequest) == []
    number = next(effect.number for effect in effects if isinstance(effect, AppendEntries))
    (request,) = requests(raft.handle(Stored(number), 0), FetchRequest)
    assert request.log_end == (1, 1)


def test_entries_of_an_older_epoch_are_decided_by_one_of_its_own() -> None:
    raft = a_raft(bootstrap=voters(1, 2), recovered=Recovered(state=QuorumState(epoch=1), entries=data(1, b"old")))
    raft.become_candidate()
    raft.become_leader()
    raft.handle(Stored(1), 0)
    has_old = FetchRequest(epoch=2, replica=key(2), log_end=OffsetAndEpoch(1, 1), high_watermark=0)
    effects = raft.handle(RequestReceived("t", has_old), 0)
    assert not any(isinstance(effect, Committed) for effect in effects)
    has_new = replace(has_old, log_end=OffsetAndEpoch(2, 2))
    effects = raft.handle(RequestReceived("t", has_new), 0)
    (committed,) = [effect for effect in effects if isinstance(effect, Committed)]
    assert [entry.epoch for entry in committed.entries] == [1, 2]


def test_a_diverging_tail_is_cut_and_replaced() -> None:
    replicas = Replicas(1, 2, 3)
    old = replicas.elect()
    replicas.cut = {old.replica.key.node_id}
    replicas.do(old.replica.key.node_id, Propose(old.replica.epoch, (b"lost", b"lost too"), "t"))
    replicas.elect()
    replicas.propose(b"kept")
    replicas.cut = set()
    replicas.pass_time(5_000)
    assert any(isinstance(effect, TruncateLog) for effect in replicas.told)
    assert set(map(tuple, replicas.committed.values())) == {(b"kept",)}


def test_a_new_follower_gets_a_snapshot_in_parts() -> None:
    replicas = Replicas(1)
    replicas.elect()
    for number in range(30):
        replicas.propose(bytes([number]))
    leader = replicas.rafts[1]
    assert leader.replica.snapshot is not None
    assert leader.replica.log.start_offset == leader.replica.snapshot.id.offset - CONFIG.snapshot_trailing_entries
    replicas.join(a_raft(7, replicas.bootstrap))
    replicas.pass_time(5_000)
    assert replicas.rafts[7].replica.snapshot == leader.replica.snapshot
    assert replicas.committed[7] == replicas.committed[1] == [bytes([number]) for number in range(30)]


# Changes of the voters


def test_an_observer_becomes_a_voter_and_the_leader_an_observer() -> None:
    replicas = Replicas(1, observers=(2,))
    replicas.elect()
    replicas.do(1, AddVoter(Voter(key=key(2)), "add"))
    replicas.pass_time(1_000)
    replicas.do(1, RemoveVoter(key(1), "remove"))
    replicas.pass_time(10_000)
    assert replicas.results(VotersChanged) == [
        VotersChanged("add", ErrorCode.NONE),
        VotersChanged("remove", ErrorCode.NONE),
    ]
    assert replicas.leader is replicas.rafts[2]
    assert isinstance(replicas.rafts[1].role, Follower)
    assert {raft.replica.voters.current for raft in replicas.rafts.values()} == {voters(2)}


def test_a_voter_that_does_not_catch_up_is_not_added() -> None:
    replicas = Replicas(1)
    replicas.elect()
    replicas.do(1, AddVoter(Voter(key=key(9)), "add"))
    replicas.pass_time(CONFIG.add_voter_timeout_ms + 1_000)
    (result,) = replicas.results(VotersChanged)
    assert result.error is ErrorCode.REQUEST_TIMED_OUT
    assert replicas.rafts[1].replica.voters.current == voters(1)


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (AddVoter(Voter(key=key(1, "b")), "t"), ErrorCode.DUPLICATE_VOTER),
        (RemoveVoter(key(5), "t"), ErrorCode.VOTER_NOT_FOUND),
        (RemoveVoter(key(1), "t"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(event: Any, error: ErrorCode) -> None:
    replicas = Replicas(1)
    replicas.elect()
    replicas.do(1, event)
    assert [result.error for result in replicas.results(VotersChanged)] == [error]


def test_only_one_change_is_open_at_a_time() -> None:
    replicas = Replicas(1, 2, 3, observers=(4,))
    leader = replicas.elect()
    others = [node_id for node_id in (1, 2, 3) if node_id != leader.replica.key.node_id]
    replicas.cut = set(others)
    replicas.do(leader.replica.key.node_id, RemoveVoter(key(others[0]), "first"))
    replicas.do(leader.replica.key.node_id, RemoveVoter(key(others[1]), "second"))
    assert [(result.token, result.error) for result in replicas.results(VotersChanged)] == [
        ("second", ErrorCode.REQUEST_TIMED_OUT)
    ]


def test_who_is_no_leader_says_so_to_every_command() -> None:
    raft = a_raft()
    for event in (Propose(1, (b"x",), "t"), AddVoter(Voter(key=key(9)), "t"), RemoveVoter(key(2), "t")):
        (effect,) = raft.handle(event, 0)
        assert isinstance(effect, Proposed | VotersChanged)
        assert effect.error is ErrorCode.NOT_CONTROLLER
    assert list(raft.handle(Resign(), 0)) == []


def test_a_leader_describes_its_quorum() -> None:
    replicas = Replicas(1, 2, 3, observers=(7,))
    leader = replicas.elect()
    replicas.propose(b"x")
    replicas.pass_time(100)
    described = describe_quorum(leader, replicas.now)
    assert described is not None
    assert (described.leader_id, described.epoch) == (leader.replica.key.node_id, leader.replica.epoch)
    assert described.high_watermark == leader.replica.high_watermark == leader.replica.log.end_offset
    assert {row.key: row.is_voter for row in described.replicas} == {
        key(1): True,
        key(2): True,
        key(3): True,
        key(7): False,
    }
    assert {row.log_end_offset for row in described.replicas} == {leader.replica.log.end_offset}
    assert all(row.caught_up_ms_ago is not None for row in described.replicas)
    follower = next(raft for raft in replicas.rafts.values() if raft is not leader)
    assert describe_quorum(follower, replicas.now) is None


def test_a_fetch_proves_only_that_its_voter_had_the_answer_before_it() -> None:
    progress = Progress(0)
    progress.fetched("a")
    progress.answered(100)
    assert progress.followed_ms == 0
    progress.fetched("a")
    assert progress.followed_ms == 100
    # This process stands still; the voter gives the connection up, and tries others.
    progress.answered(5_000)
    progress.fetched("b")
    progress.answered(5_000)
    progress.fetched("c")
    assert progress.followed_ms == 100
    progress.fetched("c")
    assert progress.followed_ms == 100, "unanswered"
    progress.answered(5_001)
    progress.fetched("c")
    assert progress.followed_ms == 5_001
