"""
The controller as another node sees it: registers there, follows its metadata log and passes requests on to it.

The image is kept in memory only and read anew at each start. Everything goes over the Kafka protocol:
BrokerRegistration and BrokerHeartbeat, and a Fetch of `__cluster_metadata` that waits for news.
"""

import asyncio
import contextlib
import logging
import struct
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from log_broker.core import controller
from log_broker.core.cluster import METADATA_TOPIC
from log_broker.core.cluster_records import decode
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import batches_in
from log_broker.records.record import iterate_records
from log_broker.server.metadata_log import Decide
from log_broker.wire.apis import ApiKey
from log_broker.wire.control import read_response, write_request
from log_broker.wire.framing import write_header

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext
    from log_broker.server.node import Node

_log = logging.getLogger(__name__)

CONNECT_SECONDS_MAX = 30.0
ANSWER_SECONDS_MAX = 30.0
RETRY_SECONDS = 0.25
HEARTBEAT_SECONDS = 2.0
FOLLOW_WAIT_MS = 5_000
FOLLOW_BYTES = 1024 * 1024
CLIENT_ID = "broker"

_LENGTH = struct.Struct(">i")


class ControllerLink:
    """One connection to the controller; requests on it are answered one after the other."""

    def __init__(self, address: str) -> None:
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdigit():
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"the controller's address is host:port, not {address!r}")
        self.address = address
        self._host, self._port = host, int(port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()
        self._correlation_id = 0

    async def ask(self, api: ApiKey, version: int, values: dict[str, Any]) -> Any:
        """Send a request and return its answer; raises BrokerError(BROKER_NOT_AVAILABLE) when that fails."""
        self._correlation_id += 1
        request = write_request(api, version, self._correlation_id, CLIENT_ID, values)
        return read_response(api, version, memoryview(await self.ask_raw(bytes(request))))

    async def ask_raw(self, request: bytes) -> bytes:
        """Send a request as it stands and return the answer from behind its correlation id; errors as `ask`."""
        async with self._turn:
            try:
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    if self._streams is None:
                        self._streams = await asyncio.open_connection(self._host, self._port)
                    reader, writer = self._streams
                    writer.write(_LENGTH.pack(len(request)) + request)
                    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                    return (await reader.readexactly(length))[4:]
            except (OSError, EOFError, TimeoutError) as error:
                self.close()
                raise BrokerError(
                    ErrorCode.BROKER_NOT_AVAILABLE, f"the controller at {self.address} does not answer: {error}"
                ) from error
            except BaseException:
                self.close()  # the answer would be taken for that of the next request
                raise

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class RemoteAuthority:
    """A node's side of a controller in another process."""

    def __init__(self, node: "Node") -> None:
        assert node.static_config.controller is not None, "the controller's address is what makes it remote"
        self._node = node
        self._link = ControllerLink(node.static_config.controller)
        self._follow_link = ControllerLink(node.static_config.controller)
        self._offset = 0
        self._epoch = -1
        self._incarnation = uuid4()
        self._news = asyncio.Event()  # something was replayed
        self._loops: list[asyncio.Task[None]] = []

    async def cluster_id(self) -> str | None:
        """Ask the controller, for as long as a cluster may take to come up; raises BrokerError."""
        own = self._node.static_config.cluster_id
        deadline = self._node.loop.time() + CONNECT_SECONDS_MAX
        while True:
            try:
                answer = await self._link.ask(ApiKey.METADATA, 7, {"topics": (), "allow_auto_topic_creation": False})
            except BrokerError:
                if self._node.loop.time() > deadline:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if own is not None and own != answer.cluster_id:
                raise BrokerError(
                    ErrorCode.INCONSISTENT_CLUSTER_ID,
                    f"the controller at {self._link.address} is of the cluster {answer.cluster_id}, not of {own}",
                )
            found: str | None = answer.cluster_id
            return found

    async def start(self) -> None:
        await self._register()
        while self._node.cluster.brokers.get(self._node.static_config.node_id) is None or not self._knows_itself():
            await self._follow_once()
        self._node.remove_strays()
        self._loops = [self._node.loop.create_task(self._follow()), self._node.loop.create_task(self._beat())]

    async def stop(self) -> None:
        for loop in self._loops:
            loop.cancel()
        if self._loops:
            await asyncio.wait(self._loops)
        with contextlib.suppress(BrokerError, TimeoutError):
            async with asyncio.timeout(RETRY_SECONDS * 4):
                await self._heartbeat(leaves=True)
        self._link.close()
        self._follow_link.close()

    async def create_topic(self, command: controller.CreateTopic) -> None:
        answer = await self._link.ask(
            ApiKey.CREATE_TOPICS,
            7,
            {
                "topics": (
                    {
                        "name": command.name,
                        "num_partitions": command.partitions,
                        "replication_factor": command.replication_factor,
                        "assignments": (),
                        "configs": [{"name": name, "value": text} for name, text in (command.overrides or {}).items()],
                    },
                ),
                "timeout": int(ANSWER_SECONDS_MAX * 1000),
                "validate_only": False,
            },
        )
        (topic,) = answer.topics
        if topic.error_code not in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
            raise BrokerError(ErrorCode(topic.error_code), topic.error_message or "")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                while command.name not in self._node.cluster.topics:
                    self._news.clear()
                    await self._news.wait()

    async def submit(self, decide: Decide) -> None:
        raise BrokerError(ErrorCode.NOT_CONTROLLER, f"the controller is at {self._link.address}")

    async def forward(self, context: "RequestContext") -> bytes:
        header = context.header
        return await self._link.ask_raw(write_header(header) + bytes(context.body))

    async def _register(self) -> None:
        node = self._node
        answer = await self._link.ask(
            ApiKey.BROKER_REGISTRATION,
            0,
            {
                "broker_id": node.static_config.node_id,
                "cluster_id": node.cluster_id,
                "incarnation_id": self._incarnation,
                "listeners": (
                    {
                        "name": "PLAINTEXT",
                        "host": node.advertised_host,
                        "port": node.port,
                        "security_protocol": 0,
                    },
                ),
                "features": (),
                "rack": None,
            },
        )
        if answer.error_code:
            raise BrokerError(ErrorCode(answer.error_code), f"the controller at {self._link.address} refused this node")
        self._epoch = answer.broker_epoch

    def _knows_itself(self) -> bool:
        broker = self._node.cluster.brokers[self._node.static_config.node_id]
        return UUID(hex=broker.incarnation) == self._incarnation

    async def _follow(self) -> None:
        while True:
            try:
                await self._follow_once()
            except BrokerError as error:
                _log.warning("%s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _follow_once(self) -> None:
        """Wait for news, replay them and make them true here."""
        answer = await self._follow_link.ask(
            ApiKey.FETCH,
            12,
            {
                "max_wait": FOLLOW_WAIT_MS,
                "min_bytes": 1,
                "max_bytes": FOLLOW_BYTES,
                "topics": (
                    {
                        "topic": METADATA_TOPIC,
                        "partitions": (
                            {"partition": 0, "fetch_offset": self._offset, "partition_max_bytes": FOLLOW_BYTES},
                        ),
                    },
                ),
                "forgotten_topics_data": (),
            },
        )
        (partition,) = answer.responses[0].partitions
        if partition.error_code:
            raise BrokerError(ErrorCode(partition.error_code), "the metadata log cannot be followed")
        if not partition.records:
            return
        for position, header in batches_in(partition.records):
            for record in iterate_records(partition.records[position : position + header.size]):
                if record.offset >= self._offset and record.value is not None:
                    self._node.cluster.replay(decode(record.value))
            self._offset = header.last_offset + 1
        self._node.apply_image()
        self._news.set()

    async def _beat(self) -> None:
        while True:
            try:
                await self._heartbeat(leaves=False)
            except BrokerError as error:
                _log.warning("%s", error)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _heartbeat(self, *, leaves: bool) -> None:
        answer = await self._link.ask(
            ApiKey.BROKER_HEARTBEAT,
            0,
            {
                "broker_id": self._node.static_config.node_id,
                "broker_epoch": self._epoch,
                "current_metadata_offset": self._offset,
                "want_fence": False,
                "want_shut_down": leaves,
            },
        )
        gone = answer.error_code in {ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED}
        if not leaves and (gone or answer.is_fenced):
            await self._register()
