"""DeleteAcls: refused one by one, since there is no authorizer that has rules."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode
from log_broker.server.handlers.admin.describe_acls import NO_AUTHORIZER

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


def handle(node: object, context: "RequestContext", request: Any) -> "Values":
    refused = {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": NO_AUTHORIZER, "matching_acls": ()}
    return {"filter_results": [refused for _ in request.filters]}
