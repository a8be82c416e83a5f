"""
The controller as another node sees it: registers there, follows its metadata log and passes requests on to it.

The image is kept in memory only and read anew at each start. Everything goes over the Kafka protocol:
BrokerRegistration and BrokerHeartbeat, and a Fetch of `__cluster_metadata` that waits for news.
"""

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, UUID, uuid4, uuid5

from log_broker.core import controller
from log_broker.core.cluster import METADATA_TOPIC
from log_broker.core.cluster_records import decode
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import batches_in
from log_broker.records.record import iterate_records
from log_broker.server.metadata_log import Decide
from log_broker.server.peers import ANSWER_SECONDS_MAX, PeerLink
from log_broker.wire.apis import ApiKey
from log_broker.wire.framing import write_header

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext
    from log_broker.server.node import Node

_log = logging.getLogger(__name__)

CONNECT_SECONDS_MAX = 30.0
RETRY_SECONDS = 0.25
HEARTBEAT_SECONDS = 2.0
FOLLOW_WAIT_MS = 5_000
FOLLOW_BYTES = 1024 * 1024


class RemoteAuthority:
    """A node's side of a controller in another process."""

    def __init__(self, node: "Node") -> None:
        assert node.static_config.controller is not None, "the controller's address is what makes it remote"
        self._node = node
        self._link = PeerLink(node.static_config.controller)
        self._follow_link = PeerLink(node.static_config.controller)
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
        self._node.replicas.remove_strays()
        await self._heartbeat(leaves=False)
        self._loops = [self._node.loop.create_task(self._follow()), self._node.loop.create_task(self._beat())]

    async def stop(self) -> None:
        for loop in self._loops:
            loop.cancel()
        if self._loops:
            await asyncio.wait(self._loops)
        with contextlib.suppress(BrokerError, TimeoutError):
            async with asyncio.timeout(RETRY_SECONDS * 4):
                while not await self._heartbeat(leaves=True):  # noqa: ASYNC110 - the controller tells nobody
                    await asyncio.sleep(RETRY_SECONDS / 10)
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

    async def ask_controller(self, api: ApiKey, version: int, values: dict[str, Any]) -> Any:
        return await self._link.ask(api, version, values)

    async def _register(self) -> None:
        node = self._node
        answer = await self._link.ask(
            ApiKey.BROKER_REGISTRATION,
            4,
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
                # Two processes that were given one id are told apart by where they keep their data.
                "log_dirs": (
                    uuid5(NAMESPACE_URL, f"{node.static_config.node_id}:{node.static_config.data_dir.absolute()}"),
                ),
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
        if any(broker.is_leaving for broker in self._node.cluster.brokers.values()):
            self._node.run(self._tell())  # who leaves waits for the others to know

    async def _beat(self) -> None:
        while True:
            await self._tell()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _tell(self) -> None:
        try:
            await self._heartbeat(leaves=False)
        except BrokerError as error:
            _log.warning("%s", error)

    async def _heartbeat(self, *, leaves: bool) -> bool:
        """Return whether this node may stop."""
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
        if not leaves and gone:
            await self._register()
        return bool(answer.should_shut_down)
