"""UpdateFeatures: raise or lower the levels of features that the cluster is at (KIP-584, KIP-778)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from log_broker.core.cluster.feature_updates import FeatureUpdate, UpgradeType, update_features
from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.records import MetadataRecord
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.quorum.feature_levels import LevelsHost, nodes_of
from log_broker.server.quorum.ports import HasAuthority

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

NO_RESULTS_FROM = 2  # what befalls one feature befalls all


class _Host(HasAuthority, LevelsHost, Protocol):
    """What is asked of the node here."""


async def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    updates = {each.feature: _update(each) for each in request.feature_updates}
    nodes = await nodes_of(node)

    def decide(image: ClusterImage) -> Sequence[MetadataRecord]:
        records = update_features(image, list(updates.values()), nodes)
        return () if getattr(request, "validate_only", False) else records

    try:
        await node.authority.submit(decide)
    except BrokerError as error:
        if error.code is not ErrorCode.INVALID_UPDATE_VERSION:
            raise
        message = f"The update failed for all features since the following feature had an error: {error}"
        return {"error_code": error.code, "error_message": message, "results": ()}
    done = {"error_code": ErrorCode.NONE, "error_message": None}
    results = [{"feature": name, **done} for name in updates] if context.version < NO_RESULTS_FROM else ()
    return {**done, "results": results}


def _update(asked: Any) -> FeatureUpdate:
    if hasattr(asked, "upgrade_type"):
        return FeatureUpdate(asked.feature, asked.max_version_level, asked.upgrade_type)
    kind = UpgradeType.SAFE_DOWNGRADE if asked.allow_downgrade else UpgradeType.UPGRADE
    return FeatureUpdate(asked.feature, asked.max_version_level, kind)
