"""DescribeAcls: the ACLs that match a filter, by what they are about; without an authorizer there are none to show."""

from typing import TYPE_CHECKING, Any, Protocol

from log_broker.core.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.net.rights import HasAuthorizer
from log_broker.server.process.ports import Cluster

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

NO_AUTHORIZER = "No Authorizer is configured."


class AclHost(Cluster, HasAuthorizer, Protocol):
    """What is asked of the node here."""


def handle(node: AclHost, context: "RequestContext", request: Any) -> "Values":
    """Answer one DescribeAcls request."""
    if node.authorizer is None:
        return {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": NO_AUTHORIZER, "resources": ()}
    wanted = filter_of(request)
    found: dict[tuple[ResourceType, str, PatternType], list[Acl]] = {}
    for acl in node.cluster.access.acls.values():
        if wanted.matches(acl):
            found.setdefault((acl.resource, acl.name, acl.pattern), []).append(acl)
    resources = [
        {
            "resource_type": resource,
            "resource_name": name,
            "pattern_type": pattern,
            "acls": [
                {
                    "principal": acl.principal,
                    "host": acl.host,
                    "operation": acl.operation,
                    "permission_type": acl.permission,
                }
                for acl in acls
            ],
        }
        for (resource, name, pattern), acls in found.items()
    ]
    return {"error_code": ErrorCode.NONE, "error_message": None, "resources": resources}


def filter_of(request: Any) -> AclFilter:
    """Return the filter that a request, or a part of one, has; raises BrokerError(INVALID_REQUEST)."""
    try:
        return AclFilter(
            resource=ResourceType(request.resource_type_filter),
            name=request.resource_name_filter,
            pattern=PatternType(request.pattern_type_filter),
            principal=request.principal_filter,
            host=request.host_filter,
            operation=Operation(request.operation),
            permission=Permission(request.permission_type),
        )
    except ValueError as error:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"The filter has an unknown element: {error}.") from None
