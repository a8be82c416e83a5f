"""DescribeCluster: the brokers and the controller, without any topic."""

from typing import TYPE_CHECKING, Any, Protocol

from log_broker.core.security.authorizer import Rights
from log_broker.errors import ErrorCode
from log_broker.server.handlers.admin.metadata import AUTHORIZED_NOT_ASKED, CLUSTER_OPERATIONS, cluster_operations
from log_broker.server.net.rights import Guarded
from log_broker.server.process.ports import Cluster
from log_broker.server.quorum.ports import HasQuorum

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

BROKERS = 1
CONTROLLERS = 2


class _Host(Cluster, HasQuorum, Protocol):
    """What is asked of the node here."""

    @property
    def controller_id(self) -> int: ...


def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    """Answer one DescribeCluster request."""
    endpoint_type = getattr(request, "endpoint_type", BROKERS)
    if endpoint_type != BROKERS:
        known = endpoint_type == CONTROLLERS
        error = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        return {
            "error_code": error,
            "error_message": f"This is a broker's endpoint, and one of type {endpoint_type} was asked for.",
            "cluster_id": "",
            "brokers": (),
        }
    fenced_too = getattr(request, "include_fenced_brokers", False)
    asked = request.include_cluster_authorized_operations
    return {
        "error_code": ErrorCode.NONE,
        "cluster_id": node.cluster_id,
        "controller_id": node.controller_id,
        "brokers": [
            {
                "broker_id": broker.node_id,
                "host": endpoint[0],
                "port": endpoint[1],
                "rack": None,
                "is_fenced": broker.is_fenced,
            }
            for broker in sorted(node.cluster.brokers.values(), key=lambda broker: broker.node_id)
            if (fenced_too or not broker.is_fenced) and (endpoint := broker.endpoint(context.slot.listener)) is not None
        ],
        "cluster_authorized_operations": CLUSTER_OPERATIONS if asked else AUTHORIZED_NOT_ASKED,
    }


def guard(node: object, rights: Rights, context: "RequestContext", guarded: Guarded) -> Guarded:
    """Tell what may be done with the cluster to who may describe it."""
    if not guarded.request.include_cluster_authorized_operations:
        return guarded

    def finish(answer: "Values") -> "Values":
        return {**answer, "cluster_authorized_operations": cluster_operations(rights)}

    return guarded._replace(finish=finish)
