"""
Variable-length integers: zig-zag for the fields of a record, unsigned for the flexible protocol versions.

Both are the base-128 encoding of Protocol Buffers, least significant group first.
"""

from functools import lru_cache

from log_broker.records.batch import Buffer

VARINT_BYTES_MAX = 10  # a 64-bit value in groups of seven bits
_VARINTS_KEPT = 4096


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return (value, position behind it). Raises IndexError past the end, ValueError above 64 bits."""
    byte = buffer[position]
    position += 1
    if byte < 0x80:
        return byte, position
    value = byte & 0x7F
    shift = 7
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift >= 7 * VARINT_BYTES_MAX:
            raise ValueError("a variable-length integer runs over 64 bits")


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return (signed value, position behind it); errors as `read_uvarint`."""
    value, position = read_uvarint(buffer, position)
    return (value >> 1) ^ -(value & 1), position


def write_uvarint(out: bytearray, value: int) -> None:
    """Append a non-negative value."""
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_varint(out: bytearray, value: int) -> None:
    """Append a signed value of up to 64 bits, zig-zag encoded."""
    write_uvarint(out, value << 1 if value >= 0 else ((-value) << 1) - 1)


@lru_cache(_VARINTS_KEPT)
def varint(value: int) -> bytes:
    """Return what `write_varint` would append; the numbers of small records are the same again and again."""
    out = bytearray()
    write_varint(out, value)
    return bytes(out)
