"""
Produce, versions 0-12, read and written by hand: the records stay a view into the request, which the broker patches.

    request                                      response
    transactional id      string?   3+           [topic
    acks                  int16                     name        string
    timeout ms            int32                     [partition
    [topic                                             index, error code, base offset
       name               string                       log append time ms     int64    2+
       [partition                                      log start offset       int64    5+
          index           int32                        [record error: batch index, message string?]   8+
          records         bytes?                       error message          string?  8+
                                                 throttle time ms   int32   1+

Version 9 is flexible: compact strings and lengths, tagged fields at the end of each structure. Those of version 10 say
who leads now and are left out; 11 and 12 add no field, only what a transactional producer may be told (KIP-890).
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from log_broker.core.partition.protocol import AppendResult
from log_broker.records.varint import write_uvarint
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.leader_tags import NodeEndpoint, endpoint_tags, leader_tag
from log_broker.wire.reading import MalformedRequestError, Reader

VERSION_MAX = 12
FLEXIBLE_FROM = 9
LEADERS_FROM = 10  # who leads instead stands in tagged fields
_TRANSACTIONAL_ID_FROM = 3
_THROTTLE_FROM = 1
_APPEND_TIME_FROM = 2
_LOG_START_FROM = 5
_RECORD_ERRORS_FROM = 8

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_ACKS_TIMEOUT = struct.Struct(">hi")
_PARTITION_V0 = struct.Struct(">ihq")  # index, error code, base offset
_PARTITION_V2 = struct.Struct(">ihqq")  # and the log append time
_PARTITION_V5 = struct.Struct(">ihqqq")  # and the log start offset


class ProducedPartition(NamedTuple):
    """One partition's records; None where the request has a null."""

    partition: int
    records: memoryview | None


class ProducedTopic(NamedTuple):
    """One topic of a request; `name` as it stands there, in UTF-8."""

    name: bytes
    partitions: Sequence[ProducedPartition]


class ProduceRequest(NamedTuple):
    """A whole request."""

    transactional_id: bytes | None
    acks: int
    timeout_ms: int
    topics: Sequence[ProducedTopic]


class PartitionAnswer(NamedTuple):
    """One partition of the response."""

    partition: int
    result: AppendResult
    leader: tuple[int, int] | None = None  # (node id, leader epoch) of the one to ask instead


def parse_request(body: memoryview, version: int) -> ProduceRequest:
    """Read the request behind its header; raises MalformedRequestError."""
    reader = Reader(body, flexible=version >= FLEXIBLE_FROM, elements_max=APIS[ApiKey.PRODUCE].elements_max)
    try:
        transactional_id = reader.nullable_string() if version >= _TRANSACTIONAL_ID_FROM else None
        acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(body, reader.position)
        reader.position += _ACKS_TIMEOUT.size
        topics = []
        for _ in range(reader.array_length()):
            name = reader.string()
            partitions = []
            for _ in range(reader.array_length()):
                index = reader.int32()
                partitions.append(ProducedPartition(index, reader.nullable_bytes()))
                reader.tagged_fields()
            topics.append(ProducedTopic(name, partitions))
            reader.tagged_fields()
        reader.tagged_fields()
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedRequestError(f"Produce v{version}: {error}") from None
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def encode_response(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[bytes, Sequence[PartitionAnswer]]],
    endpoints: Sequence[NodeEndpoint] = (),
) -> bytearray:
    """Write the response with its header; leaders and `endpoints` only from version LEADERS_FROM on."""
    if version >= FLEXIBLE_FROM:
        return _encode_flexible(correlation_id, topics, endpoints)
    out = bytearray(_INT32.pack(correlation_id))
    out += _INT32.pack(len(topics))
    for name, partitions in topics:
        out += _INT16.pack(len(name))
        out += name
        out += _INT32.pack(len(partitions))
        for index, result, _ in partitions:
            if version >= _LOG_START_FROM:
                out += _PARTITION_V5.pack(
                    index, result.error, result.base_offset, result.log_append_time_ms, result.log_start_offset
                )
                if version >= _RECORD_ERRORS_FROM:
                    _encode_record_errors(out, result)
            elif version >= _APPEND_TIME_FROM:
                out += _PARTITION_V2.pack(index, result.error, result.base_offset, result.log_append_time_ms)
            else:
                out += _PARTITION_V0.pack(index, result.error, result.base_offset)
    if version >= _THROTTLE_FROM:
        out += b"\0\0\0\0"
    return out


def _encode_record_errors(out: bytearray, result: AppendResult) -> None:
    out += _INT32.pack(len(result.record_errors))
    for index, message in result.record_errors:
        out += _INT32.pack(index)
        text = _shortened(message)
        out += _INT16.pack(len(text))
        out += text
    if result.message is None:
        out += b"\xff\xff"
    else:
        text = _shortened(result.message)
        out += _INT16.pack(len(text))
        out += text


def _encode_flexible(
    correlation_id: int,
    topics: Sequence[tuple[bytes, Sequence[PartitionAnswer]]],
    endpoints: Sequence[NodeEndpoint],
) -> bytearray:
    out = bytearray(_INT32.pack(correlation_id))
    out.append(0)  # no tagged fields in the response header
    write_uvarint(out, len(topics) + 1)
    for name, partitions in topics:
        write_uvarint(out, len(name) + 1)
        out += name
        write_uvarint(out, len(partitions) + 1)
        for index, result, leader in partitions:
            out += _PARTITION_V5.pack(
                index, result.error, result.base_offset, result.log_append_time_ms, result.log_start_offset
            )
            write_uvarint(out, len(result.record_errors) + 1)
            for record_index, message in result.record_errors:
                out += _INT32.pack(record_index)
                _write_compact(out, message)
                out.append(0)
            _write_compact(out, result.message)
            out += b"\0" if leader is None else b"\x01" + leader_tag(0, leader)
        out.append(0)
    out += b"\0\0\0\0"  # throttle time
    out += endpoint_tags(endpoints) if endpoints else b"\0"
    return out


def _write_compact(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
        return
    encoded = _shortened(text)
    write_uvarint(out, len(encoded) + 1)
    out += encoded


def _shortened(text: str) -> bytes:
    """A string on the wire has at most 32767 bytes."""
    return text.encode()[:1000]
