"""
ListOffsets, versions 1-10, read and written by hand.

    request                                      response
    replica id            int32                  throttle time ms      int32   2+
    isolation level       int8    2+             [topic
    [topic                                          name
       name                                         [partition
       [partition                                      index           int32
          index                 int32                  error code      int16
          current leader epoch  int32   4+             timestamp       int64
          timestamp             int64                  offset          int64
                                                       leader epoch    int32   4+

Version 6 is flexible. Versions 7, 8 and 9 add the timestamps -3 (the record with the largest one), -4 (the first one on
the broker's own disk) and -5 (the last one in remote storage). Version 10 adds, at the end of the request, how long the
client waits for an answer from there: int32 ms.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from log_broker.errors import ErrorCode
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.reading import MalformedRequestError, Reader
from log_broker.wire.writing import write_count, write_name

VERSION_MIN = 1
VERSION_MAX = 10
FLEXIBLE_FROM = 6
_ISOLATION_FROM = 2
_THROTTLE_FROM = 2
_LEADER_EPOCH_FROM = 4
_TIMEOUT_FROM = 10

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
# The version with which each special timestamp came; an older request cannot mean it.
SINCE = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}

_INT32 = struct.Struct(">i")
_ANSWER_V1 = struct.Struct(">ihqq")
_ANSWER_V4 = struct.Struct(">ihqqi")


class AskedPartition(NamedTuple):
    """What a request asks of one partition; negative timestamps are the constants above."""

    partition: int
    leader_epoch: int
    timestamp: int


class ListOffsetsRequest(NamedTuple):
    """A whole request; topic names as they stand there, in UTF-8."""

    isolation_level: int
    topics: Sequence[tuple[bytes, Sequence[AskedPartition]]]


class FoundPartition(NamedTuple):
    """One partition of the response; -1 for what is not known."""

    partition: int
    error: ErrorCode
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


def parse_request(body: memoryview, version: int) -> ListOffsetsRequest:
    """Read the request behind its header; raises MalformedRequestError."""
    reader = Reader(body, flexible=version >= FLEXIBLE_FROM, elements_max=APIS[ApiKey.LIST_OFFSETS].elements_max)
    try:
        reader.int32()  # replica id
        isolation_level = reader.int8() if version >= _ISOLATION_FROM else 0
        topics = []
        for _ in range(reader.array_length()):
            name = reader.string()
            partitions = []
            for _ in range(reader.array_length()):
                partition = reader.int32()
                epoch = reader.int32() if version >= _LEADER_EPOCH_FROM else -1
                partitions.append(AskedPartition(partition, epoch, reader.int64()))
                reader.tagged_fields()
            topics.append((name, partitions))
            reader.tagged_fields()
        if version >= _TIMEOUT_FROM:
            reader.int32()
        reader.tagged_fields()
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedRequestError(f"ListOffsets v{version}: {error}") from None
    return ListOffsetsRequest(isolation_level, topics)


def encode_response(
    correlation_id: int, version: int, topics: Sequence[tuple[bytes, Sequence[FoundPartition]]]
) -> bytearray:
    """Write the response with its header."""
    flexible = version >= FLEXIBLE_FROM
    no_tags = b"\0" if flexible else b""
    out = bytearray(_INT32.pack(correlation_id))
    out += no_tags
    if version >= _THROTTLE_FROM:
        out += b"\0\0\0\0"
    write_count(out, len(topics), flexible=flexible)
    for name, partitions in topics:
        write_name(out, name, flexible=flexible)
        write_count(out, len(partitions), flexible=flexible)
        for found in partitions:
            out += _ANSWER_V4.pack(*found) if version >= _LEADER_EPOCH_FROM else _ANSWER_V1.pack(*found[:4])
            out += no_tags
        out += no_tags
    out += no_tags
    return out
