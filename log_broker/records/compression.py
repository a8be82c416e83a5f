"""
The four codecs of record batches, with a bound on what a small input may grow into.

A batch is decompressed only where its records matter to the broker: validation, the key check of compacted topics,
a search by timestamp, internal topics. The bound holds everywhere: 1 MB of zstd can name terabytes.
"""

import struct
import zlib
from enum import IntEnum
from mmap import mmap

import cramjam

from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import Buffer

DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024


class Codec(IntEnum):
    """Codec numbers as the batch attributes carry them; names as `compression.type` spells them."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_OF_NAME = {"uncompressed": Codec.NONE} | {codec.name.lower(): codec for codec in Codec if codec}

# Java's snappy stream: this magic, two version numbers, then blocks of (length, raw snappy).
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = len(_XERIAL_MAGIC) + 8
_XERIAL_VERSIONS = struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = struct.Struct(">i")

_MAPPED_BYTES_MIN = 4 * 1024 * 1024
_GZIP_BYTES = 64 * 1024  # of the source that are given to zlib at once, which copies what it leaves over
_PART_BYTES = 1024 * 1024

_LZ4_DEFAULT = 9  # by which Kafka means lz4's fast compressor, not the high compressor's ninth level
_LZ4_FAST = 1

_TOO_SMALL = "failed to write whole buffer"  # how cramjam says that the output did not fit


class CompressionFailedError(BrokerError):
    """The bytes are not what their codec says."""

    def __init__(self, codec: Codec, reason: object) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, f"the batch does not decompress as {codec.name.lower()}: {reason}")


class DecompressionBoundError(BrokerError):
    """The bytes grow beyond what a batch may hold."""

    def __init__(self, codec: Codec, bound: int) -> None:
        super().__init__(
            ErrorCode.MESSAGE_TOO_LARGE, f"the {codec.name.lower()} batch grows beyond {bound} bytes when decompressed"
        )


def decompress(codec_number: int, data: Buffer, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """
    Return the records section of a batch as plain bytes.

    Raises CompressionFailedError for bytes that are not of this codec, DecompressionBoundError above `bytes_max`, and
    BrokerError(UNSUPPORTED_COMPRESSION_TYPE) for a codec number without a codec.
    """
    try:
        codec = Codec(codec_number)
    except ValueError:
        raise BrokerError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown codec {codec_number}") from None
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return _gunzip(data, bytes_max)
        case Codec.SNAPPY:
            return _unsnappy(data, bytes_max)
        case Codec.LZ4:
            return _decompress_into(codec, cramjam.lz4.decompress_into, data, bytes_max)
        case Codec.ZSTD:
            return _decompress_into(codec, cramjam.zstd.decompress_into, data, bytes_max)


def compress(codec: Codec, data: Buffer, *, level: int | None = None) -> bytes:
    """Compress the records section of a batch; without `level` at the codec's own default, as with gzip's -1."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data, level=None if level == -1 else level))
        case Codec.SNAPPY:
            return _snappy(data)
        case Codec.LZ4:
            return _lz4(data, _LZ4_FAST if level == _LZ4_DEFAULT else level)
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=level))


def _decompress_into(codec: Codec, into: object, data: Buffer, bytes_max: int) -> Buffer:
    """Try growing outputs, so that the memory used follows what the batch really holds and never passes the bound."""
    assert callable(into)
    source = bytes(data)
    size = min(max(4 * len(source), 16 * 1024), bytes_max)
    out: bytearray | mmap = bytearray(size)
    while True:
        try:
            written = int(into(source, out))
        except cramjam.DecompressionError as error:
            if _TOO_SMALL not in str(error):
                raise CompressionFailedError(codec, error) from None
        else:
            return memoryview(out)[:written]
        if size == bytes_max:
            raise DecompressionBoundError(codec, bytes_max)
        size = min(4 * size, bytes_max) if size < _MAPPED_BYTES_MIN else bytes_max
        del out  # before there is the next
        out = _memory(size)


def _memory(size: int) -> bytearray | mmap:
    """Return memory to decompress into: of a large piece only what is written to is really taken, but that costs."""
    return bytearray(size) if size <= _MAPPED_BYTES_MIN else mmap(-1, size)


def _gunzip(data: Buffer, bytes_max: int) -> Buffer:
    """gzip may hold several members one behind the other."""
    source = memoryview(data)
    out = bytearray()
    position = 0
    while position < len(source):
        position = _gunzip_member(source, position, out, bytes_max)
    return out


def _gunzip_member(source: memoryview, position: int, out: bytearray, bytes_max: int) -> int:
    """Append one member to `out` and return where it ends; in parts: zlib holds what it returns twice for a while."""
    member = zlib.decompressobj(wbits=31)
    part = b""
    while not member.eof:
        piece: Buffer = member.unconsumed_tail
        if not piece and len(part) < _PART_BYTES:
            piece = source[position : position + _GZIP_BYTES]
            position += len(piece)
            if not piece:
                raise CompressionFailedError(Codec.GZIP, "it ends early")
        try:
            part = member.decompress(piece, _PART_BYTES)
        except zlib.error as error:
            raise CompressionFailedError(Codec.GZIP, error) from None
        if len(out) + len(part) > bytes_max:
            raise DecompressionBoundError(Codec.GZIP, bytes_max)
        out += part
    return position - len(member.unused_data)


def _unsnappy(data: Buffer, bytes_max: int) -> Buffer:
    source = bytes(data)
    if not source.startswith(_XERIAL_MAGIC):
        return _unsnappy_block(source, bytes_max)
    out = bytearray()
    position = _XERIAL_HEADER_BYTES
    while position < len(source):
        if position + 4 > len(source):
            raise CompressionFailedError(Codec.SNAPPY, "a block length is cut short")
        (length,) = _BLOCK_LENGTH.unpack_from(source, position)
        position += 4
        if length < 0 or position + length > len(source):
            raise CompressionFailedError(Codec.SNAPPY, "a block is cut short")
        out += _unsnappy_block(source[position : position + length], bytes_max - len(out))
        position += length
    return out


def _unsnappy_block(block: bytes, bytes_max: int) -> Buffer:
    try:
        # The length stands in front of a raw block, so it is known before any memory is taken.
        length = cramjam.snappy.decompress_raw_len(block)
        if length > bytes_max:
            raise DecompressionBoundError(Codec.SNAPPY, bytes_max)
        out = _memory(length)
        return memoryview(out)[: cramjam.snappy.decompress_raw_into(block, out)]
    except cramjam.DecompressionError as error:
        raise CompressionFailedError(Codec.SNAPPY, error) from None


def _lz4(data: Buffer, level: int | None) -> bytes:
    """Write a frame of blocks that do not refer to each other: the Java client reads no other."""
    compressor = cramjam.lz4.Compressor(level=level, block_linked=False)
    compressor.compress(bytes(data))
    return bytes(compressor.finish())


def _snappy(data: Buffer) -> bytes:
    """Write Java's framing, which every client reads."""
    view = memoryview(data)
    out = bytearray(_XERIAL_MAGIC + _XERIAL_VERSIONS)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(bytes(view[start : start + _XERIAL_BLOCK_BYTES])))
        out += _BLOCK_LENGTH.pack(len(block))
        out += block
    return bytes(out)
