"""
What OffsetCommit and TxnOffsetCommit have in common: the offsets of the request, and the answer for each.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from log_broker.core.groups.protocol import TopicPartition
from log_broker.core.groups.records import CommittedOffset
from log_broker.errors import ErrorCode
from log_broker.server.process.ports import Cluster, Process

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import Values

Offsets = dict[TopicPartition, CommittedOffset]
Refused = dict[TopicPartition, ErrorCode]


class OffsetHost(Cluster, Process, Protocol):
    """What reading commits asks of the node."""


def read_offsets(node: OffsetHost, request: Any) -> tuple[Offsets, Refused]:
    """Return the offsets of a request that can be committed, and why the others cannot."""
    offsets: Offsets = {}
    refused: Refused = {}
    now_ms = node.clock_ms()
    for topic in request.topics:
        for partition in topic.partitions:
            place = (topic.name, partition.partition_index)
            metadata = partition.committed_metadata or ""
            leader_epoch = getattr(partition, "committed_leader_epoch", -1)
            if not node.cluster.has_partition(*place):
                refused[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif len(metadata) > node.config.offset_metadata_max_bytes:
                refused[place] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            elif partition.committed_offset < -1 or leader_epoch < -1:
                refused[place] = ErrorCode.INVALID_REQUEST
            else:
                offsets[place] = CommittedOffset(
                    offset=partition.committed_offset,
                    metadata=metadata,
                    leader_epoch=leader_epoch,
                    timestamp_ms=now_ms,
                )
    return offsets, refused


def commit_values(request: Any, refused: Mapping[TopicPartition, ErrorCode], error: ErrorCode) -> "Values":
    """Answer each partition of a request: why it was refused, or else what came of the commit."""
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": partition.partition_index,
                        "error_code": refused.get((topic.name, partition.partition_index), error),
                    }
                    for partition in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }
