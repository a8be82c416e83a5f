"""Simulated members of the classic protocol: assignments are made by the member that leads."""

import struct

from log_broker.core.groups.consumer_protocol import CONSUMER_PROTOCOL, read_assignment, write_assignment
from log_broker.errors import ErrorCode
from log_broker.sim.clients.group_members import REBALANCE_MS, SESSION_MS, EvictedError, Member
from log_broker.wire.apis import ApiKey

PROTOCOL = "range"
PATIENCE_S = REBALANCE_MS / 1000 + 4


class ClassicMember(Member):
    """A member that joins, syncs, and gives up all that it has whenever the group rebalances."""

    OFFSETS_VERSION = 8

    async def join(self) -> None:
        self.owned = frozenset()
        values = {
            "group_id": self.group,
            "session_timeout": SESSION_MS,
            "rebalance_timeout": REBALANCE_MS,
            "member_id": self.member_id,
            "group_instance_id": None,
            "protocol_type": CONSUMER_PROTOCOL,
            "protocols": [{"name": PROTOCOL, "metadata": self._subscription()}],
        }
        answer = await self.ask_coordinator(ApiKey.JOIN_GROUP, 7, values, patience_s=PATIENCE_S)
        error = ErrorCode(answer.error_code)
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            raise EvictedError
        self.check(error)
        self.member_id, self.epoch = answer.member_id, answer.generation_id
        shares: dict[str, list[int]] = {}
        if answer.leader == self.member_id:
            shares = self._shares([member.member_id for member in answer.members])
        values = {
            "group_id": self.group,
            "generation_id": self.epoch,
            "member_id": self.member_id,
            "group_instance_id": None,
            "protocol_type": CONSUMER_PROTOCOL,
            "protocol_name": PROTOCOL,
            "assignments": [
                {"member_id": member, "assignment": write_assignment(((self.topic, each) for each in share), 0)}
                for member, share in shares.items()
            ],
        }
        asked_us = self.world.kernel.now_us
        answer = await self.ask_coordinator(ApiKey.SYNC_GROUP, 5, values, patience_s=PATIENCE_S)
        self.check(ErrorCode(answer.error_code))
        self.positions = {}
        self.told((partition for _, partition in read_assignment(bytes(answer.assignment))), asked_us)

    def _subscription(self) -> bytes:
        topic = self.topic.encode()
        return struct.pack(f">hih{len(topic)}si", 0, 1, len(topic), topic, -1)

    def _shares(self, members: list[str]) -> dict[str, list[int]]:
        partitions = range(self.world.partitions_of(self.topic))
        members = sorted(members)
        return {member: list(partitions[at :: len(members)]) for at, member in enumerate(members)}

    async def heartbeat(self) -> None:
        values = {
            "group_id": self.group,
            "generation_id": self.epoch,
            "member_id": self.member_id,
            "group_instance_id": None,
        }
        answer = await self.ask_coordinator(ApiKey.HEARTBEAT, 4, values, patience_s=self.seconds)
        self.check(ErrorCode(answer.error_code))

    async def leave(self) -> None:
        member = {"member_id": self.member_id, "group_instance_id": None}
        await self.ask_coordinator(
            ApiKey.LEAVE_GROUP, 4, {"group_id": self.group, "members": [member]}, patience_s=self.seconds
        )
