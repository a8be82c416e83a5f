"""
The records of consumer groups of the new protocol (KIP-848) in `__consumer_offsets`, in Kafka's own format.

    key 3   group                       the group's epoch; its tombstone ends the group
    key 5   group, member id            what a member subscribes to
    key 6   group                       the epoch of the target assignment
    key 7   group, member id            a member's target assignment
    key 8   group, member id            a member's epochs, what it owns and what it must give up
    key 16  group, regular expression   the topics that a regular expression stands for

Keys are an int16 type and int16-length strings. Values are an int16 version (0) and Kafka's compact encoding. Source:
the ConsumerGroup*Key/Value.json of Kafka's group coordinator. Key 4 of Kafka before 4.1 is skipped: it is derived.
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from log_broker.core.groups.records import MalformedGroupRecordError

# Partitions of topics by id, which is 32 hex digits.
TopicIdPartition = tuple[str, int]
TopicIdPartitions = frozenset[TopicIdPartition]
NO_PARTITIONS: TopicIdPartitions = frozenset()

LEFT_EPOCH = -1
STATIC_LEFT_EPOCH = -2

T = TypeVar("T")

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_INT8 = struct.Struct(">b")


class RecordKind(IntEnum):
    """The type in a record's key."""

    GROUP = 3
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET_MEMBER = 7
    CURRENT_MEMBER = 8
    REGEX = 16


class MemberState(IntEnum):
    """Where a member stands on its way to its target assignment, by the number that is stored."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEpoch:
    """The group's epoch; `metadata_hash` stands for the subscribed topics as they were then."""

    epoch: int
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMetadata:
    """What a member that still speaks the classic protocol said when it joined."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a member said of itself. `classic` is None for a member of the new protocol."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMetadata | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentAssignment:
    """
    What a member owns: `assigned` it may read, `revoking` it must give up before anyone else gets it.

    A member whose answer was lost repeats its request with `previous_epoch`.
    """

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: TopicIdPartitions = NO_PARTITIONS
    revoking: TopicIdPartitions = NO_PARTITIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRegex:
    """The topics that a regular expression matched at `version` of the cluster's metadata."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


Value = GroupEpoch | Subscription | int | TopicIdPartitions | CurrentAssignment | ResolvedRegex


class ConsumerRecord(NamedTuple):
    """One change of a group. `name` is a member id or a regular expression, or empty; no value is a tombstone."""

    kind: RecordKind
    name: str
    value: Value | None


def encode(group_id: str, record: ConsumerRecord) -> tuple[bytes, bytes | None]:
    """Return the record's key and value."""
    key = _INT16.pack(record.kind) + _key_string(group_id)
    if record.kind not in {RecordKind.GROUP, RecordKind.TARGET_EPOCH}:
        key += _key_string(record.name)
    return key, None if record.value is None else _encode_value(record.value)


def decode(key: bytes, value: bytes | None) -> tuple[str, ConsumerRecord] | None:
    """Return the group and the change, None for a record that is not one of these; raises MalformedGroupRecordError."""
    reader = _Reader(key)
    try:
        try:
            kind = RecordKind(reader.number(_INT16))
        except ValueError:
            return None
        group_id = reader.key_string()
        name = "" if kind in {RecordKind.GROUP, RecordKind.TARGET_EPOCH} else reader.key_string()
        return group_id, ConsumerRecord(kind, name, None if value is None else _decode_value(kind, value))
    except (struct.error, ValueError, IndexError) as error:
        raise MalformedGroupRecordError(f"consumer group record {key[:100]!r}: {error}") from None


def _encode_value(value: Value) -> bytes:
    out = bytearray(_INT16.pack(0))
    match value:
        case GroupEpoch():
            out += _INT32.pack(value.epoch)
            _tags(out, {0: _INT64.pack(value.metadata_hash)} if value.metadata_hash else {})
        case Subscription():
            _encode_subscription(out, value)
        case int():
            out += _INT32.pack(value)
            _tags(out, {})
        case frozenset():
            _places(out, value)
            _tags(out, {})
        case CurrentAssignment():
            out += _INT32.pack(value.epoch) + _INT32.pack(value.previous_epoch) + _INT8.pack(value.state)
            _places(out, value.assigned)
            _places(out, value.revoking)
            _tags(out, {})
        case ResolvedRegex():
            _array(out, sorted(value.topics), _string)
            out += _INT64.pack(value.version) + _INT64.pack(value.timestamp_ms)
            _tags(out, {})
    return bytes(out)


def _encode_subscription(out: bytearray, value: Subscription) -> None:
    for text in (value.instance_id, value.rack_id, value.client_id, value.client_host):
        _string(out, text)
    _array(out, sorted(value.topics), _string)
    _string(out, value.regex)
    out += _INT32.pack(value.rebalance_timeout_ms)
    _string(out, value.assignor)
    tags = {}
    if value.classic is not None:
        # A nullable struct is a byte 1 and its fields.
        classic = bytearray(b"\x01" + _INT32.pack(value.classic.session_timeout_ms))
        _array(classic, value.classic.protocols, _protocol)
        _tags(classic, {})
        tags[0] = bytes(classic)
    _tags(out, tags)


def _protocol(out: bytearray, protocol: tuple[str, bytes]) -> None:
    _string(out, protocol[0])
    _varint(out, len(protocol[1]) + 1)
    out += protocol[1]
    _tags(out, {})


def _places(out: bytearray, places: Iterable[TopicIdPartition]) -> None:
    by_topic: dict[str, list[int]] = {}
    for topic_id, partition in sorted(places):
        by_topic.setdefault(topic_id, []).append(partition)

    def topic(out: bytearray, item: tuple[str, list[int]]) -> None:
        out += bytes.fromhex(item[0])
        _varint(out, len(item[1]) + 1)
        out += struct.pack(f">{len(item[1])}i", *item[1])
        _tags(out, {})

    _array(out, by_topic.items(), topic)


def _array(out: bytearray, items: "Iterable[T]", write: Callable[[bytearray, T], None]) -> None:
    items = list(items)
    _varint(out, len(items) + 1)
    for item in items:
        write(out, item)


def _string(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
        return
    raw = text.encode()
    _varint(out, len(raw) + 1)
    out += raw


def _tags(out: bytearray, tags: dict[int, bytes]) -> None:
    _varint(out, len(tags))
    for tag, content in tags.items():
        _varint(out, tag)
        _varint(out, len(content))
        out += content


def _varint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _key_string(text: str) -> bytes:
    raw = text.encode()
    return _INT16.pack(len(raw)) + raw


def _decode_value(kind: RecordKind, data: bytes) -> Value:
    reader = _Reader(data)
    version = reader.number(_INT16)
    if version != 0:
        raise ValueError(f"version {version}")
    match kind:
        case RecordKind.GROUP:
            epoch, tags = reader.number(_INT32), reader.tags()
            return GroupEpoch(epoch=epoch, metadata_hash=_INT64.unpack(tags[0])[0] if 0 in tags else 0)
        case RecordKind.MEMBER:
            return _decode_subscription(reader)
        case RecordKind.TARGET_EPOCH:
            return reader.number(_INT32)
        case RecordKind.TARGET_MEMBER:
            return reader.places()
        case RecordKind.CURRENT_MEMBER:
            return CurrentAssignment(
                epoch=reader.number(_INT32),
                previous_epoch=reader.number(_INT32),
                state=MemberState(reader.number(_INT8)),
                assigned=reader.places(),
                revoking=reader.places(),
            )
        case RecordKind.REGEX:
            topics = frozenset(reader.array(reader.string))
            return ResolvedRegex(topics=topics, version=reader.number(_INT64), timestamp_ms=reader.number(_INT64))


def _decode_subscription(reader: "_Reader") -> Subscription:
    subscription = Subscription(
        instance_id=reader.nullable_string(),
        rack_id=reader.nullable_string(),
        client_id=reader.string(),
        client_host=reader.string(),
        topics=frozenset(reader.array(reader.string)),
        regex=reader.nullable_string(),
        rebalance_timeout_ms=reader.number(_INT32),
        assignor=reader.nullable_string(),
    )
    tags = reader.tags()
    if not tags.get(0, b"\x00")[0]:
        return subscription
    inner = _Reader(tags[0][1:])

    def protocol() -> tuple[str, bytes]:
        content = inner.string(), inner.take(inner.varint() - 1)
        inner.tags()
        return content

    timeout_ms = inner.number(_INT32)
    classic = ClassicMetadata(session_timeout_ms=timeout_ms, protocols=tuple(inner.array(protocol)))
    return replace(subscription, classic=classic)


class _Reader:
    """Reads primitive values from the front on."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, layout: struct.Struct) -> int:
        value: int = layout.unpack_from(self._data, self._position)[0]
        self._position += layout.size
        return value

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise ValueError("a number of more than five bytes")

    def key_string(self) -> str:
        return self.take(self.number(_INT16)).decode()

    def nullable_string(self) -> str | None:
        length = self.varint()
        return None if length == 0 else self.take(length - 1).decode()

    def string(self) -> str:
        return self.nullable_string() or ""

    def array(self, item: Callable[[], Any]) -> list[Any]:
        return [item() for _ in range(self.varint() - 1)]

    def places(self) -> TopicIdPartitions:
        places: set[TopicIdPartition] = set()
        for _ in range(self.varint() - 1):
            topic_id = self.take(16).hex()
            count = self.varint() - 1
            places.update((topic_id, self.number(_INT32)) for _ in range(count))
            self.tags()
        return frozenset(places)

    def tags(self) -> dict[int, bytes]:
        found = {}
        for _ in range(self.varint()):
            tag = self.varint()
            found[tag] = self.take(self.varint())
        return found

    def take(self, length: int) -> bytes:
        taken = self._data[self._position : self._position + length]
        if length < 0 or len(taken) < length:
            raise ValueError(f"{length} bytes announced and {len(taken)} left")
        self._position += length
        return taken
