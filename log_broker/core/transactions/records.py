"""
The records of `__transaction_state`, in Kafka's own format, so that Kafka's tools read them.

    key      int16 version (0), transactional id
    value    int16 version (1), producer id int64, producer epoch int16, timeout ms int32, state int8,
             [topic, [partition int32]]?, last update ms int64, start ms int64,
             tagged: 0 previous producer id int64, 1 next producer id int64, 2 client's transaction version int16

Version 0 has no tagged fields, and strings and arrays with fixed lengths; version 1 has compact ones. A null value is a
tombstone. Source: TransactionLogKey.json and TransactionLogValue.json. Version 1 is written, both are read.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.varint import read_uvarint, write_uvarint

TopicPartition = tuple[str, int]

NO_ID = -1
NO_EPOCH = -1
NO_TIME = -1

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_FIRST = struct.Struct(">hqhib")  # version, producer id, epoch, timeout, state
_LAST = struct.Struct(">qq")  # last update, start
_KEY_VERSION = 0
_VALUE_VERSION = 1
_PREVIOUS_TAG, _NEXT_TAG, _CLIENT_TAG = 0, 1, 2


class TransactionState(IntEnum):
    """Kafka's states, under the numbers that its records have."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def label(self) -> str:
        """The name that clients and tools show."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """Whether it is decided how the transaction ends and the markers are on their way."""
        return self in {TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTransaction:
    """
    What is kept of one transactional id. `partitions` are those of the open transaction; times in ms since the epoch.

    `next_producer_id` replaces a producer id whose epochs are used up once the markers are written; `client_version` is
    2 where the epoch was raised at the end of the transaction (KIP-890).
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    last_update_ms: int = NO_TIME
    start_ms: int = NO_TIME
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    client_version: int = 0


class MalformedTransactionRecordError(BrokerError):
    """A record of `__transaction_state` is not in a format that this version knows."""

    def __init__(self, reason: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, reason)


def encode_transaction_key(transactional_id: str) -> bytes:
    """The key of a transactional id, as Kafka lays it out."""
    raw = transactional_id.encode()
    return _INT16.pack(_KEY_VERSION) + _INT16.pack(len(raw)) + raw


def decode_transaction_key(key: bytes) -> str | None:
    """Return the transactional id, None for a kind of record that is not ours; raises its error when malformed."""
    try:
        if _INT16.unpack_from(key)[0] != _KEY_VERSION:
            return None
        (length,) = _INT16.unpack_from(key, 2)
        if length < 0 or len(key) < 4 + length:
            raise ValueError(f"{length} bytes announced and {len(key) - 4} left")
        return key[4 : 4 + length].decode()
    except (struct.error, ValueError) as error:
        raise MalformedTransactionRecordError(f"key {key[:100]!r}: {error}") from None


def encode_transaction(value: StoredTransaction) -> bytes:
    """The value of a transactional id, as Kafka lays it out."""
    out = bytearray(_FIRST.pack(_VALUE_VERSION, value.producer_id, value.producer_epoch, value.timeout_ms, value.state))
    topics = by_topic(value.partitions)
    if value.state is TransactionState.EMPTY:
        out.append(0)  # null: there is no transaction yet
    else:
        write_uvarint(out, len(topics) + 1)
        for topic, partitions in topics:
            raw = topic.encode()
            write_uvarint(out, len(raw) + 1)
            out += raw
            write_uvarint(out, len(partitions) + 1)
            for partition in partitions:
                out += _INT32.pack(partition)
            out.append(0)
    out += _LAST.pack(value.last_update_ms, value.start_ms)
    tagged: list[tuple[int, bytes]] = []
    if value.previous_producer_id != NO_ID:
        tagged.append((_PREVIOUS_TAG, _INT64.pack(value.previous_producer_id)))
    if value.next_producer_id != NO_ID:
        tagged.append((_NEXT_TAG, _INT64.pack(value.next_producer_id)))
    if value.client_version:
        tagged.append((_CLIENT_TAG, _INT16.pack(value.client_version)))
    write_uvarint(out, len(tagged))
    for tag, content in tagged:
        write_uvarint(out, tag)
        write_uvarint(out, len(content))
        out += content
    return bytes(out)


def decode_transaction(value: bytes) -> StoredTransaction:
    """Read the value of a transactional id; raises MalformedTransactionRecordError."""
    try:
        version, producer_id, epoch, timeout_ms, state = _FIRST.unpack_from(value)
        if version not in {0, _VALUE_VERSION}:
            raise ValueError(f"version {version}")
        flexible = version >= 1
        partitions, position = _read_partitions(value, _FIRST.size, flexible=flexible)
        last_update_ms, start_ms = _LAST.unpack_from(value, position)
        tagged = _read_tagged(value, position + _LAST.size) if flexible else {}
        return StoredTransaction(
            producer_id=producer_id,
            producer_epoch=epoch,
            timeout_ms=timeout_ms,
            state=TransactionState(state),
            partitions=partitions,
            last_update_ms=last_update_ms,
            start_ms=start_ms,
            previous_producer_id=_INT64.unpack(tagged[_PREVIOUS_TAG])[0] if _PREVIOUS_TAG in tagged else NO_ID,
            next_producer_id=_INT64.unpack(tagged[_NEXT_TAG])[0] if _NEXT_TAG in tagged else NO_ID,
            client_version=_INT16.unpack(tagged[_CLIENT_TAG])[0] if _CLIENT_TAG in tagged else 0,
        )
    except (struct.error, ValueError, IndexError) as error:
        raise MalformedTransactionRecordError(f"transaction {value[:100]!r}: {error}") from None


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Group partitions by their topic, both in order."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return list(topics.items())


def _read_partitions(value: bytes, position: int, *, flexible: bool) -> tuple[frozenset[TopicPartition], int]:
    found: set[TopicPartition] = set()
    topics, position = _read_length(value, position, _INT32, flexible=flexible)
    for _ in range(topics):
        length, position = _read_length(value, position, _INT16, flexible=flexible)
        if length < 0 or position + length > len(value):
            raise ValueError(f"a name of {length} bytes is cut short")
        topic = value[position : position + length].decode()
        count, position = _read_length(value, position + length, _INT32, flexible=flexible)
        for _ in range(count):
            found.add((topic, _INT32.unpack_from(value, position)[0]))
            position += _INT32.size
        if flexible:
            position = _skip_tagged(value, position)
    return frozenset(found), position


def _read_length(value: bytes, position: int, layout: struct.Struct, *, flexible: bool) -> tuple[int, int]:
    if flexible:
        number, position = read_uvarint(value, position)
        return number - 1, position
    return layout.unpack_from(value, position)[0], position + layout.size


def _read_tagged(value: bytes, position: int) -> dict[int, bytes]:
    fields: dict[int, bytes] = {}
    count, position = read_uvarint(value, position)
    for _ in range(count):
        tag, position = read_uvarint(value, position)
        length, position = read_uvarint(value, position)
        if position + length > len(value):
            raise ValueError(f"a tagged field of {length} bytes is cut short")
        fields[tag] = value[position : position + length]
        position += length
    return fields


def _skip_tagged(value: bytes, position: int) -> int:
    count, position = read_uvarint(value, position)
    for _ in range(count):
        _, position = read_uvarint(value, position)
        length, position = read_uvarint(value, position)
        position += length
    return position
