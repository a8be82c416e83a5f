"""The topics of a simulated cluster, and the client that makes them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from log_broker.errors import BrokerError, ErrorCode
from log_broker.sim.client_link import Client
from log_broker.wire.apis import ApiKey

if TYPE_CHECKING:
    from log_broker.sim.cluster_world import ClusterWorld


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

TOPICS: Mapping[str, Topic] = {
    "safe": Topic(2, {}, is_safe=True),
    "in": Topic(2, {}, is_safe=True),
    "out": Topic(2, {}, is_safe=True),
    "loose": Topic(1, {"min.insync.replicas": "1"}, is_safe=False),
    "quick": Topic(1, {"fluvial.durability": "memory"}, is_safe=False, loses_by=POWER_CUT),
    "ready": Topic(
        1,
        {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"},
        is_safe=False,
        loses_by=UNCLEAN_ELECTION,
    ),
}
LOSSY: Mapping[str, str] = {name: topic.loses_by for name, topic in TOPICS.items() if topic.loses_by}
REPLICATION_FACTOR = 3


class Founder(Client):
    """Makes the topics once the cluster takes them."""

    def __init__(self, world: "ClusterWorld", name: str) -> None:
        super().__init__(world, name)

    async def live(self) -> None:
        for name, topic in TOPICS.items():
            while not await self._create(name, topic):
                await self.rest(0.2)
        await self.refresh()
        while not all(
            (name, index) in self._leaders for name, topic in TOPICS.items() for index in range(topic.partitions)
        ):
            await self.rest(0.1)
            await self.refresh()

    async def _create(self, name: str, topic: Topic) -> bool:
        homes = self.world.homes_of(name)
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
