"""DescribeQuorum: who keeps the metadata log, and how far each is."""

from typing import TYPE_CHECKING, Any

from log_broker.core.cluster import METADATA_TOPIC
from log_broker.errors import ErrorCode

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node


def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    topics = [
        {
            "topic_name": topic.topic_name,
            "partitions": [
                _quorum(node)
                if (topic.topic_name, entry.partition_index) == (METADATA_TOPIC, 0)
                else _unknown(entry.partition_index)
                for entry in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    controllers = [broker for broker in node.cluster.alive_brokers() if broker.node_id == node.controller_id]
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "topics": topics,
        "nodes": [
            {
                "node_id": broker.node_id,
                "listeners": [{"name": "PLAINTEXT", "host": broker.host, "port": broker.port}],
            }
            for broker in controllers
        ],
    }


def _quorum(node: "Node") -> "Values":
    """The controller is the only voter; the other brokers follow its log without being counted."""
    log = node.metadata_partition()
    now_ms = node.clock_ms()
    voter = {
        "replica_id": node.controller_id,
        "replica_directory_id": None,
        "log_end_offset": log.log_end_offset,
        "last_fetch_timestamp": -1,
        "last_caught_up_timestamp": now_ms,
    }
    observers = [
        {"replica_id": broker.node_id, "replica_directory_id": None, "log_end_offset": -1}
        for broker in node.cluster.alive_brokers()
        if broker.node_id != node.controller_id
    ]
    return {
        "partition_index": 0,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "leader_id": node.controller_id,
        "leader_epoch": log.leader_epoch,
        "high_watermark": log.high_watermark,
        "current_voters": [voter],
        "observers": observers,
    }


def _unknown(index: int) -> "Values":
    return {
        "partition_index": index,
        "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "error_message": None,
        "leader_id": -1,
        "leader_epoch": -1,
        "high_watermark": -1,
        "current_voters": (),
        "observers": (),
    }
