"""A node with its socket, and a client that speaks frames to it."""

import asyncio
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from log_broker.config.broker import BrokerConfig
from log_broker.server.node import Node
from log_broker.wire.apis import ApiKey
from log_broker.wire.control import read_response, write_request

# The version of each request that it writes unless told; newer ones may want fields that its callers do not give.
SPOKEN = {
    ApiKey.FETCH: 17,
    ApiKey.LIST_OFFSETS: 10,
    ApiKey.METADATA: 12,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.ALTER_CONFIGS: 2,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.DESCRIBE_LOG_DIRS: 4,
    ApiKey.DESCRIBE_CLUSTER: 1,
}


class NodeClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, api: ApiKey, values: Mapping[str, Any], *, version: int | None = None, name: str = "t") -> Any:
        """Send a request and return its answer; `name` is the client's id."""
        chosen = SPOKEN[api] if version is None else version
        request = write_request(api, chosen, 1, name, values)
        self.writer.write(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return read_response(api, chosen, memoryview(await self.reader.readexactly(length))[4:])

    async def create(self, topic: str, partitions: int = 1, **overrides: str) -> Any:
        """Make a topic and return its part of the answer; underscores stand for the dots of its settings."""
        configs = tuple({"name": key.replace("_", "."), "value": value} for key, value in overrides.items())
        wanted = {"name": topic, "num_partitions": partitions, "replication_factor": 1, "assignments": ()}
        answer = await self.ask(ApiKey.CREATE_TOPICS, {"topics": ({**wanted, "configs": configs},), "timeout": 1000})
        return answer.topics[0]

    async def delete(self, topic: str) -> Any:
        request = {"topics": ({"name": topic, "topic_id": None},), "timeout": 1000}
        return (await self.ask(ApiKey.DELETE_TOPICS, request)).responses[0]

    async def produce(self, topic: str, records: bytes, *, partition: int = 0, name: str = "t", acks: int = -1) -> Any:
        data = {"name": topic, "partition_data": ({"index": partition, "records": records},)}
        request = {"transactional_id": None, "acks": acks, "timeout": 1000, "topic_data": (data,)}
        answer = await self.ask(ApiKey.PRODUCE, request, version=9, name=name)
        return answer.responses[0].partition_responses[0]


@asynccontextmanager
async def client_of(node: Node) -> AsyncIterator[NodeClient]:
    """Connect to a node."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    try:
        yield NodeClient(reader, writer)
    finally:
        writer.close()


@asynccontextmanager
async def running(data_dir: Path, settings: Mapping[str, str] | None = None) -> AsyncIterator[tuple[Node, NodeClient]]:
    """Run a node on a directory, with one client."""
    node = Node(BrokerConfig(data_dir=data_dir, port=0).with_settings(settings or {}))
    await node.start()
    try:
        async with client_of(node) as client:
            yield node, client
    finally:
        await node.stop()
