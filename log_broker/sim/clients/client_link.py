"""
What all simulated clients share: links to the brokers, who leads what, and how to ask until somebody answers.

A client speaks Kafka's protocol over the simulated network. It knows no more of the cluster than it was told.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.net.peers import PeerLink
from log_broker.sim.kernel.event_loop import VirtualLoop
from log_broker.wire.apis import ApiKey
from log_broker.wire.control import write_request

if TYPE_CHECKING:
    from log_broker.sim.world.cluster_world import ClusterWorld

TopicPartition = tuple[str, int]  # topic, partition

GROUP_KEY = 0
TRANSACTION_KEY = 1


class ClientLink(PeerLink):
    """A link that can also send what has no answer: a produce request with acks=0."""

    async def tell(self, api: ApiKey, version: int, values: dict[str, Any], *, timeout_seconds: float) -> None:
        """Send a request and wait for nothing; raises BrokerError(BROKER_NOT_AVAILABLE)."""
        request = write_request(api, version, 0, self._client_id, values)
        try:
            async with asyncio.timeout(timeout_seconds):
                writer = await self._open()
                writer.write(len(request).to_bytes(4, "big") + request)
                await writer.drain()
        except (OSError, EOFError, TimeoutError) as error:
            self.close()
            raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, str(error)) from error


class Client(ABC):
    """One client: it does one thing after the other, and nothing it is told surprises it."""

    def __init__(self, world: "ClusterWorld", name: str) -> None:
        self.world = world
        self.name = name
        self.random: random.Random = world.kernel.stream(f"client/{name}")
        self._links: dict[str, ClientLink] = {}
        self._brokers: dict[int, str] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._topic_ids: dict[str, Any] = {}
        self._coordinators: dict[tuple[str, int], str] = {}
        self.task: asyncio.Task[None] | None = None

    def start(self, loop: VirtualLoop) -> None:
        """Live from now on."""
        self.task = loop.create_task(self.live())
        self.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.close()
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.client_failed(self.name, error)

    @abstractmethod
    async def live(self) -> None:
        """Do what this client is there for, until it is no longer wanted."""

    @property
    def seconds(self) -> float:
        """How long an answer may take."""
        return self.world.client_seconds

    def say(self, what: str) -> None:
        """Tell the story of the run."""
        self.world.kernel.trace(self.name, what)

    async def rest(self, at_most_s: float) -> None:
        """Do nothing for a while."""
        await asyncio.sleep(self.random.uniform(0.1, 1.0) * at_most_s)

    # Whom to ask

    def link(self, address: str) -> ClientLink:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = ClientLink(address, client_id=self.name)
        return link

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    async def ask_at(self, address: str, api: ApiKey, version: int, values: dict[str, Any]) -> Any:
        """Raises BrokerError(BROKER_NOT_AVAILABLE)."""
        return await self.link(address).ask(api, version, values, timeout_seconds=self.seconds)

    async def ask_any(self, api: ApiKey, version: int, values: dict[str, Any]) -> Any:
        """Ask one broker after the other until one answers."""
        while True:
            address = self.random.choice(self.world.bootstrap)
            try:
                return await self.ask_at(address, api, version, values)
            except BrokerError:
                await self.rest(0.1)

    async def refresh(self) -> None:
        """Learn again who leads what."""
        values = {
            "topics": None,
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        }
        answer = await self.ask_any(ApiKey.METADATA, 10, values)
        self._brokers = {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
        self._topic_ids = {topic.name: topic.topic_id for topic in answer.topics}
        self._leaders = {
            (topic.name, partition.partition_index): partition.leader_id
            for topic in answer.topics
            for partition in topic.partitions
        }

    def topic_id(self, topic: str) -> Any:
        """Return the id of a topic as it was when the metadata were asked for."""
        return self._topic_ids[topic]

    async def leader(self, place: TopicPartition) -> str:
        """Return the address of who leads a partition; asks until somebody does."""
        while True:
            address = self._brokers.get(self._leaders.get(place, -1))
            if address is not None:
                return address
            await self.rest(0.1)
            await self.refresh()

    def forget_leader(self, place: TopicPartition) -> None:
        self._leaders.pop(place, None)

    async def coordinator(self, key: str, kind: int) -> str:
        """Return the address of who coordinates a group or a transaction; asks until somebody does."""
        known = self._coordinators.get((key, kind))
        if known is not None:
            return known
        while True:
            answer = await self.ask_any(ApiKey.FIND_COORDINATOR, 3, {"key": key, "key_type": kind})
            if answer.error_code == ErrorCode.NONE:
                address = self._coordinators[key, kind] = f"{answer.host}:{answer.port}"
                return address
            await self.rest(0.2)

    def forget_coordinator(self, key: str, kind: int) -> None:
        self._coordinators.pop((key, kind), None)


def produce_values(
    batches: Mapping[TopicPartition, bytes], *, acks: int, timeout_ms: int, transactional_id: str | None = None
) -> dict[str, Any]:
    """Return a Produce request's values."""
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": timeout_ms,
        "topic_data": [
            {"name": topic, "partition_data": [{"index": partition, "records": batch}]}
            for (topic, partition), batch in batches.items()
        ],
    }


def fetch_values(
    place: TopicPartition, offset: int, *, wait_ms: int, bytes_max: int, isolation_level: int, leader_epoch: int = -1
) -> dict[str, Any]:
    """Return a Fetch request's values, for one partition and without a session."""
    topic, partition = place
    return {
        "cluster_id": None,
        "replica_id": -1,
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": bytes_max,
        "isolation_level": isolation_level,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": partition,
                        "current_leader_epoch": leader_epoch,
                        "fetch_offset": offset,
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                        "partition_max_bytes": bytes_max,
                    }
                ],
            }
        ],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
