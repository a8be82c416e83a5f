"""
The partitions of an internal topic that this node coordinates: taken over and given up as leadership comes and goes.

    the image says that we lead ──▶ loading: the log is read up to its end at our election, once that is committed,
                                    and on to the high watermark; who asks hears COORDINATOR_LOAD_IN_PROGRESS
                                ──▶ loaded
    the image says otherwise, or names another leader epoch ──▶ resigned: whoever waits hears NOT_COORDINATOR

What a shard has decided is appended in its own leader epoch or not at all.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import BatchHeader
from log_broker.records.control import EndMarker
from log_broker.records.record import Record
from log_broker.server.partitions.internal_log import stored_entries
from log_broker.server.partitions.ports import Partitions
from log_broker.server.partitions.readers import Cancel
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.server.process.ports import Cluster, HasLease, Process

_log = logging.getLogger(__name__)

SLICE_SECONDS = 0.01  # for so long loading keeps the event loop to itself
RETRY_SECONDS = 1.0
ENTRIES_PER_LOOK = 32  # at the clock

T = TypeVar("T")


class ShardHost(Cluster, HasLease, Partitions, Process, Protocol):
    """What shards ask of their node."""


class Token(Protocol):
    """What a request is answered by: a future, or what is like one."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...


class Shard(Generic[T]):
    """One partition in one leader epoch. `waiting` holds the requests without an answer, each by its token."""

    def __init__(self, runtime: PartitionRuntime, epoch: int) -> None:
        self.partition = runtime.partition
        self.runtime = runtime
        self.epoch = epoch
        self.items: dict[str, T] = {}
        self.held: dict[int, set[str]] = {}  # producer id -> the items that its open transaction touches
        self.waiting: dict[Token, Any] = {}
        self.is_replayed = False  # as far as the high watermark was when it was last looked at
        self.is_loaded = False
        self.is_resigned = False

    @property
    def may_append(self) -> bool:
        """Whether what is decided here may be appended: nothing of an old epoch under a new one."""
        runtime = self.runtime
        return not self.is_resigned and runtime.is_leader and runtime.leader_epoch == self.epoch

    def note(self, token: Token, asked: Any) -> None:
        """Keep a request in mind until it is answered."""
        if not token.done():
            self.waiting[token] = asked

    def answer(self, token: Token, value: Any) -> None:
        """Answer a request, unless its client has gone."""
        self.waiting.pop(token, None)
        if not token.done():
            token.set_result(value)


class Owner(Protocol[T]):
    """The coordinator whose shards these are."""

    def replay(self, shard: Shard[T], header: BatchHeader, content: Record | EndMarker) -> None:
        """Take in one entry of the log; one that cannot be read is said in the log and left out."""
        ...

    def replayed(self, shard: Shard[T]) -> Iterable[None]:
        """Finish what was read; others get a turn after each step."""
        ...

    def loaded(self, shard: Shard[T]) -> None:
        """Begin to act on what is there."""
        ...

    def resigned(self, shard: Shard[T]) -> None:
        """Drop timers, and answer whoever waits."""
        ...


class Shards(Generic[T]):
    """All shards of one topic."""

    def __init__(self, node: ShardHost, topic: str, owner: Owner[T]) -> None:
        self._node = node
        self._topic = topic
        self._owner = owner
        self._shards: dict[int, Shard[T]] = {}
        self._loading: deque[tuple[Shard[T], Iterator[int | None]]] = deque()
        self._pause_at = 0.0
        self._next_slice: asyncio.Handle | None = None
        self._is_closed = False
        self._retries: dict[Shard[T], asyncio.TimerHandle] = {}
        self._readers: dict[Shard[T], Cancel] = {}

    def follow(self) -> None:
        """Make the shards those of the partitions that the image says this node leads."""
        if self._is_closed:
            return
        led = dict(self._led())
        for partition, shard in list(self._shards.items()):
            if led.get(partition) != (shard.runtime, shard.epoch):
                self._resign(shard)
        for partition, (runtime, epoch) in led.items():
            if partition not in self._shards:
                shard = self._shards[partition] = Shard(runtime, epoch)
                self._loading.append((shard, self._load(shard)))
        if self._next_slice is None:
            self._load_slice()

    def close(self) -> None:
        """Stop loading; the node stops."""
        self._is_closed = True
        for shard in self._shards.values():
            self._stop_loading(shard)
        self._loading.clear()
        if self._next_slice is not None:
            self._next_slice.cancel()

    def get(self, partition: int | None) -> Shard[T] | None:
        """Return a shard that is loaded."""
        shard = None if partition is None else self._shards.get(partition)
        return shard if shard is not None and shard.is_loaded else None

    def loaded(self) -> list[Shard[T]]:
        return [shard for shard in self._shards.values() if shard.is_loaded]

    def replayed(self, partition: int) -> Shard[T] | None:
        """Return a shard that has read its log, so that what is written from now on must be told to it."""
        shard = self._shards.get(partition)
        return shard if shard is not None and shard.is_replayed else None

    def error_of(self, partition: int | None) -> ErrorCode:
        """Say whether this node coordinates what belongs to a partition; if not, why."""
        if partition is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        shard = self._shards.get(partition)
        if shard is not None and not shard.is_loaded:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if shard is not None:
            # Cut off, another may have taken more by now than is known here; who has no other replica is the only one.
            is_latest = not shard.runtime.has_followers or self._node.lease.valid
            return ErrorCode.NONE if is_latest else ErrorCode.NOT_COORDINATOR
        leader = self._node.cluster.leader_of(self._topic, partition)
        is_ours = leader is not None and leader.node_id == self._node.config.node_id
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_ours else ErrorCode.NOT_COORDINATOR

    def _led(self) -> Iterator[tuple[int, tuple[PartitionRuntime, int]]]:
        topic = self._node.cluster.topics.get(self._topic)
        for index, partition in enumerate(() if topic is None else topic.partitions):
            if partition.leader == self._node.config.node_id:
                runtime = self._node.logs.get(self._topic, index)
                if runtime is not None:
                    yield index, (runtime, partition.leader_epoch)

    def _resign(self, shard: Shard[T]) -> None:
        del self._shards[shard.partition]
        shard.is_resigned = True
        self._stop_loading(shard)
        self._owner.resigned(shard)

    # Loading: one slice in each turn of the loop, one shard after the other.

    def _load_slice(self) -> None:
        self._next_slice = None
        loop = self._node.loop
        self._pause_at = loop.time() + SLICE_SECONDS
        while self._loading:
            shard, steps = self._loading[0]
            wanted: int | None = -1
            try:
                wanted = next(steps)
            except StopIteration:
                pass
            except BrokerError as error:
                _log.error("%s-%d cannot be loaded yet: %s", self._topic, shard.partition, error)
                self._retries[shard] = loop.call_later(RETRY_SECONDS, self._retry, shard)
            if wanted is None:
                break
            self._loading.popleft()
            if wanted >= 0:
                self._wait(shard, steps, wanted)
            if self._is_time_up():
                break
        if self._loading:
            self._next_slice = loop.call_soon(self._load_slice)

    def _load(self, shard: Shard[T]) -> Iterator[int | None]:
        """Load in steps; after each the offset behind which there must be something to read first, or None."""
        runtime, owner = shard.runtime, self._owner
        # What an earlier leader has answered is below this, and committed once all of it is.
        election_end = runtime.log_end_offset
        position = runtime.log_start_offset
        began = self._node.loop.time()
        while True:
            end = runtime.high_watermark
            if position < end:
                for count, (header, content) in enumerate(stored_entries(runtime, position, end)):
                    owner.replay(shard, header, content)
                    if count % ENTRIES_PER_LOOK == 0 and self._is_time_up():
                        yield None
                position = end
            elif end < election_end:
                yield end
            else:
                break
        shard.is_replayed = True
        for _ in owner.replayed(shard):
            if self._is_time_up():
                yield None
        shard.is_loaded = True
        owner.loaded(shard)
        seconds = self._node.loop.time() - began
        if shard.items:
            _log.info("%s-%d: loaded %d in %.3f s", self._topic, shard.partition, len(shard.items), seconds)

    def _is_time_up(self) -> bool:
        return self._node.loop.time() >= self._pause_at

    def _wait(self, shard: Shard[T], steps: Iterator[int | None], offset: int) -> None:
        def go_on() -> None:
            self._readers.pop(shard, None)
            if shard.is_resigned or shard.runtime.is_closed:
                return
            self._loading.append((shard, steps))
            if self._next_slice is None:
                self._next_slice = self._node.loop.call_soon(self._load_slice)

        self._readers[shard] = shard.runtime.on_readable(offset, go_on)

    def _retry(self, shard: Shard[T]) -> None:
        """Begin again: what was replayed so far is forgotten."""
        del self._retries[shard]
        shard.items.clear()
        shard.held.clear()
        self._loading.append((shard, self._load(shard)))
        if self._next_slice is None:
            self._next_slice = self._node.loop.call_soon(self._load_slice)

    def _stop_loading(self, shard: Shard[T]) -> None:
        if shard.is_loaded:
            return
        self._loading = deque(each for each in self._loading if each[0] is not shard)
        timer = self._retries.pop(shard, None)
        if timer is not None:
            timer.cancel()
        cancel = self._readers.pop(shard, None)
        if cancel is not None:
            cancel()
