"""
Reading a partition: whole batches up to where a reader may see, and the readers that wait there for more.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from log_broker.core.partition import Partition
from log_broker.errors import ErrorCode
from log_broker.records.batch import batches_in
from log_broker.storage.damage import intact_part
from log_broker.storage.log import PartitionLog

_log = logging.getLogger(__name__)

READ_COMMITTED = 1

Cancel = Callable[[], None]


class ReadResult(NamedTuple):
    """What a fetch of one partition returns; `chunks` hold `size` bytes of whole batches."""

    error: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    chunks: Sequence[bytes] = ()
    size: int = 0
    aborted: Sequence[tuple[int, int]] = ()  # (producer id, first offset) of aborted transactions in the bytes
    damaged_at: int = -1  # the offset whose batch the disk has changed


class ReplicaRead(NamedTuple):
    """
    What a follower's fetch of one partition returns.

    `diverging` is (epoch, end offset): the largest epoch up to the follower's that this log has, and where it ends.
    """

    error: ErrorCode
    high_watermark: int = -1
    log_start_offset: int = -1
    chunks: Sequence[bytes] = ()
    size: int = 0
    diverging: tuple[int, int] | None = None
    damaged_at: int = -1


def read_batches(
    core: Partition,
    log: PartitionLog,
    offset: int,
    max_bytes: int,
    *,
    committed: bool,
    min_one: bool,
    trusted_from: int = 0,
) -> ReadResult:
    """
    Read whole batches from `offset` on, up to the high watermark or (`committed`) the last stable offset.

    An offset outside the log is OFFSET_OUT_OF_RANGE, an error of the disk KAFKA_STORAGE_ERROR. Checksums are looked at
    before `trusted_from`: what is damaged is not returned, and without anything before it that is an error as well.
    """
    damaged_at = -1
    stable = core.last_stable_offset
    error, data = ErrorCode.NONE, b""
    aborted: Sequence[tuple[int, int]] = ()
    if offset < core.log_start_offset or offset > core.written_end:
        error = ErrorCode.OFFSET_OUT_OF_RANGE
    else:
        end = stable if committed else core.high_watermark
        if offset < end:
            try:
                data = log.read(offset, max_bytes, end, at_least_one=min_one)
            except OSError as failure:
                _log.error("reading %s failed: %s", log.directory.name, failure)
                error = ErrorCode.KAFKA_STORAGE_ERROR
            if offset < trusted_from and data:
                data, damaged_at = _undamaged(data, offset)
                error = ErrorCode.NONE if data else ErrorCode.KAFKA_STORAGE_ERROR
            if committed and data and log.aborted:
                last = offset
                for _, header in batches_in(data):
                    last = header.last_offset
                aborted = log.aborted.between(offset, last + 1)
    chunks = (data,) if data else ()
    return ReadResult(error, core.high_watermark, stable, core.log_start_offset, chunks, len(data), aborted, damaged_at)


def _undamaged(data: bytes, offset: int) -> tuple[bytes, int]:
    """Return what of a read is intact, and the offset of what follows it, -1 when all of it is."""
    size, behind = intact_part(data)
    if size == len(data):
        return data, -1
    return data[:size], max(behind, offset)


def read_for_replica(
    core: Partition,
    log: PartitionLog,
    offset: int,
    max_bytes: int,
    last_fetched_epoch: int,
    *,
    min_one: bool,
    trusted_from: int = 0,
) -> ReplicaRead:
    """Read whole batches from `offset` on up to the end of the log; see `ReplicaRuntime.read_replica`."""
    watermark, start = core.high_watermark, core.log_start_offset
    if not core.is_leader or offset < start:
        error = ErrorCode.OFFSET_OUT_OF_RANGE if core.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ReplicaRead(error, watermark, start)
    known = last_fetched_epoch < 0
    if not known:
        epoch, end = core.epochs.end_offset(last_fetched_epoch, core.written_end)
        known = epoch >= 0
        if known and (epoch < last_fetched_epoch or end < offset):
            return ReplicaRead(ErrorCode.NONE, watermark, start, diverging=(epoch, end))
    if not known or offset > core.written_end:
        return ReplicaRead(ErrorCode.OFFSET_OUT_OF_RANGE, watermark, start)
    data = b""
    if offset < core.written_end:
        try:
            data = log.read(offset, max_bytes, core.written_end, at_least_one=min_one)
        except OSError as failure:
            _log.error("reading %s failed: %s", log.directory.name, failure)
            return ReplicaRead(ErrorCode.KAFKA_STORAGE_ERROR, watermark, start)
        if offset < trusted_from and data:
            data, damaged_at = _undamaged(data, offset)
            if damaged_at >= 0:
                error = ErrorCode.NONE if data else ErrorCode.KAFKA_STORAGE_ERROR
                chunks = (data,) if data else ()
                return ReplicaRead(error, watermark, start, chunks, len(data), damaged_at=damaged_at)
    return ReplicaRead(ErrorCode.NONE, watermark, start, (data,) if data else (), len(data))


class Waiters:
    """The readers that are at the end of a partition and wait for more."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[object, tuple[int, bool, Callable[[], None]]] = {}

    def add(self, offset: int, callback: Callable[[], None], *, committed: bool) -> Cancel:
        """Have `callback` called once, when there is more to read behind `offset`."""
        key = object()
        self._waiting[key] = (offset, committed, callback)

        def cancel() -> None:
            self._waiting.pop(key, None)

        return cancel

    def wake(self, high_watermark: int, last_stable_offset: int) -> None:
        """Call those that may read up to these offsets by now."""
        if not self._waiting:
            return
        ready = [
            (key, callback)
            for key, (offset, committed, callback) in self._waiting.items()
            if offset < (last_stable_offset if committed else high_watermark)
        ]
        for key, callback in ready:
            if self._waiting.pop(key, None) is not None:
                self._loop.call_soon(callback)

    def wake_all(self) -> None:
        """Call all of them, because the partition goes away or was read anew."""
        for _, _, callback in self._waiting.values():
            self._loop.call_soon(callback)
        self._waiting.clear()


class ReplicaWaiters:
    """The fetches of followers that have all there is and wait for more."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[object, tuple[int, int | None, Callable[[], None]]] = {}

    def add(self, offset: int, callback: Callable[[], None], *, known_high_watermark: int | None) -> Cancel:
        """Have `callback` called once, when the log ends behind `offset` or the known high watermark has moved."""
        key = object()
        self._waiting[key] = (offset, known_high_watermark, callback)

        def cancel() -> None:
            self._waiting.pop(key, None)

        return cancel

    def wake(self, log_end: int, high_watermark: int) -> None:
        """Call those for whom there is news."""
        if not self._waiting:
            return
        ready = [
            (key, callback)
            for key, (offset, known, callback) in self._waiting.items()
            if offset < log_end or (known is not None and known < high_watermark)
        ]
        for key, callback in ready:
            del self._waiting[key]
            self._loop.call_soon(callback)

    def wake_all(self) -> None:
        """Call all of them, because this replica leads no more or goes away."""
        for _, _, callback in self._waiting.values():
            self._loop.call_soon(callback)
        self._waiting.clear()
