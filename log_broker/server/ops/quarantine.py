"""
Puts records aside that break their topic's contract: into the quarantine beside the topic, before their batch is acked.

    batch ──▶ its good records into the log, with gaps ──▶ its bad ones into the quarantine ──▶ the producer is answered

The log comes first because only it knows the offsets, and because it decides: a repeated batch is known there, and its
gaps say what was left out, whatever the registry says by now. So a batch that is repeated after anything went wrong in
between has its bad records written again, and the quarantine knows them by the sequence with which their batch began.
Batches of one partition go there one after the other, in their order.

Records of a transaction go there in that transaction: the quarantine's partition joins it and gets its marker.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol
from uuid import uuid4

from log_broker.core.cluster.controller import CreateTopic
from log_broker.core.cluster.quarantine_topics import quarantine_of
from log_broker.core.partition.protocol import AppendResult
from log_broker.core.transactions.records import TopicPartition
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import TRANSACTIONAL, read_header
from log_broker.records.contracts import Fault
from log_broker.records.quarantined import offset_deltas, quarantined
from log_broker.server.coordinators.transactional_produce import ProducedBatch, ProduceHost, append_in_transaction
from log_broker.server.partitions.long_checks import Done
from log_broker.server.partitions.ports import EnsuresTopics, Partitions
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.server.quorum.ports import HasAuthority
from log_broker.wire.apis import ApiKey

_log = logging.getLogger(__name__)

CLIENT_ID = "__fluvial_quarantine"  # under this name brokers write to quarantines that others lead
PRODUCE_VERSION = 12  # with which the quarantine's partition joins a transaction (KIP-890)
WRITE_SECONDS_MAX = 20.0
RETRY_SECONDS = 0.05
RETRY_SECONDS_MAX = 1.0
REASON_FORGOTTEN = "it broke its contract when its batch first came"

# Settings that a quarantine has as its topic has them; the others are the defaults.
_INHERITED = ("fluvial.durability", "min.insync.replicas", "retention.ms", "retention.bytes", "segment.bytes")
_FOREVER = {"retention.ms": "-1", "retention.bytes": "-1"}
_OWN = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "fluvial.key.schema.validation": "none",
    "fluvial.value.schema.validation": "none",
}
# What the producer is to hear as it is: no repetition of the batch would help.
_FINAL = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_RECORD}
)


class QuarantineHost(HasAuthority, Partitions, ProduceHost, EnsuresTopics, Protocol):
    """What the quarantine asks of its node."""


class _PutAside(NamedTuple):
    """One batch of bad records on its way."""

    batch: bytes
    transactional_id: str | None
    answer: asyncio.Future[AppendResult]


class Quarantine:
    """One node's part: for the partitions that it leads, wherever their quarantines are led."""

    def __init__(self, node: QuarantineHost) -> None:
        self._node = node
        self._waiting: dict[TopicPartition, deque[_PutAside]] = {}
        self.records = 0  # put aside since the node started

    def append(
        self,
        runtime: PartitionRuntime,
        records: memoryview,
        *,
        acks: int,
        done: Done,
        transactional_id: str | None = None,
    ) -> None:
        """Append a batch to a topic that has a quarantine; `done` is called as `PartitionRuntime.append` says."""
        runtime.append(records, acks=acks, done=partial(self._stored, runtime, records, acks, done, transactional_id))

    def _stored(  # noqa: PLR0917 all but the last are bound when the batch comes
        self,
        runtime: PartitionRuntime,
        records: memoryview,
        acks: int,
        done: Done,
        transactional_id: str | None,
        result: AppendResult,
    ) -> None:
        if result.left_out is None or result.error is not ErrorCode.NONE:
            done(result)
            return
        answer = result._replace(left_out=None)
        if acks == 0:
            done(answer)
            done = _nobody_waits
        self._node.run(self._put_aside(runtime, records, result, partial(_answer, done, answer), transactional_id))

    async def _put_aside(
        self,
        runtime: PartitionRuntime,
        records: memoryview,
        result: AppendResult,
        done: Done,
        transactional_id: str | None,
    ) -> None:
        try:
            faults = result.left_out or await self._left_out_before(runtime, records, result.base_offset)
            if not faults:
                done(result)
                return
            batch = await runtime.replica.aside(
                partial(
                    quarantined,
                    records,
                    faults,
                    topic=runtime.topic,
                    partition=runtime.partition,
                    base_offset=result.base_offset,
                    append_time_ms=result.log_append_time_ms,
                )
            )
            is_transactional = read_header(records).attributes & TRANSACTIONAL
            outcome = await self._write(
                (runtime.topic, runtime.partition), bytes(batch), transactional_id if is_transactional else None
            )
        except BrokerError as error:
            outcome = AppendResult(error.code, message=str(error))
        if outcome.error is ErrorCode.NONE:
            self.records += len(faults)
        else:
            _log.error("%s-%d: records could not be put aside: %s", runtime.topic, runtime.partition, outcome.message)
        done(outcome)

    async def _left_out_before(
        self, runtime: PartitionRuntime, records: memoryview, base_offset: int
    ) -> Sequence[Fault]:
        """
        Say which records of a batch that is in the log already are not there, and why.

        Compaction takes records as well: of a compacted topic only those count that would be left out now.
        """
        stored = runtime.stored_batch(base_offset)
        if stored is None:
            return ()
        kept = await runtime.replica.aside(partial(offset_deltas, stored))
        count = read_header(records).record_count
        missing = set(range(count)) - kept
        if not missing:
            return ()
        known = {fault.at: fault for fault in await runtime.checks.faults_of(records)}
        if runtime.config.is_compacted:
            return [known[at] for at in sorted(missing) if at in known]
        return [known.get(at) or Fault(at, REASON_FORGOTTEN) for at in sorted(missing)]

    async def _write(self, place: TopicPartition, batch: bytes, transactional_id: str | None) -> AppendResult:
        """Have a batch written behind those of the same partition that came before; return how that went."""
        answer: asyncio.Future[AppendResult] = self._node.loop.create_future()
        waiting = self._waiting.get(place)
        if waiting is None:
            waiting = self._waiting[place] = deque()
            self._node.run(self._drain(place))
        waiting.append(_PutAside(batch, transactional_id, answer))
        return await answer

    async def _drain(self, place: TopicPartition) -> None:
        waiting = self._waiting[place]
        try:
            while waiting:
                item = waiting.popleft()
                outcome = await self._insist(place, item)
                if not item.answer.done():
                    item.answer.set_result(outcome)
        finally:
            del self._waiting[place]

    async def _insist(self, place: TopicPartition, item: _PutAside) -> AppendResult:
        """Try until the batch is durable, or until it has taken too long."""
        deadline = self._node.loop.time() + WRITE_SECONDS_MAX
        pause = RETRY_SECONDS
        while True:
            try:
                outcome = await self._try(place, item)
            except BrokerError as error:
                outcome = AppendResult(error.code, message=str(error))
            if outcome.error is ErrorCode.NONE or outcome.error in _FINAL:
                return outcome
            if self._node.loop.time() + pause > deadline:
                # The producer may repeat the batch, which then is known and finds its way here again.
                reason = f"{quarantine_of(place[0])}-{place[1]} takes no records: {outcome.error.name}"
                return AppendResult(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, message=reason)
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_SECONDS_MAX)

    async def _try(self, place: TopicPartition, item: _PutAside) -> AppendResult:
        node = self._node
        topic, partition = quarantine_of(place[0]), place[1]
        await self._ensure(place[0], topic)
        leader = node.cluster.leader_of(topic, partition)
        if leader is None:
            return AppendResult(ErrorCode.LEADER_NOT_AVAILABLE)
        if leader.node_id != node.config.node_id:
            return await self._send(leader.node_id, (topic, partition), item)
        runtime = node.logs.get(topic, partition)
        if runtime is None:
            return AppendResult(node.absence_of(topic, partition))
        answer: asyncio.Future[AppendResult] = node.loop.create_future()

        def done(result: AppendResult) -> None:
            if not answer.done():
                answer.set_result(result)

        take_in(node, runtime, memoryview(bytearray(item.batch)), done, item.transactional_id)
        return await answer

    async def _ensure(self, source: str, topic: str) -> None:
        """See that the quarantine is there and has as many partitions as its topic."""
        node = self._node
        image = node.cluster.topics.get(source)
        if image is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{source} is gone")
        known = node.cluster.topics.get(topic)
        if known is None:
            inherited = {name: image.overrides[name] for name in _INHERITED if name in image.overrides}
            if image.config.is_compacted:
                inherited |= _FOREVER
            await node.ensure_topic(
                CreateTopic(
                    name=topic,
                    topic_id=uuid4().hex,
                    partitions=len(image.partitions),
                    replication_factor=image.partitions[0].factor,
                    overrides=inherited | _OWN,
                )
            )
        elif len(known.partitions) < len(image.partitions):
            await node.authority.add_partitions(topic, len(image.partitions))

    async def _send(self, node_id: int, place: TopicPartition, item: _PutAside) -> AppendResult:
        topic, partition = place
        data = {"name": topic, "partition_data": ({"index": partition, "records": item.batch},)}
        answer = await self._node.peers.link(node_id, "quarantine", client_id=CLIENT_ID).ask(
            ApiKey.PRODUCE,
            PRODUCE_VERSION,
            {
                "transactional_id": item.transactional_id,
                "acks": -1,
                "timeout": int(WRITE_SECONDS_MAX * 1000),
                "topic_data": (data,),
            },
        )
        (outcome,) = answer.responses[0].partition_responses
        return AppendResult(ErrorCode(outcome.error_code), outcome.base_offset, message=outcome.error_message)


def take_in(
    node: QuarantineHost, runtime: PartitionRuntime, batch: memoryview, done: Done, transactional_id: str | None
) -> None:
    """Append a batch to a quarantine that this node leads, in its transaction where it has one."""
    if transactional_id is None:
        runtime.own_appends.quarantined(batch, done)
    else:
        produced = ProducedBatch(runtime, batch, -1, done)
        append_in_transaction(node, transactional_id, PRODUCE_VERSION, [produced])


def _answer(done: Done, stored: AppendResult, outcome: AppendResult) -> None:
    """Tell the producer of its batch once the quarantine has what was left out of it, or of what went wrong there."""
    done(stored if outcome.error is ErrorCode.NONE else outcome)


def _nobody_waits(result: AppendResult) -> None:
    """With acks=0 the producer has been answered."""
