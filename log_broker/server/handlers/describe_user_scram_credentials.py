"""DescribeUserScramCredentials: without SASL there is no user who has any."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node


def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "results": [
            {
                "user": name,
                "error_code": ErrorCode.RESOURCE_NOT_FOUND,
                "error_message": f"Attempt to describe a user credential that does not exist: {name}",
                "credential_infos": (),
            }
            for name in dict.fromkeys(user.name for user in request.users or ())
        ],
    }
