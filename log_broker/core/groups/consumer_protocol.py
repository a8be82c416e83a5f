"""
What members of classic consumer groups say inside JoinGroup and SyncGroup: subscriptions and assignments.

The group's coordinator passes these bytes on unread, except to know which topics a group reads, and when members of the
classic and of the new protocol share a group. Source: Kafka's ConsumerProtocolSubscription/Assignment.json; a version
that is newer than we know begins like the last one we know.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from log_broker.core.groups.protocol import TopicPartition

CONSUMER_PROTOCOL = "consumer"
_VERSION_MAX = 3


class MalformedSubscriptionError(Exception):
    """A member's bytes are not a subscription or an assignment of the consumer protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSubscription:
    """What a member subscribes to and, from version 1 on, what it owns."""

    version: int
    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    rack_id: str | None = None


def read_subscription(data: bytes) -> ClassicSubscription:
    """Read a member's metadata; raises MalformedSubscriptionError."""
    reader = _Reader(data)
    version = reader.number(">h")
    topics = frozenset(reader.strings())
    reader.blob()
    owned: frozenset[TopicPartition] = frozenset()
    rack_id = None
    if version >= 1:
        owned = reader.partitions()
    if version >= 2:
        reader.number(">i")
    if version >= 3:
        rack_id = reader.nullable_string()
    return ClassicSubscription(version=version, topics=topics, owned=owned, rack_id=rack_id)


def subscribed_topics(data: bytes) -> frozenset[str] | None:
    """Return only the topics, which stand alike in every version; None when they cannot be read."""
    try:
        reader = _Reader(data)
        reader.number(">h")
        return frozenset(reader.strings())
    except MalformedSubscriptionError:
        return None


def read_assignment(data: bytes) -> frozenset[TopicPartition]:
    """Read what a leader assigned; no bytes are no partitions. Raises MalformedSubscriptionError."""
    if not data:
        return frozenset()
    reader = _Reader(data)
    reader.number(">h")
    return reader.partitions()


def write_assignment(places: Iterable[TopicPartition], version: int) -> bytes:
    """Write an assignment in a member's own version, as far as we know it."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        by_topic.setdefault(topic, []).append(partition)
    out = bytearray(struct.pack(">hi", min(version, _VERSION_MAX), len(by_topic)))
    for topic, partitions in by_topic.items():
        raw = topic.encode()
        out += struct.pack(">h", len(raw)) + raw
        out += struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return bytes(out + struct.pack(">i", -1))


class _Reader:
    """Reads primitive values from the front on; raises MalformedSubscriptionError at the end of the data."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, layout: str) -> int:
        return int(struct.unpack(layout, self._take(struct.calcsize(layout)))[0])

    def nullable_string(self) -> str | None:
        length = self.number(">h")
        if length < 0:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise MalformedSubscriptionError(str(error)) from None

    def strings(self) -> list[str]:
        return [self.nullable_string() or "" for _ in range(self._count())]

    def blob(self) -> None:
        self._take(max(self.number(">i"), 0))

    def partitions(self) -> frozenset[TopicPartition]:
        found: set[TopicPartition] = set()
        for _ in range(self._count()):
            topic = self.nullable_string() or ""
            found.update((topic, self.number(">i")) for _ in range(self._count()))
        return frozenset(found)

    def _count(self) -> int:
        return max(self.number(">i"), 0)

    def _take(self, length: int) -> bytes:
        taken = self._data[self._position : self._position + length]
        if len(taken) < length:
            raise MalformedSubscriptionError(f"{length} bytes wanted and {len(taken)} left")
        self._position += length
        return taken
