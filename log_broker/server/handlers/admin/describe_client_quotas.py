"""DescribeClientQuotas: none can be set, so no filter finds any; a filter that makes no sense is refused."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

ENTITY_TYPES = frozenset({"user", "client-id", "ip"})


def handle(node: object, context: "RequestContext", request: Any) -> "Values":
    types = [component.entity_type for component in request.components]
    if len(set(types)) < len(types):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "An entity type is named by several components of the filter.")
    if "" in types:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
    if not set(types) <= ENTITY_TYPES:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_VERSION, f"Unknown entity types: {', '.join(sorted(set(types) - ENTITY_TYPES))}"
        )
    return {"error_code": ErrorCode.NONE, "error_message": None, "entries": ()}
