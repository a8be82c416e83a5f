"""
One broker node: its logs, its image of the cluster, its groups and its connections.

Node 0 is the controller: it alone decides about topics, settings and brokers. The others follow its metadata log and
pass on what only it can decide. A single node is a cluster of one and runs the same code.
"""

import asyncio
import base64
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any
from uuid import UUID, uuid4

from log_broker.config import BrokerConfig, TopicConfig
from log_broker.core import controller
from log_broker.core.cluster import METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ClusterImage, TopicImage
from log_broker.core.fetch_session import FetchSessions
from log_broker.core.lease import Lease
from log_broker.core.replication import Leadership
from log_broker.errors import BrokerError, ErrorCode
from log_broker.interfaces import RecordValidator
from log_broker.server.authority import Authority, LocalAuthority
from log_broker.server.connection import STAGING_BYTES, Connection
from log_broker.server.controller import Controller
from log_broker.server.counters import Counters
from log_broker.server.events import Events
from log_broker.server.group_coordinator import GroupCoordinator, partition_of
from log_broker.server.internal_log import TopicLog
from log_broker.server.log_manager import LogManager
from log_broker.server.machine import BACKLOG, Machine, RealMachine
from log_broker.server.memory_budget import MemoryBudget
from log_broker.server.meta_properties import settle_identity
from log_broker.server.partition import PartitionRuntime
from log_broker.server.partition_runner import Membership
from log_broker.server.peers import Peers
from log_broker.server.producer_ids import ProducerIds
from log_broker.server.remote_authority import RemoteAuthority
from log_broker.server.transaction_coordinator import TransactionCoordinator

_log = logging.getLogger(__name__)

CONTROLLER_ID = 0
METADATA_OVERRIDES = {"cleanup.policy": "delete", "retention.ms": "-1", "fluvial.durability": "fsync-quorum"}
OFFSETS_OVERRIDES = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20), "compression.type": "producer"}
TRANSACTIONS_OVERRIDES = {**OFFSETS_OVERRIDES, "compression.type": "uncompressed"}
IDLE_CHECK_SECONDS_MAX = 10.0
STALLED_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 5.0
BROKER_SESSION_TIMEOUT_MS = 9_000  # after which a silent broker is fenced
CACHED_ANSWERS_MAX = 64


class AnswerCache:
    """Encoded Metadata answers by what was asked; cleared whenever the image changes."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, bytes] = {}

    def get(self, key: Hashable) -> bytes | None:
        return self._answers.get(key)

    def put(self, key: Hashable, answer: bytes) -> None:
        if len(self._answers) >= CACHED_ANSWERS_MAX:
            self._answers.clear()
        self._answers[key] = answer

    def clear(self) -> None:
        self._answers.clear()


def _memory_limit(config: BrokerConfig) -> int:
    """A limit below the largest request would let that pass as well, so it says nothing."""
    limit = config.queued_max_request_bytes
    return 1 << 62 if limit < 0 else max(limit, config.socket_request_max_bytes)


def wall_clock_ms() -> int:
    """The machine's clock, in ms since the epoch."""
    return time.time_ns() // 1_000_000


class Node:
    """Everything of one broker process. `start` and `stop` are each called once, in the loop it was made in."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        validator: RecordValidator | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        machine: Machine | None = None,
    ) -> None:
        self.machine = machine if machine is not None else RealMachine()
        self.static_config = config
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.clock_ms = clock_ms
        self.cluster = ClusterImage(defaults=config)
        self.lease = Lease(lambda: int(self.loop.time() * 1000), session_timeout_ms=BROKER_SESSION_TIMEOUT_MS)
        self.logs = LogManager(
            config.data_dir,
            self.loop,
            validator=validator,
            clock_ms=clock_ms,
            files=self.machine.files,
            claim=self.machine.claim(config.data_dir),
            pool=self.machine.pool(self.loop),
            settings=lambda: self.config,
            membership=Membership(
                node_id=config.node_id,
                lease=self.lease,
                replica_lag_time_max_ms=config.replica_lag_time_max_ms,
            ),
        )
        self.peers = Peers(self._address_of)
        self.groups = GroupCoordinator(self)
        self.transactions = TransactionCoordinator(self)
        self.producer_ids = ProducerIds(self)
        self.events = Events(self)
        self.staging = memoryview(bytearray(STAGING_BYTES))
        self.fetch_sessions = FetchSessions(slots_max=config.max_incremental_fetch_session_cache_slots)
        self.metadata_answers = AnswerCache()
        self.counters = Counters()
        self.memory = MemoryBudget(self.loop, _memory_limit(config))
        self.connections: set[Connection] = set()
        self._connections_of: Counter[str] = Counter()
        self.cluster_id = ""
        self.registry_url = ""  # of the schema registry beside this broker, for whoever asks for its settings
        self.port = config.port
        self.authority: Authority
        self.controller: Controller | None = None  # while this node is the active controller
        self._applied: dict[str, TopicImage] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle_check: asyncio.TimerHandle | None = None
        self._creating: dict[str, asyncio.Task[None]] = {}

    @property
    def is_controller(self) -> bool:
        return self.static_config.controller is None

    @property
    def controller_id(self) -> int:
        """The node that clients are sent to for decisions; any other passes them on."""
        return CONTROLLER_ID if self.cluster.is_alive(CONTROLLER_ID) else -1

    @property
    def advertised_host(self) -> str:
        config = self.static_config
        if config.advertised_host:
            return config.advertised_host
        return socket.gethostname() if config.host in {"", "0.0.0.0", "::"} else config.host  # noqa: S104

    async def start(self, *, before_serving: Callable[[], Awaitable[None]] | None = None) -> None:
        """
        Take up the data directory, join the cluster and listen.

        `before_serving` runs when the logs can be used and no client has been answered yet.

        Raises BindError, DataDirectoryError, OSError or BrokerError; nothing is left open then.
        """
        listener = self.machine.bind(self.config.host, self.config.port)
        self.port = listener.getsockname()[1]
        try:
            self.logs.open_all(self._configs_for_recovery())
            self.authority = LocalAuthority(self) if self.is_controller else RemoteAuthority(self)
            self._identify(await self.authority.cluster_id())
            await self.authority.start()
            self.groups.start()
            self.transactions.start()
            if before_serving is not None:
                await before_serving()
            self._server = await self.loop.create_server(lambda: Connection(self), sock=listener, backlog=BACKLOG)
        except BaseException:
            listener.close()
            self.groups.stop()
            self.transactions.stop()
            self.peers.close()
            await self.logs.close()
            raise
        self._check_idle()
        self.events.start()
        _log.info(
            "node %d of cluster %s listens on %s:%d", self.config.node_id, self.cluster_id, self.config.host, self.port
        )

    async def stop(self) -> None:
        """Take no more requests, finish those under way as far as that is quick, and close every log in order."""
        if self._server is not None:
            self._server.close()
        if self._idle_check is not None:
            self._idle_check.cancel()
        self.events.stop()
        self.groups.stop()
        self.transactions.stop()
        await self.authority.stop()
        for connection in list(self.connections):
            connection.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_SECONDS_MAX)
        self.peers.close()
        await self.logs.close()

    # What connections and handlers use.

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` beside the requests, until the node stops at the latest."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    @property
    def task_count(self) -> int:
        """How much work runs beside the requests."""
        return len(self._tasks)

    def connection_opened(self, connection: Connection) -> str | None:
        """Note a new connection; say why it cannot stay if there are too many."""
        self.connections.add(connection)
        self._connections_of[connection.host] += 1
        self.counters.connections += 1
        if len(self.connections) > self.config.max_connections:
            return f"there are {self.config.max_connections} connections already"
        if self._connections_of[connection.host] > self.config.max_connections_per_ip:
            return f"its address has {self.config.max_connections_per_ip} connections already"
        return None

    def connection_closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._connections_of[connection.host] -= 1
        if not self._connections_of[connection.host]:
            del self._connections_of[connection.host]

    def absence_of(self, topic: str, partition: int) -> ErrorCode:
        """Say why `logs` has no such partition."""
        image = self.cluster.topics.get(topic)
        if image is None or not 0 <= partition < len(image.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if image.partitions[partition].leader == self.config.node_id:
            return ErrorCode.KAFKA_STORAGE_ERROR  # it could not be made; the log said why
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def knows_partition(self, topic: str, partition: int) -> bool:
        """Whether the cluster has such a partition, wherever it is led."""
        image = self.cluster.topics.get(topic)
        return image is not None and 0 <= partition < len(image.partitions)

    def group_partition(self, group_id: str) -> int | None:
        """Return the partition of `__consumer_offsets` that a group belongs to, None before that topic exists."""
        topic = self.cluster.topics.get(OFFSETS_TOPIC)
        return None if topic is None else partition_of(group_id, len(topic.partitions))

    async def ensure_topic(self, command: controller.CreateTopic) -> None:
        """Make a topic if it is not there; raises BrokerError. Many may ask at once, one request is made."""
        if command.name in self.cluster.topics:
            return
        task = self._creating.get(command.name)
        if task is None:
            task = self._creating[command.name] = self.loop.create_task(self.authority.create_topic(command))
            task.add_done_callback(lambda _: self._creating.pop(command.name, None))
        try:
            await asyncio.shield(task)
        except BrokerError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    async def ensure_offsets_topic(self) -> None:
        await self.ensure_topic(
            controller.CreateTopic(
                name=OFFSETS_TOPIC,
                topic_id=uuid4().hex,
                partitions=self.config.offsets_topic_num_partitions,
                replication_factor=self.static_config.replication_factor,
                overrides=dict(OFFSETS_OVERRIDES),
            )
        )

    def transaction_partition(self, transactional_id: str) -> int | None:
        """Return the partition of `__transaction_state` that an id belongs to, None before that topic exists."""
        topic = self.cluster.topics.get(TRANSACTIONS_TOPIC)
        return None if topic is None else partition_of(transactional_id, len(topic.partitions))

    async def ensure_transactions_topic(self) -> None:
        await self.ensure_topic(
            controller.CreateTopic(
                name=TRANSACTIONS_TOPIC,
                topic_id=uuid4().hex,
                partitions=self.config.transaction_state_log_num_partitions,
                replication_factor=self.static_config.replication_factor,
                overrides=dict(TRANSACTIONS_OVERRIDES),
            )
        )

    def internal_log(self, topic: str) -> TopicLog:
        """Return a log for a service beside the broker: a compacted topic of one partition, made on first use."""
        return TopicLog(self, topic)

    # What the authority uses.

    def apply_image(self) -> None:
        """Make logs, configs and groups what the image says they are."""
        self._apply_settings()
        self.metadata_answers.clear()
        image = self.cluster.topics
        for name, old in list(self._applied.items()):
            new = image.get(name)
            if new is None or new.topic_id != old.topic_id:
                self._drop_topic(old)
        for name, topic in image.items():
            if self._applied.get(name) is not topic:
                self._apply_topic(topic)
        self._applied = dict(image)
        self.groups.follow()
        self.transactions.follow()
        self.events.image_changed()

    def remove_strays(self) -> None:
        """Delete partitions that the image does not give to this node: their topic was deleted while it was down."""
        for runtime in list(self.logs.partitions()):
            topic = self.cluster.topics.get(runtime.topic)
            if runtime.topic == METADATA_TOPIC:
                continue
            known = topic is not None and runtime.partition < len(topic.partitions)
            if not known or topic is None or self.config.node_id not in topic.partitions[runtime.partition].replicas:
                _log.warning("deleting %s-%d, which the cluster does not know", runtime.topic, runtime.partition)
                self.logs.delete(runtime.topic, runtime.partition)

    def metadata_partition(self) -> PartitionRuntime:
        """Return the metadata log's partition, made if it is not there; raises OSError."""
        config = TopicConfig.from_overrides(METADATA_OVERRIDES)
        runtime = self.logs.create(METADATA_TOPIC, 0, UUID(int=1), config)
        alone = (self.config.node_id,)
        epoch = runtime.leader_epoch
        runtime.become_leader(Leadership(leader_epoch=epoch, partition_epoch=0, replicas=alone, isr=alone))
        return runtime

    def _apply_settings(self) -> None:
        config = self.cluster.effective_config(self.static_config)
        if config != self.config:
            self.config = config
            self.cluster.set_defaults(config)
            self.fetch_sessions.slots_max = config.max_incremental_fetch_session_cache_slots
            self.memory.limit = _memory_limit(config)

    def _apply_topic(self, topic: TopicImage) -> None:
        for index, partition in enumerate(topic.partitions):
            if partition.leader != self.config.node_id:
                continue
            try:
                runtime = self.logs.create(topic.name, index, UUID(hex=topic.topic_id), topic.config)
            except OSError as error:
                _log.error("the partition %s-%d could not be made: %s", topic.name, index, error)
                continue
            if runtime.config != topic.config:
                runtime.config = topic.config
            runtime.become_leader(
                Leadership(
                    leader_epoch=partition.leader_epoch,
                    partition_epoch=partition.partition_epoch,
                    replicas=(self.config.node_id,),
                    isr=(self.config.node_id,),
                )
            )

    def _drop_topic(self, topic: TopicImage) -> None:
        for index in range(len(topic.partitions)):
            try:
                self.logs.delete(topic.name, index)
            except OSError as error:
                _log.error("the partition %s-%d could not be deleted: %s", topic.name, index, error)
        self.groups.topic_deleted(topic.name)

    def _address_of(self, node_id: int) -> str | None:
        broker = self.cluster.brokers.get(node_id)
        return None if broker is None else f"{broker.host}:{broker.port}"

    def _configs_for_recovery(self) -> Callable[[str], TopicConfig]:
        """The real configs are in the metadata log, which is opened with all others; they take effect right after."""
        metadata = TopicConfig.from_overrides(METADATA_OVERRIDES, self.config)
        other = TopicConfig.from_overrides({}, self.config)
        return lambda topic: metadata if topic == METADATA_TOPIC else other

    def _identify(self, cluster_id: str | None) -> None:
        fresh = base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
        identity = settle_identity(
            self.machine.files,
            self.config.data_dir,
            node_id=self.config.node_id,
            cluster_id=cluster_id,
            fresh_cluster_id=fresh,
        )
        self.cluster_id = identity.cluster_id

    def _check_idle(self) -> None:
        seconds = self.config.connections_max_idle_ms / 1000
        deadline = self.loop.time() - seconds
        for connection in list(self.connections):
            if connection.is_idle_since(deadline):
                connection.fail(f"idle for {seconds:.0f} s")
        if self.memory.waiting or self.memory.is_full:
            self._free_memory()
        self._idle_check = self.loop.call_later(min(seconds / 2, IDLE_CHECK_SECONDS_MAX), self._check_idle)

    def _free_memory(self) -> None:
        """Part from clients that neither read their answers nor finish their requests while others wait for memory."""
        deadline = self.loop.time() - STALLED_SECONDS_MAX
        for connection in list(self.connections):
            if connection.holds_memory_since(deadline):
                connection.fail(f"it has held memory for {STALLED_SECONDS_MAX:.0f} s that others wait for")

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("work beside the requests failed", exc_info=error)
