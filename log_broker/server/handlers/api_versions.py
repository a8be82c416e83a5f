"""ApiVersions: what this broker supports."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode
from log_broker.wire.apis import APIS

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node


def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    """Answer one ApiVersions request."""
    return {"error_code": ErrorCode.NONE, "api_keys": supported_apis()}


def supported_apis() -> "list[Values]":
    """Return the table of apis as the response has it."""
    return [
        {"api_key": api.key, "min_version": api.version_min, "max_version": api.version_max}
        for api in APIS.values()
        if not api.inter_broker
    ]
