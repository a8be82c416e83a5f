"""
What the leaders on this node ask of the controller: one AlterPartition at a time, with all that gathered meanwhile.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any
from uuid import UUID

from log_broker.core.isr_changes import IsrMember, IsrWish
from log_broker.core.replication import IsrProposal, Leadership
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.partition import PartitionRuntime
from log_broker.wire.apis import ApiKey

if TYPE_CHECKING:
    from log_broker.server.node import Node

_log = logging.getLogger(__name__)

VERSION = 3  # with the broker epoch of each member (KIP-903)
PARTITIONS_MAX = 2000


class IsrProposals:
    """The proposals of one node's leaders, from when they are made until the controller has answered."""

    def __init__(self, node: "Node") -> None:
        self.shrinks = 0
        self.expands = 0
        self.failures = 0
        self._node = node
        self._wanted: dict[PartitionRuntime, IsrProposal] = {}
        self._sends = False

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
                    _log.warning("the controller does not take %d ISR changes: %s", len(batch), error)
                    for runtime, proposal in batch:
                        runtime.isr_refused(error.code, proposal)
        finally:
            self._sends = False

    async def _ask(self, batch: list[tuple[PartitionRuntime, IsrProposal]]) -> None:
        node = self._node
        node_id = node.config.node_id
        epoch = node.cluster.brokers[node_id].epoch
        if node.controller is not None:
            wishes = [_wish(runtime, proposal) for runtime, proposal in batch]
            outcomes = await node.controller.alter_partitions(node_id, epoch, wishes)
            for (runtime, proposal), outcome in zip(batch, outcomes, strict=True):
                image = outcome.image
                leadership = None
                if image is not None and image.leader == node_id:
                    leadership = Leadership(
                        leader_epoch=image.leader_epoch,
                        partition_epoch=image.partition_epoch,
                        replicas=image.replicas,
                        isr=image.isr,
                        recovering=image.recovering,
                    )
                self._settle(runtime, proposal, outcome.error, leadership)
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
            self._settle(runtime, proposal, ErrorCode.UNKNOWN_SERVER_ERROR, None)
            return
        leadership = None
        if found.leader_id == self._node.config.node_id:
            image = self._node.cluster.topics.get(runtime.topic)
            replicas = image.partitions[runtime.partition].replicas if image is not None else tuple(found.isr)
            leadership = Leadership(
                leader_epoch=found.leader_epoch,
                partition_epoch=found.partition_epoch,
                replicas=replicas,
                isr=tuple(found.isr),
                recovering=bool(found.leader_recovery_state),
            )
        self._settle(runtime, proposal, ErrorCode(found.error_code), leadership)

    def _settle(
        self, runtime: PartitionRuntime, proposal: IsrProposal, error: ErrorCode, leadership: Leadership | None
    ) -> None:
        if error is not ErrorCode.NONE or leadership is None:
            self.failures += 1
            _log.info(
                "%s-%d: the ISR does not become %s: %s", runtime.topic, runtime.partition, proposal.isr, error.name
            )
            runtime.isr_refused(error, proposal)
            return
        before = set(runtime.isr)
        self.shrinks += bool(before - set(leadership.isr))
        self.expands += bool(set(leadership.isr) - before)
        _log.info("%s-%d: the ISR is %s", runtime.topic, runtime.partition, leadership.isr)
        runtime.isr_settled(leadership)


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
