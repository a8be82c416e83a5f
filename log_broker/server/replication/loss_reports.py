"""
What is said when records are lost, or may be: in the process's log, and as events of the cluster.
"""

import logging
from typing import Protocol
from uuid import UUID

from log_broker.core.cluster.image import PartitionImage
from log_broker.core.partition.following import Lost
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.server.process.ports import Cluster, HasEvents

_log = logging.getLogger(__name__)


class ReportHost(Cluster, HasEvents, Protocol):
    """What reporting losses asks of the node."""


class LossReports:
    """The reports of one node about its replicas."""

    def __init__(self, node: ReportHost) -> None:
        self._node = node

    def missing_log(self, runtime: PartitionRuntime, partition: PartitionImage) -> None:
        """Say that a partition begins again: it was led before, and no other replica need have its records."""
        node_id = self._node.config.node_id
        text = (
            f"{runtime.topic}-{runtime.partition}: node {node_id}, the last that was in sync, has no log of it;"
            " what it held is lost here, and it begins again at offset 0"
        )
        _log.error("%s", text)
        place = {"topic": runtime.topic, "partition": runtime.partition, "replicas": partition.replicas}
        self._node.events.note("log_lost", text, **place, leader=node_id, leader_epoch=partition.leader_epoch)

    def missing_records(self, runtime: PartitionRuntime) -> None:
        """Say once which offsets recovery has found to be missing in the middle of a log."""
        for first, end in runtime.take_missing():
            text = (
                f"{runtime.topic}-{runtime.partition}: the disk of node {self._node.config.node_id} has lost the"
                f" offsets {first} to {end - 1}, which this replica cannot serve"
            )
            place = {"topic": runtime.topic, "partition": runtime.partition}
            self._node.events.note("records_missing", text, **place, first_offset=first, end_offset=end)

    def dropped(self, runtime: PartitionRuntime, leader_id: int, leader_epoch: int, lost: Lost) -> None:
        """Say which records this replica had that its leader has not."""
        text = (
            f"{runtime.topic}-{runtime.partition}: offsets {lost.first} to {lost.end - 1} on node"
            f" {self._node.config.node_id} are not in the log of its leader, node {leader_id}, and were dropped"
        )
        kind = "records_lost" if lost.committed or lost.acknowledged else "truncated"
        self._note_lost(kind, text, runtime, lost, leader=leader_id, leader_epoch=leader_epoch)

    def left_behind(self, runtime: PartitionRuntime) -> None:
        """Say which acknowledged records a replica of a topic that stays takes with it and nobody else may have."""
        topic = self._node.cluster.topics.get(runtime.topic)
        if topic is None or UUID(hex=topic.topic_id) != runtime.topic_id:
            return
        lost = runtime.following.left_behind()
        if lost is not None:
            text = (
                f"{runtime.topic}-{runtime.partition}: node {self._node.config.node_id} is no replica of it any more"
                f" and gives up its log; whether the others have its offsets {lost.first} to {lost.end - 1} it was"
                " never told"
            )
            self._note_lost("records_in_doubt", text, runtime, lost)

    def _note_lost(self, kind: str, text: str, runtime: PartitionRuntime, lost: Lost, **fields: int) -> None:
        _log.warning("%s", text)
        self._node.events.note(
            kind,
            text,
            topic=runtime.topic,
            partition=runtime.partition,
            first_offset=lost.first,
            end_offset=lost.end,
            committed=lost.committed,
            acknowledged=lost.acknowledged,
            **fields,
        )
