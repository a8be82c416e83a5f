"""
Writes the markers of transactions to the partitions that this node leads.

In `__consumer_offsets` a marker also decides about the offsets that were committed in the transaction: the groups are
told in the same step, so that their order is that of the log.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from log_broker.core.cluster import OFFSETS_TOPIC
from log_broker.core.partition import AppendResult
from log_broker.core.transaction_records import TopicPartition
from log_broker.errors import ErrorCode
from log_broker.records.control import EndMarker

if TYPE_CHECKING:
    from log_broker.server.node import Node


def write_marker(
    node: "Node",
    place: TopicPartition,
    producer: tuple[int, int],
    marker: EndMarker,
    done: Callable[[ErrorCode], None],
    *,
    bumped: bool = False,
) -> None:
    """End the transaction of `producer`, (id, epoch), in one partition; `done` gets the outcome once it is durable."""
    runtime = node.logs.get(*place)
    if runtime is None:
        done(node.absence_of(*place))
        return
    producer_id, producer_epoch = producer

    def written(result: AppendResult) -> None:
        if result.error is ErrorCode.NONE and place[0] == OFFSETS_TOPIC:
            node.groups.transaction_ended(place[1], producer_id, committed=marker.committed)
        done(result.error)

    runtime.end_transaction(producer_id, producer_epoch, marker, written, bumped=bumped)
