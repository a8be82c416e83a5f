"""Which messages raise a replica's epoch, how far, and that the cluster's own get through all the same."""

from typing import Any

import pytest
from test_core_raft import CONFIG, Replicas, a_raft, answers, data, key, requests, vote_request, voters

from log_broker.core.raft.effects import AddVoter, QuorumState, RemoveVoter, RequestReceived, ResponseReceived
from log_broker.core.raft.election import Unattached
from log_broker.core.raft.follower import Follower
from log_broker.core.raft.leader import Leader
from log_broker.core.raft.log import OffsetAndEpoch
from log_broker.core.raft.messages import (
    NO_LEADER,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    RaftRequest,
)
from log_broker.core.raft.raft import Raft
from log_broker.core.raft.replica import EPOCH_MAX, EPOCHS_AT_FIRST, Recovered, epoch_bound
from log_broker.core.raft.voters import Voter
from log_broker.errors import ErrorCode

BOUND = 1_000


def bounded(epoch: int = 0) -> Raft:
    raft = a_raft(recovered=Recovered(state=QuorumState(epoch=epoch)))
    raft.epoch_max = lambda: BOUND
    return raft


def fetch(epoch: int, node_id: int = 2) -> FetchRequest:
    return FetchRequest(epoch=epoch, replica=key(node_id), log_end=OffsetAndEpoch(0, 0), high_watermark=0)


def begin(epoch: int, leader_id: int = 2, to: int = 1) -> BeginQuorumEpochRequest:
    return BeginQuorumEpochRequest(epoch=epoch, leader_id=leader_id, voter=key(to))


def end(epoch: int, leader_id: int = 2) -> EndQuorumEpochRequest:
    return EndQuorumEpochRequest(epoch=epoch, leader_id=leader_id, preferred_successors=(key(1),))


def fetch_snapshot(epoch: int) -> FetchSnapshotRequest:
    return FetchSnapshotRequest(epoch=epoch, replica=key(2), snapshot_id=OffsetAndEpoch(1, 1), position=0)


def all_of(epoch: int) -> list[RaftRequest]:
    votes = [vote_request(epoch, (9, 0), pre_vote=pre_vote) for pre_vote in (True, False)]
    return [*votes, begin(epoch), end(epoch), fetch(epoch), fetch_snapshot(epoch)]


def ask(raft: Raft, body: RaftRequest, now_ms: int = 0) -> Any:
    return raft.handle(RequestReceived("t", body), now_ms)


@pytest.mark.parametrize("body", [end(7), fetch(7), fetch_snapshot(7)])
def test_a_fetch_or_a_goodbye_never_raises_the_epoch(body: RaftRequest) -> None:
    raft = bounded(epoch=3)
    effects = ask(raft, body)
    assert raft.replica.epoch == 3
    (answer,) = answers(effects)
    assert (answer.error, answer.epoch) == (ErrorCode.UNKNOWN_LEADER_EPOCH, 3)
    assert [request.epoch for request in requests(effects, FetchRequest)] == [3], "the sender is asked instead"


@pytest.mark.parametrize("body", [begin(7), vote_request(7, (0, 0)), vote_request(7, (0, 0), pre_vote=True)])
def test_without_a_leader_a_candidate_or_a_leader_raises_the_epoch(body: RaftRequest) -> None:
    raft = bounded(epoch=3)
    ask(raft, body)
    assert raft.replica.epoch == 7


@pytest.mark.parametrize("epoch", [BOUND + 1, EPOCH_MAX, EPOCH_MAX + 1])
def test_an_epoch_beyond_the_bound_is_taken_from_nobody(epoch: int) -> None:
    raft = bounded(epoch=3)
    for body in all_of(epoch):
        effects = ask(raft, body)
        assert not requests(effects, FetchRequest)
    raft.handle(ResponseReceived(1, FetchResponse(epoch=epoch, leader_id=2)), 0)
    assert raft.replica.epoch == 3


def test_a_replica_with_a_leader_asks_the_node_that_names_a_higher_epoch() -> None:
    replicas = Replicas(1, 2, 3)
    leader = replicas.elect()
    for raft in replicas.rafts.values():
        other = 1 + raft.replica.key.node_id % 3
        other = other if other != raft.leader_id else 1 + other % 3
        asked = [
            ask(raft, body, replicas.now) for body in (begin(50, other, raft.replica.key.node_id), fetch(51, other))
        ]
        assert [len(requests(effects, FetchRequest)) for effects in asked] == [1, 0], "once, not for each message"
        assert raft.replica.epoch == leader.replica.epoch
    replicas.do(leader.replica.key.node_id, ResponseReceived(10**6, FetchResponse(epoch=50, leader_id=NO_LEADER)))
    assert leader.replica.epoch == 50
    assert replicas.elect().replica.epoch > 50


def test_nobody_stands_for_election_in_an_epoch_that_the_others_do_not_believe_yet() -> None:
    replicas = Replicas(1, 2, 3)
    for raft in replicas.rafts.values():
        raft.replica.state = QuorumState(epoch=BOUND)
        raft.epoch_max = lambda: BOUND + (replicas.now > 30_000)
    replicas.pass_time(30_000)
    assert replicas.leader is None
    assert {raft.replica.epoch for raft in replicas.rafts.values()} == {BOUND}
    assert replicas.elect().replica.epoch == BOUND + 1


def test_a_replica_that_a_stranger_led_ahead_is_caught_up_with() -> None:
    """An observer or a voter: it can follow nobody until the others are in its epoch."""
    for led_ahead in (3, 4):
        replicas = Replicas(1, 2, 3, observers=(4,))
        leader = replicas.elect()
        assert leader.replica.key.node_id != led_ahead
        replicas.cut = {led_ahead}
        replicas.pass_time(10_000)
        ask(replicas.rafts[led_ahead], begin(500, 2, led_ahead), replicas.now)
        replicas.cut = set()
        replicas.pass_time(30_000)
        found = replicas.leader
        assert found is not None
        assert {raft.leader_id for raft in replicas.rafts.values()} == {found.replica.key.node_id}
        assert found.replica.epoch > 500


def test_a_voter_that_is_behind_elects_one_that_its_log_does_not_name() -> None:
    """KIP-853: without that, the two that are left here of three voters could never go on."""
    replicas = Replicas(1, 2, 3, observers=(4,))
    assert replicas.elect() is replicas.rafts[1]
    replicas.cut = {2}
    replicas.do(1, AddVoter(Voter(key=key(4)), "add"))
    replicas.pass_time(1_000)
    replicas.do(1, RemoveVoter(key(3), "remove"))
    replicas.pass_time(1_000)
    assert replicas.rafts[4].replica.voters.current == voters(1, 2, 4)
    assert replicas.rafts[2].replica.voters.current == voters(1, 2, 3)
    replicas.cut = {1, 3}
    assert replicas.elect() is replicas.rafts[4]
    replicas.propose(b"on")
    assert replicas.committed[2][-1] == b"on"


def test_a_goodbye_in_anothers_name_is_not_believed() -> None:
    replicas = Replicas(1, 2, 3)
    leader = replicas.elect()
    follower = next(raft for raft in replicas.rafts.values() if raft is not leader)
    ask(follower, end(leader.replica.epoch, 99), replicas.now)
    assert isinstance(follower.role, Follower)
    ask(follower, end(leader.replica.epoch, leader.replica.key.node_id), replicas.now)
    assert not isinstance(follower.role, Follower)


def test_a_leader_that_is_none_is_left_for_the_one_that_is() -> None:
    """Whom a replica was told of first in an epoch need not be its leader."""
    raft = bounded()
    ask(raft, begin(5, leader_id=3))
    assert raft.leader_id == 3
    refusal = FetchResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, epoch=5, leader_id=NO_LEADER)
    raft.handle(ResponseReceived(raft.replica._request_id, refusal), 0)
    assert isinstance(raft.role, Unattached)
    ask(raft, begin(5, leader_id=2))
    assert raft.leader_id == 2


def test_who_led_an_epoch_follows_nobody_else_in_it() -> None:
    replicas = Replicas(1, 2, 3)
    leader = replicas.elect()
    leader.resign()
    ask(
        leader,
        begin(leader.replica.epoch, 3 if leader.replica.key.node_id == 2 else 2, leader.replica.key.node_id),
        replicas.now,
    )
    assert leader.leader_id is None


def test_a_message_for_another_directory_changes_nothing() -> None:
    raft = bounded()
    body = BeginQuorumEpochRequest(epoch=5, leader_id=2, voter=key(1, "the disk before"))
    (answer,) = answers(ask(raft, body))
    assert (answer.error, raft.replica.epoch) == (ErrorCode.INVALID_VOTER_KEY, 0)


def test_a_replica_whose_promises_are_gone_begins_in_the_epoch_of_its_log() -> None:
    assert a_raft(recovered=Recovered(entries=data(7, b"a"))).replica.epoch == 7
    kept = QuorumState(epoch=9, voted=key(2))
    assert a_raft(recovered=Recovered(state=kept, entries=data(7, b"a"))).replica.state == kept


def test_entries_of_an_epoch_that_is_not_yet_are_not_taken() -> None:
    raft = bounded()
    ask(raft, begin(5, leader_id=3))
    response = FetchResponse(epoch=5, leader_id=3, entries=data(6, b"a"), high_watermark=1)
    raft.handle(ResponseReceived(raft.replica._request_id, response), 0)
    assert raft.replica.log.end_offset == 0


def test_strangers_that_fetch_are_remembered_up_to_a_number() -> None:
    replicas = Replicas(1, 2, 3)
    leader = replicas.elect()
    for number in range(CONFIG.observers_max + 50):
        ask(leader, fetch(leader.replica.epoch, 1_000 + number), replicas.now + number)
    assert isinstance(leader.role, Leader)
    assert len(leader.role.followers.all) <= CONFIG.observers_max + 3
    assert {key(2), key(3)} <= set(leader.role.followers.all)


def test_a_fetch_that_another_overtakes_is_answered() -> None:
    replicas = Replicas(1, 2, 3)
    leader = replicas.elect()
    now = replicas.now
    body = FetchRequest(
        epoch=leader.replica.epoch,
        replica=key(9),
        log_end=leader.replica.log.end,
        high_watermark=leader.replica.high_watermark,
        wait_ms=500,
    )
    assert answers(leader.handle(RequestReceived("first", body), now)) == []
    effects = leader.handle(RequestReceived("second", body), now)
    assert [effect.token for effect in effects] == ["first"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("unix_s", "bound"),
    [(0, EPOCHS_AT_FIRST), (1_735_689_600, EPOCHS_AT_FIRST), (1_735_689_660, EPOCHS_AT_FIRST + 60), (2**40, EPOCH_MAX)],
)
def test_the_bound_of_epochs_grows_by_one_a_second(unix_s: int, bound: int) -> None:
    assert epoch_bound(unix_s) == bound
    assert bound < 2**31 - 1
