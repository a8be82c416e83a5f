"""A client of the classic protocol that keeps it by the letter, for groups of either kind."""

import struct
from typing import Any

from consumer_group_driver import GroupDriver

from log_broker.core.groups.consumer_group_records import NO_PARTITIONS, TopicIdPartitions
from log_broker.core.groups.consumer_protocol import read_assignment, write_assignment
from log_broker.core.groups.conversion import from_places, to_places
from log_broker.core.groups.protocol import Heartbeat, Join, JoinAnswer, Sync, SyncAnswer
from log_broker.errors import ErrorCode

SESSION_MS = 10_000
REBALANCE_MS = 30_000
START_AGAIN = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.MEMBER_ID_REQUIRED}


def subscription(topics: tuple[str, ...], owned: Any = ()) -> bytes:
    """As the Java client writes it, version 1."""
    out = struct.pack(">hi", 1, len(topics))
    for topic in topics:
        out += struct.pack(">h", len(topic)) + topic.encode()
    out += struct.pack(">i", -1)
    return out + write_assignment(owned, 1)[2:-4]


class EagerMember:
    """A client that stops reading before it joins, and reads what its sync brings."""

    def __init__(self, driver: GroupDriver, number: int, topic: str, instance_id: str | None) -> None:
        self.driver = driver
        self.topic = topic
        self.number = number
        self.ids = 0
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.seen = -1  # the highest one, of this coordinator
        self.owned: TopicIdPartitions = NO_PARTITIONS
        self.waits_for: Any = None
        self.heard_ms = driver.now
        self.is_in = False  # whether it has an assignment of its generation

    def join(self) -> None:
        self.owned = NO_PARTITIONS
        self.is_in = False
        self.ids += 1
        self.waits_for = self.driver.send(
            Join,
            member_id=self.member_id,
            fresh_id=f"m{self.number}.{self.ids}",
            instance_id=self.instance_id,
            client_id="c",
            client_host="/h",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=(("range", subscription((self.topic,))),),
            id_round_trip=True,
        )
        self.take()

    def take(self) -> None:
        """Go on with an answer that has come."""
        answer = self.driver.answers.get(self.waits_for)
        if answer is None:
            return
        self.waits_for = None
        self.heard_ms = self.driver.now
        if answer.error in START_AGAIN:
            self.member_id = answer.member_id if answer.error is ErrorCode.MEMBER_ID_REQUIRED else ""
            self.join()
        elif isinstance(answer, JoinAnswer) and answer.error is ErrorCode.NONE:
            assert answer.member_id != self.member_id or answer.generation >= self.seen
            self.member_id = answer.member_id
            self.generation = self.seen = answer.generation
            self.waits_for = self.driver.send(
                Sync,
                member_id=self.member_id,
                generation=self.generation,
                instance_id=self.instance_id,
                assignments=self.assign([member.member_id for member in answer.members]),
            )
            self.take()
        elif isinstance(answer, SyncAnswer) and answer.error is ErrorCode.NONE:
            self.owned = to_places(read_assignment(answer.assignment), self.driver.cluster)
            self.is_in = True

    def heartbeat(self) -> None:
        if not self.is_in:
            self.join()
            return
        error = self.driver.ask(
            Heartbeat, member_id=self.member_id, generation=self.generation, instance_id=self.instance_id
        )
        if error is ErrorCode.NONE:
            self.heard_ms = self.driver.now
            return
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self.owned = NO_PARTITIONS
        self.is_in = False

    def lose_connection(self) -> None:
        if self.waits_for is not None:
            self.waits_for = None
            self.is_in = False

    def assign(self, members: list[str]) -> dict[str, bytes]:
        """What it decides when it leads: everyone in turn."""
        places = sorted(from_places(self.driver.places(self.topic), self.driver.cluster))
        return {
            member_id: write_assignment(places[index :: len(members)], 1) for index, member_id in enumerate(members)
        }
