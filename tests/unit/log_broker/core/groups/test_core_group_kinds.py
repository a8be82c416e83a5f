"""Classic and KIP-848 members in one group: moving over, living together, moving back."""

import struct
from typing import Any

import pytest
from classic_group_client import subscription
from consumer_group_driver import Client, GroupDriver, settle

from log_broker.core.groups.classic_group import GroupState
from log_broker.core.groups.consumer_group_records import NO_PARTITIONS, TopicIdPartitions
from log_broker.core.groups.consumer_protocol import read_assignment, read_subscription, write_assignment
from log_broker.core.groups.conversion import from_places, to_places
from log_broker.core.groups.protocol import Commit, Delete, Heartbeat, Join, JoinAnswer, Leave, Sync
from log_broker.core.groups.records import CommittedOffset
from log_broker.errors import ErrorCode

SESSION_MS = 10_000
REBALANCE_MS = 60_000


class ClassicClient:
    """A cooperative client of the classic protocol; it never leads in a group of the new one."""

    def __init__(self, driver: GroupDriver, topics: tuple[str, ...] = ("t",), instance_id: str | None = None) -> None:
        self.driver = driver
        self.topics = topics
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.owned: TopicIdPartitions = NO_PARTITIONS
        self.token: Any = None

    def join(self, fresh_id: str = "") -> JoinAnswer | None:
        self.token = self.driver.send(
            Join,
            member_id=self.member_id,
            fresh_id=fresh_id,
            instance_id=self.instance_id,
            client_id="c",
            client_host="/h",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=(("range", subscription(self.topics, from_places(self.owned, self.driver.cluster))),),
        )
        return self.joined()

    def joined(self) -> JoinAnswer | None:
        answer = self.driver.answers.get(self.token)
        if answer is not None and answer.error is ErrorCode.NONE:
            self.member_id, self.generation = answer.member_id, answer.generation
        return answer

    def sync(self, **assignments: bytes) -> ErrorCode:
        answer = self.driver.ask(
            Sync,
            member_id=self.member_id,
            generation=self.generation,
            instance_id=self.instance_id,
            assignments=assignments,
        )
        if answer.error is ErrorCode.NONE:
            self.owned = to_places(read_assignment(answer.assignment), self.driver.cluster)
        return answer.error

    def heartbeat(self) -> ErrorCode:
        return self.driver.ask(
            Heartbeat, member_id=self.member_id, generation=self.generation, instance_id=self.instance_id
        )

    def step(self) -> None:
        """What a client does at its next heartbeat."""
        if self.heartbeat() is not ErrorCode.NONE:
            answer = self.join()
            assert answer is not None
            assert answer.error is ErrorCode.NONE
            assert self.sync() is ErrorCode.NONE

    def leave(self) -> Any:
        return self.driver.ask(Leave, members=((self.member_id, self.instance_id),))


def classic_group(driver: GroupDriver, *, instance_id: str | None = None) -> ClassicClient:
    """A classic group of one member that reads all of t."""
    client = ClassicClient(driver, instance_id=instance_id)
    client.join("c1")
    client.sync(c1=write_assignment(from_places(driver.places("t"), driver.cluster), 1))
    assert client.owned == driver.places("t")
    return client


@pytest.fixture
def driver() -> GroupDriver:
    driver = GroupDriver()
    driver.create_topic("t", 4)
    return driver


def settle_both(*clients: Any) -> None:
    for _ in range(8):
        for client in clients:
            client.step() if isinstance(client, ClassicClient) else client.beat()


def test_a_classic_group_moves_over_and_back_without_losing_partitions_or_offsets(driver: GroupDriver) -> None:
    old = classic_group(driver)
    offsets = {("t", 0): CommittedOffset(offset=7, timestamp_ms=1)}
    driver.ask(Commit, member_id="c1", generation=1, instance_id=None, offsets=offsets)
    new = Client(driver, "n", frozenset({"t"}))
    assert new.beat().assignment == NO_PARTITIONS
    assert driver.group.kind == "consumer"
    assert driver.ask(Commit, member_id="c1", generation=1, instance_id=None, offsets=offsets) is ErrorCode.NONE
    settle_both(old, new)
    assert old.owned | new.owned == driver.places("t")
    assert (len(old.owned), len(new.owned)) == (2, 2)
    assert old.heartbeat() is ErrorCode.NONE
    new.leave()
    assert driver.group.kind == "classic"
    assert driver.group.classic.state is GroupState.PREPARING
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    old.join()
    assert old.sync(c1=write_assignment(from_places(driver.places("t"), driver.cluster), 1)) is ErrorCode.NONE
    assert old.owned == driver.places("t")
    assert driver.group.offsets.get(("t", 0)) == offsets["t", 0]
    driver.restart()
    assert driver.group.kind == "classic"
    assert old.heartbeat() is ErrorCode.NONE


def test_a_classic_member_does_not_bring_back_a_consumer_group_that_is_being_deleted(driver: GroupDriver) -> None:
    new = Client(driver, "n", frozenset({"t"}))
    new.beat()
    new.leave()
    driver.held = []
    deletion = driver.send(Delete)
    refused = ClassicClient(driver).join("c1")
    assert refused is not None
    assert refused.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.release()
    assert driver.answers[deletion] is ErrorCode.NONE
    assert driver.group.is_forgettable


def test_a_group_that_turns_classic_and_back_at_once_gives_nobody_what_is_still_read(driver: GroupDriver) -> None:
    old, new = classic_group(driver), Client(driver, "n", frozenset({"t"}))
    new.beat()
    new.leave()
    assert driver.group.kind == "classic"
    again = Client(driver, "n2", frozenset({"t"}))
    again.beat()
    assert driver.group.kind == "consumer"
    assert again.owned.isdisjoint(old.owned), "the classic member has not been heard of since, and reads on"
    settle_both(old, again)
    assert (len(old.owned), len(again.owned)) == (2, 2)


def test_who_replaces_an_unassigned_static_member_gets_the_free_partitions(
    driver: GroupDriver,
) -> None:
    first, static = Client(driver, "n", frozenset({"t"})), ClassicClient(driver, instance_id="i")
    first.beat()
    static.join("c")
    first.leave()
    assert driver.group.kind == "classic"
    heir = Client(driver, "n2", frozenset({"t"}), instance_id="i")
    settle([heir])
    assert driver.group.kind == "consumer"
    assert heir.owned == driver.places("t")


def test_both_kinds_survive_a_restart_of_the_coordinator(driver: GroupDriver) -> None:
    old, new = classic_group(driver), Client(driver, "n", frozenset({"t"}))
    settle_both(new, old)
    before = driver.consumer.state
    driver.restart()
    assert driver.consumer.state == before
    driver.advance(SESSION_MS)
    assert driver.consumer.state.subscriptions.keys() == {"n"}, "a classic member has its own session timeout"


@pytest.mark.parametrize("state", ["preparing", "completing"])
def test_members_that_wait_in_a_classic_rebalance_are_sent_back(driver: GroupDriver, state: str) -> None:
    first = classic_group(driver)
    second = ClassicClient(driver)
    second.join("c2")
    waiting = second.token
    if state == "completing":
        first.join()
        second.joined()
        waiting = driver.send(Sync, member_id="c2", generation=2, assignments={})
    assert waiting not in driver.answers
    new = Client(driver, "n", frozenset({"t"}))
    new.beat()
    assert driver.answers[waiting].error is ErrorCode.REBALANCE_IN_PROGRESS
    second.member_id = "c2"
    settle_both(first, second, new)
    owned = [first.owned, second.owned, new.owned]
    assert sorted(map(len, owned)) == [1, 1, 2]
    assert frozenset().union(*owned) == driver.places("t")


def test_an_upgrade_that_cannot_be_stored_leaves_the_classic_group(driver: GroupDriver) -> None:
    old = classic_group(driver)
    driver.held = []
    token = Client(driver, "n", frozenset({"t"})).send()
    late = driver.send(Heartbeat, member_id="c1", generation=1)
    driver.fails = True
    driver.release()
    assert driver.answers[token].error is ErrorCode.NOT_COORDINATOR
    assert driver.answers[late] is ErrorCode.NOT_COORDINATOR
    driver.fails = False
    assert driver.group.kind == "classic"
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    old.join()
    assert old.sync(c1=write_assignment([("t", 0)], 1)) is ErrorCode.NONE


@pytest.mark.parametrize("allowed", [True, False])
def test_the_policy_says_whether_a_group_may_move_over(allowed: bool) -> None:
    driver = GroupDriver(allows_upgrade=allowed)
    driver.create_topic("t", 4)
    classic_group(driver)
    answer = Client(driver, "n", frozenset({"t"})).beat()
    assert answer.error is (ErrorCode.NONE if allowed else ErrorCode.GROUP_ID_NOT_FOUND)


def test_the_policy_says_whether_a_group_may_move_back() -> None:
    driver = GroupDriver(allows_downgrade=False)
    driver.create_topic("t", 4)
    old, new = classic_group(driver), Client(driver, "n", frozenset({"t"}))
    settle_both(new, old)
    new.leave()
    assert driver.group.kind == "consumer"
    settle_both(old)
    assert old.owned == driver.places("t")


def test_a_group_of_another_protocol_type_stays_what_it_is(driver: GroupDriver) -> None:
    driver.send(
        Join,
        member_id="",
        fresh_id="w",
        instance_id=None,
        client_id="c",
        client_host="/h",
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
        protocol_type="connect",
        protocols=(("default", b""),),
    )
    assert Client(driver, "n", frozenset({"t"})).beat().error is ErrorCode.GROUP_ID_NOT_FOUND


def test_an_empty_group_changes_its_kind_with_its_first_member(driver: GroupDriver) -> None:
    old = classic_group(driver)
    old.leave()
    assert driver.group.classic.state is GroupState.EMPTY
    new = Client(driver, "n", frozenset({"t"}))
    assert new.beat().member_epoch == 1
    assert driver.group.kind == "consumer"
    new.leave()
    classic_group(driver)
    assert driver.group.kind == "classic"
    driver.restart()
    assert driver.group.kind == "classic"
    assert driver.group.classic.members.keys() == {"c1"}


def test_a_static_classic_member_replaces_a_new_one_and_the_last_converts_back(
    driver: GroupDriver,
) -> None:
    new = Client(driver, "n", frozenset({"t"}), instance_id="i")
    settle([new])
    new.leave(-2)
    old = ClassicClient(driver, instance_id="i")
    assert old.join("c1") is not None
    assert driver.group.kind == "classic"
    assert old.sync() is ErrorCode.NONE
    assert old.owned == driver.places("t"), "what it was assigned before, without a rebalance"


def test_a_classic_member_that_does_not_come_back_in_time_is_taken_out(driver: GroupDriver) -> None:
    old, new = classic_group(driver), Client(driver, "n", frozenset({"t"}))
    new.beat()
    for _ in range(REBALANCE_MS // 5_000):
        assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        new.beat()
        driver.advance(5_000)
    assert driver.consumer.state.subscriptions.keys() == {"n"}
    settle([new])
    assert new.owned == driver.places("t")


def test_a_classic_member_must_sync_in_time(driver: GroupDriver) -> None:
    old, new = classic_group(driver), Client(driver, "n", frozenset({"t"}))
    new.beat()
    old.join()
    for _ in range(REBALANCE_MS // 5_000):
        old.heartbeat()
        new.beat()
        driver.advance(5_000)
    assert driver.consumer.state.subscriptions.keys() == {"n"}


def test_what_a_classic_member_is_refused_in_a_group_of_the_new_protocol(driver: GroupDriver) -> None:
    old, new = classic_group(driver), Client(driver, "n", frozenset({"t"}))
    settle_both(old, new)
    assert driver.ask(Heartbeat, member_id="n", generation=new.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.ask(Heartbeat, member_id="c1", generation=9) is ErrorCode.ILLEGAL_GENERATION
    stranger = ClassicClient(driver, topics=("t",))
    stranger.member_id, stranger.generation = "x", 1
    assert stranger.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.leave()[0].error is ErrorCode.UNKNOWN_MEMBER_ID
    wrong = driver.ask(Sync, member_id="c1", generation=old.generation, protocol="sticky", assignments={})
    assert wrong.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    commit = {"instance_id": None, "offsets": {("t", 0): CommittedOffset(offset=1)}}
    assert driver.ask(Commit, member_id="c1", generation=9, **commit) is ErrorCode.ILLEGAL_GENERATION
    assert driver.ask(Commit, member_id="c1", generation=old.generation, knows_epochs=False, **commit) is ErrorCode.NONE
    assert old.leave()[0].error is ErrorCode.NONE
    settle([new])
    assert new.owned == driver.places("t")


def test_a_subscription_is_read_in_every_version() -> None:
    assert read_subscription(subscription(("t", "u"), [("t", 1)])).owned == {("t", 1)}
    v0 = subscription(("t",))[:-4]
    assert read_subscription(b"\0\0" + v0[2:]).topics == {"t"}
    v3 = b"\0\3" + subscription(("t",))[2:] + struct.pack(">ih", 4, 2) + b"r1"
    assert read_subscription(v3).rack_id == "r1"
    assert read_assignment(b"") == frozenset()


def test_a_group_that_moved_back_leaves_nothing_behind_when_it_is_deleted(driver: GroupDriver) -> None:
    old, new = classic_group(driver), Client(driver, "n", frozenset({"t"}))
    settle_both(old, new)
    new.leave()
    old.leave()
    driver.run(driver.group.expire_offsets(driver.now, retention_ms=1))
    assert driver.group.is_forgettable
    assert set(dict(driver.log).values()) == {None}
