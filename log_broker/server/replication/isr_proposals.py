"""
What the leaders on this node ask of the controller: one AlterPartition at a time, with all that gathered meanwhile.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol
from uuid import UUID

from log_broker.core.cluster.image import PartitionImage
from log_broker.core.cluster.isr_changes import IsrMember, IsrWish
from log_broker.core.partition.replication import IsrProposal, Leadership
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.server.process.log_limiter import RateLimitedLog
from log_broker.server.process.ports import Cluster, Process
from log_broker.server.quorum.controller import HasController
from log_broker.server.quorum.ports import HasAuthority
from log_broker.wire.apis import ApiKey

_log = logging.getLogger(__name__)

VERSION = 3  # with the broker epoch of each member (KIP-903)
PARTITIONS_MAX = 2000


class ProposalHost(Cluster, HasAuthority, HasController, Process, Protocol):
    """What proposing ISRs asks of the node."""


class IsrProposals:
    """The proposals of one node's leaders, from when they are made until the controller has answered."""

    def __init__(self, node: ProposalHost) -> None:
        self.shrinks = 0
        self.expands = 0
        self.failures = 0
        self._node = node
        self._trouble = RateLimitedLog(_log, node.loop.time)
        self._wanted: dict[PartitionRuntime, IsrProposal] = {}
        self._sends = False
        self._before: dict[PartitionRuntime, set[int]] = {}  # the ISRs when the controller was asked

    def propose(self, runtime: PartitionRuntime, proposal: IsrProposal) -> None:
        """Have the controller asked; `runtime` hears of the outcome."""
        self._wanted[runtime] = proposal
        if not self._sends:
            self._sends = True
            self._node.run(self._send())

    async def _send(self) -> None:
        try:
            while self._wanted:
                await asyncio.sleep(0)  # with whatever else this turn brings
                batch = list(self._wanted.items())[:PARTITIONS_MAX]
                for runtime, _ in batch:
                    del self._wanted[runtime]
                try:
                    await self._ask(batch)
                except BrokerError as error:
                    self.failures += len(batch)
                    self._trouble.failed("the controller does not take %d ISR changes: %s", len(batch), error)
                    for runtime, proposal in batch:
                        runtime.role.isr_refused(error.code, proposal)
        finally:
            self._sends = False

    async def _ask(self, batch: list[tuple[PartitionRuntime, IsrProposal]]) -> None:
        node = self._node
        node_id = node.config.node_id
        epoch = node.cluster.brokers[node_id].epoch
        self._before = {runtime: set(runtime.leading.isr) for runtime, _ in batch}
        if node.controller is not None:
            wishes = [_wish(runtime, proposal) for runtime, proposal in batch]
            outcomes = await node.controller.alter_partitions(node_id, epoch, wishes)
            for (runtime, proposal), outcome in zip(batch, outcomes, strict=True):
                image = outcome.image
                if outcome.error is ErrorCode.NONE and image is not None:
                    self._granted(runtime, image.isr)
                    runtime.role.isr_settled(leadership_of(image))
                else:
                    self._refused(runtime, proposal, outcome.error)
            return
        by_topic: dict[UUID, list[tuple[PartitionRuntime, IsrProposal]]] = {}
        for runtime, proposal in batch:
            by_topic.setdefault(runtime.topic_id, []).append((runtime, proposal))
        values = {
            "broker_id": node_id,
            "broker_epoch": epoch,
            "topics": [
                {"topic_id": topic_id, "partitions": [_partition(*wanted) for wanted in partitions]}
                for topic_id, partitions in by_topic.items()
            ],
        }
        answer = await node.authority.ask_controller(ApiKey.ALTER_PARTITION, VERSION, values)
        if answer.error_code:
            raise BrokerError(ErrorCode(answer.error_code), "the controller refused")
        answers = {
            (topic.topic_id, found.partition_index): found for topic in answer.topics for found in topic.partitions
        }
        for runtime, proposal in batch:
            found = answers.get((runtime.topic_id, runtime.partition))
            self._take(runtime, proposal, found)

    def _take(self, runtime: PartitionRuntime, proposal: IsrProposal, found: Any) -> None:
        if found is None:
            self._refused(runtime, proposal, ErrorCode.UNKNOWN_SERVER_ERROR)
        elif found.error_code:
            self._refused(runtime, proposal, ErrorCode(found.error_code))
        else:
            # It is committed, and takes effect here with the image that has it: the answer does not say whether a move
            # of replicas was completed by it. Until then the proposal counts beside the ISR from before.
            self._granted(runtime, found.isr)

    def _granted(self, runtime: PartitionRuntime, isr: Sequence[int]) -> None:
        before = self._before[runtime]
        self.shrinks += bool(before - set(isr))
        self.expands += bool(set(isr) - before)
        _log.debug("%s-%d: the ISR is %s", runtime.topic, runtime.partition, isr)

    def _refused(self, runtime: PartitionRuntime, proposal: IsrProposal, error: ErrorCode) -> None:
        self.failures += 1
        name = f"{runtime.topic}-{runtime.partition}"
        _log.debug("%s: the ISR does not become %s: %s", name, proposal.isr, error.name)
        runtime.role.isr_refused(error, proposal)


def leadership_of(partition: PartitionImage) -> Leadership:
    """Return what a leader must know of its partition."""
    return Leadership(
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        replicas=partition.replicas,
        isr=partition.isr,
        adding=partition.adding,
        recovering=partition.recovering,
    )


def _wish(runtime: PartitionRuntime, proposal: IsrProposal) -> IsrWish:
    return IsrWish(
        runtime.topic_id.hex,
        runtime.partition,
        proposal.leader_epoch,
        proposal.partition_epoch,
        tuple(map(IsrMember, proposal.isr, proposal.broker_epochs)),
    )


def _partition(runtime: PartitionRuntime, proposal: IsrProposal) -> dict[str, Any]:
    return {
        "partition_index": runtime.partition,
        "leader_epoch": proposal.leader_epoch,
        "new_isr_with_epochs": [
            {"broker_id": node_id, "broker_epoch": epoch}
            for node_id, epoch in zip(proposal.isr, proposal.broker_epochs, strict=True)
        ],
        "leader_recovery_state": 0,
        "partition_epoch": proposal.partition_epoch,
    }
