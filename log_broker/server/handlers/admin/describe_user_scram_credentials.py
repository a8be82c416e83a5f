"""DescribeUserScramCredentials: without SASL there is no user who has any."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


def handle(node: object, context: "RequestContext", request: Any) -> "Values":
    asked = Counter(user.name for user in request.users or ())
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "results": [_unknown(name) if count == 1 else _repeated(name) for name, count in asked.items()],
    }


def _unknown(name: str) -> "Values":
    return {
        "user": name,
        "error_code": ErrorCode.RESOURCE_NOT_FOUND,
        "error_message": f"Attempt to describe a user credential that does not exist: {name}",
        "credential_infos": (),
    }


def _repeated(name: str) -> "Values":
    return {
        "user": name,
        "error_code": ErrorCode.DUPLICATE_RESOURCE,
        "error_message": f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}",
        "credential_infos": (),
    }
