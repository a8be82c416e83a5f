"""AlterClientQuotas: refused entry by entry, because a quota that nobody heeds must not seem to be set."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


def handle(node: object, context: "RequestContext", request: Any) -> "Values":
    return {
        "entries": [
            {
                "error_code": ErrorCode.UNSUPPORTED_VERSION,
                "error_message": "This broker does not limit clients: quotas are not supported.",
                "entity": [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entry.entity],
            }
            for entry in request.entries
        ]
    }
