"""Fetches of the metadata log by observers, answered by a real node: each once, with what is committed."""

import asyncio
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from node_client import NodeClient, client_of, running

from log_broker.core.cluster.controller import CreateTopic
from log_broker.core.raft.log import OffsetAndEpoch
from log_broker.core.raft.messages import FetchRequest
from log_broker.core.raft.voters import ReplicaKey
from log_broker.errors import ErrorCode
from log_broker.server.node import Node
from log_broker.server.quorum.fetch import REQUEST_BYTES_MAX
from log_broker.wire.control import read_response, write_request
from log_broker.wire.quorum import FETCH_VERSION, METADATA_TOPIC_ID, question, read_answer

WAIT_MS = 60_000
PATIENCE_SECONDS = 30.0


def of_observer(node: Node, node_id: int = 99) -> FetchRequest:
    """Return the fetch of an observer that has all there is."""
    replica = node.quorum._driver.raft.replica  # type: ignore[union-attr]
    return FetchRequest(
        epoch=replica.epoch,
        replica=ReplicaKey(node_id, ""),
        log_end=replica.log.end,
        high_watermark=replica.high_watermark,
        wait_ms=WAIT_MS,
    )


class Observer:
    """Speaks as an observer on a connection of its own."""

    def __init__(self, client: NodeClient) -> None:
        self.client = client

    def ask(self, body: FetchRequest, correlation_id: int, cluster_id: str | None) -> None:
        asked = question(body, cluster_id=cluster_id, endpoint=("127.0.0.1", 1))
        self.send(write_request(asked.api, asked.version, correlation_id, "broker", asked.values))

    def send(self, request: bytes | bytearray) -> None:
        self.client.writer.write(struct.pack(">i", len(request)) + request)

    async def answer(self) -> tuple[int, Any]:
        """Return the next answer with its correlation id."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            length, correlation_id = struct.unpack(">ii", await self.client.reader.readexactly(8))
            content = await self.client.reader.readexactly(length - 4)
        return correlation_id, read_response(1, FETCH_VERSION, memoryview(content))


async def test_observers_that_ask_the_same_are_told_the_same_each_in_answer_to_its_own(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, _), client_of(node) as one, client_of(node) as other:
        observers = [Observer(one), Observer(other)]
        for turn in range(3):
            before = of_observer(node)
            for number, observer in enumerate(observers):
                body = replace(before, replica=ReplicaKey(90 + number, ""))
                observer.ask(body, 10 * turn + number, node.cluster_id)
            await node.authority.create_topic(CreateTopic(name=f"t{turn}", topic_id=f"{turn:032x}"))
            for number, observer in enumerate(observers):
                correlation_id, response = await observer.answer()
                told = read_answer(before, response).body
                assert correlation_id == 10 * turn + number
                assert (told.high_watermark, len(told.entries)) == (before.log_end.offset + 1, 1)
        # From the beginning on, to who has nothing.
        observers[0].ask(replace(before, log_end=OffsetAndEpoch(0, 0), high_watermark=0), 99, None)
        asked = replace(before, log_end=OffsetAndEpoch(0, 0))
        told = read_answer(asked, (await observers[0].answer())[1]).body
        assert told.entries == node.quorum._driver.raft.replica.log.between(0, told.high_watermark)  # type: ignore[union-attr]


async def test_a_fetch_of_another_cluster_is_refused_every_time(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, client):
        for correlation_id in (1, 2):
            Observer(client).ask(of_observer(node), correlation_id, "another")
            answered, response = await Observer(client).answer()
            assert (answered, response.error_code) == (correlation_id, ErrorCode.INCONSISTENT_CLUSTER_ID)


async def test_a_fetch_that_waits_for_a_replica_that_dies_is_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, client):
        Observer(client).ask(of_observer(node), 1, node.cluster_id)
        asked = asyncio.ensure_future(Observer(client).answer())
        while not node.quorum._promises:  # noqa: ASYNC110 nothing tells that it waits
            await asyncio.sleep(0.01)
        node.quorum.failed(OSError("the disk is gone"))
        _, response = await asked
        assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR


def _request(topics: int = 1, rack: str = "") -> bytearray:
    partition = {"partition": 0, "current_leader_epoch": 1, "fetch_offset": 0, "partition_max_bytes": 1}
    values = {
        "replica_state": {"replica_id": 99},
        "max_wait": 0,
        "min_bytes": 0,
        "topics": ({"topic_id": METADATA_TOPIC_ID, "partitions": (partition,)},) * topics,
        "forgotten_topics_data": (),
        "rack_id": rack,
    }
    return write_request(1, FETCH_VERSION, 1, "broker", values)


@pytest.mark.parametrize("request_bytes", [_request(2), _request(rack="r" * REQUEST_BYTES_MAX)], ids=["two", "long"])
async def test_what_no_replica_sends_ends_its_connection(tmp_path: Path, request_bytes: bytearray) -> None:
    async with running(tmp_path) as (node, client):
        Observer(client).send(_request())
        assert (await Observer(client).answer())[0] == 1
        Observer(client).send(request_bytes)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await client.reader.read() == b""
        async with client_of(node) as another:
            Observer(another).send(_request())
            assert (await Observer(another).answer())[0] == 1
