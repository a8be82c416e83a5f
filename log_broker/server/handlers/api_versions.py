"""ApiVersions: what this broker supports."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode
from log_broker.wire.apis import APIS

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node

# Feature levels of Kafka that this broker is at. Groups of the new protocol (KIP-848) are group.version 1. At
# transaction.version 2 a producer announces no partitions and gets a new epoch with each transaction (KIP-890).
FEATURES = {"group.version": 1, "transaction.version": 2}
MIN_VERSION_ZERO_FROM = 4  # older clients stumble over a feature that begins at 0 (KIP-1022)


def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    """Answer one ApiVersions request."""
    return {
        "error_code": ErrorCode.NONE,
        "api_keys": supported_apis(),
        "supported_features": [
            {"name": name, "min_version": 0, "max_version": level}
            for name, level in FEATURES.items()
            if context.version >= MIN_VERSION_ZERO_FROM
        ],
        "finalized_features_epoch": 0,
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
