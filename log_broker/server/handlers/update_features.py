"""UpdateFeatures: the levels of features are those of the program; a request for others is refused."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node


def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    if not request.feature_updates:
        return {"error_code": ErrorCode.NONE, "error_message": None, "results": ()}
    update = request.feature_updates[0]
    return {
        "error_code": ErrorCode.INVALID_UPDATE_VERSION,
        "error_message": "The update failed for all features since the following feature had an error: Invalid update"
        f" version {update.max_version_level} for feature {update.feature}. Broker {node.config.node_id} does not"
        " support this feature.",
        "results": (),
    }
