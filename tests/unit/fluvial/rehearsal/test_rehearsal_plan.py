"""Which topics are rehearsed as one, what their settings claim of each fault, and what is made of what came."""

import pytest

from fluvial.cluster.doctor import TopicFacts
from fluvial.rehearsal.plan import SHAPES_MAX, Fault, Outcome, Shape, Verdict, brokers_of, shapes_of


def topic(name: str, replicas: int, **settings: str) -> TopicFacts:
    named = {each.replace("_", "."): value for each, value in settings.items()}
    return TopicFacts(name=name, replicas=replicas, settings=named)


def shape(replicas: int, min_isr: int, acks: str = "all") -> Shape:
    settings = {"min.insync.replicas": str(min_isr)}
    return Shape(name="s", topics=("t",), replicas=replicas, settings=settings, producer={"acks": acks})


def test_topics_of_the_same_decisive_settings_are_one_shape() -> None:
    topics = [
        topic("a", 1),
        topic("b", 3, min_insync_replicas="2", retention_ms="1"),
        topic("c", 3, min_insync_replicas="2", retention_ms="2"),
        topic("d", 3, min_insync_replicas="1"),
    ]
    found = shapes_of(topics, {})
    assert [(each.topics, each.replicas, each.min_isr) for each in found] == [
        (("b", "c"), 3, 2),
        (("a",), 1, 1),
        (("d",), 3, 1),
    ]
    assert len({each.name for each in found}) == 3
    assert all("retention.ms" not in each.settings for each in found)


def test_producers_that_ask_for_less_are_tried_beside_acks_all() -> None:
    clients = {"x": {"acks": "1"}, "y": {"acks": "1"}, "z": {"acks": "all"}, "w": {"group.id": "g"}}
    assert [each.producer["acks"] for each in shapes_of([topic("a", 3)], clients)] == ["all", "1"]


def test_a_copy_is_bounded() -> None:
    many = [topic(f"t{number}", number % 3 + 1, min_insync_replicas=str(number)) for number in range(40)]
    assert len(shapes_of(many, {})) == SHAPES_MAX
    assert brokers_of(50, [shape(3, 2)]) == 5
    assert brokers_of(2, [shape(3, 2)]) == 3
    assert brokers_of(1, []) == 1


@pytest.mark.parametrize(
    ("one", "fault", "lost", "paused", "verdict"),
    [
        (shape(3, 2), Fault.BROKER_KILLED, 0, 2.0, Verdict.SURVIVED),
        (shape(3, 2), Fault.BROKER_KILLED, 0, None, Verdict.BROKE_ITS_CLAIM),
        (shape(3, 2), Fault.BROKER_CUT_OFF, 1, 2.0, Verdict.BROKE_ITS_CLAIM),
        (shape(3, 2), Fault.DISK_FULL, 0, None, Verdict.BROKE_ITS_CLAIM),
        (shape(3, 3), Fault.DISK_FULL, 0, None, Verdict.STOPPED),
        (shape(3, 2), Fault.DISK_LOST, 1, 2.0, Verdict.BROKE_ITS_CLAIM),
        (shape(3, 3), Fault.BROKER_KILLED, 0, None, Verdict.STOPPED),
        (shape(3, 2, acks="1"), Fault.BROKER_KILLED, 1, 2.0, Verdict.LOST),
        (shape(1, 1), Fault.BROKER_KILLED, 0, None, Verdict.STOPPED),
        (shape(1, 1), Fault.BROKER_KILLED, 1, None, Verdict.BROKE_ITS_CLAIM),
        (shape(1, 1), Fault.DISK_LOST, 5, None, Verdict.LOST),
        (shape(1, 2), Fault.CONTROLLER_KILLED, 0, 1.0, Verdict.SURVIVED),
    ],
)
def test_what_came_is_held_against_the_claim(
    one: Shape, fault: Fault, lost: int, paused: float | None, verdict: Verdict
) -> None:
    outcome = Outcome(fault=fault, shape=one, acknowledged=9, lost=lost, paused_seconds=paused)
    assert outcome.verdict is verdict
    assert ("lost" if lost else "kept all 9") in outcome.text
