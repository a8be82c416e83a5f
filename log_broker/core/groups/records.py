"""
The records of `__consumer_offsets`, in Kafka's own format, so that Kafka's tools read them.

    key, offset         int16 version (0 or 1), group, topic, partition int32
    value, offset       int16 version (3), offset int64, leader epoch int32, metadata, commit timestamp int64
    key, group          int16 version (2), group
    value, group        int16 version (3), protocol type, generation int32, protocol?, leader?, timestamp int64,
                        [member id, instance id?, client id, client host, rebalance and session timeout int32,
                         subscription bytes, assignment bytes]

Strings have an int16 length (-1 for null), bytes and arrays an int32. A null value is a tombstone. Source: Kafka's
OffsetCommitKey/Value.json and GroupMetadataKey/Value.json; older value versions are read, the above are written.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from log_broker.errors import BrokerError, ErrorCode

NO_TIMESTAMP = -1
UNKNOWN_EPOCH = -1

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_OFFSET_HEAD = struct.Struct(">hqih")  # version, offset, leader epoch, length of the metadata

_KEYS_KEPT = 2_000  # a reader commits the same partitions again and again

_OFFSET_KEY = 1
_GROUP_KEY = 2
_OFFSET_VALUE = 3
_GROUP_VALUE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetKey:
    """Names one committed offset."""

    group: str
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    """A committed offset: that of the next record to read. `timestamp_ms` is when it was committed."""

    offset: int
    metadata: str = ""
    leader_epoch: int = UNKNOWN_EPOCH
    timestamp_ms: int = NO_TIMESTAMP


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKey:
    """Names one group."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """A member of a stored group with what it was assigned."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A group as of its last finished rebalance; without members it is empty."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    timestamp_ms: int
    members: tuple[StoredMember, ...]


class MalformedGroupRecordError(BrokerError):
    """A record of `__consumer_offsets` is not in a format that this version knows."""

    def __init__(self, reason: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, reason)


@lru_cache(_KEYS_KEPT)
def encode_offset_key(group: str, topic: str, partition: int) -> bytes:
    """The key of a committed offset, as Kafka lays it out."""
    return _INT16.pack(_OFFSET_KEY) + _string(group) + _string(topic) + _INT32.pack(partition)


def encode_offset(value: CommittedOffset) -> bytes:
    """The value of a committed offset, as Kafka lays it out."""
    metadata = value.metadata.encode()
    head = _OFFSET_HEAD.pack(_OFFSET_VALUE, value.offset, value.leader_epoch, len(metadata))
    return head + metadata + _INT64.pack(value.timestamp_ms)


def encode_group_key(group: str) -> bytes:
    """The key of a group, as Kafka lays it out."""
    return _INT16.pack(_GROUP_KEY) + _string(group)


def encode_group(value: StoredGroup) -> bytes:
    """The value of a group with its members, as Kafka lays it out."""
    out = bytearray(_INT16.pack(_GROUP_VALUE))
    out += _string(value.protocol_type)
    out += _INT32.pack(value.generation)
    out += _string(value.protocol)
    out += _string(value.leader)
    out += _INT64.pack(value.timestamp_ms)
    out += _INT32.pack(len(value.members))
    for member in value.members:
        out += _string(member.member_id)
        out += _string(member.instance_id)
        out += _string(member.client_id)
        out += _string(member.client_host)
        out += _INT32.pack(member.rebalance_timeout_ms)
        out += _INT32.pack(member.session_timeout_ms)
        out += _bytes(member.subscription)
        out += _bytes(member.assignment)
    return bytes(out)


def decode_key(key: bytes) -> OffsetKey | GroupKey | None:
    """Return what a record is about, None for a kind that is not ours; raises MalformedGroupRecordError."""
    cursor = _Cursor(key)
    try:
        version = cursor.int16()
        if version in {0, _OFFSET_KEY}:
            return OffsetKey(group=cursor.string(), topic=cursor.string(), partition=cursor.int32())
        if version == _GROUP_KEY:
            return GroupKey(group=cursor.string())
    except (struct.error, ValueError) as error:
        raise MalformedGroupRecordError(f"key {key[:100]!r}: {error}") from None
    return None


def decode_offset(value: bytes) -> CommittedOffset:
    """Read the value of an offset; raises MalformedGroupRecordError."""
    cursor = _Cursor(value)
    try:
        version = cursor.int16()
        if not 0 <= version <= _OFFSET_VALUE:
            raise ValueError(f"version {version}")
        offset = cursor.int64()
        leader_epoch = cursor.int32() if version >= 3 else UNKNOWN_EPOCH
        metadata = cursor.string()
        return CommittedOffset(offset=offset, metadata=metadata, leader_epoch=leader_epoch, timestamp_ms=cursor.int64())
    except (struct.error, ValueError) as error:
        raise MalformedGroupRecordError(f"offset {value[:100]!r}: {error}") from None


def decode_group(value: bytes) -> StoredGroup:
    """Read the value of a group; raises MalformedGroupRecordError."""
    cursor = _Cursor(value)
    try:
        version = cursor.int16()
        if not 0 <= version <= _GROUP_VALUE:
            raise ValueError(f"version {version}")
        return StoredGroup(
            protocol_type=cursor.string(),
            generation=cursor.int32(),
            protocol=cursor.nullable_string(),
            leader=cursor.nullable_string(),
            timestamp_ms=cursor.int64() if version >= 2 else NO_TIMESTAMP,
            members=tuple(_decode_member(cursor, version) for _ in range(cursor.int32())),
        )
    except (struct.error, ValueError) as error:
        raise MalformedGroupRecordError(f"group {value[:100]!r}: {error}") from None


def _decode_member(cursor: "_Cursor", version: int) -> StoredMember:
    member_id = cursor.string()
    instance_id = cursor.nullable_string() if version >= 3 else None
    client_id = cursor.string()
    client_host = cursor.string()
    rebalance_timeout_ms = cursor.int32() if version >= 1 else -1
    session_timeout_ms = cursor.int32()
    return StoredMember(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=rebalance_timeout_ms if version >= 1 else session_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=cursor.blob(),
        assignment=cursor.blob(),
    )


class _Cursor:
    """Reads primitive values from the front on."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def string(self) -> str:
        return self.nullable_string() or ""

    def nullable_string(self) -> str | None:
        length = self.int16()
        return None if length < 0 else self._take(length).decode()

    def blob(self) -> bytes:
        length = self.int32()
        return b"" if length < 0 else self._take(length)

    def _number(self, layout: struct.Struct) -> int:
        value: int = layout.unpack_from(self._data, self._position)[0]
        self._position += layout.size
        return value

    def _take(self, length: int) -> bytes:
        taken = self._data[self._position : self._position + length]
        if len(taken) < length:
            raise ValueError(f"{length} bytes announced and {len(taken)} left")
        self._position += length
        return taken


def _string(text: str | None) -> bytes:
    if text is None:
        return _INT16.pack(-1)
    raw = text.encode()
    return _INT16.pack(len(raw)) + raw


def _bytes(raw: bytes) -> bytes:
    return _INT32.pack(len(raw)) + raw
