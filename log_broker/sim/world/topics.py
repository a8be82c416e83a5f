"""The topics of a simulated cluster, and the client that makes them."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.record import build_batch
from log_broker.sim.clients.client_link import Client, produce_values
from log_broker.wire.apis import ApiKey

if TYPE_CHECKING:
    from log_broker.sim.world.cluster_world import ClusterWorld


class Topic(NamedTuple):
    """
    What a topic is made with; `is_safe` says that acks=all loses nothing in it whatever the nemesis does.

    `loses_by` says by what acks=all may lose records: an unclean election, or power cuts of all that are in sync.
    """

    partitions: int
    overrides: Mapping[str, str]
    is_safe: bool
    loses_by: str = ""


POWER_CUT = "power cut"
UNCLEAN_ELECTION = "unclean election"

SMALL_SEGMENTS = {"segment.bytes": "300"}  # a few batches, so that one is full every so often

TOPICS: Mapping[str, Topic] = {
    "safe": Topic(2, {}, is_safe=True),
    "in": Topic(2, {}, is_safe=True),
    "out": Topic(2, {}, is_safe=True),
    "loose": Topic(1, {"min.insync.replicas": "1", **SMALL_SEGMENTS}, is_safe=False),
    "quick": Topic(1, {"fluvial.durability": "memory", **SMALL_SEGMENTS}, is_safe=False, loses_by=POWER_CUT),
    "ready": Topic(
        1,
        {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"},
        is_safe=False,
        loses_by=UNCLEAN_ELECTION,
    ),
}
LOSSY: Mapping[str, str] = {name: topic.loses_by for name, topic in TOPICS.items() if topic.loses_by}
REPLICATION_FACTOR = 3
RENEWED = "renewed"  # deleted and made again all the time
DELETE_VERSION = 5
LEADERLESS_SECONDS = 3.0


class Founder(Client):
    """Makes the topics once the cluster takes them."""

    def __init__(self, world: "ClusterWorld", name: str) -> None:
        super().__init__(world, name)

    async def live(self) -> None:
        for name, topic in TOPICS.items():
            while not await self._create(name, topic, self.world.homes_of(name)):
                await self.rest(0.2)
        await self.refresh()
        while not all(
            (name, index) in self._leaders for name, topic in TOPICS.items() for index in range(topic.partitions)
        ):
            await self.rest(0.1)
            await self.refresh()

    async def _create(self, name: str, topic: Topic, homes: Sequence[int]) -> bool:
        wanted: dict[str, Any] = {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [
                {"partition_index": index, "broker_ids": self.random.sample(homes, REPLICATION_FACTOR)}
                for index in range(topic.partitions)
            ],
            "configs": [{"name": key, "value": value} for key, value in topic.overrides.items()],
        }
        values = {"topics": [wanted], "timeout": 5_000, "validate_only": False}
        try:
            answer = await self.ask_any(ApiKey.CREATE_TOPICS, 5, values)
        except BrokerError:
            return False
        error = ErrorCode(answer.topics[0].error_code)
        self.say(f"topic {name}: {error.name}")
        return error in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}


class Renewer(Founder):
    """Makes a topic, writes a few records and deletes it, over and over; no two batches are the same."""

    async def live(self) -> None:
        number = 0
        while not self.world.producers_stop:
            if not await self._create(RENEWED, Topic(1, {}, is_safe=True), list(self.world.machines)):
                await self.rest(0.2)
                continue
            for _ in range(self.random.randint(1, 4)):
                number += 1
                await self._produce(number)
            await self.rest(0.2)
            await self._delete()
            await self.rest(0.1)

    async def _produce(self, number: int) -> None:
        place = (RENEWED, 0)
        batch = build_batch([(self.world.wall_ms(), None, f"{self.name}:{number}".encode(), ())])
        values = produce_values({place: bytes(batch)}, acks=-1, timeout_ms=int(self.seconds * 900))
        try:
            # A deletion that was sent again may come late and take the next topic of that name.
            async with asyncio.timeout(LEADERLESS_SECONDS):
                address = await self.leader(place)
            answer = await self.ask_at(address, ApiKey.PRODUCE, 9, values)
        except (BrokerError, TimeoutError):
            self.forget_leader(place)
            return
        error = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        self.say(f"{RENEWED} {number}: {error.name}")
        if error is not ErrorCode.NONE:
            self.forget_leader(place)

    async def _delete(self) -> None:
        values = {"topic_names": [RENEWED], "timeout": 2_000}
        with suppress(BrokerError):
            answer = await self.ask_any(ApiKey.DELETE_TOPICS, DELETE_VERSION, values)
            self.say(f"{RENEWED} is deleted: {ErrorCode(answer.responses[0].error_code).name}")
        self.forget_leader((RENEWED, 0))
