"""
Writes the markers of transactions: here, or by asking the node that leads the partition (WriteTxnMarkers).

In `__consumer_offsets` a marker also decides about the offsets that were committed in the transaction: the groups are
told in the same step, so that their order is that of the log.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from log_broker.core.cluster.image import OFFSETS_TOPIC
from log_broker.core.partition.protocol import AppendResult
from log_broker.core.transactions.records import TopicPartition, by_topic
from log_broker.core.transactions.transaction import BUMPS_EPOCH_FROM
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.control import EndMarker
from log_broker.server.net.ports import HasPeers
from log_broker.server.partitions.ports import Partitions
from log_broker.server.process.ports import Cluster, Process
from log_broker.wire.apis import ApiKey

MARKERS_VERSION = 2
MARKERS_MAX = 10_000  # in one request, which has some 20 bytes for each

Answer = asyncio.Future[ErrorCode]


class TransactionListener(Protocol):
    """Who must know that a transaction has ended in a partition of the offsets topic."""

    def transaction_ended(self, partition: int, producer_id: int, *, committed: bool) -> None: ...


class MarkerHost(Cluster, HasPeers, Partitions, Process, Protocol):
    """What writing markers asks of the node."""

    @property
    def groups(self) -> TransactionListener: ...


class Ending(NamedTuple):
    """
    How the transaction of `producer`, (id, epoch), ends.

    `bumped` says that the epoch is already that of its next transaction (KIP-890).
    """

    producer: tuple[int, int]
    marker: EndMarker
    bumped: bool = False


def write_marker(node: MarkerHost, place: TopicPartition, ending: Ending) -> Answer:
    """End a transaction in a partition that this node leads; the outcome comes once it is durable."""
    answer: Answer = node.loop.create_future()
    runtime = node.logs.get(*place)
    if runtime is None:
        answer.set_result(node.absence_of(*place))
        return answer
    (producer_id, producer_epoch), marker, bumped = ending

    def written(result: AppendResult) -> None:
        if result.error is ErrorCode.NONE and place[0] == OFFSETS_TOPIC:
            node.groups.transaction_ended(place[1], producer_id, committed=marker.committed)
        if not answer.done():
            answer.set_result(result.error)

    runtime.own_appends.end_transaction(producer_id, producer_epoch, marker, written, bumped=bumped)
    return answer


class MarkerSender:
    """Has markers written by whoever leads their partitions; what gathers while a node is asked goes there together."""

    def __init__(self, node: MarkerHost) -> None:
        self._node = node
        self._gathered: dict[int, list[tuple[TopicPartition, Ending, Answer]]] = {}

    def write(self, place: TopicPartition, ending: Ending) -> Answer:
        """
        Try once to end a transaction in a partition, wherever that is led now.

        UNKNOWN_TOPIC_OR_PARTITION says that there is no such partition any more, in the whole cluster.
        """
        node = self._node
        leader = node.cluster.leader_of(*place)
        if leader is not None and leader.node_id == node.config.node_id:
            return write_marker(node, place, ending)
        answer: Answer = node.loop.create_future()
        if leader is None:
            known = node.cluster.has_partition(*place)
            answer.set_result(ErrorCode.LEADER_NOT_AVAILABLE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return answer
        gathered = self._gathered.get(leader.node_id)
        if gathered is None:
            gathered = self._gathered[leader.node_id] = []
            node.run(self._send(leader.node_id))
        gathered.append((place, ending, answer))
        return answer

    async def _send(self, node_id: int) -> None:
        gathered = self._gathered[node_id]
        try:
            while gathered:
                asked = gathered[:MARKERS_MAX]
                del gathered[:MARKERS_MAX]
                for (_, _, answer), error in zip(asked, await self._ask(node_id, asked), strict=True):
                    if not answer.done():
                        answer.set_result(error)
        finally:
            del self._gathered[node_id]

    async def _ask(self, node_id: int, asked: Sequence[tuple[TopicPartition, Ending, Answer]]) -> Sequence[ErrorCode]:
        places: dict[Ending, list[TopicPartition]] = {}
        for place, ending, _ in asked:
            places.setdefault(ending, []).append(place)
        try:
            answer = await self._node.peers.link(node_id, "markers").ask(
                ApiKey.WRITE_TXN_MARKERS,
                MARKERS_VERSION,
                {"markers": [_request_of(ending, wanted) for ending, wanted in places.items()]},
            )
        except BrokerError as failure:
            return [failure.code] * len(asked)
        outcomes: dict[tuple[TopicPartition, Ending], ErrorCode] = {}
        for ending, outcome in zip(places, answer.markers, strict=False):
            for topic in outcome.topics:
                for partition in topic.partitions:
                    outcomes[(topic.name, partition.partition_index), ending] = ErrorCode(partition.error_code)
        # That node may not have heard of a new topic yet: whether there is one is for `write` to say.
        return [
            ErrorCode.NOT_LEADER_OR_FOLLOWER if error in {None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION} else error
            for error in (outcomes.get((place, ending)) for place, ending, _ in asked)
        ]


def _request_of(ending: Ending, places: Sequence[TopicPartition]) -> dict[str, object]:
    return {
        "producer_id": ending.producer[0],
        "producer_epoch": ending.producer[1],
        "transaction_result": ending.marker.committed,
        "topics": [{"name": topic, "partition_indexes": partitions} for topic, partitions in by_topic(places)],
        "coordinator_epoch": ending.marker.coordinator_epoch,
        "transaction_version": BUMPS_EPOCH_FROM if ending.bumped else 0,
    }
