"""
The four codecs of record batches, with a bound on what a small input may grow into.

A batch is decompressed only where its records matter to the broker: validation, the key check of compacted topics,
a search by timestamp, internal topics. The bound holds everywhere: 1 MB of zstd can name terabytes.
"""

import struct
import zlib
from enum import IntEnum

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
            return bytes(cramjam.lz4.compress(data, level=_LZ4_FAST if level == _LZ4_DEFAULT else level))
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=level))


def _decompress_into(codec: Codec, into: object, data: Buffer, bytes_max: int) -> Buffer:
    """Try growing outputs, so that the memory used follows what the batch really holds and never passes the bound."""
    assert callable(into)
    source = bytes(data)
    size = min(max(4 * len(source), 16 * 1024), bytes_max)
    while True:
        out = bytearray(size)
        try:
            written = int(into(source, out))
        except cramjam.DecompressionError as error:
            if _TOO_SMALL not in str(error):
                raise CompressionFailedError(codec, error) from None
        else:
            return memoryview(out)[:written]
        if size == bytes_max:
            raise DecompressionBoundError(codec, bytes_max)
        size = min(4 * size, bytes_max)


def _gunzip(data: Buffer, bytes_max: int) -> bytes:
    """gzip may hold several members one behind the other."""
    out: list[bytes] = []
    room = bytes_max
    rest: bytes = bytes(data)
    while rest:
        member = zlib.decompressobj(wbits=31)
        try:
            part = member.decompress(rest, room + 1)
        except zlib.error as error:
            raise CompressionFailedError(Codec.GZIP, error) from None
        room -= len(part)
        if room < 0:
            raise DecompressionBoundError(Codec.GZIP, bytes_max)
        if not member.eof:
            raise CompressionFailedError(Codec.GZIP, "it ends early")
        out.append(part)
        rest = member.unused_data
    return out[0] if len(out) == 1 else b"".join(out)


def _unsnappy(data: Buffer, bytes_max: int) -> bytes:
    source = bytes(data)
    if not source.startswith(_XERIAL_MAGIC):
        return _unsnappy_block(source, bytes_max)
    out: list[bytes] = []
    room = bytes_max
    position = _XERIAL_HEADER_BYTES
    while position < len(source):
        if position + 4 > len(source):
            raise CompressionFailedError(Codec.SNAPPY, "a block length is cut short")
        (length,) = _BLOCK_LENGTH.unpack_from(source, position)
        position += 4
        if length < 0 or position + length > len(source):
            raise CompressionFailedError(Codec.SNAPPY, "a block is cut short")
        block = _unsnappy_block(source[position : position + length], room)
        room -= len(block)
        out.append(block)
        position += length
    return b"".join(out)


def _unsnappy_block(block: bytes, bytes_max: int) -> bytes:
    try:
        # The length stands in front of a raw block, so it is known before any memory is taken.
        if cramjam.snappy.decompress_raw_len(block) > bytes_max:
            raise DecompressionBoundError(Codec.SNAPPY, bytes_max)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CompressionFailedError(Codec.SNAPPY, error) from None


def _snappy(data: Buffer) -> bytes:
    """Write Java's framing, which every client reads."""
    view = memoryview(data)
    out = bytearray(_XERIAL_MAGIC + _XERIAL_VERSIONS)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(bytes(view[start : start + _XERIAL_BLOCK_BYTES])))
        out += _BLOCK_LENGTH.pack(len(block))
        out += block
    return bytes(out)
