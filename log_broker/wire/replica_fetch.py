"""
Fetch version 17 as our own nodes speak it among each other: the replica's side written and read by hand.

The leader's side is that of every client, in `fetch`; here is what of it concerns replicas only. In an answer to a
replica, the end of the leader's log stands where a consumer finds the last stable offset. Layouts: see `fetch`.
"""

import struct
from collections.abc import Sequence

from log_broker.core.fetch.replica_messages import (
    Diverging,
    FetchFrom,
    ReplicaAnswer,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
)
from log_broker.core.fetch.session import NO_SESSION
from log_broker.errors import ErrorCode
from log_broker.records.stored import Chunk
from log_broker.records.varint import read_uvarint, write_uvarint
from log_broker.wire.apis import ApiKey
from log_broker.wire.fetch import TOPIC_ID_BYTES, FetchRequest, PartitionData, encode_response
from log_broker.wire.leader_tags import NodeEndpoint
from log_broker.wire.reading import MalformedRequestError, Reader

VERSION = 17
CLIENT_ID = b"replica"

_HEADER = struct.Struct(">hhih")  # api key, version, correlation id, length of the client id
_LIMITS = struct.Struct(">iiibii")  # max wait, min bytes, max bytes, isolation level, session id and epoch
_PARTITION = struct.Struct(">iiqiqi")  # index, leader epoch, fetch offset, last fetched epoch, log start, max bytes
_INDEX = struct.Struct(">i")
# No rack, and one tagged field: number 1, of 13 bytes, with the replica's id, its broker epoch and no tags in it.
_TRAILER = struct.Struct(">4siqx")
_RESPONSE_HEADER = struct.Struct(">ihi")  # throttle time, error, session id
_ANSWER = struct.Struct(">ihqqq")  # index, error, high watermark, log end (last stable) offset, log start offset
_DIVERGING = struct.Struct(">iq")
_LEADER = struct.Struct(">ii")
_DIVERGING_TAG = 0
_LEADER_TAG = 1
_ABORTED_BYTES = 17
_PREFERRED_BYTES = 4


def encode_request(correlation_id: int, request: ReplicaFetchRequest) -> bytearray:
    """Write a request with its header, without the length before it."""
    out = bytearray(_HEADER.pack(ApiKey.FETCH, VERSION, correlation_id, len(CLIENT_ID)))
    out += CLIENT_ID
    out.append(0)
    out += _LIMITS.pack(
        request.wait_ms_max, request.bytes_min, request.bytes_max, 0, request.session_id, request.session_epoch
    )
    by_topic: dict[bytes, list[FetchFrom]] = {}
    for asked in request.partitions:
        by_topic.setdefault(asked.place[0], []).append(asked)
    write_uvarint(out, len(by_topic) + 1)
    for topic_id, partitions in by_topic.items():
        out += topic_id
        write_uvarint(out, len(partitions) + 1)
        for (_, index), leader_epoch, offset, last_epoch, log_start, bytes_max in partitions:
            out += _PARTITION.pack(index, leader_epoch, offset, last_epoch, log_start, bytes_max)
            out.append(0)
        out.append(0)
    forgotten: dict[bytes, list[int]] = {}
    for topic_id, index in request.forgotten:
        forgotten.setdefault(topic_id, []).append(index)
    write_uvarint(out, len(forgotten) + 1)
    for topic_id, indexes in forgotten.items():
        out += topic_id
        write_uvarint(out, len(indexes) + 1)
        for index in indexes:
            out += _INDEX.pack(index)
        out.append(0)
    out += _TRAILER.pack(b"\x01\x01\x01\x0d", request.replica_id, request.broker_epoch)
    return out


def replica_request(request: FetchRequest) -> ReplicaFetchRequest:
    """Return what a replica asks in a request that `fetch.parse_request` has read."""
    partitions = [
        FetchFrom(
            (topic.name, asked.partition),
            asked.leader_epoch,
            asked.offset,
            asked.last_fetched_epoch,
            asked.log_start_offset,
            asked.bytes_max,
        )
        for topic in request.topics
        for asked in topic.partitions
    ]
    forgotten = [(topic.name, index) for topic in request.forgotten for index in topic.partitions]
    return ReplicaFetchRequest(
        request.replica_id,
        request.broker_epoch,
        request.wait_ms_max,
        request.bytes_min,
        request.bytes_max,
        request.session_id,
        request.session_epoch,
        partitions,
        forgotten,
    )


def encode_replica_response(
    correlation_id: int, response: ReplicaFetchResponse, endpoints: Sequence[NodeEndpoint] = ()
) -> list[Chunk]:
    """Write an answer with its header; records are not copied."""
    topics: dict[bytes, list[PartitionData]] = {}
    for answer in response.answers:
        (topic_id, index), error, high_watermark, log_end, log_start, records, diverging, leader = answer
        data = PartitionData(index, error, high_watermark, log_end, log_start, records, (), -1, leader, diverging)
        topics.setdefault(topic_id, []).append(data)
    return encode_response(
        correlation_id,
        VERSION,
        list(topics.items()),
        error=response.error,
        session_id=response.session_id,
        endpoints=endpoints,
    )


def parse_response(body: memoryview) -> ReplicaFetchResponse:
    """Read an answer from behind its correlation id on; its records are views. Raises MalformedRequestError."""
    try:
        return _parse_response(body)
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedRequestError(f"an answer to Fetch v{VERSION}: {error}") from None


def _parse_response(body: memoryview) -> ReplicaFetchResponse:
    reader = Reader(body, flexible=True)
    reader.tagged_fields()
    _, error, session_id = _RESPONSE_HEADER.unpack_from(body, reader.position)
    reader.position += _RESPONSE_HEADER.size
    answers: list[ReplicaAnswer] = []
    for _ in range(reader.array_length()):
        topic_id = bytes(body[reader.position : reader.position + TOPIC_ID_BYTES])
        reader.position += TOPIC_ID_BYTES
        for _ in range(reader.array_length()):
            answers.append(_parse_answer(reader, body, topic_id))
        reader.tagged_fields()
    reader.tagged_fields()
    return ReplicaFetchResponse(answers, session_id if error == ErrorCode.NONE else NO_SESSION, ErrorCode(error))


def _parse_answer(reader: Reader, body: memoryview, topic_id: bytes) -> ReplicaAnswer:
    index, error, high_watermark, log_end, log_start = _ANSWER.unpack_from(body, reader.position)
    reader.position += _ANSWER.size
    aborted, reader.position = read_uvarint(body, reader.position)
    reader.position += max(aborted - 1, 0) * _ABORTED_BYTES + _PREFERRED_BYTES
    records = reader.nullable_bytes()
    diverging = leader = None
    if body[reader.position]:
        for tag, content in reader.read_tagged_fields():
            if tag == _DIVERGING_TAG:
                diverging = Diverging(*_DIVERGING.unpack_from(content))
            elif tag == _LEADER_TAG:
                leader = _LEADER.unpack_from(content)
    else:
        reader.position += 1
    return ReplicaAnswer(
        (topic_id, index),
        ErrorCode.NONE if not error else ErrorCode(error),
        high_watermark,
        log_end,
        log_start,
        (records,) if records else (),
        diverging,
        leader,
    )
