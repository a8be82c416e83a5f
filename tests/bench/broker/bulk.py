"""
Bulk loads with librdkafka, from a process of its own: `python -m tests.bench.broker.bulk JSON`.

Says `ready` once it is connected, waits for a line, and answers with a line of JSON.
"""

import json
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

CONSUME_AT_ONCE = 10_000
STALL_SECONDS_MAX = 60.0
KEY = b"key-%d"


class Load(NamedTuple):
    """`messages` values of `value_bytes`, into or out of all partitions of a topic; keys run through `keys` if any."""

    address: str
    topic: str
    partitions: int
    mode: str  # produce or consume
    messages: int
    value_bytes: int
    compression: str = "none"
    keys: int = 0
    batch_bytes: int = 1_000_000
    client: Mapping[str, str] = {}  # settings of a client of a listener that is secured


def producer_of(load: Load) -> Producer:
    """
    An idempotent producer with acks=all and Java's partitioner; everything else as librdkafka has it.

    A record in each partition has been acknowledged: where librdkafka finds no usable connection when it wants its
    producer id it tries again half a second later, which is a large part of a short load.
    """
    settings = {
        "bootstrap.servers": load.address,
        "log_level": 2,
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        "compression.type": load.compression,
        "batch.size": load.batch_bytes,
        **load.client,
    }
    producer = Producer(settings)
    producer.list_topics(load.topic, timeout=30)
    value = value_of(load)
    for partition in range(load.partitions):
        producer.produce(load.topic, value, KEY % 0, partition)
    if producer.flush(60):
        raise RuntimeError("the first records were not acknowledged")
    return producer


def value_of(load: Load) -> bytes:
    """Text like that of an event, so that codecs find what they usually find."""
    text = "".join(f'{{"flight":"UA{at * 7919 % 9973}","delay":{at * 31 % 181},"origin":"EWR"}},' for at in range(60))
    return (text.encode() * (load.value_bytes // len(text) + 1))[: load.value_bytes]


def produce(load: Load, producer: Producer) -> dict[str, Any]:
    """Hand everything over and wait until all of it is acknowledged."""
    topic, value, send = load.topic, value_of(load), producer.produce
    keys = [KEY % at for at in range(load.keys)] if load.keys else [None]
    began = time.perf_counter()
    left = load.messages
    while left:
        try:
            while left:
                send(topic, value, keys[left % len(keys)])
                left -= 1
        except BufferError:
            producer.poll(0.005)
    if producer.flush(600):
        raise RuntimeError("records were not acknowledged")
    seconds = time.perf_counter() - began
    return {"messages": load.messages, "acknowledged": load.messages + load.partitions, "seconds": seconds}


def consumer_of(load: Load) -> Consumer:
    """A consumer that fetches as fast as it can: by default librdkafka sleeps for a second when its queue is full."""
    settings = {
        "bootstrap.servers": load.address,
        "log_level": 2,
        "group.id": "bench",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.queue.backoff.ms": 0,
        "queued.min.messages": 10_000_000,
        "queued.max.messages.kbytes": 2_000_000,
        **load.client,
    }
    consumer = Consumer(settings)
    consumer.list_topics(load.topic, timeout=30)
    return consumer


def consume(load: Load, consumer: Consumer) -> dict[str, Any]:
    """Read `messages` from the start; the clock runs from the assignment on."""
    began = time.perf_counter()
    consumer.assign([TopicPartition(load.topic, at, 0) for at in range(load.partitions)])
    got = 0
    moved = began
    while got < load.messages:
        messages = consumer.consume(CONSUME_AT_ONCE, 0.5)
        now = time.perf_counter()
        for message in messages[:1]:
            if message.error():
                raise RuntimeError(str(message.error()))
            assert len(message.value()) == load.value_bytes
        got += len(messages)
        if messages:
            moved = now
        elif now - moved > STALL_SECONDS_MAX:
            raise RuntimeError(f"{got} of {load.messages} messages came")
    elapsed = time.perf_counter() - began
    consumer.close()
    return {"messages": got, "seconds": elapsed}


def main() -> None:
    load = Load(**json.loads(sys.argv[1]))
    if load.mode == "produce":
        producer = producer_of(load)
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps(produce(load, producer)), flush=True)
    else:
        consumer = consumer_of(load)
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps(consume(load, consumer)), flush=True)


if __name__ == "__main__":
    main()
