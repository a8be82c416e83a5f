"""Groups of the new protocol (KIP-848): the stories of a rebalance, fencing, static members, restarts."""

from collections.abc import Collection
from typing import Any

import pytest
from consumer_group_driver import REBALANCE_MS, Client, GroupDriver, settle

from log_broker.core.groups import consumer_assignment
from log_broker.core.groups.consumer_events import ConsumerHeartbeat
from log_broker.core.groups.consumer_group_records import (
    NO_PARTITIONS,
    ConsumerRecord,
    MemberState,
    RecordKind,
    Subscription,
)
from log_broker.core.groups.consumer_group_state import ConsumerGroupState
from log_broker.core.groups.protocol import Commit, Delete, DeleteOffsets
from log_broker.core.groups.records import CommittedOffset
from log_broker.errors import ErrorCode

SESSION_MS = 45_000


@pytest.fixture
def driver() -> GroupDriver:
    driver = GroupDriver()
    driver.create_topic("t", 6)
    return driver


def client(driver: GroupDriver, member_id: str, *topics: str, **fields: Any) -> Client:
    return Client(driver, member_id, frozenset(topics or ("t",)), **fields)


def test_one_member_reads_everything_from_its_first_answer_on(driver: GroupDriver) -> None:
    a = client(driver, "a")
    answer = a.beat()
    assert (answer.error, answer.member_epoch, answer.assignment) == (ErrorCode.NONE, 1, driver.places("t"))
    assert answer.heartbeat_interval_ms == driver.settings.heartbeat_interval_ms
    assert driver.consumer.state.state is ConsumerGroupState.STABLE
    log = len(driver.log)
    assert a.beat().assignment is None, "what a member has is not said again"
    assert len(driver.log) == log, "a heartbeat that changes nothing writes nothing"


def test_a_partition_is_given_on_only_when_its_owner_has_given_it_up(driver: GroupDriver) -> None:
    a, b = client(driver, "a"), client(driver, "b")
    a.beat()
    assert b.beat().assignment == NO_PARTITIONS, "nothing is free yet"
    assert driver.consumer.state.owned_by("b").state is MemberState.UNRELEASED_PARTITIONS
    told = driver.answers[a.send()]
    assert (told.member_epoch, len(told.assignment)) == (1, 3), "the epoch stays until it has given up the rest"
    still = driver.answers[a.send(owned=None)]
    assert (still.member_epoch, still.assignment) == (1, None), "silence is no word of having given up"
    assert b.beat().assignment is None
    a.take(told)
    assert a.beat().member_epoch == 2
    assert b.beat().assignment == driver.places("t") - a.owned
    assert driver.consumer.state.state is ConsumerGroupState.STABLE


def test_who_does_not_give_up_in_time_is_taken_out(driver: GroupDriver) -> None:
    a, b = client(driver, "a"), client(driver, "b")
    a.beat()
    b.beat()
    a.send()
    for _ in range(3):
        driver.advance(REBALANCE_MS // 3 - 1)
        a.send(owned=driver.places("t"))
        b.beat()
    driver.advance(10)
    assert "a" not in driver.consumer.state.subscriptions
    settle([b])
    assert b.owned == driver.places("t")
    assert a.beat().error is ErrorCode.UNKNOWN_MEMBER_ID
    settle([a, b])
    assert (len(a.owned), len(b.owned)) == (3, 3)


def test_a_silent_member_is_lost_after_its_session(driver: GroupDriver) -> None:
    a, b = client(driver, "a"), client(driver, "b")
    settle([a, b])
    driver.advance(SESSION_MS - 1)
    b.beat()
    driver.advance(1)
    assert list(driver.consumer.state.subscriptions) == ["b"]
    settle([b])
    assert b.owned == driver.places("t")


def test_a_member_that_leaves_makes_room_at_once(driver: GroupDriver) -> None:
    a, b = client(driver, "a"), client(driver, "b")
    settle([a, b])
    assert a.leave().member_epoch == -1
    assert b.beat().assignment == driver.places("t")
    assert b.leave().error is ErrorCode.NONE
    assert driver.consumer.state.state is ConsumerGroupState.EMPTY


def test_a_lost_answer_is_repeated_and_an_old_epoch_is_fenced(driver: GroupDriver) -> None:
    a = client(driver, "a")
    a.send()
    assert a.beat().member_epoch == 1, "the same request again, from a member that owns nothing yet"
    b = client(driver, "b")
    settle([a, b])
    driver.add_partitions("t", 2)
    before = a.epoch
    a.send()
    assert a.beat().member_epoch == before + 1, "the previous epoch with nothing but what is assigned"
    assert a.beat(member_epoch=before + 2).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert b.beat(member_epoch=1).error is ErrorCode.FENCED_MEMBER_EPOCH


def test_more_partitions_and_new_topics_are_given_out_with_the_next_heartbeat(driver: GroupDriver) -> None:
    a = client(driver, "a", "t", "later")
    settle([a])
    driver.add_partitions("t", 2)
    assert a.beat().assignment == driver.places("t")
    driver.create_topic("later", 2)
    assert a.beat().assignment == driver.places("t", "later")
    driver.create_topic("other", 2)
    assert (a.beat().assignment, driver.consumer.state.epoch) == (None, 3), "a topic that nobody reads changes nothing"
    driver.delete_topic("later")
    assert a.beat().assignment == driver.places("t")


def test_a_subscription_can_change(driver: GroupDriver) -> None:
    driver.create_topic("u", 2)
    a = client(driver, "a")
    settle([a])
    assert a.beat(topics=frozenset({"u"})).assignment == NO_PARTITIONS
    a.beat()
    assert a.owned == driver.places("u")


def test_a_regular_expression_is_matched_against_whole_names_of_topics_old_and_new(driver: GroupDriver) -> None:
    driver.create_topic("tea", 2)
    driver.create_topic("__consumer_offsets", 2)
    a = Client(driver, "a", frozenset(), regex="t.*|__.*")
    a.beat(topics=None)
    assert a.owned == driver.places("t", "tea")
    driver.create_topic("toe", 3)
    driver.create_topic("not", 3)
    settle([a])
    assert a.owned == driver.places("t", "tea", "toe")
    assert driver.consumer.state.regexes["t.*|__.*"].topics == {"t", "tea", "toe"}
    assert client(driver, "b", regex="(").beat().error is ErrorCode.INVALID_REGULAR_EXPRESSION
    a.leave()
    assert not driver.consumer.state.regexes


def test_a_regular_expression_matches_what_its_member_may_describe(driver: GroupDriver) -> None:
    driver.create_topic("tea", 2)
    a = Client(driver, "a", frozenset(), regex="t.*", may_describe={"t", "toe"}.__contains__)
    a.beat(topics=None)
    assert a.owned == driver.places("t")
    driver.create_topic("toe", 3)
    driver.create_topic("tar", 3)
    settle([a])
    assert a.owned == driver.places("t", "toe")
    b = client(driver, "b")
    settle([a, b])
    driver.create_topic("tin", 1)
    # Nobody's rights are known when a member goes: what others match is not looked at then.
    b.leave()
    assert driver.consumer.state.regexes["t.*"].topics == {"t", "toe"}
    settle([a])
    assert a.owned == driver.places("t", "toe")


def test_a_metadata_change_matches_no_more_expressions_than_a_group_may_have(driver: GroupDriver, monkeypatch) -> None:
    monkeypatch.setattr(consumer_assignment, "REGEXES_MAX", 2)
    driver.create_topic("tea", 2)
    clients = [client(driver, name, regex=regex) for name, regex in (("a", "t.*"), ("b", "te.*"), ("c", "t.*"))]
    settle(clients)
    assert client(driver, "d", regex="tea").beat().error is ErrorCode.INVALID_REGULAR_EXPRESSION
    clients[1].leave()
    d = client(driver, "d", regex="tea")
    settle([clients[0], clients[2], d])
    assert set(driver.consumer.state.regexes) == {"t.*", "tea"}


def test_who_joins_has_its_own_expression_matched_alone(driver: GroupDriver, monkeypatch) -> None:
    driver.create_topic("tea", 2)
    first = client(driver, "a", regex="t.*")
    settle([first])
    matched: list[str] = []
    assignment = driver.consumer._assignment
    real = assignment._match_topics

    def match(regex: str, names: Collection[str]) -> frozenset[str]:
        matched.append(regex)
        return real(regex, names)

    monkeypatch.setattr(assignment, "_match_topics", match)
    settle([first, client(driver, "b", regex="te.*")])
    assert set(matched) == {"te.*"}
    driver.create_topic("toe", 1)
    settle([first])
    assert set(matched) == {"te.*", "t.*"}


def test_an_expression_that_another_broker_let_in_stands_for_no_topics(driver: GroupDriver) -> None:
    a, b = client(driver, "a"), client(driver, "b")
    settle([a])
    driver.consumer.state.replay(ConsumerRecord(RecordKind.MEMBER, "x", Subscription(regex="(")))
    settle([b])
    assert driver.consumer.state.regexes["("].topics == frozenset()
    driver.advance(SESSION_MS)
    settle([b])
    assert b.beat().error is ErrorCode.NONE


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"owned": None}, ErrorCode.INVALID_REQUEST),
        ({"owned": frozenset({("0" * 32, 0)})}, ErrorCode.INVALID_REQUEST),
        ({"topics": None}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "", "names_itself": True}, ErrorCode.INVALID_REQUEST),
        ({"assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"member_epoch": 3}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_epoch": -1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2, "instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_epoch": 3, "instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_what_no_member_may_send(driver: GroupDriver, changes: dict[str, Any], error: ErrorCode) -> None:
    client(driver, "first").beat()
    log = len(driver.log)
    answer = driver.answers[client(driver, "a").send(**changes)]
    assert answer.error is error
    assert answer.message
    assert len(driver.log) == log


def test_a_group_that_is_not_there_is_not_made_by_a_refusal(driver: GroupDriver) -> None:
    a = client(driver, "a")
    assert a.beat(member_epoch=4).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert a.beat(assignor="mine").error is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert driver.group.is_forgettable


def test_an_old_client_gets_its_id_from_the_group(driver: GroupDriver) -> None:
    assert client(driver, "").beat().member_id == "fresh"


def test_a_full_group_takes_nobody_else(driver: GroupDriver) -> None:
    full = GroupDriver(members_max=1)
    full.create_topic("t", 2)
    a = client(full, "a", instance_id="i")
    settle([a])
    assert client(full, "b").beat().error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert a.beat().error is ErrorCode.NONE
    a.leave(-2)
    assert client(full, "a2", instance_id="i").beat().error is ErrorCode.NONE, "who comes back takes nobody's place"


class TestStaticMembers:
    def test_one_that_comes_back_has_its_partitions_at_once_and_nobody_else_moves(self, driver: GroupDriver) -> None:
        a, b = client(driver, "a", instance_id="i"), client(driver, "b")
        settle([a, b])
        owned, epoch = a.owned, driver.consumer.state.epoch
        assert a.leave(-2).member_epoch == -2
        driver.advance(SESSION_MS - 1_000)
        assert b.beat().assignment is None
        again = client(driver, "a2", instance_id="i")
        assert again.beat().assignment == owned
        assert again.epoch == epoch, "nothing of the group has changed"
        assert b.beat().assignment is None

    def test_one_that_stays_away_is_lost(self, driver: GroupDriver) -> None:
        a, b = client(driver, "a", instance_id="i"), client(driver, "b")
        settle([a, b])
        a.leave(-2)
        driver.advance(SESSION_MS - 1)
        b.beat()
        driver.advance(2)
        settle([b])
        assert b.owned == driver.places("t")

    def test_two_cannot_be_the_same_instance(self, driver: GroupDriver) -> None:
        a = client(driver, "a", instance_id="i")
        a.beat()
        assert client(driver, "b", instance_id="i").beat().error is ErrorCode.UNRELEASED_INSTANCE_ID
        a.leave(-2)
        client(driver, "b", instance_id="i").beat()
        assert a.beat(member_epoch=1).error is ErrorCode.FENCED_INSTANCE_ID
        assert a.beat(member_epoch=-1).error is ErrorCode.FENCED_INSTANCE_ID

    def test_one_that_leaves_for_good_is_gone(self, driver: GroupDriver) -> None:
        a = client(driver, "a", instance_id="i")
        a.beat()
        assert a.leave().error is ErrorCode.NONE
        assert not driver.consumer.state.statics


class TestRestart:
    def test_everyone_goes_on_where_it_was(self, driver: GroupDriver) -> None:
        members = [client(driver, "a"), client(driver, "b", instance_id="i"), client(driver, "c", regex="t.*")]
        settle(members)
        before = driver.consumer.state
        driver.restart()
        assert driver.consumer.state == before
        assert [member.beat().assignment for member in members] == [None] * 3
        driver.advance(SESSION_MS - 1)
        assert driver.consumer.state.subscriptions.keys() == {"a", "b", "c"}
        driver.advance(1)
        assert driver.consumer.state.state is ConsumerGroupState.EMPTY

    def test_a_restart_in_the_middle_of_a_rebalance(self, driver: GroupDriver) -> None:
        a, b = client(driver, "a"), client(driver, "b")
        a.beat()
        b.beat()
        told = driver.answers[a.send()]
        driver.restart()
        a.take(told)
        settle([a, b])
        assert (len(a.owned), len(b.owned)) == (3, 3)

    def test_who_owes_partitions_has_its_time_again(self, driver: GroupDriver) -> None:
        a, b = client(driver, "a", rebalance_timeout_ms=2_000), client(driver, "b")
        a.beat()
        b.beat()
        a.send()
        driver.restart()
        driver.advance(1_999)
        assert "a" in driver.consumer.state.subscriptions
        driver.advance(1)
        assert "a" not in driver.consumer.state.subscriptions

    def test_a_deleted_group_is_gone_from_the_log(self, driver: GroupDriver) -> None:
        a = client(driver, "a", regex="t.*")
        a.beat()
        assert driver.ask(Delete) is ErrorCode.NON_EMPTY_GROUP
        a.leave()
        commit(driver, "", -1)
        assert driver.ask(Delete) is ErrorCode.NONE
        assert driver.group.is_forgettable
        driver.restart()
        assert driver.group.is_forgettable
        latest = dict(driver.log)
        assert set(latest.values()) == {None}, "compaction leaves nothing of it"


class TestWaitingForTheDisk:
    def test_no_answer_and_no_decision_before_a_change_is_durable(self, driver: GroupDriver) -> None:
        a, b = client(driver, "a"), client(driver, "b")
        driver.held = []
        first, second = a.send(), b.send()
        assert len(driver.held) == 1, "the second is decided when the first is durable"
        assert not driver.answers
        driver.release()
        assert driver.answers[first].assignment == driver.places("t")
        assert driver.answers[second].assignment == NO_PARTITIONS

    def test_what_could_not_be_stored_has_not_happened(self, driver: GroupDriver) -> None:
        a, b = client(driver, "a"), client(driver, "b")
        settle([a])
        before = driver.consumer.state
        driver.fails = True
        assert b.beat().error is ErrorCode.NOT_COORDINATOR
        assert driver.consumer.state == before
        driver.advance(SESSION_MS + 10_000)
        assert "a" in driver.consumer.state.subscriptions
        driver.fails = False
        driver.advance(1_000)
        assert driver.consumer.state.state is ConsumerGroupState.EMPTY

    def test_time_waits_for_the_disk_and_heartbeats_that_came_first(self, driver: GroupDriver) -> None:
        a, b = client(driver, "a"), client(driver, "b")
        settle([a])
        driver.held = []
        b.send()
        a.send()
        assert driver.group.next_deadline_ms() is None
        driver.now += SESSION_MS + 1
        driver.release()
        driver.advance(0)
        assert driver.consumer.state.subscriptions.keys() == {"a", "b"}


def commit(driver: GroupDriver, member_id: str, epoch: int, **fields: Any) -> Any:
    offsets = {("t", 0): CommittedOffset(offset=7, timestamp_ms=driver.now)}
    return driver.ask(
        Commit, **{"member_id": member_id, "generation": epoch, "instance_id": None, "offsets": offsets, **fields}
    )


class TestOffsets:
    def test_a_commit_carries_the_members_own_epoch(self, driver: GroupDriver) -> None:
        a = client(driver, "a", instance_id="i")
        settle([a])
        assert commit(driver, "a", a.epoch) is ErrorCode.NONE
        assert commit(driver, "a", a.epoch - 1) is ErrorCode.STALE_MEMBER_EPOCH
        assert commit(driver, "a", a.epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
        assert commit(driver, "x", a.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
        assert commit(driver, "", -1) is ErrorCode.UNKNOWN_MEMBER_ID, "the group has members"
        assert commit(driver, "a", a.epoch, knows_epochs=False) is ErrorCode.UNSUPPORTED_VERSION
        a.leave()
        assert commit(driver, "", -1) is ErrorCode.NONE, "nobody reads: an administrator may"

    def test_a_question_may_name_a_member_or_nobody(self, driver: GroupDriver) -> None:
        a = client(driver, "a")
        a.beat()
        assert driver.consumer.check_fetch(None, -1) is ErrorCode.NONE
        assert driver.consumer.check_fetch("a", a.epoch) is ErrorCode.NONE
        assert driver.consumer.check_fetch("a", a.epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
        assert driver.consumer.check_fetch("x", 1) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_offsets_of_topics_that_are_read_cannot_be_deleted(self, driver: GroupDriver) -> None:
        a = client(driver, "a")
        a.beat()
        commit(driver, "a", a.epoch)
        places = (("t", 0), ("u", 0))
        assert driver.ask(DeleteOffsets, partitions=places) == {
            ("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            ("u", 0): ErrorCode.NONE,
        }

    def test_offsets_go_after_their_retention_unless_they_are_read(self, driver: GroupDriver) -> None:
        a = client(driver, "a", "t", "u")
        driver.create_topic("u", 1)
        settle([a])
        commit(driver, "a", a.epoch)
        driver.now += 1_000
        driver.run(driver.group.expire_offsets(driver.now, retention_ms=1_000))
        assert ("t", 0) in driver.group.offsets
        driver.now += 1
        a.beat(topics=frozenset({"u"}))
        driver.run(driver.group.expire_offsets(driver.now, retention_ms=1_000))
        assert ("t", 0) not in driver.group.offsets
        a.leave()
        driver.run(driver.group.expire_offsets(driver.now, retention_ms=1_000))
        assert driver.group.is_forgettable, "an empty group without offsets goes with the check"
        assert set(dict(driver.log).values()) == {None}


def test_the_members_choose_the_assignor_by_majority(driver: GroupDriver) -> None:
    driver.create_topic("u", 1)
    driver.create_topic("v", 1)
    topics = ("u", "v")
    a, b = client(driver, "a", *topics), client(driver, "b", *topics, assignor="range")
    settle([a, b])
    assert driver.consumer.assignor == "range"
    assert sorted(map(len, (a.owned, b.owned))) == [0, 2], "range gives the only partition of each to the same member"
    b.leave()
    c = client(driver, "c", *topics)
    settle([a, c])
    assert driver.consumer.assignor == "uniform"
    assert (len(a.owned), len(c.owned)) == (1, 1)


def test_an_unasked_question_leaves_no_trace() -> None:
    driver = GroupDriver()
    answer = driver.ask(ConsumerHeartbeat, member_id="a", fresh_id="f", member_epoch=2)
    assert answer.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert not driver.log
