"""
Fetch, versions 4-17, read and written by hand: the response carries the log's bytes as they are.

    request                                      response
    replica id            int32                  throttle time ms        int32
    max wait ms           int32                  error code              int16    7+
    min bytes             int32                  session id              int32    7+
    max bytes             int32                  [topic
    isolation level       int8                      name
    session id, epoch     int32    7+               [partition
    [topic                                             index             int32
       name                                            error code        int16
       [partition                                      high watermark    int64
          index                 int32                  last stable       int64
          current leader epoch  int32   9+             log start offset  int64    5+
          fetch offset          int64                  [aborted transaction: producer id, first offset]?
          last fetched epoch    int32   12+            preferred replica int32    11+
          log start offset      int64   5+             records           bytes?
          partition max bytes   int32
    [forgotten topic: name, [index]]    7+
    rack id               string   11+

Version 12 is flexible. From 13 on the 16 bytes of a topic's id stand in place of its name, and from 15 on there is no
replica id in front (KIP-516, KIP-903): a replica names itself and its broker epoch in a tagged field, and is told of a
divergence in one (`replica_fetch`). Who leads instead of the broker that was asked is told everybody (KIP-951).
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from log_broker.core.fetch.session import FINAL_EPOCH, NO_SESSION, FetchedPartition, FetchedTopic, ForgottenTopic
from log_broker.errors import ErrorCode
from log_broker.records.stored import Chunk
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.leader_tags import NodeEndpoint, endpoint_tags, leader_tag
from log_broker.wire.reading import MalformedRequestError, Reader
from log_broker.wire.writing import write_count, write_name

VERSION_MIN = 4
VERSION_MAX = 18
FLEXIBLE_FROM = 12
SESSION_FROM = 7
_LOG_START_FROM = 5
_LEADER_EPOCH_FROM = 9
_RACK_FROM = 11
EMPTY_FROM = 11  # versions that `encode_empty` writes
TOPIC_IDS_FROM = 13
_NO_REPLICA_FROM = 15  # the replica id became a tagged field, which a client does not send
TOPIC_ID_BYTES = 16

ENDPOINTS_FROM = 16  # and with them the leader of each partition that is led elsewhere
_REPLICA_STATE_TAG = 1
_REPLICA_STATE = struct.Struct(">iq")  # replica id, broker epoch

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_LIMITS = struct.Struct(">iiiib")  # replica id, max wait, min bytes, max bytes, isolation level
_LIMITS_WITHOUT_REPLICA = struct.Struct(">iiib")
NO_REPLICA = -1
_SESSION = struct.Struct(">ii")
_PARTITION = {
    4: struct.Struct(">iqi"),  # index, fetch offset, max bytes
    5: struct.Struct(">iq8xi"),  # and the follower's log start
    9: struct.Struct(">iiq8xi"),  # and the leader epoch
    12: struct.Struct(">iiqiqix"),  # and the last fetched epoch; behind it the number of tagged fields
}
_LAYOUT_OF = {
    version: _PARTITION[max(least for least in _PARTITION if least <= version)]
    for version in range(VERSION_MIN, VERSION_MAX + 1)
}
_ABORTED = struct.Struct(">qq")
_DIVERGING = struct.Struct(">iq")  # epoch, its end offset
_ANSWER_V4 = struct.Struct(">ihqq")
_ANSWER_V5 = struct.Struct(">ihqqq")
# As above, then the number of aborted transactions, the preferred replica, the records and, last, the tagged fields.
_EMPTY_V11 = struct.Struct(">ihqqqiii")
_EMPTY_V12 = struct.Struct(">ihqqqBiBB")


class FetchRequest(NamedTuple):
    """A whole request."""

    replica_id: int
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: Sequence[FetchedTopic]
    forgotten: Sequence[ForgottenTopic]
    rack: bytes = b""
    broker_epoch: int = -1


class PartitionData(NamedTuple):
    """One partition of the response."""

    partition: int
    error: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: Sequence[Chunk]
    aborted: Sequence[tuple[int, int]] = ()  # (producer id, first offset)
    preferred_replica: int = -1
    leader: tuple[int, int] | None = None  # (node id, leader epoch) of the one to ask instead
    diverging: tuple[int, int] | None = None  # (epoch, its end offset), for a replica


def parse_request(body: memoryview, version: int) -> FetchRequest:
    """Read the request behind its header; raises MalformedRequestError."""
    reader = Reader(body, flexible=version >= FLEXIBLE_FROM, elements_max=APIS[ApiKey.FETCH].elements_max)
    try:
        if version >= _NO_REPLICA_FROM:
            limits = (NO_REPLICA, *_LIMITS_WITHOUT_REPLICA.unpack_from(body))
            reader.position = _LIMITS_WITHOUT_REPLICA.size
        else:
            limits = _LIMITS.unpack_from(body)
            reader.position = _LIMITS.size
        session_id, session_epoch = NO_SESSION, FINAL_EPOCH
        if version >= SESSION_FROM:
            session_id, session_epoch = _SESSION.unpack_from(body, reader.position)
            reader.position += _SESSION.size
        topics = [_parse_topic(reader, body, version) for _ in range(reader.array_length())]
        forgotten: Sequence[ForgottenTopic] = ()
        if version >= SESSION_FROM and (count := reader.array_length()):
            forgotten = [_parse_forgotten(reader, body, version) for _ in range(count)]
        rack = reader.string() if version >= _RACK_FROM else b""
        replica = None
        if version >= _NO_REPLICA_FROM and body[reader.position]:
            replica = _parse_replica_state(reader)
        else:
            reader.tagged_fields()
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedRequestError(f"Fetch v{version}: {error}") from None
    replica_id, wait_ms_max, bytes_min, bytes_max, isolation_level = limits
    broker_epoch = -1
    if replica is not None:
        replica_id, broker_epoch = replica
    return FetchRequest(
        replica_id,
        wait_ms_max,
        bytes_min,
        bytes_max,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack,
        broker_epoch,
    )


def _parse_replica_state(reader: Reader) -> tuple[int, int] | None:
    """Read the tagged fields behind a request; return the replica's id and broker epoch if they are among them."""
    found = None
    for tag, content in reader.read_tagged_fields():
        if tag == _REPLICA_STATE_TAG:
            found = _REPLICA_STATE.unpack_from(content)
    return found


def _parse_name(reader: Reader, body: memoryview, version: int) -> bytes:
    """Read what stands for a topic: its name, or from version 13 on the 16 bytes of its id."""
    if version < TOPIC_IDS_FROM:
        return reader.string()
    topic_id = bytes(body[reader.position : reader.position + TOPIC_ID_BYTES])
    if len(topic_id) < TOPIC_ID_BYTES:
        raise ValueError("a topic id is cut short")
    reader.position += TOPIC_ID_BYTES
    return topic_id


def _parse_topic(reader: Reader, body: memoryview, version: int) -> FetchedTopic:
    name = _parse_name(reader, body, version)
    count = reader.array_length()
    start = reader.position
    layout = _LAYOUT_OF[version]
    end = start + count * layout.size
    if end > len(body):
        raise ValueError(f"{count} partitions in {len(body) - start} bytes")
    if version < FLEXIBLE_FROM:
        reader.position = end
        found = layout.iter_unpack(body[start:end])
        if version >= _LEADER_EPOCH_FROM:
            return FetchedTopic(
                name, [FetchedPartition(at, epoch, offset, -1, -1, size) for at, epoch, offset, size in found]
            )
        return FetchedTopic(name, [FetchedPartition(at, -1, offset, -1, -1, size) for at, offset, size in found])
    # The byte behind each is the number of its tagged fields, of which clients have none.
    if not any(body[start + layout.size - 1 : end : layout.size]):
        partitions = list(map(FetchedPartition._make, layout.iter_unpack(body[start:end])))
        reader.position = end
    else:
        partitions = [_parse_tagged(reader, body) for _ in range(count)]
    reader.tagged_fields()
    return FetchedTopic(name, partitions)


def _parse_tagged(reader: Reader, body: memoryview) -> FetchedPartition:
    layout = _PARTITION[12]
    asked = FetchedPartition._make(layout.unpack_from(body, reader.position))
    reader.position += layout.size - 1
    reader.tagged_fields()
    return asked


def _parse_forgotten(reader: Reader, body: memoryview, version: int) -> ForgottenTopic:
    name = _parse_name(reader, body, version)
    count = reader.array_length()
    partitions = struct.unpack_from(f">{count}i", body, reader.position)
    reader.position += 4 * count
    reader.tagged_fields()
    return ForgottenTopic(name, partitions)


def encode_response(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[bytes, Sequence[PartitionData | bytes]]],
    *,
    error: ErrorCode = ErrorCode.NONE,
    session_id: int = NO_SESSION,
    endpoints: Sequence[NodeEndpoint] = (),
) -> list[Chunk]:
    """
    Write the response with its header, as buffers to be sent one behind the other: records are not copied.

    Bytes stand for a partition that `encode_empty` has written.
    """
    flexible = version >= FLEXIBLE_FROM
    no_tags = b"\0" if flexible else b""
    chunks: list[Chunk] = []
    out = bytearray(_INT32.pack(correlation_id))
    out += no_tags
    out += b"\0\0\0\0"  # throttle time
    if version >= SESSION_FROM:
        out += _INT16.pack(error)
        out += _INT32.pack(session_id)
    write_count(out, len(topics), flexible=flexible)
    for name, partitions in topics:
        if version < TOPIC_IDS_FROM:
            write_name(out, name, flexible=flexible)
        else:
            out += name
        write_count(out, len(partitions), flexible=flexible)
        for data in partitions:
            if isinstance(data, bytes):
                out += data
                continue
            size = sum(map(len, data.records))
            _write_partition(out, data, size, version)
            if size:
                chunks.append(out)
                chunks.extend(data.records)
                out = bytearray()
            out += no_tags if data[8] is None and data[9] is None else _partition_tags(data, version)
        out += no_tags
    out += endpoint_tags(endpoints) if endpoints and version >= ENDPOINTS_FROM else no_tags
    if out:
        chunks.append(out)
    return chunks


def encode_empty(
    partition: int, high_watermark: int, last_stable_offset: int, log_start_offset: int, *, flexible: bool
) -> bytes:
    """Write a partition of a response in which there is nothing to read, from version 11 on."""
    if flexible:
        return _EMPTY_V12.pack(partition, 0, high_watermark, last_stable_offset, log_start_offset, 1, -1, 1, 0)
    return _EMPTY_V11.pack(partition, 0, high_watermark, last_stable_offset, log_start_offset, 0, -1, 0)


def _write_partition(out: bytearray, data: PartitionData, size: int, version: int) -> None:
    """Write everything up to the records, of which only the length is written here."""
    if version >= _LOG_START_FROM:
        out += _ANSWER_V5.pack(*data[:5])
    else:
        out += _ANSWER_V4.pack(*data[:4])
    flexible = version >= FLEXIBLE_FROM
    write_count(out, len(data.aborted), flexible=flexible)
    for producer_id, first_offset in data.aborted:
        out += _ABORTED.pack(producer_id, first_offset)
        if flexible:
            out.append(0)
    if version >= _RACK_FROM:
        out += _INT32.pack(data.preferred_replica)
    write_count(out, size, flexible=flexible)


def _partition_tags(data: PartitionData, version: int) -> bytes:
    if version < FLEXIBLE_FROM:
        return b""
    tags = []
    if data.diverging is not None:
        tags.append(b"\x00\x0d" + _DIVERGING.pack(*data.diverging) + b"\0")
    if data.leader is not None and version >= ENDPOINTS_FROM:
        tags.append(leader_tag(1, data.leader))
    return bytes((len(tags),)) + b"".join(tags)
