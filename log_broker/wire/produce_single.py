"""
The Produce request that clients send most, read and written in one step: one batch for one partition.

What `parse_single` does not recognise goes to `wire.produce`, which reads every request and must read these alike.

    version 7, 8                                  version 9 and later
    transactional id   int16, -1                  uvarint, 0
    acks, timeout      int16, int32               int16, int32
    topics, name       int32, 1; int16 length     uvarint, 2; uvarint length + 1
    partitions         int32, 1                   uvarint, 2
    index              int32                      int32
    records            int32 length               uvarint length + 1
                                                  no tagged fields: three zero bytes
"""

import struct

from log_broker.core.partition.protocol import AppendResult
from log_broker.records.varint import read_uvarint
from log_broker.wire.produce import FLEXIBLE_FROM, VERSION_MAX, PartitionAnswer, encode_response

VERSION_MIN = 7  # before it, codecs and message formats depend on the version
_RECORD_ERRORS_FROM = 8
_LENGTH_BYTES = 4

_HEAD = struct.Struct(">hhiih")  # transactional id, acks, timeout, topics, length of the name
_TAIL = struct.Struct(">iii")  # partitions, index, length of the records
_HEAD_FLEXIBLE = struct.Struct(">bhibb")
_TAIL_FLEXIBLE = struct.Struct(">bi")  # partitions, index
_NO_TAGS = b"\0\0\0"

# Length of the response, correlation id, topics, length of the name; then from the number of partitions to the end.
_ANSWER_HEAD = struct.Struct(">iiih")
_ANSWER_V7 = struct.Struct(">iihqqqi")  # 1, index, error, base offset, append time, log start, throttle time
_ANSWER_V8 = struct.Struct(">iihqqqihi")  # no record errors and no message before the throttle time
_ANSWER_HEAD_FLEXIBLE = struct.Struct(">iibbB")
_ANSWER_V9 = struct.Struct(">bihqqqbbhib")  # tagged fields end the partition, the topic and the response


SingleProduce = tuple[int, int, bytes, int, memoryview]  # acks, timeout in ms, topic in UTF-8, partition, records


def parse_single(body: memoryview, version: int) -> SingleProduce | None:
    """Read the request behind its header, or return None when it is of another form."""
    size = len(body)
    if version >= FLEXIBLE_FROM:
        return _parse_flexible(body, size) if version <= VERSION_MAX else None
    if version < VERSION_MIN or size < _HEAD.size:
        return None
    transactional_id, acks, timeout_ms, topics, name_length = _HEAD.unpack_from(body)
    at = _HEAD.size + name_length
    start = at + _TAIL.size
    if transactional_id != -1 or topics != 1 or name_length < 0 or start > size:
        return None
    partitions, index, length = _TAIL.unpack_from(body, at)
    if partitions != 1 or length != size - start:
        return None
    return acks, timeout_ms, bytes(body[_HEAD.size : at]), index, body[start:]


def _parse_flexible(body: memoryview, size: int) -> SingleProduce | None:
    if size < _HEAD_FLEXIBLE.size:
        return None
    transactional_id, acks, timeout_ms, topics, name_length = _HEAD_FLEXIBLE.unpack_from(body)
    at = _HEAD_FLEXIBLE.size + name_length - 1
    # A name of 127 bytes or more has a second length byte, and its first one is negative here.
    if transactional_id != 0 or topics != 2 or name_length < 1 or at + _TAIL_FLEXIBLE.size >= size:
        return None
    partitions, index = _TAIL_FLEXIBLE.unpack_from(body, at)
    try:
        length, start = read_uvarint(body, at + _TAIL_FLEXIBLE.size)
    except (IndexError, ValueError):
        return None
    end = start + length - 1
    if partitions != 2 or length < 1 or end != size - len(_NO_TAGS) or body[end:] != _NO_TAGS:
        return None
    return acks, timeout_ms, bytes(body[_HEAD_FLEXIBLE.size : at]), index, body[start:end]


def encode_single(correlation_id: int, version: int, topic: bytes, partition: int, result: AppendResult) -> bytes:
    """Write the whole response, its length in front."""
    error, base_offset, append_time, log_start, record_errors, message, _, _ = result
    if record_errors or message is not None:
        response = encode_response(correlation_id, version, [(topic, [PartitionAnswer(partition, result)])])
        return len(response).to_bytes(_LENGTH_BYTES, "big") + response
    size = len(topic)
    if version >= FLEXIBLE_FROM:
        return (
            _ANSWER_HEAD_FLEXIBLE.pack(
                _ANSWER_HEAD_FLEXIBLE.size - _LENGTH_BYTES + size + _ANSWER_V9.size, correlation_id, 0, 2, size + 1
            )
            + topic
            + _ANSWER_V9.pack(2, partition, error, base_offset, append_time, log_start, 1, 0, 0, 0, 0)
        )
    if version >= _RECORD_ERRORS_FROM:
        tail = _ANSWER_V8.pack(1, partition, error, base_offset, append_time, log_start, 0, -1, 0)
    else:
        tail = _ANSWER_V7.pack(1, partition, error, base_offset, append_time, log_start, 0)
    length = _ANSWER_HEAD.size - _LENGTH_BYTES + size + len(tail)
    return _ANSWER_HEAD.pack(length, correlation_id, 1, size) + topic + tail
