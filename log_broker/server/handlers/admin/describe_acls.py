"""DescribeAcls: there is no authorizer, so there are no rules to show; answered as Kafka does without one."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

NO_AUTHORIZER = "No Authorizer is configured."


def handle(node: object, context: "RequestContext", request: Any) -> "Values":
    return {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": NO_AUTHORIZER, "resources": ()}
