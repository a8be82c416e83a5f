"""
Reading a partition: whole batches up to where a reader may see, and the readers that wait there for more.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from log_broker.core.partition.writing import ReplicaState
from log_broker.errors import ErrorCode
from log_broker.records.batch import batches_in
from log_broker.records.stored import STORED_BYTES_MIN, Stored
from log_broker.storage.damage import intact_part
from log_broker.storage.log import PartitionLog

_log = logging.getLogger(__name__)

READ_COMMITTED = 1
OFFSET_MAX = 2**63 - 1

Cancel = Callable[[], None]


class ReadResult(NamedTuple):
    """What a fetch of one partition returns: `size` bytes of whole batches, in `chunks` or where they are `stored`."""

    error: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    chunks: Sequence[bytes] = ()
    size: int = 0
    aborted: Sequence[tuple[int, int]] = ()  # (producer id, first offset) of aborted transactions in the bytes
    damaged_at: int = -1  # the offset whose batch the disk has changed
    stored: Stored | None = None


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
    state: ReplicaState,
    log: PartitionLog,
    offset: int,
    max_bytes: int,
    *,
    committed: bool,
    min_one: bool,
    trusted_from: int = 0,
    unread: bool = False,
) -> ReadResult:
    """
    Read whole batches from `offset` on, up to the high watermark or (`committed`) the last stable offset.

    An offset outside the log is OFFSET_OUT_OF_RANGE, an error of the disk KAFKA_STORAGE_ERROR. Checksums are looked at
    before `trusted_from`: what is damaged is not returned, and without anything before it that is an error as well.
    With `unread` the batches are left where they are, if nothing in them has to be looked at.
    """
    damaged_at = -1
    stored: Stored | None = None
    unread = unread and offset >= trusted_from and not (committed and log.aborted)
    stable = state.last_stable_offset
    error, data = ErrorCode.NONE, b""
    aborted: Sequence[tuple[int, int]] = ()
    if offset < state.log_start_offset or offset > state.written_end:
        error = ErrorCode.OFFSET_OUT_OF_RANGE
    else:
        end = stable if committed else state.high_watermark
        if offset < end:
            try:
                part = log.find(offset, max_bytes, end, at_least_one=min_one)
                if part is not None and unread and part.size >= STORED_BYTES_MIN:
                    stored = part
                elif part is not None:
                    data = part.whole()
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
    size = len(data) if stored is None else len(stored)
    return ReadResult(
        error, state.high_watermark, stable, state.log_start_offset, chunks, size, aborted, damaged_at, stored
    )


def check_leader_epoch(state: ReplicaState, epoch: int) -> ErrorCode:
    """Say what is wrong with the leader epoch that a client or a follower believes in; -1 stands for not knowing."""
    if epoch < 0 or epoch == state.epochs.current:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if epoch < state.epochs.current else ErrorCode.UNKNOWN_LEADER_EPOCH


def _undamaged(data: bytes, offset: int) -> tuple[bytes, int]:
    """Return what of a read is intact, and the offset of what follows it, -1 when all of it is."""
    size, behind = intact_part(data)
    if size == len(data):
        return data, -1
    return data[:size], max(behind, offset)


def read_for_replica(
    state: ReplicaState,
    log: PartitionLog,
    offset: int,
    max_bytes: int,
    last_fetched_epoch: int,
    *,
    min_one: bool,
    trusted_from: int = 0,
) -> ReplicaRead:
    """Read whole batches from `offset` on up to the end of the log; see `LeadingReplica.read_replica`."""
    watermark, start = state.high_watermark, state.log_start_offset
    if not state.is_leader or offset < start:
        error = ErrorCode.OFFSET_OUT_OF_RANGE if state.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ReplicaRead(error, watermark, start)
    known = last_fetched_epoch < 0
    if not known:
        epoch, end = state.epochs.end_offset(last_fetched_epoch, state.written_end)
        known = epoch >= 0
        if known and (epoch < last_fetched_epoch or end < offset):
            return ReplicaRead(ErrorCode.NONE, watermark, start, diverging=(epoch, end))
    if not known or offset > state.written_end:
        return ReplicaRead(ErrorCode.OFFSET_OUT_OF_RANGE, watermark, start)
    data = b""
    if offset < state.written_end:
        try:
            data = log.read(offset, max_bytes, state.written_end, at_least_one=min_one)
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


class Reader(Protocol):
    """Waits at the end of one or more partitions."""

    def moved(self, at: int, offset: int) -> None:
        """
        Take note that there is more behind `offset` in the partition that it calls `at`; -1: look at it afresh.

        Called once for each `add`, in the middle of the partition's own work: what it has to do about it comes later.
        """
        ...


class Waiters:
    """The readers that are at the end of a partition and wait for more; each stands here at most once."""

    def __init__(self) -> None:
        # Of the readers of committed records and of the others: (reader, its name for this partition) by offset.
        self._waiting: tuple[dict[Reader, tuple[int, int]], dict[Reader, tuple[int, int]]] = ({}, {})
        self._lowest = [OFFSET_MAX, OFFSET_MAX]  # at most the least offset that is waited at in each

    def __len__(self) -> int:
        return len(self._waiting[0]) + len(self._waiting[1])

    def add(self, reader: Reader, at: int, offset: int, *, committed: bool) -> None:
        """Have `reader.moved(at, offset)` called once, when there is more to read behind `offset`."""
        self._waiting[committed][reader] = (offset, at)
        if offset < self._lowest[committed]:  # noqa: PLR1730 called for each partition of each fetch that waits
            self._lowest[committed] = offset

    def remove(self, reader: Reader) -> None:
        """Forget a reader; one that does not wait here is no error."""
        if self._waiting[0].pop(reader, None) is None:
            self._waiting[1].pop(reader, None)

    def wake(self, high_watermark: int, last_stable_offset: int) -> None:
        """Tell those that may read up to these offsets by now."""
        if high_watermark > self._lowest[0]:
            self._wake(0, high_watermark)
        if last_stable_offset > self._lowest[1]:
            self._wake(1, last_stable_offset)

    def _wake(self, committed: int, end: int) -> None:
        waiting = self._waiting[committed]
        ready = [(reader, place) for reader, place in waiting.items() if place[0] < end]
        if len(ready) == len(waiting):
            waiting.clear()
            self._lowest[committed] = OFFSET_MAX
        else:
            for reader, _ in ready:
                del waiting[reader]
            self._lowest[committed] = min(offset for offset, _ in waiting.values())
        for reader, (offset, at) in ready:
            reader.moved(at, offset)

    def wake_all(self) -> None:
        """Tell all of them, because the partition goes away, is led elsewhere or was read again."""
        for committed in (0, 1):
            ready = list(self._waiting[committed].items())
            self._waiting[committed].clear()
            self._lowest[committed] = OFFSET_MAX
            for reader, (_, at) in ready:
                reader.moved(at, -1)


class WaitingCallback:
    """A reader of one partition that has a callback called in the next turn of the loop, unless it is cancelled."""

    __slots__ = ("_callback", "_handle", "_loop", "_waiters")

    def __init__(self, loop: asyncio.AbstractEventLoop, waiters: Waiters, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._waiters = waiters
        self._callback = callback
        self._handle: asyncio.Handle | None = None

    def moved(self, at: int, offset: int) -> None:
        self._handle = self._loop.call_soon(self._callback)

    def cancel(self) -> None:
        """See that the callback is not called any more; one that has been called is no error."""
        self._waiters.remove(self)
        if self._handle is not None:
            self._handle.cancel()


class _Follower:
    """The fetch of one follower that waits at the end of a partition."""

    __slots__ = ("callback", "handle", "known", "offset", "waiting")

    def __init__(
        self, waiting: "dict[_Follower, None]", offset: int, known: int | None, callback: Callable[[], None]
    ) -> None:
        self.waiting = waiting
        self.offset = offset
        self.known = known
        self.callback = callback
        self.handle: asyncio.Handle | None = None  # once it has been woken

    def cancel(self) -> None:
        if self.handle is None:
            self.waiting.pop(self, None)
        else:
            self.handle.cancel()


class ReplicaWaiters:
    """The fetches of followers that have all there is and wait for more."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[_Follower, None] = {}

    def add(self, offset: int, callback: Callable[[], None], *, known_high_watermark: int | None) -> Cancel:
        """Have `callback` called once, when the log ends behind `offset` or the known high watermark has moved."""
        follower = _Follower(self._waiting, offset, known_high_watermark, callback)
        self._waiting[follower] = None
        return follower.cancel

    def wake(self, log_end: int, high_watermark: int) -> None:
        """Call those for whom there are changes."""
        if not self._waiting:
            return
        ready = [
            follower
            for follower in self._waiting
            if follower.offset < log_end or (follower.known is not None and follower.known < high_watermark)
        ]
        for follower in ready:
            del self._waiting[follower]
            follower.handle = self._loop.call_soon(follower.callback)

    def wake_all(self) -> None:
        """Call all of them, because this replica leads no more or goes away."""
        for follower in self._waiting:
            follower.handle = self._loop.call_soon(follower.callback)
        self._waiting.clear()
