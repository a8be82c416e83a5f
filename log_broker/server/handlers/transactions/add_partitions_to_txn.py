"""AddPartitionsToTxn: a transaction is about to write to partitions; brokers also ask whether it may (KIP-890)."""

from typing import TYPE_CHECKING, Any, Protocol

from log_broker.core.security.acls import Operation, ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.core.transactions.records import TopicPartition
from log_broker.errors import ErrorCode
from log_broker.server.coordinators.ports import HasTransactions
from log_broker.server.net.rights import Guarded, refused
from log_broker.server.process.ports import Cluster
from log_broker.server.process.turns import in_turns

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

MANY_TRANSACTIONS_FROM = 4
FENCED_FROM = 2
TRANSACTIONS_AT_ONCE_MAX = 100  # in one turn of the event loop


class _Host(Cluster, HasTransactions, Protocol):
    """What is asked of the node here."""


async def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    """Answer one AddPartitionsToTxn request."""
    if context.version >= MANY_TRANSACTIONS_FROM:
        results: list[Values] = []
        async for transactions in in_turns(request.transactions, TRANSACTIONS_AT_ONCE_MAX):
            for asked in transactions:
                topics = await _topics(node, asked, verify_only=asked.verify_only)
                results.append({"transactional_id": asked.transactional_id, "topic_results": topics})
        return {"error_code": ErrorCode.NONE, "results_by_transaction": results}
    values = {
        "transactional_id": request.v3_and_below_transactional_id,
        "producer_id": request.v3_and_below_producer_id,
        "producer_epoch": request.v3_and_below_producer_epoch,
        "topics": request.v3_and_below_topics,
    }
    topics = await _topics(node, _Asked(**values), knows_fencing=context.version >= FENCED_FROM)
    return {"results_by_topic_v3_and_below": topics}


def guard(node: object, rights: Rights, context: "RequestContext", guarded: Guarded) -> Guarded:
    """Let brokers ask for many transactions, and clients for their own, in which all topics must be theirs to write."""
    if context.version >= MANY_TRANSACTIONS_FROM:
        if not rights.may_cluster(Operation.CLUSTER_ACTION):
            raise refused(ResourceType.CLUSTER)
        return guarded
    request = guarded.request
    topics = request.v3_and_below_topics

    def is_allowed(topic: Any) -> bool:
        return rights.may(Operation.WRITE, ResourceType.TOPIC, topic.name)

    if not rights.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.v3_and_below_transactional_id):
        codes = dict.fromkeys((topic.name for topic in topics), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif all(map(is_allowed, topics)):
        return guarded
    else:
        codes = {
            topic.name: ErrorCode.OPERATION_NOT_ATTEMPTED if is_allowed(topic) else ErrorCode.TOPIC_AUTHORIZATION_FAILED
            for topic in topics
        }
    results = [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": partition, "partition_error_code": codes[topic.name]}
                for partition in topic.partitions
            ],
        }
        for topic in topics
    ]
    return Guarded(None, lambda _: {"results_by_topic_v3_and_below": results})


class _Asked:
    """A request up to version 3 as the later ones say it."""

    def __init__(self, transactional_id: str, producer_id: int, producer_epoch: int, topics: Any) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.topics = topics


async def _topics(node: _Host, asked: Any, *, verify_only: bool = False, knows_fencing: bool = True) -> "list[Values]":
    places = [(topic.name, partition) for topic in asked.topics for partition in topic.partitions]
    outcome = await _outcome(node, asked, places, verify_only=verify_only)
    if not knows_fencing:
        outcome = {
            place: ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED else error
            for place, error in outcome.items()
        }
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": partition, "partition_error_code": outcome[topic.name, partition]}
                for partition in topic.partitions
            ],
        }
        for topic in asked.topics
    ]


async def _outcome(
    node: _Host, asked: Any, places: list[TopicPartition], *, verify_only: bool
) -> dict[TopicPartition, ErrorCode]:
    error = node.transactions.check(asked.transactional_id)
    if error is not ErrorCode.NONE:
        return dict.fromkeys(places, error)
    producer = (asked.producer_id, asked.producer_epoch)
    if verify_only:
        return {place: node.transactions.verify(asked.transactional_id, producer, place) for place in places}
    unknown = [place for place in places if not node.cluster.has_partition(*place)]
    if unknown:
        refused = dict.fromkeys(places, ErrorCode.OPERATION_NOT_ATTEMPTED)
        return {**refused, **dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}
    error = await node.transactions.add_partitions(asked.transactional_id, producer, places)
    return dict.fromkeys(places, error)
