"""ApiVersions: what this broker supports."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode
from log_broker.wire.apis import APIS

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node

# Features that clients ask for by level. With transaction.version 2 a producer need not announce its partitions, and
# gets a new epoch with the end of each transaction (KIP-890).
FEATURES = {"transaction.version": 2}


def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    """Answer one ApiVersions request."""
    return {
        "error_code": ErrorCode.NONE,
        "api_keys": supported_apis(),
        "supported_features": [
            {"name": name, "min_version": 0, "max_version": level} for name, level in FEATURES.items()
        ],
        "finalized_features_epoch": node.cluster.version,
        "finalized_features": [
            {"name": name, "min_version_level": level, "max_version_level": level} for name, level in FEATURES.items()
        ],
    }


def supported_apis() -> "list[Values]":
    """Return the table of apis as the response has it."""
    return [
        {"api_key": api.key, "min_version": api.version_min, "max_version": api.version_max}
        for api in APIS.values()
        if not api.inter_broker
    ]
