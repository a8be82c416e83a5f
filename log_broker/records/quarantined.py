"""
A batch taken apart: what is stored of it where some of its records may not enter, and what becomes of those.

What is stored keeps the offsets and sequences of the whole batch and has gaps, as after compaction. The others become a
batch of their own, each record with its key, value, timestamp and headers, and behind them where it would have been and
why it is not there.
"""

from collections.abc import Container, Iterator, Sequence

from log_broker.records.batch import (
    COMPRESSION_MASK,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    read_header,
    seal,
)
from log_broker.records.compression import Codec, compress
from log_broker.records.contracts import Fault
from log_broker.records.record import Header, build_batch, iterate_records, records_section, spans_of

HEADER_PREFIX = "fluvial.quarantine."
_SEQUENCE_MAX = 2**31 - 1


def without(batch: Buffer, header: BatchHeader, left_out: Container[int]) -> bytearray:
    """
    Return the batch without the records at these places; its offsets and sequences are those of the whole.

    Raises BrokerError when its records cannot be read.
    """
    section = bytes(records_section(batch, header))
    kept = bytearray()
    count, start = 0, 0
    max_delta: int | None = None
    for index, span in enumerate(spans_of(section, header.record_count)):
        end = span[6]
        if index not in left_out:
            kept += section[start:end]
            count += 1
            max_delta = span[0] if max_delta is None else max(max_delta, span[0])
        start = end
    attributes, max_timestamp = header.attributes, header.max_timestamp
    base_timestamp = header.base_timestamp
    if max_delta is None:
        attributes &= ~COMPRESSION_MASK  # of nothing there is nothing to decompress
        base_timestamp = max(base_timestamp, 0)  # an empty batch without a time is one that compaction emptied
    elif not attributes & LOG_APPEND_TIME:
        max_timestamp = header.base_timestamp + max_delta
    payload = compress(Codec(attributes & COMPRESSION_MASK), kept)
    out = bytearray(HEADER_BYTES + len(payload))
    fields = header._replace(
        length=len(out) - LENGTH_OVERHEAD_BYTES,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=count,
        crc=0,
    )
    HEADER.pack_into(out, 0, *fields)
    out[HEADER_BYTES:] = payload
    seal(out)
    return out


def offset_deltas(batch: Buffer) -> set[int]:
    """Which of a stored batch's offsets hold a record."""
    header = read_header(batch)
    section = bytes(records_section(batch, header))
    return {span[1] for span in spans_of(section, header.record_count)}


def quarantined(
    batch: Buffer, faults: Sequence[Fault], *, topic: str, partition: int, base_offset: int, append_time_ms: int = -1
) -> bytearray:
    """
    Return the batch of the records that `faults` name, ready for the quarantine.

    `base_offset` is what the whole batch has got; `append_time_ms`, where it is not -1, is the time of its records.
    """
    header = read_header(batch)
    fault_of = {fault.at: fault for fault in faults}
    return build_batch(
        _told(batch, header, fault_of, (topic, partition, base_offset), append_time_ms),
        codec=Codec.ZSTD,  # what is added is much the same in each of them
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        attributes=header.attributes & TRANSACTIONAL,
    )


def _told(
    batch: Buffer,
    header: BatchHeader,
    fault_of: dict[int, Fault],
    place: tuple[str, int, int],
    append_time_ms: int,
) -> Iterator[tuple[int, bytes | None, bytes | None, tuple[Header, ...]]]:
    topic, partition, base_offset = place
    for index, record in enumerate(iterate_records(batch)):
        fault = fault_of.get(index)
        if fault is None:
            continue
        timestamp = record.timestamp if append_time_ms < 0 else append_time_ms
        told = {
            "reason": fault.reason,
            "part": fault.part,
            "field": fault.field,
            "topic": topic,
            "partition": str(partition),
            "offset": str(base_offset + index),
            "timestamp": str(timestamp),
        }
        if header.producer_id >= 0:
            told |= {
                "producer.id": str(header.producer_id),
                "producer.epoch": str(header.producer_epoch),
                "producer.sequence": str((header.base_sequence + index) & _SEQUENCE_MAX),
            }
        yield timestamp, record.key, record.value, (*record.headers, *_headers(told))


def _headers(told: dict[str, str]) -> Iterator[Header]:
    return ((HEADER_PREFIX + name, text.encode()) for name, text in told.items() if text)
