"""What it costs to acknowledge records one by one, beside a group that commits positions."""

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from fluvial.acknowledgement import Delivery, SelectiveConsumer
from tests.bench.clients.measure import PATIENCE_SECONDS, Figure, Nodes, nodes, producer

OUT_OF_ORDER = 500
"""Records that are under way at once where they are acknowledged in any order."""


def acknowledging(size: float) -> Iterator[Figure]:
    """A group that commits positions, and one that acknowledges records, every second each: records read a second."""
    count = int(200_000 * size)
    with nodes(1) as running:
        topic = running.topic()
        client = producer(running)
        for at in range(count):
            client.produce(topic, b"x" * 100, b"key-%d" % (at % 1000))
            if at % 1000 == 0:
                client.poll(0)
        client.flush(PATIENCE_SECONDS)
        ways: dict[str, Callable[[str], tuple[float, int]]] = {
            "positions": lambda group: _positions(running, topic, group, count),
            "records, in order": lambda group: _records(running, topic, group, count, under_way=1),
            f"records, {OUT_OF_ORDER} under way, in any order": lambda group: _records(
                running, topic, group, count, under_way=OUT_OF_ORDER
            ),
            "the same, each key in order": lambda group: _records(
                running, topic, group, count, under_way=OUT_OF_ORDER, order="key"
            ),
        }
        for choice, way in ways.items():
            seconds, characters = way(choice.replace(" ", "-").replace(",", ""))
            yield Figure(group="acknowledging", choice=choice, what="records/s", value=count / seconds)
            yield Figure(
                group="acknowledging", choice=choice, what="metadata of a commit, characters", value=characters
            )


def _settings(running: Nodes, group: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": running.address,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 1000,
        "fetch.queue.backoff.ms": 0,
        "log_level": 0,
    }


def _positions(running: Nodes, topic: str, group: str, count: int) -> tuple[float, int]:
    client = Consumer(_settings(running, group))
    client.subscribe([topic])
    read, began = 0, 0.0
    while read < count:
        message = client.poll(1)
        if message is not None and message.error() is None:
            began = began or time.perf_counter()
            read += 1
    seconds = time.perf_counter() - began
    client.close()
    return seconds, 0


def _records(
    running: Nodes, topic: str, group: str, count: int, *, under_way: int, order: Any = "none"
) -> tuple[float, int]:
    dice = random.Random(7)
    client = SelectiveConsumer(_settings(running, group), order=order)
    client.subscribe([topic])
    held: list[Delivery] = []
    done, began, characters = 0, 0.0, 0
    while done < count:
        delivery = None
        if done + len(held) < count and len(held) < under_way:
            delivery = client.poll(0 if held else 1)
        if delivery is not None:
            began = began or time.perf_counter()
            held.append(delivery)
        elif held:
            at = dice.randrange(len(held))
            held[at], held[-1] = held[-1], held[at]
            client.acknowledge(held.pop())
            done += 1
            if done == count // 2:
                client.commit()
                characters = _metadata(running, topic, group)
    seconds = time.perf_counter() - began
    client.close()
    return seconds, characters


def _metadata(running: Nodes, topic: str, group: str) -> int:
    looking = Consumer({"bootstrap.servers": running.address, "group.id": group, "log_level": 0})
    (found,) = looking.committed([TopicPartition(topic, 0)], 30)
    looking.close()
    return len(found.metadata or "")
