"""
Entries of the metadata log as bytes, on the disk and between nodes: each is a v2 batch of one record.

So a cut falls between any two. A control record's key tells what an entry is that is no data (KIP-595, KIP-853). A
batch's checksum covers neither its base offset nor its leader epoch, and a write torn there would be believed: a
header of the record repeats both.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from log_broker.core.raft.log import Entry, EntryKind
from log_broker.records.batch import CONTROL, MAGIC, batches_in, crc_is_valid
from log_broker.records.record import build_batch, iterate_records

_PLACE = struct.Struct(">qi")  # offset, epoch
_PLACE_HEADER = "place"
_CONTROL_KEY = struct.Struct(">hh")  # version, type
_CONTROL_TYPES = {EntryKind.LEADER_CHANGE: 2, EntryKind.VOTERS: 6}  # of Kafka's control records
_KIND_OF_CONTROL_TYPE = {number: kind for kind, number in _CONTROL_TYPES.items()}


class EntryBytes(NamedTuple):
    """An entry and where it lies."""

    position: int
    size: int
    entry: Entry


def encode_entry(offset: int, entry: Entry) -> bytearray:
    """Return the batch of an entry."""
    is_data = entry.kind is EntryKind.DATA
    key = None if is_data else _CONTROL_KEY.pack(0, _CONTROL_TYPES[entry.kind])
    place = (_PLACE_HEADER, _PLACE.pack(offset, entry.epoch))
    return build_batch(
        [(-1, key, entry.data, (place,))],
        base_offset=offset,
        leader_epoch=entry.epoch,
        attributes=0 if is_data else CONTROL,
    )


def decode_entries(content: bytes, offset: int, epoch: int) -> Iterator[EntryBytes]:
    """Yield entries from `offset` on until one is torn, out of its place, or of an epoch before that of the last."""
    for position, header in batches_in(content):
        batch = content[position : position + header.size]
        in_place = header.base_offset == offset and header.leader_epoch >= epoch and header.magic == MAGIC
        if not in_place or not crc_is_valid(batch, header.crc):
            return
        record = next(iter(iterate_records(batch)))
        if record.headers != ((_PLACE_HEADER, _PLACE.pack(header.base_offset, header.leader_epoch)),):
            return
        epoch = header.leader_epoch
        kind = EntryKind.DATA
        if header.is_control and record.key is not None:
            kind = _KIND_OF_CONTROL_TYPE[_CONTROL_KEY.unpack(record.key)[1]]
        yield EntryBytes(position, header.size, Entry(epoch, kind, bytes(record.value or b"")))
        offset += 1
