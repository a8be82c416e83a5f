"""ApiVersions: what this broker supports."""

from typing import TYPE_CHECKING, Any, Protocol

from log_broker.errors import ErrorCode
from log_broker.server.net.dispatch import supported_apis
from log_broker.server.process.ports import Cluster, HasFeatures

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

UNKNOWN_EPOCH = -1
MIN_VERSION_ZERO_FROM = 4  # older clients stumble over a feature that begins at 0 (KIP-1022)


class _Host(Cluster, HasFeatures, Protocol):
    """What is asked of the node here."""


def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    """Answer one ApiVersions request."""
    cluster = node.cluster
    return {
        "error_code": ErrorCode.NONE,
        "api_keys": supported_apis(),
        "supported_features": [
            {"name": name, "min_version": supported.lowest, "max_version": supported.highest}
            for name, supported in node.features.items()
            if supported.lowest > 0 or context.version >= MIN_VERSION_ZERO_FROM
        ],
        # A node that has replayed nothing yet does not know where the cluster is.
        "finalized_features_epoch": cluster.levels_version if cluster.version else UNKNOWN_EPOCH,
        "finalized_features": [
            {"name": name, "min_version_level": level, "max_version_level": level}
            for name, level in cluster.levels.items()
            if level > 0 and cluster.version
        ],
    }
