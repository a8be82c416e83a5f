"""
ShareGroupHeartbeat: a member of a share group (KIP-932) learns that there are none.

A broker of Apache Kafka at share.version 0 answers likewise. Without an answer librdkafka takes the request that is not
served for a coordinator that is gone, and looks for another for ever.
"""

from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


async def handle(node: object, context: "RequestContext", request: Any) -> "Values":
    """Answer one request."""
    return {
        "error_code": ErrorCode.UNSUPPORTED_VERSION,
        "error_message": "This cluster has no share groups.",
        "member_epoch": 0,
        "heartbeat_interval": 0,
    }
