"""SaslAuthenticate of who is signed in already and wants to be again (KIP-368); before that, see `net/sign_in`."""

from typing import TYPE_CHECKING, Any, Protocol

from log_broker.errors import ErrorCode
from log_broker.server.handlers.admin.sasl_handshake import ends, held_back, session_of
from log_broker.server.net.sign_in import Values

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext


class _Host(Protocol):
    """Nothing is asked of the node here."""


async def handle(node: _Host, context: "RequestContext", request: Any) -> Values:
    """Answer one SaslAuthenticate; the answer to one that is refused is held back."""
    session = session_of(context)
    if session is None:
        text = "Nobody signs in at this listener."
        return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "error_message": text, "auth_bytes": b""}
    reply, values = await session.authenticate(request.auth_bytes, context.version, context.slot.peer)
    return await held_back(session, values) if ends(session, reply) else values
