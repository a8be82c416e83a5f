"""
DescribeLogDirs: how large the partitions on this broker are, and how much room its disk has.

A directory whose disk has taken a partition offline says so with KAFKA_STORAGE_ERROR, as one that failed does in Kafka.
"""

import shutil
from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node


def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, partition) for topic in request.topics for partition in topic.partitions}
    sizes: dict[str, list[Values]] = {}
    error = ErrorCode.NONE
    for runtime in node.logs.partitions():
        if runtime.offline_reason is not None:
            error = ErrorCode.KAFKA_STORAGE_ERROR
        if wanted is None or (runtime.topic, runtime.partition) in wanted:
            sizes.setdefault(runtime.topic, []).append(
                {
                    "partition_index": runtime.partition,
                    "partition_size": runtime.size_bytes(),
                    "offset_lag": 0,
                    "is_future_key": False,
                }
            )
    directory = node.static_config.data_dir
    disk = shutil.disk_usage(directory)
    return {
        "error_code": ErrorCode.NONE,
        "results": [
            {
                "error_code": error,
                "log_dir": str(directory.absolute()),
                "topics": [{"name": name, "partitions": partitions} for name, partitions in sizes.items()],
                "total_bytes": disk.total,
                "usable_bytes": disk.free,
            }
        ],
    }
