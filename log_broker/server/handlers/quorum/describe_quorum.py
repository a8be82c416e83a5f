"""DescribeQuorum: who keeps the metadata log, and how far each is (KIP-595, KIP-836)."""

from typing import TYPE_CHECKING, Any, Protocol

from log_broker.core.cluster.image import METADATA_TOPIC
from log_broker.core.raft.description import QuorumDescription, ReplicaProgress
from log_broker.errors import ErrorCode
from log_broker.server.process.ports import Process
from log_broker.server.quorum.ports import HasQuorum
from log_broker.wire.quorum import LISTENER, as_uuid

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


class _Host(HasQuorum, Process, Protocol):
    """What is asked of the node here."""


def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    found = node.quorum.describe()
    # As Kafka has it: of the quorum one partition can be asked about, by itself.
    asked = [(topic.topic_name, entry.partition_index) for topic in request.topics for entry in topic.partitions]
    is_quorum = asked == [(METADATA_TOPIC, 0)]
    topics = [
        {
            "topic_name": topic.topic_name,
            "partitions": [
                _quorum(found, node.clock_ms())
                if is_quorum
                else _absent(entry.partition_index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                for entry in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    voters = [
        {
            "node_id": voter.key.node_id,
            "listeners": [{"name": LISTENER, "host": voter.host, "port": voter.port}],
        }
        for voter in node.quorum.voters
    ]
    return {"error_code": ErrorCode.NONE, "error_message": None, "topics": topics, "nodes": voters}


def _quorum(found: QuorumDescription | None, now_ms: int) -> "Values":
    if found is None:
        return _absent(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return {
        "partition_index": 0,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "leader_id": found.leader_id,
        "leader_epoch": found.epoch,
        "high_watermark": found.high_watermark,
        "current_voters": [_replica(each, now_ms) for each in found.replicas if each.is_voter],
        "observers": [_replica(each, now_ms) for each in found.replicas if not each.is_voter],
    }


def _replica(replica: ReplicaProgress, now_ms: int) -> "Values":
    caught_up = replica.caught_up_ms_ago
    return {
        "replica_id": replica.key.node_id,
        "replica_directory_id": as_uuid(replica.key.directory_id),
        "log_end_offset": replica.log_end_offset,
        "last_fetch_timestamp": now_ms - replica.fetched_ms_ago,
        "last_caught_up_timestamp": -1 if caught_up is None else now_ms - caught_up,
    }


def _absent(index: int, error: ErrorCode) -> "Values":
    return {
        "partition_index": index,
        "error_code": error,
        "error_message": None,
        "leader_id": -1,
        "leader_epoch": -1,
        "high_watermark": -1,
        "current_voters": (),
        "observers": (),
    }
