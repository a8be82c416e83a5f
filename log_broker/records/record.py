"""
Single records: read out of a batch, or gathered into one.

Nothing here is on the path of an ordinary produce or fetch request, which move whole batches. Internal topics, the
search by timestamp, the key check of compacted topics and schema validation are what looks at records.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from log_broker.records.batch import (
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    Buffer,
    read_header,
    seal,
)
from log_broker.records.compiled import walk
from log_broker.records.compression import DECOMPRESSED_BYTES_MAX, Codec, compress, decompress
from log_broker.records.readable import MalformedRecordsError
from log_broker.records.varint import read_uvarint, read_varint, varint

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """One record with its absolute offset and timestamp (ms since the epoch)."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


# Where one record's parts lie in the records section: (timestamp delta, offset delta, key start, key length, value
# start, value length, end). A length of -1 means null, as on the wire. A plain tuple: there is one for each record.
Span = tuple[int, int, int, int, int, int, int]
_SPANS_MAX = 256  # made at a time: of a million records they would take 400 MB


def records_section(
    batch: Buffer, header: BatchHeader | None = None, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> Buffer:
    """Return the records of one batch as plain bytes; raises BrokerError when they do not decompress."""
    header = header or read_header(batch)
    return decompress(header.compression, memoryview(batch)[HEADER_BYTES : header.size], bytes_max=bytes_max)


def spans_of(section: Buffer, count: int) -> Iterator[Span]:
    """
    Yield where each of `count` records lies, without copying any.

    Raises MalformedRecordsError when the lengths do not add up or bytes are left over. One-byte numbers, which most
    are, are read in place: a call for each of the five would double the time of the loop.
    """
    position = done = 0
    size = len(section)
    while walk is not None and done < count and (spans := walk.spans(section, position, min(count - done, _SPANS_MAX))):
        yield from spans
        done += len(spans)
        position = spans[-1][-1]
    try:
        for _ in range(count - done):
            number = section[position]
            position += 1
            if number >= 0x80:
                number, position = read_uvarint(section, position - 1)
            end = position + (number >> 1)
            if number & 1 or end > size:
                raise MalformedRecordsError("a record runs over the end of its batch")
            number = section[position + 1]  # behind one byte of attributes, unused
            position += 2
            if number >= 0x80:
                number, position = read_uvarint(section, position - 1)
            timestamp_delta = (number >> 1) ^ -(number & 1)
            number = section[position]
            position += 1
            if number >= 0x80:
                number, position = read_uvarint(section, position - 1)
            offset_delta = (number >> 1) ^ -(number & 1)
            number = section[position]
            key_start = position + 1
            if number >= 0x80:
                number, key_start = read_uvarint(section, position)
            key_length = (number >> 1) ^ -(number & 1)
            position = key_start + key_length if key_length > 0 else key_start
            number = section[position]
            value_start = position + 1
            if number >= 0x80:
                number, value_start = read_uvarint(section, position)
            value_length = (number >> 1) ^ -(number & 1)
            if key_length < -1 or value_length < -1 or value_start + value_length > end:
                raise MalformedRecordsError("a key or value runs over the end of its record")
            position = end
            yield timestamp_delta, offset_delta, key_start, key_length, value_start, value_length, end
    except (IndexError, ValueError):
        raise MalformedRecordsError("the batch ends inside a record") from None
    if position != size:
        raise MalformedRecordsError(f"the batch has {size - position} bytes behind its last record")


def iterate_records(batch: Buffer) -> Iterator[Record]:
    """Yield the records of one batch; raises BrokerError when its bytes are not what its header says."""
    header = read_header(batch)
    section = bytes(records_section(batch, header))
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    for time_delta, offset_delta, key_start, key_length, value_start, value_length, end in spans_of(
        section, header.record_count
    ):
        timestamp = header.base_timestamp + time_delta if append_time is None else append_time
        key = None if key_length < 0 else section[key_start : key_start + key_length]
        value = None if value_length < 0 else section[value_start : value_start + value_length]
        headers = _read_headers(section, value_start + max(value_length, 0), end)
        yield Record(header.base_offset + offset_delta, timestamp, key, value, headers)


def first_of_time(
    batch: Buffer, timestamp: int, from_offset: int, end_offset: int, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> tuple[int, int] | None:
    """
    Return (offset, timestamp) of the batch's first record in [from_offset, end_offset) that is at least so late.

    Raises BrokerError, DecompressionBoundError where the batch has more than `bytes_max` decompressed.
    """
    header = read_header(batch)
    if header.base_offset >= end_offset:
        return None
    section = bytes(records_section(batch, header, bytes_max=bytes_max))
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    for span in spans_of(section, header.record_count):
        time = header.base_timestamp + span[0] if append_time is None else append_time
        offset = header.base_offset + span[1]
        if time >= timestamp and offset >= from_offset:
            return (offset, time) if offset < end_offset else None
    return None


def _read_headers(section: bytes, position: int, end: int) -> tuple[Header, ...]:
    try:
        count, position = read_varint(section, position)
        if count == 0:
            return ()
        headers: list[Header] = []
        for _ in range(count):
            length, position = read_varint(section, position)
            # A name that is no UTF-8 is taken, as Kafka takes it, and shown as its clients in Java show it.
            name = section[position : position + length].decode(errors="replace")
            position += length
            length, position = read_varint(section, position)
            headers.append((name, None if length < 0 else section[position : position + length]))
            position += max(length, 0)
    except (IndexError, ValueError):
        raise MalformedRecordsError("the headers of a record are cut short") from None
    if position > end:
        raise MalformedRecordsError("the headers of a record run over its end")
    return tuple(headers)


def build_batch(
    records: Iterable[tuple[int, bytes | None, bytes | None, tuple[Header, ...]]],
    *,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    leader_epoch: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    attributes: int = 0,
) -> bytearray:
    """
    Make one batch of (timestamp, key, value, headers) records, which must be at least one.

    `attributes` adds bits (transactional, control) to those of the codec.
    """
    section = bytearray()
    count = 0
    base_timestamp = max_timestamp = -1
    for timestamp, key, value, headers in records:
        if count == 0:
            base_timestamp = timestamp
        max_timestamp = max(max_timestamp, timestamp)
        body = _encode_record(timestamp - base_timestamp, count, key, value, headers)
        section += varint(len(body))
        section += body
        count += 1
    assert count, "a batch holds at least one record"
    payload = compress(codec, section)
    batch = bytearray(HEADER_BYTES + len(payload))
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LENGTH_OVERHEAD_BYTES,
        leader_epoch,
        MAGIC,
        0,
        attributes | codec,
        count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    batch[HEADER_BYTES:] = payload
    seal(batch)
    return batch


def _encode_record(
    timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes | None, headers: tuple[Header, ...]
) -> bytes:
    parts = [b"\0", varint(timestamp_delta), varint(offset_delta)]  # the first are attributes, unused
    _add_bytes(parts, key)
    _add_bytes(parts, value)
    parts.append(varint(len(headers)))
    for name, content in headers:
        _add_bytes(parts, name.encode())
        _add_bytes(parts, content)
    return b"".join(parts)


def _add_bytes(parts: list[bytes], part: bytes | None) -> None:
    if part is None:
        parts.append(varint(-1))
    else:
        parts += (varint(len(part)), part)


def recompress(batch: Buffer, codec: Codec, *, level: int | None = None) -> bytearray:
    """Return the same batch with its records under another codec; see `compress` for the level."""
    header = read_header(batch)
    payload = compress(codec, records_section(batch, header), level=level)
    out = bytearray(HEADER_BYTES + len(payload))
    out[:HEADER_BYTES] = memoryview(batch)[:HEADER_BYTES]
    out[HEADER_BYTES:] = payload
    fields = header._replace(
        length=len(out) - LENGTH_OVERHEAD_BYTES, attributes=header.attributes & ~0x07 | codec, crc=0
    )
    HEADER.pack_into(out, 0, *fields)
    seal(out)
    return out
