"""
DescribeLogDirs: how large the partitions on this broker are, and how much room its disk has.

A directory whose disk has taken a partition offline says so with KAFKA_STORAGE_ERROR, as one that failed does in Kafka.
"""

import shutil
from typing import TYPE_CHECKING, Any, Protocol

from log_broker.errors import ErrorCode
from log_broker.server.partitions.ports import Partitions
from log_broker.server.process.ports import Cluster
from log_broker.server.process.turns import in_turns

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

UNKNOWN_BYTES = -1
PARTITIONS_AT_ONCE_MAX = 1_000


class _Host(Cluster, Partitions, Protocol):
    """What is asked of the node here."""


async def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    """Look at every partition that is here, or asked for, some in each turn of the event loop."""
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, partition) for topic in request.topics for partition in topic.partitions}
    sizes: dict[str, list[Values]] = {}
    offline = False
    async for runtimes in in_turns(list(node.logs.partitions()), PARTITIONS_AT_ONCE_MAX):
        for runtime in runtimes:
            offline = offline or runtime.offline_reason is not None
            # The metadata log is no topic that a client could describe; Kafka leaves its own out as well.
            is_wanted = wanted is None or (runtime.topic, runtime.partition) in wanted
            if not is_wanted or runtime.is_closed:
                continue
            sizes.setdefault(runtime.topic, []).append(
                {
                    "partition_index": runtime.partition,
                    "partition_size": runtime.size_bytes(),
                    "offset_lag": max(0, runtime.high_watermark - runtime.log_end_offset),
                    "is_future_key": False,
                }
            )
    directory = node.static_config.data_dir.absolute()
    failed = offline or bool(node.logs.unidentified)
    error, total, usable = ErrorCode.KAFKA_STORAGE_ERROR if failed else ErrorCode.NONE, UNKNOWN_BYTES, UNKNOWN_BYTES
    try:
        disk = shutil.disk_usage(directory)
        total, usable = disk.total, disk.free
    except OSError:
        error = ErrorCode.KAFKA_STORAGE_ERROR
    return {
        "error_code": ErrorCode.NONE,
        "results": [
            {
                "error_code": error,
                "log_dir": str(directory),
                "topics": [{"name": name, "partitions": partitions} for name, partitions in sizes.items()],
                "total_bytes": total,
                "usable_bytes": usable,
            }
        ],
    }
