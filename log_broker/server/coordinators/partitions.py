"""
Asks a transaction's coordinator, which is this node or another, whether partitions belong to it (KIP-890).
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from log_broker.core.cluster.image import TRANSACTIONS_TOPIC
from log_broker.core.transactions.records import TopicPartition, by_topic
from log_broker.errors import ErrorCode
from log_broker.server.coordinators.internal_topics import transaction_partition
from log_broker.server.coordinators.ports import HasTransactions
from log_broker.server.net.peers import PeerLink
from log_broker.server.net.ports import HasPeers
from log_broker.server.process.ports import Cluster
from log_broker.wire.apis import ApiKey

ADD_PARTITIONS_VERSION = 5
# The coordinator may let an answer wait until the markers of the last transaction are written. Others wait behind it
# on the same link only, and those of one producer must.
LINKS = 4

Errors = Mapping[TopicPartition, ErrorCode]


class CoordinatorHost(Cluster, HasPeers, HasTransactions, Protocol):
    """What asking a coordinator asks of the node."""


async def join_transaction(
    node: CoordinatorHost,
    transactional_id: str,
    producer: tuple[int, int],
    places: Sequence[TopicPartition],
    *,
    add: bool,
) -> Errors:
    """
    See that partitions are in the transaction of `producer`, (id, epoch), or with `add` take them in.

    Raises BrokerError, also when the coordinator cannot be asked.
    """
    partition = transaction_partition(node.cluster, transactional_id)
    leader = None if partition is None else node.cluster.leader_of(TRANSACTIONS_TOPIC, partition)
    if leader is None:
        return dict.fromkeys(places, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if leader.node_id == node.config.node_id:
        return await _join_here(node, transactional_id, producer, places, add=add)
    link = node.peers.link(leader.node_id, f"transactions-{producer[0] % LINKS}")
    return await _join_there(link, transactional_id, producer, places, add=add)


async def _join_here(
    node: CoordinatorHost,
    transactional_id: str,
    producer: tuple[int, int],
    places: Sequence[TopicPartition],
    *,
    add: bool,
) -> Errors:
    error = node.transactions.check(transactional_id)
    if error is ErrorCode.NONE and add:
        error = await node.transactions.add_partitions(transactional_id, producer, places)
    if error is not ErrorCode.NONE:
        return dict.fromkeys(places, error)
    # An add was awaited and the transaction may be over by now: its time may have been up.
    return {place: node.transactions.verify(transactional_id, producer, place) for place in places}


async def _join_there(
    link: PeerLink, transactional_id: str, producer: tuple[int, int], places: Sequence[TopicPartition], *, add: bool
) -> Errors:
    answer = await link.ask(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ADD_PARTITIONS_VERSION,
        {
            "transactions": [
                {
                    "transactional_id": transactional_id,
                    "producer_id": producer[0],
                    "producer_epoch": producer[1],
                    "verify_only": not add,
                    "topics": [{"name": topic, "partitions": partitions} for topic, partitions in by_topic(places)],
                }
            ]
        },
    )
    errors = dict.fromkeys(places, ErrorCode(answer.error_code) or ErrorCode.COORDINATOR_NOT_AVAILABLE)
    for transaction in answer.results_by_transaction:
        for topic in transaction.topic_results:
            for partition in topic.results_by_partition:
                errors[topic.name, partition.partition_index] = ErrorCode(partition.partition_error_code)
    return errors
