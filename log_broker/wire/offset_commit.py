"""
OffsetCommit, versions 2-9, read and written by hand: a consumer may send one after each poll.

    request                                       response
    group id                                      throttle time ms        int32   3+
    generation or member epoch  int32             [topic
    member id                                        name
    group instance id           string?  7+          [partition
    retention time ms           int64    2-4            index             int32
    [topic                                              error code        int16
       name
       [partition
          index                 int32
          committed offset      int64
          committed leader epoch  int32  6+
          metadata              string?

Version 8 is flexible. Fields have the names that `control` gives them in other messages.
"""

import struct
from dataclasses import dataclass

from log_broker.wire.messages import Values
from log_broker.wire.reading import Reader
from log_broker.wire.writing import write_count, write_name

FLEXIBLE_FROM = 8
_THROTTLE_FROM = 3
_RETENTION_TO = 4
_LEADER_EPOCH_FROM = 6
_INSTANCE_FROM = 7

_INT32 = struct.Struct(">i")
_PLACE = struct.Struct(">iq")  # index, committed offset
_PLACE_V6 = struct.Struct(">iqi")  # and the leader epoch
_PLACE_USUAL = struct.Struct(">iqiH")  # and the metadata with the tagged fields behind it
_EMPTY = 0x0100  # an empty string and no tagged fields
_ANSWER = struct.Struct(">ih")
_ANSWER_FLEXIBLE = struct.Struct(">ihx")


@dataclass(slots=True)
class CommittedPartition:
    """How far one partition has been read."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None


@dataclass(slots=True)
class CommittedTopic:
    """Some partitions of a topic."""

    name: str
    partitions: tuple[CommittedPartition, ...]


@dataclass(slots=True)
class OffsetCommitRequest:
    """A whole request."""

    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    group_instance_id: str | None
    topics: tuple[CommittedTopic, ...]


def read(body: memoryview, version: int, elements_max: int) -> tuple[OffsetCommitRequest, int]:
    """Read a request behind its header, and count the elements of its arrays; errors are those of `Reader`."""
    reader = Reader(body, flexible=version >= FLEXIBLE_FROM, elements_max=elements_max)
    group_id = reader.string().decode()
    generation = reader.int32()
    member_id = reader.string().decode()
    instance_id = reader.nullable_string() if version >= _INSTANCE_FROM else None
    if version <= _RETENTION_TO:
        reader.int64()
    topics = tuple([_read_topic(reader, body, version) for _ in range(reader.array_length())])
    reader.tagged_fields()
    instance = None if instance_id is None else instance_id.decode()
    return OffsetCommitRequest(group_id, generation, member_id, instance, topics), reader.elements


def _read_topic(reader: Reader, body: memoryview, version: int) -> CommittedTopic:
    name = reader.string().decode()
    count = reader.array_length()
    partitions = _read_usual(reader, body, count) if version >= FLEXIBLE_FROM else None
    if partitions is None:
        partitions = tuple([_read_partition(reader, version) for _ in range(count)])
    reader.tagged_fields()
    return CommittedTopic(name, partitions)


def _read_usual(reader: Reader, body: memoryview, count: int) -> tuple[CommittedPartition, ...] | None:
    """Read partitions without metadata, as most are; None where one has some."""
    end = reader.position + count * _PLACE_USUAL.size
    if end > len(body):
        return None
    found = list(_PLACE_USUAL.iter_unpack(body[reader.position : end]))
    if any(rest != _EMPTY for _, _, _, rest in found):
        return None
    reader.position = end
    return tuple([CommittedPartition(index, offset, epoch, "") for index, offset, epoch, _ in found])


def _read_partition(reader: Reader, version: int) -> CommittedPartition:
    if version >= _LEADER_EPOCH_FROM:
        index, offset, epoch = reader.numbers(_PLACE_V6)
    else:
        (index, offset), epoch = reader.numbers(_PLACE), -1
    metadata = reader.nullable_string()
    reader.tagged_fields()
    return CommittedPartition(index, offset, epoch, None if metadata is None else metadata.decode())


def write(out: bytearray, version: int, values: Values) -> None:
    """Append a response behind its header."""
    flexible = version >= FLEXIBLE_FROM
    answer = _ANSWER_FLEXIBLE if flexible else _ANSWER
    no_tags = b"\0" if flexible else b""
    if version >= _THROTTLE_FROM:
        out += _INT32.pack(values.get("throttle_time", 0))
    topics = values["topics"]
    write_count(out, len(topics), flexible=flexible)
    for topic in topics:
        partitions = topic["partitions"]
        write_name(out, topic["name"].encode(), flexible=flexible)
        write_count(out, len(partitions), flexible=flexible)
        for partition in partitions:
            out += answer.pack(partition["partition_index"], partition["error_code"])
        out += no_tags
    out += no_tags
