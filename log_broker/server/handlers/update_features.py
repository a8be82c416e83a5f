"""UpdateFeatures: this broker finalizes no feature by level; a request to do so is refused."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node

TOP_LEVEL_ONLY_FROM = 2


def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    refusals = [
        {
            "feature": update.feature,
            "error_code": ErrorCode.INVALID_UPDATE_VERSION,
            "error_message": f"Invalid update version {update.max_version_level} for feature {update.feature}."
            f" Broker {node.config.node_id} does not support this feature.",
        }
        for update in request.feature_updates
    ]
    if refusals and context.version >= TOP_LEVEL_ONLY_FROM:
        return {
            "error_code": refusals[0]["error_code"],
            "error_message": "The update failed for all features since the following feature had an error: "
            f"{refusals[0]['error_message']}",
        }
    return {"error_code": ErrorCode.NONE, "error_message": None, "results": refusals}
