"""
Simulated operators: by whim they move partitions, have leaders elected and change settings, impatiently.

What they are answered matters little; what it does to records and readers is for the others to notice.
"""

from typing import TYPE_CHECKING, Any

from log_broker.errors import BrokerError, ErrorCode
from log_broker.sim.clients.client_link import Client
from log_broker.sim.world.topics import REPLICATION_FACTOR, TOPICS
from log_broker.wire.apis import ApiKey

if TYPE_CHECKING:
    from log_broker.sim.world.cluster_world import ClusterWorld

TOPIC_RESOURCE = 2
SET = 0
PREFERRED = 0


class ClusterOperator(Client):
    """One impatient operator; `changes` counts what was taken, by kind."""

    def __init__(self, world: "ClusterWorld", name: str) -> None:
        super().__init__(world, name)
        self.changes: dict[str, int] = {}

    async def live(self) -> None:
        while not self.world.is_calm:
            await self.rest(1.5)
            if self.world.is_calm:
                break
            whim = self.random.choice((self._move, self._move, self._cancel, self._elect, self._configure))
            try:
                await whim()
            except BrokerError as error:
                self.say(f"{whim.__name__.strip('_')}: {error}")
        await self._settle()

    async def _move(self) -> None:
        topic = self.random.choice(list(TOPICS))
        await self._reassign(topic, self.random.sample(self.world.homes_of(topic), REPLICATION_FACTOR))

    async def _cancel(self) -> None:
        await self._reassign(self.random.choice(list(TOPICS)), None)

    async def _reassign(self, topic: str, replicas: list[int] | None) -> None:
        partition = {"partition_index": self.random.randrange(TOPICS[topic].partitions), "replicas": replicas}
        values = {"timeout": 2_000, "topics": [{"name": topic, "partitions": [partition]}]}
        answer = await self._ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, values)
        error = ErrorCode(answer.error_code or answer.responses[0].partitions[0].error_code)
        self._took("move" if replicas else "cancel", f"{topic}-{partition['partition_index']} → {replicas}", error)

    async def _elect(self) -> None:
        values = {"election_type": PREFERRED, "topic_partitions": None, "timeout": 2_000}
        answer = await self._ask(ApiKey.ELECT_LEADERS, 2, values)
        self._took("elect", "preferred leaders", ErrorCode(answer.error_code))

    async def _configure(self) -> None:
        await self._set("loose", "min.insync.replicas", self.random.choice(("1", "2")))

    async def _settle(self) -> None:
        """Leave a setting behind with which every partition can be written."""
        while True:
            try:
                if await self._set("loose", "min.insync.replicas", "1"):
                    return
            except BrokerError:
                pass
            await self.rest(0.5)

    async def _set(self, topic: str, name: str, value: str) -> bool:
        config = {"name": name, "config_operation": SET, "value": value}
        resource = {"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configs": [config]}
        values = {"resources": [resource], "validate_only": False}
        answer = await self._ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, values)
        error = ErrorCode(answer.responses[0].error_code)
        self._took("configure", f"{topic} {name}={value}", error)
        return error is ErrorCode.NONE

    async def _ask(self, api: ApiKey, version: int, values: dict[str, Any]) -> Any:
        return await self.ask_at(self.random.choice(self.world.bootstrap), api, version, values)

    def _took(self, kind: str, what: str, error: ErrorCode) -> None:
        self.say(f"{what}: {error.name}")
        if error is ErrorCode.NONE:
            self.changes[kind] = self.changes.get(kind, 0) + 1
