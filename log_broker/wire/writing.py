"""What answers that are written by hand are made of; `reading` is its counterpart."""

import struct

from log_broker.records.varint import write_uvarint

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def write_count(out: bytearray, count: int, *, flexible: bool) -> None:
    """Write how many elements, or bytes, follow."""
    if not flexible:
        out += _INT32.pack(count)
    elif count < 127:
        out.append(count + 1)
    else:
        write_uvarint(out, count + 1)


def write_name(out: bytearray, name: bytes, *, flexible: bool) -> None:
    """Write a string that is there."""
    if flexible:
        write_uvarint(out, len(name) + 1)
    else:
        out += _INT16.pack(len(name))
    out += name
