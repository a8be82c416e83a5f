"""
The marker that ends a transaction in a partition: a control batch of one record (KIP-98).

    key      version int16 (0), type int16 (0 abort, 1 commit)
    value    version int16 (0), coordinator epoch int32

Source: EndTxnMarker.json and the control record format of the Kafka documentation. A control batch takes one offset,
and clients never hand it to an application.
"""

import struct
from typing import NamedTuple

from log_broker.errors import BrokerError
from log_broker.records.batch import CONTROL, TRANSACTIONAL, Buffer, read_header
from log_broker.records.record import build_batch, iterate_records

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_ABORT = 0
_COMMIT = 1


class EndMarker(NamedTuple):
    """How a transaction ended, and the epoch of the coordinator that says so."""

    committed: bool
    coordinator_epoch: int


def build_marker(producer_id: int, producer_epoch: int, marker: EndMarker, now_ms: int) -> bytearray:
    """Make the control batch; its place in the log is assigned like that of any batch."""
    key = _KEY.pack(0, _COMMIT if marker.committed else _ABORT)
    value = _VALUE.pack(0, marker.coordinator_epoch)
    return build_batch(
        [(now_ms, key, value, ())],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=CONTROL | TRANSACTIONAL,
    )


def read_marker(batch: Buffer) -> EndMarker | None:
    """Return what a control batch says; None for one that compaction emptied or that ends no transaction."""
    if not read_header(batch).record_count:
        return None
    try:
        record = next(iterate_records(batch))
        _, kind = _KEY.unpack_from(record.key or b"")
        if kind not in {_ABORT, _COMMIT}:
            return None
        _, coordinator_epoch = _VALUE.unpack_from(record.value or b"")
    except (BrokerError, struct.error):
        return None
    return EndMarker(kind == _COMMIT, coordinator_epoch)
