"""Topics that a pipeline wants co-partitioned: what is refused, and what a reader by partitions loses without it."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import log_broker
from fluvial.tables import DeclarationError, Pipeline, compacted, history, pipeline, state, sum_
from fluvial.tables.declare.co_partitioning import CoPartitioningError, check_counts, check_topic, check_topics
from log_broker.server.embedded import EmbeddedBroker

INPUTS = ["history.views", "state.spent"]
DECLARED = {each.table: each for each in (history("views"), compacted("shops"))}
DECLARED["state.spent"] = state("spent", topic="purchases", key="id", fields={"spent": sum_("amount")})


def joined(inputs: list[str] | None = None, *, co_partitioned: bool = True) -> Pipeline:
    declare: Callable[..., Any] = pipeline(name="j", inputs=inputs or INPUTS, co_partitioned=co_partitioned)
    made: Pipeline = declare(lambda views, spent: views)
    return made


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (["history.views"], "there is one input"),
        (["history.views", "marts.x"], "marts.x is made from no topic"),
        (["history.views", "quarantine.views"], "quarantine.views is made from no topic"),
    ],
)
def test_what_has_no_topics_to_compare_is_refused_where_it_is_declared(inputs: list[str], says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        joined(inputs)
    assert not joined(inputs, co_partitioned=False).co_partitioned


def test_different_counts_are_refused_with_both_counts_and_the_repair() -> None:
    check_counts(joined(), {"views": 6, "purchases": 6})
    check_counts(joined(co_partitioned=False), {"views": 6, "purchases": 8})
    with pytest.raises(CoPartitioningError) as refused:
        check_counts(joined(), {"views": 6, "purchases": 8})
    assert refused.value.partitions == {"views": 6, "purchases": 8}
    assert 'pipeline("j")' in str(refused.value)
    assert "purchases has 8, views has 6" in str(refused.value)
    assert "`fluvial topic alter views --partitions 8`" in str(refused.value)


def test_topics_are_those_of_the_declared_inputs_that_exist() -> None:
    declared = {**DECLARED, "marts.j": joined()}
    check_topics(joined(), declared, {"views": 6, "shops": 8, "other": 9})
    with pytest.raises(CoPartitioningError):
        check_topics(joined(), declared, {"views": 6, "purchases": 8})
    assert not list(check_topic("shops", 8, {"views": 6}, declared))
    assert not list(check_topic("purchases", 6, {"views": 6, "purchases": 3}, declared))
    (problem,) = check_topic("purchases", 8, {"views": 6, "shops": 8}, declared)
    assert problem.partitions == {"views": 6, "purchases": 8}


def matches_found(broker: EmbeddedBroker, topics: Mapping[str, int], keys: list[str]) -> int:
    """How many keys a member of three finds in both topics, each looking only at the partitions that range gives it."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"})
    for topic, count in topics.items():
        broker.create_topic(topic, partitions=count)
        for key in keys:
            producer.produce(topic, b"", key)
    assert producer.flush(30) == 0
    conf = {"group.id": "-".join(topics), "partition.assignment.strategy": "range", "heartbeat.interval.ms": 100}
    members = [Consumer({"bootstrap.servers": broker.bootstrap_servers, **conf}) for _ in range(3)]
    for member in members:
        member.subscribe(list(topics))
    deadline = time.monotonic() + 60
    while sum(len(member.assignment()) for member in members) < sum(topics.values()) or not all(
        member.assignment() for member in members
    ):
        assert time.monotonic() < deadline, "three members have all partitions"
        for member in members:
            member.poll(0.05)
    # What was assigned is read again, since some of it came with the polls above.
    found = 0
    for member in members:
        places = [TopicPartition(place.topic, place.partition, 0) for place in member.assignment()]
        eof = {"group.id": "again", "enable.partition.eof": True}
        reader = Consumer({"bootstrap.servers": broker.bootstrap_servers, **eof})
        reader.assign(places)
        seen: dict[str, set[bytes]] = {topic: set() for topic in topics}
        left = len(places)
        while left:
            message = reader.poll(30)
            assert message is not None
            if message.error():
                left -= 1
            else:
                seen[str(message.topic())].add(message.key() or b"")
        found += len(set.intersection(*seen.values()))
        reader.close()
    for member in members:
        member.close()
    return found


def test_range_joins_whole_only_in_co_partitioned_topics() -> None:
    keys = [f"customer {number}" for number in range(200)]
    with log_broker.embedded() as broker:
        assert matches_found(broker, {"page_views": 6, "purchases": 6}, keys) == len(keys)
        assert matches_found(broker, {"page_views_6": 6, "purchases_8": 8}, keys) < len(keys)
