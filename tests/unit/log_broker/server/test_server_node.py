"""A node as a whole: what it says on the wire, what it refuses, and what is there after a restart."""

import asyncio
import contextlib
import os
import random
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from node_cluster import cluster_of

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.controller import CreateTopic
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.coordinators.internal_topics import partition_of
from log_broker.server.node import Node
from log_broker.server.partitions.internal_log import TopicLog
from log_broker.server.process.machine import BindError
from log_broker.storage.checkpoints import CLEAN_SHUTDOWN_FILE
from log_broker.storage.data_directory import DataDirectoryError
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.control import read_response, write_request

Open = Callable[..., Awaitable[Node]]


class Client:
    """A socket that speaks frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, request: bytes | bytearray) -> None:
        self.writer.write(struct.pack(">i", len(request)) + request)

    async def receive(self) -> bytes:
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(length)

    async def ask(self, api: ApiKey, version: int, values: dict[str, Any]) -> Any:
        self.send(write_request(api, version, 1, "test", values))
        return read_response(api, version, memoryview(await self.receive())[4:])

    async def is_closed_by_the_broker(self) -> bool:
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True


@asynccontextmanager
async def client_of(node: Node) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Open]:
    """Starts nodes, which are stopped at the end."""
    nodes: list[Node] = []

    async def start_node(folder: str = "node", settings: dict[str, str] | None = None, **fields: Any) -> Node:
        config = BrokerConfig(data_dir=tmp_path / folder, port=fields.pop("port", 0), **fields)
        node = Node(config.with_settings(settings or {}))
        await node.start()
        nodes.append(node)
        return node

    yield start_node
    for node in reversed(nodes):
        await node.stop()


async def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true")


async def serves(node: Node) -> bool:
    async with client_of(node) as client:
        answer = await client.ask(ApiKey.API_VERSIONS, 3, {"client_software_name": "t", "client_software_version": "1"})
        return bool(answer.error_code == ErrorCode.NONE)


def create(name: str, number: int, **fields: Any) -> CreateTopic:
    return CreateTopic(name=name, topic_id=f"{number:032x}", **fields)


async def test_a_newer_version_of_api_versions_is_answered_in_the_oldest_layout(start: Open) -> None:
    node = await start()
    async with client_of(node) as client:
        client.send(struct.pack(">hhih", 18, 5, 77, 1) + b"c\0\2x\2y\0")
        answer = await client.receive()
        correlation_id, error, count = struct.unpack_from(">ihi", answer)
        assert (correlation_id, error) == (77, ErrorCode.UNSUPPORTED_VERSION)
        assert len(answer) == 10 + 6 * count


@pytest.mark.parametrize(("key", "version"), [(38, 3), (999, 0), (3, 99), (3, -1), (19, 1)])
async def test_an_api_that_is_not_served_is_answered_with_an_error(start: Open, key: int, version: int) -> None:
    node = await start()
    async with client_of(node) as client:
        client.send(struct.pack(">hhih", key, version, 5, -1) + b"whatever")
        answer = await client.receive()
        assert answer[:4] == b"\0\0\0\5"
        assert struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION) in answer
        assert await client.ask(ApiKey.LIST_GROUPS, 0, {})


async def test_answers_come_in_the_order_of_the_requests(start: Open) -> None:
    node = await start()
    async with client_of(node) as client:
        # The first needs the disk (a new topic for groups), the rest do not.
        client.send(write_request(ApiKey.FIND_COORDINATOR, 1, 0, "t", {"key": "g"}))
        for number in range(1, 50):
            client.send(write_request(ApiKey.LIST_GROUPS, 0, number, "t", {}))
        answers = [await client.receive() for _ in range(50)]
        assert [struct.unpack_from(">i", answer)[0] for answer in answers] == list(range(50))


@pytest.mark.parametrize(
    "wrong",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">ihhih", 14, 3, 12, 1, 500) + b"abcd",
        struct.pack(">ihhih", 15, 3, 12, 1, -1) + b"\0\xff\xff\xff\x0f",
        struct.pack(">ihhih", 14, 0, 8, 1, -1) + b"\0\0\0\0",
        struct.pack(">ihhih", 14, 1, 11, 1, -1) + b"\0\0\0\0",
    ],
)
async def test_a_malformed_request_ends_its_connection_and_no_other(start: Open, wrong: bytes) -> None:
    node = await start()
    async with client_of(node) as neighbour, client_of(node) as client:
        client.writer.write(wrong)
        assert await client.is_closed_by_the_broker()
        assert await neighbour.ask(ApiKey.LIST_GROUPS, 0, {})


async def test_fuzzed_requests_leave_the_broker_serving(start: Open) -> None:
    node = await start()
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    async with client_of(node) as neighbour:
        for _ in range(300):
            async with client_of(node) as client:
                for _ in range(5):
                    api = chance.choice(list(APIS.values()))
                    version = chance.randint(api.version_min, api.version_max)
                    head = struct.pack(">hhih", api.key, version, 1, 0)
                    client.send(head + b"\0" * chance.randint(0, 1) + chance.randbytes(chance.randint(0, 60)))
        assert await neighbour.ask(ApiKey.LIST_GROUPS, 0, {}), f"seed {seed}"


async def test_a_client_that_does_not_read_is_not_read_from(start: Open) -> None:
    node = await start()
    await node.ensure_topic(create("many", 1, partitions=1000))
    async with client_of(node) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        request = write_request(ApiKey.METADATA, 1, 1, "t", {"topics": None})
        frame = struct.pack(">i", len(request)) + request
        for _ in range(3000):
            client.writer.write(frame)
        (connection,) = node.connections
        await eventually(lambda: not connection._reading)
        assert await serves(node)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(3000):
            await client.receive()


async def test_a_silent_connection_is_closed(start: Open) -> None:
    node = await start(settings={"connections.max.idle.ms": "50"})
    async with client_of(node) as client:
        assert await asyncio.wait_for(client.is_closed_by_the_broker(), 10)


async def test_connections_above_the_limit_are_closed(start: Open) -> None:
    node = await start(settings={"max.connections": "1"})
    async with client_of(node) as first:
        assert await first.ask(ApiKey.LIST_GROUPS, 0, {})
        async with client_of(node) as second:
            assert await second.is_closed_by_the_broker()
        assert await first.ask(ApiKey.LIST_GROUPS, 0, {})


async def test_topics_are_there_after_a_restart(start: Open, tmp_path: Path) -> None:
    node = Node(BrokerConfig(data_dir=tmp_path / "node", port=0))
    await node.start()
    await node.ensure_topic(create("kept", 1, partitions=3, overrides={"retention.ms": "77"}))
    await node.ensure_topic(create("dropped", 2))
    first_id = await node.producer_ids.take()
    await node.authority.submit(lambda image: [_delete(image, "dropped")])
    cluster_id = node.cluster_id
    await node.stop()
    again = await start()
    assert (again.cluster_id, list(again.cluster.topics)) == (cluster_id, ["kept"])
    assert again.cluster.topics["kept"].config.retention_ms == 77
    runtime = again.logs.get("kept", 2)
    assert runtime is not None
    assert (runtime.config.retention_ms, runtime.leader_epoch) == (77, 2)
    assert again.logs.get("dropped", 0) is None
    assert await again.producer_ids.take() > first_id


def _delete(image: Any, name: str) -> Any:
    from log_broker.core.cluster.controller import delete_topic

    return delete_topic(image.topics[name], BrokerConfig(data_dir=Path()))


async def test_an_internal_log_keeps_what_is_appended(start: Open) -> None:
    node = await start()
    log = TopicLog(node, "_schemas")
    assert [record async for record in log.read()] == []
    assert await log.append([(b"a", b"1"), (b"b", None)]) == 0
    assert await log.append([(b"c", b"3")]) == 2
    assert [(record.offset, record.key, record.value) async for record in log.read(1)] == [
        (1, b"b", None),
        (2, b"c", b"3"),
    ]
    assert node.cluster.topics["_schemas"].config.cleanup_policy == {"compact"}


async def test_one_data_directory_is_not_opened_twice(start: Open, tmp_path: Path) -> None:
    await start()
    with pytest.raises(DataDirectoryError, match="another broker process is using it"):
        await start()
    # A marker of an orderly end would have the next start after a crash of the first skip its checks.
    assert not (tmp_path / "node" / CLEAN_SHUTDOWN_FILE).exists()


async def test_a_busy_port_is_said_and_nothing_stays_open(start: Open, tmp_path: Path) -> None:
    node = await start()
    with pytest.raises(BindError, match=f"127.0.0.1:{node.port}"):
        await start("other", port=node.port)
    assert not (tmp_path / "other").exists()


async def test_a_directory_of_another_node_or_cluster_is_refused(start: Open, tmp_path: Path) -> None:
    node = Node(BrokerConfig(data_dir=tmp_path / "node", port=0, cluster_id="one"))
    await node.start()
    await node.stop()
    with pytest.raises(DataDirectoryError, match="node 0, and this is node 3"):
        await start(node_id=3)
    with pytest.raises(DataDirectoryError, match="cluster one"):
        await start(cluster_id="two")
    assert (await start()).cluster_id == "one"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
async def test_a_read_only_directory_is_refused(start: Open, tmp_path: Path) -> None:
    (tmp_path / "node").mkdir(mode=0o500)
    with pytest.raises(DataDirectoryError, match="cannot be written"):
        await start()


@pytest.mark.parametrize("turns", range(8))
async def test_who_connects_while_a_node_stops_is_hung_up_on(start: Open, turns: int) -> None:
    node = await start()
    stopping = asyncio.ensure_future(node.stop())
    for _ in range(turns):
        await asyncio.sleep(0)
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", node.port)) as client:
        client.settimeout(30)
        await stopping
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.to_thread(client.recv, 1) == b""
    await stopping


async def test_three_nodes_are_one_cluster(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        nodes = cluster.nodes.values()
        assert len({node.cluster_id for node in nodes}) == 1
        follower = next(node for node in nodes if not node.is_controller)
        await follower.ensure_topic(create("spread", 1, partitions=6, replication_factor=1))
        for node in nodes:
            await eventually(lambda node=node: sum(node.logs.get("spread", at) is not None for at in range(6)) >= 1)
        other = next(index for index in range(6) if follower.logs.get("spread", index) is None)
        assert follower.absence_of("spread", other) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        async with client_of(follower) as client:  # it passes the request on
            answer = await client.ask(ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": None, "transaction_timeout": 0})
            assert (answer.error_code, answer.producer_id) == (ErrorCode.NONE, 0)
        with pytest.raises(BrokerError, match="larger than available brokers: 3"):
            await follower.ensure_topic(create("copies", 2, replication_factor=4))


async def test_a_node_that_leaves_has_no_partitions_until_it_returns(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        first = cluster.nodes[0]
        await first.ensure_topic(CreateTopic(name="t", topic_id=uuid4().hex, assignments={0: (0,), 1: (1,)}))
        await cluster.stop(1)
        await eventually(lambda: first.cluster.leader_of("t", 1) is None)
        await cluster.start(1)
        await eventually(lambda: first.cluster.leader_of("t", 1) is not None)
        leader = first.cluster.leader_of("t", 1)
        assert leader is not None
        assert leader.node_id == 1


@pytest.mark.parametrize(
    ("group", "partition"), [("", 0), ("a", 47), ("console-consumer-1", 24), ("Grüße", 1), ("\U0001f600", 49)]
)
def test_a_group_belongs_to_the_partition_that_java_gives_it(group: str, partition: int) -> None:
    # As a JVM printed (name.hashCode() & 0x7fffffff) % 50.
    assert partition_of(group, 50) == partition


async def test_one_request_makes_only_so_many_partitions(start: Open) -> None:
    node = await start()

    def topic(name: str, partitions: int) -> dict[str, Any]:
        return {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": (),
            "configs": (),
        }

    async with client_of(node) as client:
        values = {"topics": [topic("a", 9_999), topic("b", 2)], "timeout": 1000, "validate_only": True}
        answer = await client.ask(ApiKey.CREATE_TOPICS, 5, values)
        assert [found.error_code for found in answer.topics] == [ErrorCode.POLICY_VIOLATION] * 2
        values["topics"] = [topic("a", 3), topic("b", 2)]
        answer = await client.ask(ApiKey.CREATE_TOPICS, 5, values)
        assert [found.error_code for found in answer.topics] == [ErrorCode.NONE] * 2
