"""
What the broker itself appends to a partition: its own records, markers of transactions, records that were left out.
"""

import asyncio
from collections.abc import Callable, Sequence

from log_broker.core.partition.protocol import (
    AppendQuarantined,
    AppendResult,
    AppendUnsequenced,
    EndTransaction,
    Event,
)
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import TRANSACTIONAL
from log_broker.records.control import EndMarker
from log_broker.records.record import build_batch
from log_broker.server.partitions.long_checks import Done
from log_broker.server.partitions.replica import Replica
from log_broker.server.partitions.runner import EffectRunner

KeyValue = tuple[bytes | None, bytes | None]


class OwnAppends:
    """Appends of the broker; each `done` is called exactly once, possibly before the call returns."""

    def __init__(self, replica: Replica, runner: EffectRunner, append: Callable[..., None]) -> None:
        """`append` is that of a producer's batch."""
        self._replica = replica
        self._runner = runner
        self._append = append

    async def records(self, records: Sequence[KeyValue], timestamp_ms: int | None = None) -> int:
        """Append (key, value) pairs as one batch and return the first offset; raises BrokerError."""
        answer: asyncio.Future[AppendResult] = self._replica.loop.create_future()

        def done(result: AppendResult) -> None:
            if not answer.done():
                answer.set_result(result)

        self.begin(records, done, timestamp_ms)
        result = await answer
        if result.error is not ErrorCode.NONE:
            raise BrokerError(result.error, result.message or "")
        return result.base_offset

    def begin(self, records: Sequence[KeyValue], done: Done, timestamp_ms: int | None = None) -> None:
        """Append (key, value) pairs as one batch."""
        now_ms = self._replica.clock_ms() if timestamp_ms is None else timestamp_ms
        batch = memoryview(build_batch((now_ms, key, value, ()) for key, value in records))
        replica = self._replica
        is_taken = replica.core.appends.rules.takes_own and all(key is not None for key, _ in records)
        if is_taken and not replica.is_closed and self._runner.checks.queued is None:
            self._runner.run(replica.core.broker_appends.own(batch, done))
        else:
            self._append(batch, acks=-1, done=done)

    def quarantined(self, batch: memoryview, done: Done) -> None:
        """Append what another partition has left out of a batch; see `core.partition.protocol.AppendQuarantined`."""
        self._handle(AppendQuarantined(batch, done), done)

    def transactional(self, records: Sequence[KeyValue], producer_id: int, producer_epoch: int, done: Done) -> None:
        """Append (key, value) pairs for a producer that did not send them itself, in its transaction."""
        now_ms = self._replica.clock_ms()
        batch = build_batch(
            ((now_ms, key, value, ()) for key, value in records),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            attributes=TRANSACTIONAL,
        )
        self._handle(AppendUnsequenced(memoryview(batch), done), done)

    def end_transaction(
        self, producer_id: int, producer_epoch: int, marker: EndMarker, done: Done, *, bumped: bool = False
    ) -> None:
        """Append the marker of a transaction; see `core.partition.protocol.EndTransaction`."""
        self._handle(EndTransaction(producer_id, producer_epoch, marker, done, bumped), done)

    def _handle(self, event: Event, done: Done) -> None:
        replica = self._replica
        if replica.is_closed:
            done(AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        self._runner.run(replica.core.handle(event, replica.clock_ms()))
