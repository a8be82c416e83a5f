"""
Writes the markers of transactions to the partitions that this node leads.

In `__consumer_offsets` a marker also decides about the offsets that were committed in the transaction: the groups are
told in the same step, so that their order is that of the log.
"""

import asyncio
from typing import TYPE_CHECKING

from log_broker.core.cluster import OFFSETS_TOPIC
from log_broker.core.partition_protocol import AppendResult
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
    *,
    bumped: bool = False,
) -> asyncio.Future[ErrorCode]:
    """End the transaction of `producer`, (id, epoch), in one partition; the outcome comes once it is durable."""
    answer: asyncio.Future[ErrorCode] = node.loop.create_future()
    runtime = node.logs.get(*place)
    if runtime is None:
        answer.set_result(node.absence_of(*place))
        return answer
    producer_id, producer_epoch = producer

    def written(result: AppendResult) -> None:
        if result.error is ErrorCode.NONE and place[0] == OFFSETS_TOPIC:
            node.groups.transaction_ended(place[1], producer_id, committed=marker.committed)
        if not answer.done():
            answer.set_result(result.error)

    runtime.end_transaction(producer_id, producer_epoch, marker, written, bumped=bumped)
    return answer
