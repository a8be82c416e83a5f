"""
The tagged fields by which Fetch 16+ and Produce 10+ say who leads a partition and where that node listens (KIP-951).
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from log_broker.records.varint import write_uvarint

_INT32 = struct.Struct(">i")
_LEADER = struct.Struct(">BBiiB")  # tag, size, node id, leader epoch, no tags within
_LEADER_BYTES = 9


class NodeEndpoint(NamedTuple):
    """Where a node listens."""

    node_id: int
    host: str
    port: int
    rack: str | None


def leader_tag(tag: int, leader: tuple[int, int]) -> bytes:
    """Write the field of one partition without the count before it; `leader` is (node id, leader epoch)."""
    return _LEADER.pack(tag, _LEADER_BYTES, *leader, 0)


def endpoint_tags(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """Write the tagged fields of a response that has none but its endpoints, number 0."""
    content = bytearray()
    write_uvarint(content, len(endpoints) + 1)
    for node_id, host, port, rack in endpoints:
        content += _INT32.pack(node_id)
        _write_string(content, host)
        content += _INT32.pack(port)
        if rack is None:
            content.append(0)
        else:
            _write_string(content, rack)
        content.append(0)
    out = bytearray(b"\x01\x00")
    write_uvarint(out, len(content))
    return bytes(out + content)


def _write_string(out: bytearray, text: str) -> None:
    encoded = text.encode()
    write_uvarint(out, len(encoded) + 1)
    out += encoded
