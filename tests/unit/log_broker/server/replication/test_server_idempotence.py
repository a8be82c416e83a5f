"""
Idempotent producers on the wire: requests in flight, faults between them, and another leader.

A raw client sends what a stock client would not, so it is the broker that must answer.
"""

import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from node_client import NodeClient, client_of, running
from node_cluster import cluster_of, eventually

from log_broker.core.cluster.controller import CreateTopic
from log_broker.errors import ErrorCode
from log_broker.records import batches_in, build_batch
from log_broker.server.node import Node
from log_broker.wire.apis import ApiKey
from log_broker.wire.control import read_response, write_request

PRODUCE_VERSION = 9
PRODUCER_ID = 77
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class Told(NamedTuple):
    """What a batch was answered with; its offset is -1 for one that was refused."""

    error: ErrorCode
    offset: int


def batch(sequence: int) -> bytes:
    """A batch of one record, which holds its sequence number."""
    record = (1_000, None, b"%d" % sequence, ())
    return bytes(build_batch([record], producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=sequence))


def frame(topic: str, sequence: int) -> bytes:
    data = {"name": topic, "partition_data": ({"index": 0, "records": batch(sequence)},)}
    values = {"transactional_id": None, "acks": -1, "timeout": 10_000, "topic_data": (data,)}
    request = write_request(ApiKey.PRODUCE, PRODUCE_VERSION, sequence, "raw", values)
    return struct.pack(">i", len(request)) + request


async def answer(client: NodeClient) -> Told:
    (length,) = struct.unpack(">i", await client.reader.readexactly(4))
    body = memoryview(await client.reader.readexactly(length))[4:]
    told: Any = read_response(ApiKey.PRODUCE, PRODUCE_VERSION, body).responses[0].partition_responses[0]
    return Told(ErrorCode(told.error_code), told.base_offset)


async def in_flight(client: NodeClient, topic: str, sequences: Sequence[int]) -> list[Told]:
    """Send all before the first answer is read."""
    client.writer.write(b"".join(frame(topic, sequence) for sequence in sequences))
    return [await answer(client) for _ in sequences]


def stored(node: Node, topic: str) -> list[tuple[int, bytes]]:
    """The offsets and sequence numbers in the log, as text like the values."""
    runtime = node.logs.get(topic, 0)
    assert runtime is not None
    held = b"".join(runtime.read(0, 1 << 20).chunks)
    return [(header.base_offset, b"%d" % header.base_sequence) for _, header in batches_in(held)]


def in_order(count: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in range(count)]


async def test_six_in_flight_after_one_that_was_lost_are_all_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, client):
        await client.create("t")
        assert await in_flight(client, "t", [0]) == [Told(ErrorCode.NONE, 0)]
        # The request of sequence 1 was lost on its way.
        assert await in_flight(client, "t", range(2, 8)) == [Told(OUT_OF_ORDER, -1)] * 6
        assert stored(node, "t") == in_order(1)
        assert await in_flight(client, "t", range(1, 8)) == [Told(ErrorCode.NONE, each) for each in range(1, 8)]
        assert stored(node, "t") == in_order(8)


async def test_of_six_in_flight_whose_answers_were_lost_the_first_cannot_come_again(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, client):
        await client.create("t")
        assert await in_flight(client, "t", range(6)) == [Told(ErrorCode.NONE, each) for each in range(6)]
        # Five are remembered: whoever has six in flight is told that the order is lost, and stores nothing twice.
        again = await in_flight(client, "t", range(6))
        assert again == [Told(OUT_OF_ORDER, -1), *(Told(ErrorCode.NONE, each) for each in range(1, 6))]
        assert stored(node, "t") == in_order(6)


@pytest.mark.parametrize("window", range(1, 6))
async def test_up_to_five_in_flight_stay_in_order_whatever_is_lost(tmp_path: Path, window: int) -> None:
    dice, count = random.Random(window), 120
    async with running(tmp_path) as (node, maker):
        await maker.create("t")
        # Of a producer that it has never heard of Kafka takes any batch as the first.
        assert await in_flight(maker, "t", [0]) == [Told(ErrorCode.NONE, 0)]
        done = {0}
        faults = dict.fromkeys(("request lost", "answers lost", "none"), 0)
        while len(done) < count:
            oldest = next(number for number in range(count) if number not in done)
            sequences = [each for each in range(oldest, min(oldest + window, count)) if each not in done]
            fault = dice.choice(list(faults))
            faults[fault] += 1
            if fault == "request lost":
                sequences.remove(dice.choice(sequences))
            read = dice.randrange(len(sequences) + 1) if fault == "answers lost" else len(sequences)
            # What is in flight when a connection breaks is sent again, from the oldest on.
            async with client_of(node) as client:
                client.writer.write(b"".join(frame("t", each) for each in sequences))
                for sequence in sequences[:read]:
                    told = await answer(client)
                    if told.error is ErrorCode.NONE:
                        assert told.offset == sequence, "also of a batch that was stored before"
                        done.add(sequence)
                    else:
                        assert (fault, told) == ("request lost", Told(OUT_OF_ORDER, -1))
        assert min(faults.values()) > 0
        assert stored(node, "t") == in_order(count)


async def test_a_repeat_is_answered_with_its_first_offset_by_the_next_leader(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3, {"broker.session.timeout.ms": "3000"}) as cluster:
        command = CreateTopic(name="t", topic_id=uuid4().hex, assignments={0: (1, 2, 0)})
        await (await cluster.has_controller()).ensure_topic(command)
        await eventually(lambda: leads(cluster.nodes[1]))
        async with client_of(cluster.nodes[1]) as client:
            assert await in_flight(client, "t", range(7)) == [Told(ErrorCode.NONE, each) for each in range(7)]
        await cluster.kill(1)
        await eventually(lambda: any(leads(node) for node in cluster.nodes.values()))
        new = next(node for node in cluster.nodes.values() if leads(node))
        async with client_of(new) as client:
            # The same connection brings the repeats, one too old to be known, and what follows.
            told = await in_flight(client, "t", [2, 3, 4, 5, 6, 1, 7])
        assert told == [
            *(Told(ErrorCode.NONE, each) for each in range(2, 7)),
            Told(OUT_OF_ORDER, -1),
            Told(ErrorCode.NONE, 7),
        ]
        assert stored(new, "t") == in_order(8)


def leads(node: Node) -> bool:
    runtime = node.logs.get("t", 0)
    return runtime is not None and runtime.is_leader
