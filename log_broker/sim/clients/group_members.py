"""
Simulated members of consumer groups, of whichever protocol.

A member reads what it is assigned from the group's offset on and commits as it goes. It believes that it owns its
partitions until the coordinator tells it otherwise, as consumers do.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from log_broker.errors import BrokerError, ErrorCode
from log_broker.sim.clients.client_link import GROUP_KEY, Client, TopicPartition, fetch_values
from log_broker.wire.apis import ApiKey

if TYPE_CHECKING:
    from log_broker.sim.world.cluster_world import ClusterWorld

SESSION_MS = 1_500
REBALANCE_MS = 2_000
FETCH_BYTES = 1_000
SLOW = 0.05  # how often a member takes longer over its records than its session lasts
POLITE = 0.5  # how often a member that goes says so


class EvictedError(Exception):
    """The coordinator knows of no such member in this generation, or the generation is over."""


class Member(Client):
    """One member of a group that reads one topic. `epoch` is its generation, or its member epoch."""

    OFFSETS_VERSION: ClassVar[int]
    """Of OffsetCommit and OffsetFetch."""

    def __init__(self, world: "ClusterWorld", name: str, group: str, topic: str) -> None:
        super().__init__(world, name)
        self.group = group
        self.topic = topic
        self.member_id = ""
        self.epoch = -1
        self.owned: frozenset[int] = frozenset()
        self.positions: dict[int, int] = {}
        self._until_us: int | None = None
        self._coordinator = ""

    @abstractmethod
    async def join(self) -> None:
        """Become a member, as if there had never been one; raises EvictedError, BrokerError."""

    @abstractmethod
    async def heartbeat(self) -> None:
        """Say that it is there; raises EvictedError, BrokerError."""

    @abstractmethod
    async def leave(self) -> None:
        """Say that it goes; raises BrokerError."""

    async def live(self) -> None:
        await self.refresh()
        while self._goes_on():
            try:
                self._coordinator = await self.coordinator(self.group, GROUP_KEY)
                await self.join()
                await self._work()
            except BrokerError:
                self.forget_coordinator(self.group, GROUP_KEY)
                await self.rest(0.2)
            except EvictedError:
                self.epoch = -1
                self.forget_coordinator(self.group, GROUP_KEY)
                await self.rest(0.05)

    async def live_for(self, seconds: float) -> None:
        """Be a member for a while, then leave or vanish."""
        self._until_us = self.world.kernel.now_us + int(seconds * 1e6)
        await self.live()
        if self.member_id and self.random.random() < POLITE:
            try:
                await self.leave()
            except BrokerError as error:
                self.say(f"{self.group}: its leaving is not heard: {error}")

    def _goes_on(self) -> bool:
        if self._until_us is None or self.world.is_calm:
            return not self.world.readers_stop
        return self.world.kernel.now_us < self._until_us

    async def ask_coordinator(self, api: ApiKey, version: int, values: dict[str, Any], *, patience_s: float) -> Any:
        """Raises BrokerError."""
        link = self.link(self._coordinator)
        return await link.ask(api, version, values, timeout_seconds=patience_s)

    def told(self, partitions: Iterable[int], asked_us: int) -> None:
        """Own these partitions from now on, and no others: it was asked at `asked_us`."""
        partitions = frozenset(partitions)
        self.positions = {each: at for each, at in self.positions.items() if each in partitions}
        for partition in sorted(partitions - self.owned):
            self.world.groups.taken(self.group, self.epoch, self.name, (self.topic, partition), asked_us)
        self.owned = partitions
        self.say(f"owns {sorted(partitions)} of {self.topic} at epoch {self.epoch} of {self.group}")

    def evicted(self, error: ErrorCode) -> EvictedError:
        self.say(f"{self.group}: {error.name}")
        return EvictedError(error.name)

    def check(self, error: ErrorCode) -> None:
        """Raises EvictedError for any error."""
        if error is ErrorCode.NONE:
            return
        if error in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}:
            self.member_id = ""
        raise self.evicted(error)

    async def _work(self) -> None:
        """Read and commit until somebody says that this is over."""
        while self._goes_on():
            await self.heartbeat()
            await self._find_positions(sorted(self.owned - self.positions.keys()))
            for partition in list(self.positions):
                await self._advance(partition)
            await self.rest(0.5)

    async def _find_positions(self, partitions: list[int]) -> None:
        if not partitions:
            return
        history = self.world.history
        known = {index: history.commits.get((self.group, (self.topic, index)), 0) for index in partitions}
        group = {"group_id": self.group, "topics": [{"name": self.topic, "partition_indexes": partitions}]}
        values = {"groups": [{**group, **self.asker()}], "require_stable": True}
        answer = await self.ask_coordinator(ApiKey.OFFSET_FETCH, self.OFFSETS_VERSION, values, patience_s=self.seconds)
        found = answer.groups[0]
        self.check(ErrorCode(found.error_code))
        for entry in (entry for topic in found.topics for entry in topic.partitions):
            self.check(ErrorCode(entry.error_code))
            index = entry.partition_index
            history.offset_found(self.name, self.group, (self.topic, index), entry.committed_offset, known[index])
            self.positions[index] = max(entry.committed_offset, 0)

    def asker(self) -> dict[str, Any]:
        """What a request for offsets says of who asks."""
        return {}

    async def _advance(self, partition: int) -> None:
        place = (self.topic, partition)
        next_offset = await self.read(place, self.positions[partition])
        if next_offset > self.positions[partition]:
            if self.random.random() < SLOW:
                await self.rest(6.0)  # its seat may be another's when it comes back
            await self._commit(place, next_offset)
            self.positions[partition] = next_offset

    async def read(self, place: TopicPartition, offset: int) -> int:
        """Read from `offset` on; return where the reading ends."""
        values = fetch_values(place, offset, wait_ms=50, bytes_max=FETCH_BYTES, isolation_level=1)
        address = await self.leader(place)
        try:
            answer = await self.ask_at(address, ApiKey.FETCH, 12, values)
        except BrokerError:
            self.forget_leader(place)
            return offset
        result = answer.responses[0].partitions[0]
        if result.error_code != ErrorCode.NONE:
            self.forget_leader(place)
            return offset
        next_offset, _ = self.world.history.read(
            self.name,
            place,
            offset,
            bytes(result.records or b""),
            isolation_level=1,
            aborted=[(each.producer_id, each.first_offset) for each in result.aborted_transactions or ()],
        )
        return next_offset

    async def _commit(self, place: TopicPartition, offset: int) -> None:
        self.world.history.offset_asked(self.group, place, offset)
        asked_us = self.world.kernel.now_us
        entry = {
            "partition_index": place[1],
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": None,
        }
        answer = await self.ask_coordinator(
            ApiKey.OFFSET_COMMIT,
            self.OFFSETS_VERSION,
            {
                "group_id": self.group,
                "generation_id_or_member_epoch": self.epoch,
                "member_id": self.member_id,
                "group_instance_id": None,
                "topics": [{"name": place[0], "partitions": [entry]}],
            },
            patience_s=self.seconds,
        )
        self.check(ErrorCode(answer.topics[0].partitions[0].error_code))
        self.world.groups.committed(self.group, self.name, place, asked_us)
        self.world.history.offset_committed(self.group, place, offset)
