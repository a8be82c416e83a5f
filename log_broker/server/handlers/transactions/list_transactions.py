"""ListTransactions: the transactional ids that this broker coordinates."""

from typing import TYPE_CHECKING, Any, Protocol

from log_broker.core.security.acls import Operation, ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.core.transactions.records import TransactionState
from log_broker.core.transactions.transaction import Transaction
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.coordinators.ports import HasTransactions
from log_broker.server.coordinators.topic_patterns import match_names
from log_broker.server.net.rights import Guarded, split
from log_broker.server.process.ports import Process

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

_STATES = {state.label: state for state in TransactionState}


class _Host(HasTransactions, Process, Protocol):
    """What is asked of the node here."""


async def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    """Answer one ListTransactions request."""
    states = {_STATES[name] for name in request.state_filters if name in _STATES}
    producer_ids = set(request.producer_id_filters)
    longer_than_ms = getattr(request, "duration_filter", -1)
    pattern = getattr(request, "transactional_id_pattern", None)
    matched: frozenset[str] | None = None
    if pattern:
        ids = [transaction.transactional_id for transaction in node.transactions.all()]
        try:
            matched = match_names(pattern, ids, field="TransactionalIdPattern")
        except BrokerError as error:
            return {"error_code": error.code, "transaction_states": []}
    now_ms = node.clock_ms()

    def is_wanted(transaction: Transaction) -> bool:
        current = transaction.current
        return (
            not transaction.is_unused
            and (not request.state_filters or current.state in states)
            and (not producer_ids or current.producer_id in producer_ids)
            and (matched is None or transaction.transactional_id in matched)
            and (longer_than_ms < 0 or 0 <= current.start_ms < now_ms - longer_than_ms)
        )

    return {
        "error_code": ErrorCode.NONE,
        "unknown_state_filters": [name for name in request.state_filters if name not in _STATES],
        "transaction_states": [
            {
                "transactional_id": transaction.transactional_id,
                "producer_id": transaction.current.producer_id,
                "transaction_state": transaction.state.label,
            }
            for transaction in node.transactions.all()
            if is_wanted(transaction)
        ],
    }


def guard(node: object, rights: Rights, context: "RequestContext", guarded: Guarded) -> Guarded:
    """Leave in the answer the transactional ids that may be described."""

    def is_allowed(state: Any) -> bool:
        return rights.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, state["transactional_id"])

    def finish(answer: "Values") -> "Values":
        return {**answer, "transaction_states": split(answer["transaction_states"], is_allowed)[0]}

    return guarded._replace(finish=finish)
