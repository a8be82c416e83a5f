"""CreateAcls: refused one by one, since no authorizer would heed the rules."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode
from log_broker.server.handlers.admin.describe_acls import NO_AUTHORIZER

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


def handle(node: object, context: "RequestContext", request: Any) -> "Values":
    refused = {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": NO_AUTHORIZER}
    return {"results": [refused for _ in request.creations]}
