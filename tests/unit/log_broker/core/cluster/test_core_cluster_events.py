"""What happened in the cluster, told from two images of it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from log_broker.config.broker import BrokerConfig, TopicConfig
from log_broker.core.cluster.events import PARTITIONS_MAX, Event, Fencing, View, events_between, view_of
from log_broker.core.cluster.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from log_broker.core.cluster.records import BrokerRegistered, PartitionChanged, TopicCreated


def broker(node_id: int, **more: Any) -> BrokerImage:
    own = {"host": "h", "port": 9000 + node_id, "incarnation": "a", "epoch": 1}
    return BrokerImage(node_id=node_id, **{**own, **more})


def topic(name: str, partitions: Sequence[PartitionImage], topic_id: str = "") -> TopicImage:
    return TopicImage(
        name=name,
        topic_id=topic_id or name,
        partitions=tuple(partitions),
        overrides={},
        config=TopicConfig.from_overrides({}),
    )


def view(*brokers: BrokerImage, topics: Sequence[TopicImage] = ()) -> View:
    return View({each.node_id: each for each in brokers}, {each.name: each for each in topics}, {})


def told(before: View, after: View, why: Fencing = Fencing.SILENT) -> list[Event]:
    return list(events_between(before, after, session_timeout_ms=9000, fenced_because=lambda _: why))


def words(before: View, after: View) -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in told(before, after)]


def changed(was: PartitionImage, **changes: Any) -> list[tuple[str, str]]:
    """What is told of flights-1 when it alone changes."""
    other = PartitionImage(replicas=(1, 2, 3), leader=2, isr=(1, 2, 3))
    before = view(topics=[topic("flights", [other, was])])
    return words(before, view(topics=[topic("flights", [other, replace(was, **changes)])]))


LED = PartitionImage(replicas=(1, 2, 3), leader=1, leader_epoch=4, isr=(1, 2, 3))


@pytest.mark.parametrize(
    ("was", "now", "kind", "text"),
    [
        (None, {}, "broker_registered", "node 1 joined the cluster at h:9001"),
        (None, {"rack": "r1"}, "broker_registered", "node 1 joined the cluster at h:9001 in rack r1"),
        (
            {},
            {"epoch": 2, "incarnation": "b"},
            "broker_registered",
            "node 1 was started again and registered at h:9001",
        ),
        ({}, {"epoch": 2}, "broker_registered", "node 1 registered again at h:9001"),
        ({}, {"is_fenced": True}, "broker_fenced", "node 1 was not heard of for 9 s and was fenced"),
        ({}, {"is_leaving": True}, "broker_leaving", "node 1 is about to stop and hands over what it leads"),
        (
            {},
            {"epoch": 2, "is_fenced": True},
            "broker_fenced",
            "node 1 is fenced until it has caught up with the cluster's metadata",
        ),
        ({"is_fenced": True}, {}, "broker_returned", "node 1 takes part again"),
        ({}, None, "broker_removed", "node 1 was struck off the cluster"),
    ],
)
def test_what_befalls_a_broker(was: dict[str, Any] | None, now: dict[str, Any] | None, kind: str, text: str) -> None:
    before = view(*([] if was is None else [broker(1, **was)]))
    after = view(*([] if now is None else [broker(1, **now)]))
    # A new registration fences, and that is told besides.
    assert (kind, text) in words(before, after)
    assert len(words(before, after)) == 1 + (kind == "broker_fenced" and now == {"epoch": 2, "is_fenced": True})


@pytest.mark.parametrize(
    ("why", "text"),
    [
        (Fencing.LEFT, "node 1 stopped in order and was fenced"),
        (Fencing.ENDED, "node 1 is gone, its process has ended, and was fenced"),
        (Fencing.SILENT, "node 1 was not heard of for 9 s and was fenced"),
    ],
)
def test_why_a_broker_was_fenced_is_what_the_controller_knows(why: Fencing, text: str) -> None:
    (event,) = told(view(broker(1)), view(broker(1, is_fenced=True)), why)
    assert (event.text, event.fields["why"]) == (text, why.value)


def test_an_image_that_did_not_change_tells_nothing() -> None:
    held = view(broker(1), topics=[topic("flights", [LED])])
    assert told(held, held) == []


def test_a_new_leader_is_named_with_its_epoch_and_who_led_before() -> None:
    assert changed(LED, leader=2, leader_epoch=5, isr=(2, 3)) == [
        ("isr_shrunk", "node 1 fell out of the in-sync replicas of flights-1 (now 2, 3)"),
        ("leader_elected", "node 2 leads flights-1 from epoch 5 on (was node 1)"),
    ]


def test_an_election_among_those_that_lack_records_says_so() -> None:
    was = replace(LED, leader=-1, isr=(), last_known_leader=1)
    ((kind, text), *_) = changed(was, leader=3, leader_epoch=5, isr=(3,), recovering=True)
    assert kind == "unclean_election"
    assert text == (
        "node 3 leads flights-1 from epoch 5 on (was node 1); it was not in sync, so acknowledged records may be lost"
    )


def test_a_partition_without_a_leader_and_its_return() -> None:
    lone = replace(LED, isr=(1,))
    gone = {"leader": -1, "leader_epoch": 5}
    text = "flights-1: no leader any more (was node 1): no other replica that is in sync is up"
    assert changed(lone, **gone) == [("leader_lost", text)]
    back = changed(replace(lone, **gone), leader=1, leader_epoch=6)
    assert back == [("leader_elected", "node 1 leads flights-1 from epoch 6 on (had no leader)")]


def test_replicas_that_catch_up() -> None:
    text = "nodes 2, 3 are caught up and in sync with flights-1 (now 1, 2, 3)"
    assert changed(replace(LED, isr=(1,)), isr=(1, 2, 3)) == [("isr_expanded", text)]


def test_a_move_begins_ends_or_is_called_off() -> None:
    moving = {"replicas": (1, 2, 4, 3), "adding": (4,), "removing": (3,)}
    began = "flights-1: moving from nodes 1, 2, 3 to nodes 1, 2, 4"
    assert changed(LED, **moving) == [("reassignment_began", began)]
    under_way = replace(LED, **moving)
    ended = changed(under_way, replicas=(1, 2, 4), adding=(), removing=())
    assert ended == [("reassignment_ended", "flights-1: moved to nodes 1, 2, 4")]
    off = changed(under_way, replicas=(1, 2, 3), adding=(), removing=())
    assert off == [("reassignment_ended", "flights-1: the move was called off; back on nodes 1, 2, 3")]


def test_many_partitions_that_fare_alike_are_one_event_that_lists_them() -> None:
    many = PARTITIONS_MAX + 10
    before = view(topics=[topic("x", [LED] * many)])
    after = view(topics=[topic("x", [replace(LED, leader=2, leader_epoch=5)] * many)])
    first, second = told(before, after)
    assert first.text == f"node 2 leads x-0, x-1, x-2 and {PARTITIONS_MAX - 3} more from epoch 5 on (was node 1)"
    partitions = [*first.fields["partitions"], *second.fields["partitions"]]
    assert [each["partition"] for each in partitions] == list(range(many))
    assert partitions[0] == {"topic": "x", "partition": 0, "leader_epoch": 5, "isr": [1, 2, 3]}


def test_topics_that_come_and_go_are_no_events() -> None:
    held = view(topics=[topic("flights", [LED], "one")])
    assert told(held, view()) == []
    assert told(view(), held) == []
    other = topic("flights", [replace(LED, leader=3)], "two")
    assert told(held, view(topics=[other])) == []


def test_a_view_stays_as_the_image_goes_on() -> None:
    image = ClusterImage(defaults=BrokerConfig(data_dir=None))  # type: ignore[arg-type]
    for node_id in (1, 2):
        image.replay(BrokerRegistered(node_id=node_id, host="h", port=1, incarnation="a"))
    image.replay(TopicCreated(name="t", topic_id="t", replicas=((1, 2),)))
    before = view_of(image)
    image.replay(PartitionChanged(topic_id="t", partition=0, leader=2, isr=(2,)))
    kinds = [event.kind for event in told(before, view_of(image))]
    assert kinds == ["isr_shrunk", "leader_elected"]


def test_a_topic_that_is_made_safer_or_less_safe_is_told_of() -> None:
    plain = topic("flights", [LED])
    weaker = replace(plain, overrides={"min.insync.replicas": "1", "retention.ms": "1000"})
    assert words(view(topics=[plain]), view(topics=[weaker])) == [
        ("setting_changed", "topic flights: min.insync.replicas is 1 now (was at their default)")
    ]
    other = replace(plain, overrides={"unclean.leader.election.enable": "true"})
    (one, two) = told(view(topics=[weaker]), view(topics=[other]))
    assert one.text == "topic flights: min.insync.replicas is at the brokers' default now (was 1)"
    assert two.fields == {
        "topic": "flights",
        "setting": "unclean.leader.election.enable",
        "was": None,
        "is": "true",
    }
    assert words(view(), view(topics=[other])) == [], "what it is made with is no change"
