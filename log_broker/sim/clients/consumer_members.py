"""
Simulated members of the new protocol (KIP-848), whose coordinator assigns; and seats in a group that are taken now by
a member of one protocol, now by one of the other.
"""

from typing import TYPE_CHECKING, Any

from log_broker.errors import BrokerError, ErrorCode
from log_broker.sim.clients.classic_members import ClassicMember
from log_broker.sim.clients.client_link import Client
from log_broker.sim.clients.group_members import REBALANCE_MS, Member
from log_broker.wire.apis import ApiKey

if TYPE_CHECKING:
    from log_broker.sim.world.cluster_world import ClusterWorld

LEFT_EPOCH = -1
STAY_S = (0.5, 4.0)
_FENCED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND})


class ConsumerMember(Member):
    """A member that gives up and takes over one partition after the other, as the answers to its heartbeats say."""

    OFFSETS_VERSION = 9

    def __init__(self, world: "ClusterWorld", name: str, group: str, topic: str) -> None:
        super().__init__(world, name, group, topic)
        self.member_id = f"{name}-{self.random.getrandbits(64):016x}"
        self._heard: frozenset[int] | None = None
        """What the coordinator has heard that it owns; None when that is not known."""

    async def join(self) -> None:
        self._heard = None
        if self.epoch >= 0:
            return  # another coordinator goes on where the last one was
        self.owned = frozenset()
        self.positions = {}
        self.epoch = 0

    async def heartbeat(self) -> None:
        heard, self._heard = self._heard, None
        owned = self.owned
        if heard is None:
            changes = {"rebalance_timeout": REBALANCE_MS, "subscribed_topic_names": [self.topic]}
        else:
            changes = {"rebalance_timeout": -1, "subscribed_topic_names": None}
        places = None if owned == heard else self._places(owned)
        asked_us = self.world.kernel.now_us
        answer = await self._beat({**changes, "topic_partitions": places})
        self.check(ErrorCode(answer.error_code))
        self._heard = owned
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            topics = answer.assignment.topic_partitions
            self.told((each for topic in topics for each in topic.partitions), asked_us)

    async def leave(self) -> None:
        self.epoch = LEFT_EPOCH
        await self._beat({"rebalance_timeout": -1, "subscribed_topic_names": None, "topic_partitions": None})

    async def _beat(self, values: dict[str, Any]) -> Any:
        values = {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": None,
            "rack_id": None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            **values,
        }
        return await self.ask_coordinator(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, values, patience_s=self.seconds)

    def _places(self, owned: frozenset[int]) -> list[dict[str, Any]]:
        if not owned:
            return []
        return [{"topic_id": self.topic_id(self.topic), "partitions": sorted(owned)}]

    def asker(self) -> dict[str, Any]:
        return {"member_id": self.member_id, "member_epoch": self.epoch}

    def check(self, error: ErrorCode) -> None:
        if error in _FENCED:
            raise self.evicted(error)
        if error is not ErrorCode.NONE:
            raise BrokerError(error)


class Seat(Client):
    """A seat in a group: one member after the other takes it for a while, of either protocol; the last one stays."""

    def __init__(self, world: "ClusterWorld", name: str, group: str, topic: str) -> None:
        super().__init__(world, name)
        self._group = group
        self._topic = topic

    async def live(self) -> None:
        number = 0
        while not self.world.readers_stop:
            number += 1
            kind = self.random.choice((ClassicMember, ConsumerMember))
            member = kind(self.world, f"{self.name}.{number}", self._group, self._topic)
            try:
                await member.live_for(self.random.uniform(*STAY_S))
            finally:
                member.close()
