"""
Simulated members of a consumer group: the classic protocol, assignments made by the member that leads.

A member reads what it is assigned from the group's offset on and commits as it goes. It believes that it owns its
partitions until the coordinator tells it otherwise, as consumers do.
"""

import struct
from typing import TYPE_CHECKING, Any

from log_broker.errors import BrokerError, ErrorCode
from log_broker.sim.client_link import GROUP_KEY, Client, Place, fetch_values
from log_broker.wire.apis import ApiKey

if TYPE_CHECKING:
    from log_broker.sim.cluster_world import ClusterWorld

SESSION_MS = 1_500
REBALANCE_MS = 2_000
FETCH_BYTES = 1_000
PROTOCOL = "range"
SLOW = 0.05  # how often a member takes longer over its records than its session lasts


class EvictedError(Exception):
    """The coordinator knows of no such member in this generation, or the generation is over."""


class Member(Client):
    """One member of a group that reads one topic."""

    def __init__(self, world: "ClusterWorld", name: str, group: str, topic: str) -> None:
        super().__init__(world, name)
        self.group = group
        self.topic = topic
        self.member_id = ""
        self.generation = -1
        self.positions: dict[int, int] = {}
        self._coordinator = ""

    async def live(self) -> None:
        await self.refresh()
        while not self.world.readers_stop:
            try:
                self._coordinator = await self.coordinator(self.group, GROUP_KEY)
                await self._join()
                await self._work()
            except BrokerError:
                self.forget_coordinator(self.group, GROUP_KEY)
                await self.rest(0.2)
            except EvictedError:
                self.generation = -1
                self.forget_coordinator(self.group, GROUP_KEY)
                await self.rest(0.05)

    async def ask_coordinator(self, api: ApiKey, version: int, values: dict[str, Any], *, patience_s: float) -> Any:
        """Raises BrokerError."""
        link = self.link(self._coordinator)
        return await link.ask(api, version, values, timeout_seconds=patience_s)

    async def _join(self) -> None:
        values = {
            "group_id": self.group,
            "session_timeout": SESSION_MS,
            "rebalance_timeout": REBALANCE_MS,
            "member_id": self.member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": PROTOCOL, "metadata": b""}],
        }
        answer = await self.ask_coordinator(ApiKey.JOIN_GROUP, 7, values, patience_s=REBALANCE_MS / 1000 + 4)
        error = ErrorCode(answer.error_code)
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            raise EvictedError
        self._check(error)
        self.member_id, self.generation = answer.member_id, answer.generation_id
        assignments: list[dict[str, Any]] = []
        if answer.leader == self.member_id:
            shares = self._shares([member.member_id for member in answer.members])
            assignments = [{"member_id": member, "assignment": _packed(share)} for member, share in shares.items()]
        answer = await self.ask_coordinator(
            ApiKey.SYNC_GROUP,
            5,
            {
                "group_id": self.group,
                "generation_id": self.generation,
                "member_id": self.member_id,
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocol_name": PROTOCOL,
                "assignments": assignments,
            },
            patience_s=REBALANCE_MS / 1000 + 4,
        )
        self._check(ErrorCode(answer.error_code))
        partitions = _unpacked(bytes(answer.assignment))
        self.world.groups.assigned(self.group, self.generation, self.name, self.topic, partitions)
        self.say(f"owns {partitions} of {self.topic} in generation {self.generation}")
        await self._find_positions(partitions)

    def _shares(self, members: list[str]) -> dict[str, list[int]]:
        partitions = range(self.world.partitions_of(self.topic))
        members = sorted(members)
        return {member: list(partitions[at :: len(members)]) for at, member in enumerate(members)}

    async def _find_positions(self, partitions: list[int]) -> None:
        self.positions = {}
        if not partitions:
            return
        history = self.world.history
        known = {index: history.commits.get((self.group, (self.topic, index)), 0) for index in partitions}
        topics = [{"name": self.topic, "partition_indexes": partitions}]
        values = {"groups": [{"group_id": self.group, "topics": topics}], "require_stable": True}
        while True:
            answer = await self.ask_coordinator(ApiKey.OFFSET_FETCH, 8, values, patience_s=self.seconds)
            group = answer.groups[0]
            self._check(ErrorCode(group.error_code))
            entries = [entry for topic in group.topics for entry in topic.partitions]
            errors = {ErrorCode(entry.error_code) for entry in entries} - {ErrorCode.NONE}
            if not errors:
                break
            if errors != {ErrorCode.UNSTABLE_OFFSET_COMMIT}:
                raise EvictedError
            await self.rest(0.2)
            await self._heartbeat()
        for entry in entries:
            place = (self.topic, entry.partition_index)
            history.offset_found(self.name, self.group, place, entry.committed_offset, known[entry.partition_index])
            self.positions[entry.partition_index] = max(entry.committed_offset, 0)

    async def _work(self) -> None:
        """Read and commit until the generation is over."""
        while not self.world.readers_stop:
            await self._heartbeat()
            for partition in list(self.positions):
                await self._advance(partition)
            await self.rest(0.5)

    async def _advance(self, partition: int) -> None:
        place = (self.topic, partition)
        records, next_offset = await self.read(place, self.positions[partition])
        if next_offset > self.positions[partition]:
            if self.random.random() < SLOW:
                await self.rest(6.0)  # its seat may be another's when it comes back
            await self._commit(place, next_offset)
            self.positions[partition] = next_offset
            self.world.groups.processed(self.group, place, records)

    async def read(self, place: Place, offset: int) -> tuple[int, int]:
        """Return how many records there are from `offset` on, and where the reading ends."""
        values = fetch_values(place, offset, wait_ms=50, bytes_max=FETCH_BYTES, isolation_level=1)
        address = await self.leader(place)
        try:
            answer = await self.ask_at(address, ApiKey.FETCH, 12, values)
        except BrokerError:
            self.forget_leader(place)
            return 0, offset
        result = answer.responses[0].partitions[0]
        if result.error_code != ErrorCode.NONE:
            self.forget_leader(place)
            return 0, offset
        next_offset, handed = self.world.history.read(
            self.name,
            place,
            offset,
            bytes(result.records or b""),
            isolation_level=1,
            aborted=[(each.producer_id, each.first_offset) for each in result.aborted_transactions or ()],
        )
        return len(handed), next_offset

    async def _commit(self, place: Place, offset: int) -> None:
        self.world.history.offset_asked(self.group, place, offset)
        entry = {
            "partition_index": place[1],
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": None,
        }
        answer = await self.ask_coordinator(
            ApiKey.OFFSET_COMMIT,
            8,
            {
                "group_id": self.group,
                "generation_id_or_member_epoch": self.generation,
                "member_id": self.member_id,
                "group_instance_id": None,
                "topics": [{"name": place[0], "partitions": [entry]}],
            },
            patience_s=self.seconds,
        )
        self._check(ErrorCode(answer.topics[0].partitions[0].error_code))
        self.world.history.offset_committed(self.group, place, offset)

    async def _heartbeat(self) -> None:
        answer = await self.ask_coordinator(
            ApiKey.HEARTBEAT,
            4,
            {
                "group_id": self.group,
                "generation_id": self.generation,
                "member_id": self.member_id,
                "group_instance_id": None,
            },
            patience_s=self.seconds,
        )
        self._check(ErrorCode(answer.error_code))

    def _check(self, error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            return
        if error in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}:
            self.member_id = ""
        self.say(f"{self.group}: {error.name}")
        raise EvictedError


def _packed(partitions: list[int]) -> bytes:
    return struct.pack(f">{len(partitions)}i", *partitions)


def _unpacked(data: bytes) -> list[int]:
    return list(struct.unpack(f">{len(data) // 4}i", data))
