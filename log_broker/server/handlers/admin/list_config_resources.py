"""ListConfigResources (KIP-1142): names everything that DescribeConfigs can be asked about."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.process.ports import Cluster

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

TOPIC = 2
BROKER = 4
BROKER_LOGGER = 8
CLIENT_METRICS = 16
GROUP = 32
_KNOWN = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
TYPES_FROM = 1  # version 0 is ListClientMetricsResources of KIP-1000, and there are none of those


def handle(node: Cluster, context: "RequestContext", request: Any) -> "Values":
    if context.version < TYPES_FROM:
        return {"error_code": ErrorCode.NONE, "config_resources": ()}
    wanted = request.resource_types or _KNOWN
    unknown = [kind for kind in wanted if kind not in _KNOWN]
    if unknown:
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, f"Unknown resource types: {unknown}")
    names: list[tuple[int, str]] = []
    if TOPIC in wanted:
        names += [(TOPIC, name) for name in node.cluster.topics]
    if BROKER in wanted:
        names += [(BROKER, str(broker.node_id)) for broker in node.cluster.alive_brokers()]
    if GROUP in wanted:
        names += [(GROUP, group) for group in node.cluster.group_overrides]
    return {
        "error_code": ErrorCode.NONE,
        "config_resources": [{"resource_type": kind, "resource_name": name} for kind, name in names],
    }
