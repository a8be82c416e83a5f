"""
The record batch of message format 2: its header, its checksum and the two fields a broker may change.

Source: the record batch format of the Kafka documentation (https://kafka.apache.org/documentation/#recordbatch). A
batch goes to disk and back to sockets as the producer sent it. The base offset and the leader epoch stand outside the
checksum, so assigning them costs one write of 16 bytes into the batch.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

HEADER = struct.Struct(
    ">"
    "q"  #  0 base offset
    "i"  #  8 batch length: the bytes after this field
    "i"  # 12 partition leader epoch
    "b"  # 16 magic
    "I"  # 17 crc: CRC-32C of everything from the attributes on
    "h"  # 21 attributes
    "i"  # 23 last offset delta
    "q"  # 27 base timestamp
    "q"  # 35 max timestamp
    "q"  # 43 producer id
    "h"  # 51 producer epoch
    "i"  # 53 base sequence
    "i"  # 57 record count
)
HEADER_BYTES = HEADER.size
assert HEADER_BYTES == 61

LENGTH_OVERHEAD_BYTES = 12  # base offset and batch length: what the batch length does not count
MIN_LENGTH = HEADER_BYTES - LENGTH_OVERHEAD_BYTES
LEADER_EPOCH_OFFSET = 12
MAGIC_OFFSET = 16
MAGIC = 2
_CHECKED_FROM = 21  # the checksum covers the attributes and everything behind them

_PLACE = struct.Struct(">qii")  # base offset, batch length, partition leader epoch
_CRC = struct.Struct(">I")
_CRC_OFFSET = 17
_ATTRIBUTES = struct.Struct(">h")
_ATTRIBUTES_OFFSET = 21
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_OFFSET = 35

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40  # the base timestamp is when the tombstones inside may go

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1

Buffer = bytes | bytearray | memoryview


class BatchHeader(NamedTuple):
    """The thirteen fields in front of a batch's records, in wire order."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The whole batch in bytes, this header included."""
        return self.length + LENGTH_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def compression(self) -> int:
        """The codec number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a transaction marker in place of a client's records."""
        return bool(self.attributes & CONTROL)


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at `position`, where at least 61 bytes must stand. Checks nothing."""
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def crc_is_valid(batch: Buffer, crc: int) -> bool:
    """Whether `crc` is the checksum of exactly this one batch."""
    return bool(crc32c(memoryview(batch)[_CHECKED_FROM:]) == crc)


def place(batch: bytearray | memoryview, *, base_offset: int, leader_epoch: int) -> None:
    """Give a batch its place in the log; its checksum stays true."""
    _PLACE.pack_into(batch, 0, base_offset, len(batch) - LENGTH_OVERHEAD_BYTES, leader_epoch)


def stamp_log_append_time(batch: bytearray | memoryview, attributes: int, now_ms: int) -> None:
    """Make the time of the append the timestamp of every record, and set the checksum again."""
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_OFFSET, attributes | LOG_APPEND_TIME)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_OFFSET, now_ms)
    seal(batch)


def seal(batch: bytearray | memoryview) -> None:
    """Set the checksum of a batch whose other fields are final."""
    _CRC.pack_into(batch, _CRC_OFFSET, crc32c(memoryview(batch)[_CHECKED_FROM:]))


def batches_in(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """
    Yield (position, header) of each complete batch in `buffer`, and stop at the first that is cut short.

    The bytes are trusted: they come from a log that checked them when they were appended.
    """
    position = 0
    end = len(buffer)
    while position + HEADER_BYTES <= end:
        header = read_header(buffer, position)
        if header.length < MIN_LENGTH or position + header.size > end:
            return
        yield position, header
        position += header.size
