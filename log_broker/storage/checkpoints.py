"""
The small text and binary files beside the segments, in Kafka's formats.

Offset checkpoints and the leader epoch file are text: a version, a count, then one line an entry. A checkpoint that
cannot be read is as good as none: recovery then looks at more of the log than it would have had to.
"""

import base64
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from crc32c import crc32c

from log_broker.core.partition.producers import ProducerRow, StoredBatch

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
LOG_START_FILE = "log-start-offset-checkpoint"
CLEANER_OFFSET_FILE = "cleaner-offset-checkpoint"
SYNC_FAILED_FILE = "sync-failed"  # in a partition's directory: what is cached of it may not be on the disk
GAPS_FILE = "offset-gaps"  # likewise: the segment that grows may lack offsets, as those that were compacted do
COMPACTED_FILE = "compacted"  # likewise: its full segments may lack offsets
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
LEADER_EPOCH_FILE = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE = "partition.metadata"

_VERSION = 0
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEADER = struct.Struct(">hIi")  # version, crc of what follows, number of rows
_SNAPSHOT_CRC_FROM = 6
_SNAPSHOT_ROW = struct.Struct(
    ">"
    "q"  # producer id
    "h"  # epoch
    "i"  # last sequence
    "q"  # last offset
    "i"  # offset delta
    "q"  # timestamp
    "i"  # coordinator epoch
    "q"  # first offset of the open transaction
)


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    """Write under which broker epoch a broker stopped in order, as Kafka does (KIP-966)."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()


def decode_clean_shutdown(content: bytes | None) -> int:
    """Read what `encode_clean_shutdown` wrote; -1 when absent, damaged or from before the epoch was written."""
    try:
        return int(json.loads(content or b"")["brokerEpoch"])
    except (ValueError, KeyError, TypeError):
        return -1


def encode_offsets(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """Write {(topic, partition): offset}."""
    lines = [str(_VERSION), str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    return ("\n".join(lines) + "\n").encode()


def decode_offsets(content: bytes | None) -> dict[tuple[str, int], int]:
    """Read what `encode_offsets` wrote; empty when absent or damaged."""
    offsets: dict[tuple[str, int], int] = {}
    for fields in _entries(content, fields_each=3):
        try:
            offsets[fields[0], int(fields[1])] = int(fields[2])
        except ValueError:
            return {}
    return offsets


def encode_epochs(starts: Sequence[tuple[int, int]]) -> bytes:
    """Write (epoch, start offset) pairs."""
    lines = [str(_VERSION), str(len(starts)), *(f"{epoch} {offset}" for epoch, offset in starts)]
    return ("\n".join(lines) + "\n").encode()


def decode_epochs(content: bytes | None) -> list[tuple[int, int]]:
    """Read what `encode_epochs` wrote; empty when absent or damaged."""
    try:
        return [(int(epoch), int(offset)) for epoch, offset in _entries(content, fields_each=2)]
    except ValueError:
        return []


def _entries(content: bytes | None, *, fields_each: int) -> list[list[str]]:
    if content is None:
        return []
    lines = content.decode(errors="replace").splitlines()
    entries = [line.split() for line in lines[2:]]
    if len(lines) < 2 or lines[0] != str(_VERSION) or lines[1] != str(len(entries)):
        return []
    return entries if all(len(fields) == fields_each for fields in entries) else []


def encode_topic_id(topic_id: UUID) -> bytes:
    """Write partition.metadata."""
    return f"version: 0\ntopic_id: {base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip('=')}\n".encode()


def decode_topic_id(content: bytes | None) -> UUID | None:
    """Read partition.metadata; None when absent or damaged."""
    for line in (content or b"").decode(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "topic_id":
            try:
                return UUID(bytes=base64.urlsafe_b64decode(value.strip() + "=="))
            except ValueError:
                return None
    return None


def encode_producers(rows: Iterable[ProducerRow]) -> bytes:
    """
    Write a producer snapshot.

    Kafka keeps one row a producer, its last batch. Here each of the last five has its row, oldest first, so that a
    repeat of any batch in flight is still known after a restart; a reader that keeps the last row of a producer sees
    what Kafka would have written.
    """
    body = bytearray()
    count = 0
    for producer_id, epoch, batch, coordinator_epoch, first_offset in rows:
        body += _SNAPSHOT_ROW.pack(
            producer_id,
            epoch,
            batch.last_sequence,
            batch.last_offset,
            batch.offset_delta,
            batch.timestamp,
            coordinator_epoch,
            first_offset,
        )
        count += 1
    out = bytearray(_SNAPSHOT_HEADER.pack(_SNAPSHOT_VERSION, 0, count)) + body
    struct.pack_into(">I", out, 2, crc32c(memoryview(out)[_SNAPSHOT_CRC_FROM:]))
    return bytes(out)


def decode_producers(content: bytes | None) -> list[ProducerRow] | None:
    """Read a producer snapshot; None when absent or damaged."""
    if content is None or len(content) < _SNAPSHOT_HEADER.size:
        return None
    version, crc, count = _SNAPSHOT_HEADER.unpack_from(content)
    if version != _SNAPSHOT_VERSION or len(content) != _SNAPSHOT_HEADER.size + count * _SNAPSHOT_ROW.size:
        return None
    if crc32c(memoryview(content)[_SNAPSHOT_CRC_FROM:]) != crc:
        return None
    return [
        ProducerRow(row[0], row[1], StoredBatch(row[2], row[3], row[4], row[5]), row[6], row[7])
        for row in _SNAPSHOT_ROW.iter_unpack(memoryview(content)[_SNAPSHOT_HEADER.size :])
    ]
