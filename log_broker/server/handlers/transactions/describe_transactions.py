"""DescribeTransactions: the state of transactional ids, with the partitions of their open transactions."""

from functools import partial
from typing import TYPE_CHECKING, Any

from log_broker.core.security.acls import Operation, ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.errors import ErrorCode
from log_broker.server.coordinators.ports import HasTransactions
from log_broker.server.handlers.groups.describe_groups import described
from log_broker.server.net.rights import Guarded, split, then

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import Later, RequestContext, Values


def handle(node: HasTransactions, context: "RequestContext", request: Any) -> "Values | Later":
    """Answer one DescribeTransactions request."""
    return described("transaction_states", request.transactional_ids, partial(_describe, node))


def guard(node: object, rights: Rights, context: "RequestContext", guarded: Guarded) -> Guarded:
    """Leave in the answer the topics that may be described."""

    def is_allowed(topic: Any) -> bool:
        return rights.may(Operation.DESCRIBE, ResourceType.TOPIC, topic["topic"])

    def finish(answer: "Values") -> "Values":
        states = [{**state, "topics": split(state["topics"], is_allowed)[0]} for state in answer["transaction_states"]]
        return {**answer, "transaction_states": states}

    return guarded._replace(finish=then(guarded.finish, finish))


def _describe(node: HasTransactions, transactional_id: str) -> "Values":
    error = node.transactions.check(transactional_id)
    transaction = node.transactions.find(transactional_id)
    if error is ErrorCode.NONE and (transaction is None or transaction.is_unused):
        error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    if error is not ErrorCode.NONE or transaction is None:
        return {
            "error_code": error,
            "transactional_id": transactional_id,
            "transaction_state": "",
            "transaction_timeout": 0,
            "transaction_start_time": 0,
            "producer_id": -1,
            "producer_epoch": -1,
            "topics": [],
        }
    current = transaction.current
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(current.partitions):
        topics.setdefault(topic, []).append(partition)
    return {
        "error_code": ErrorCode.NONE,
        "transactional_id": transactional_id,
        "transaction_state": current.state.label,
        "transaction_timeout": current.timeout_ms,
        "transaction_start_time": current.start_ms,
        "producer_id": current.producer_id,
        "producer_epoch": current.producer_epoch,
        "topics": [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()],
    }
