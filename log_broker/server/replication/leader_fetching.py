"""
The asyncio driver of one `core.replica_fetcher`: all that this node fetches from one leader, over one connection.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from log_broker.core.fetch.replica_fetcher import (
    Appended,
    AppendFetched,
    Delayed,
    Effect,
    Event,
    FetchAnswered,
    FetchFailed,
    Follow,
    LeaderAdvanced,
    ReplicaFetcher,
    RestartAt,
    SendFetch,
    Truncate,
    Unfollow,
)
from log_broker.core.fetch.replica_messages import ReplicaFetchRequest, TopicIdPartition
from log_broker.core.partition.following import Lost
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.net.dialing import Dialer
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.server.process.log_limiter import RateLimitedLog
from log_broker.server.replication.fetch_link import FetchLink
from log_broker.server.replication.loss_reports import LossReports
from log_broker.wire.reading import MalformedRequestError
from log_broker.wire.replica_fetch import encode_request, parse_response

_log = logging.getLogger(__name__)

CONNECT_SECONDS_MAX = 5.0


class Fetchers(Protocol):
    """What the fetchers of a node share."""

    corrupt_fetches: int

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def dialer(self) -> Dialer: ...
    @property
    def staging(self) -> memoryview: ...
    @property
    def reports(self) -> LossReports: ...
    def silence_ms_max(self) -> int: ...


class LeaderFetching:
    """Fetches from node `leader_id` at `address`, host and port, until it is stopped."""

    def __init__(self, fetchers: Fetchers, fetcher: ReplicaFetcher, leader_id: int, address: tuple[str, int]) -> None:
        self.fetcher = fetcher
        self.leader_id = leader_id
        self.address = address
        self._fetchers = fetchers
        self._loop = fetchers.loop
        self._runtimes: dict[TopicIdPartition, PartitionRuntime] = {}
        self._effects: deque[Effect] = deque()
        self._running = False
        self._link: FetchLink | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._to_send: list[ReplicaFetchRequest] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._silence: asyncio.TimerHandle | None = None
        self._owed_since = -1  # how much had come when an answer was owed at the last look
        self._correlation_id = 0
        self._stopped = False
        self._trouble = RateLimitedLog(_log, self._loop.time)
        self.bytes_in = 0

    def __len__(self) -> int:
        return len(self.fetcher)

    def follow(
        self, place: TopicIdPartition, runtime: PartitionRuntime, leader_epoch: int, *, is_throttled: bool
    ) -> None:
        """Fetch a partition from here, as of this leader epoch."""
        self._runtimes[place] = runtime
        self._handle(Follow(place, leader_epoch, runtime.following, is_throttled))

    def unfollow(self, place: TopicIdPartition) -> None:
        """Fetch a partition no more."""
        if self._runtimes.pop(place, None) is not None:
            self._handle(Unfollow(place))

    def lags(self) -> Sequence[tuple[PartitionRuntime, int]]:
        """List how many offsets each partition is behind its leader, those of which that is known."""
        lags = ((runtime, self.fetcher.lag_of(place)) for place, runtime in self._runtimes.items())
        return [(runtime, lag) for runtime, lag in lags if lag >= 0]

    def stop(self) -> None:
        """Let go of the connection; what is being written is written, and told nobody."""
        self._stopped = True
        self._disconnect()
        if self._timer is not None:
            self._timer.cancel()

    # The machine.

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _handle(self, event: Event) -> None:
        if not self._stopped:
            self._run(self.fetcher.handle(event, self._now_ms()))

    def _due(self) -> None:
        self._timer = None
        if not self._stopped:
            self._run(self.fetcher.tick(self._now_ms()))

    def _run(self, effects: Sequence[Effect]) -> None:
        """Run effects in order, with those that they bring about behind them."""
        queue = self._effects
        queue.extend(effects)
        if self._running:
            return
        self._running = True
        try:
            while queue:
                self._do(queue.popleft())
        finally:
            self._running = False
        self._arm()

    def _arm(self) -> None:
        deadline_ms = None if self._stopped else self.fetcher.next_deadline_ms()
        if self._timer is not None:
            if deadline_ms == self._timer_ms:
                return
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            # A millisecond that has begun is not over: the loop's clock is finer than the machine's.
            self._timer = self._loop.call_at(deadline_ms / 1000 + 0.0005, self._due)
            self._timer_ms = deadline_ms

    def _do(self, effect: Effect) -> None:
        match effect:
            case SendFetch(request):
                self._send(request)
            case AppendFetched():
                self._append(effect)
            case LeaderAdvanced(place, leader_epoch, high_watermark, log_start_offset):
                runtime = self._runtimes.get(place)
                if runtime is not None:
                    runtime.following.append_fetched(
                        _NO_RECORDS, leader_epoch, high_watermark, log_start_offset, _ignore_result
                    )
            case Truncate(place, token, offset, leader_epoch):
                runtime = self._runtimes.get(place)
                if runtime is not None:
                    done = partial(self._truncated, runtime, Appended(place, token), leader_epoch)
                    runtime.following.truncate(offset, done)
            case RestartAt(place, token, offset):
                runtime = self._runtimes.get(place)
                if runtime is not None:
                    _log.warning(
                        "%s-%d ends at %d and its leader, node %d, begins at %d: it is begun again",
                        runtime.topic,
                        runtime.partition,
                        runtime.log_end_offset,
                        self.leader_id,
                        offset,
                    )
                    runtime.following.restart_at(offset, partial(self._cut, Appended(place, token)))
            case Delayed(is_lasting=True):
                self._delayed(effect)

    # The log.

    def _append(self, effect: AppendFetched) -> None:
        place, token, records, leader_epoch, high_watermark, log_start_offset = effect
        runtime = self._runtimes.get(place)
        if runtime is None:
            return
        self.bytes_in += len(records)

        def done(error: BrokerError | None, _: int) -> None:
            if error is None:
                self._handle(Appended(place, token))
                return
            if error.code is ErrorCode.CORRUPT_MESSAGE:
                self._fetchers.corrupt_fetches += 1
                _log.error("%s-%d from node %d: %s", runtime.topic, runtime.partition, self.leader_id, error)
            self._handle(Appended(place, token, error.code))

        runtime.following.append_fetched(memoryview(records), leader_epoch, high_watermark, log_start_offset, done)

    def _truncated(self, runtime: PartitionRuntime, done: Appended, leader_epoch: int, lost: Lost | None) -> None:
        # It may be followed here no longer, as one that has become the leader while it was cut.
        if lost is not None:
            self._fetchers.reports.dropped(runtime, self.leader_id, leader_epoch, lost)
        self._cut(done)

    def _cut(self, done: Appended) -> None:
        """The log has been cut, unless the disk failed and took it offline."""
        runtime = self._runtimes.get(done.place)
        failed = runtime is not None and runtime.offline_reason is not None
        self._handle(done._replace(error=ErrorCode.KAFKA_STORAGE_ERROR) if failed else done)

    def _delayed(self, effect: Delayed) -> None:
        runtime = self._runtimes.get(effect.place)
        if runtime is not None:
            name = f"{runtime.topic}-{runtime.partition}"
            _log.warning("%s cannot be fetched from node %d: %s", name, self.leader_id, effect.error.name)

    # The connection.

    def _send(self, request: ReplicaFetchRequest) -> None:
        if self._link is None:
            self._to_send.append(request)
            if self._connecting is None:
                self._connecting = self._loop.create_task(self._connect())
            return
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        self._link.send(encode_request(self._correlation_id, request))

    async def _connect(self) -> None:
        link = FetchLink(self._fetchers.staging, answered=self._answered, lost=self._lost)
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                await self._fetchers.dialer.connect(lambda: link, *self.address)
        except (OSError, TimeoutError) as error:
            link.close()
            self._connecting = None
            self._lost(str(error) or "it does not answer")
            return
        except asyncio.CancelledError:
            link.close()
            raise
        self._connecting, self._link = None, link
        to_send, self._to_send = self._to_send, []
        for request in to_send:
            self._send(request)
        if self._silence is None:
            self._watch_silence()

    def _watch_silence(self) -> None:
        """Part from a leader that has sent nothing for too long although each request has an end to its wait."""
        self._silence = None
        if self._link is None or self._stopped:
            return
        received, waits = self._link.received, self.fetcher.is_waiting
        if waits and self._owed_since == received:
            self._lost("it does not answer")
            return
        self._owed_since = received if waits else -1
        self._silence = self._loop.call_later(self._fetchers.silence_ms_max() / 1000, self._watch_silence)

    def _answered(self, content: memoryview) -> None:
        try:
            response = parse_response(content)
        except MalformedRequestError as error:
            self._lost(str(error))
            return
        if response.error is not ErrorCode.NONE:
            _log.info("node %d answers a fetch with %s", self.leader_id, response.error.name)
        # Not when it is connected to: a proxy or a port that something else has takes connections as well.
        self._trouble.recovered("node %d is fetched from again", self.leader_id)
        self._handle(FetchAnswered(response))

    def _lost(self, reason: str) -> None:
        if not self._stopped:
            self._trouble.failed("node %d at %s:%d cannot be fetched from: %s", self.leader_id, *self.address, reason)
        self._disconnect()
        self._handle(FetchFailed())

    def _disconnect(self) -> None:
        self._to_send.clear()
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._link is not None:
            self._link.close()
            self._link = None
        # What one connection owed is not held against the next, which has received as little when it begins.
        self._owed_since = -1
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None


_NO_RECORDS = memoryview(b"")


def _ignore_result(error: BrokerError | None, end: int) -> None:
    """A high watermark that could not be taken comes again with the next answer."""
