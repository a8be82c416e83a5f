"""SaslHandshake of who is signed in already and wants to be again (KIP-368); before that, see `net/sign_in`."""

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from log_broker.core.security.sasl import Reply, State
from log_broker.errors import ErrorCode
from log_broker.server.net.sign_in import Session, Values

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import Later, RequestContext


class _Host(Protocol):
    """Nothing is asked of the node here."""


def handle(node: _Host, context: "RequestContext", request: Any) -> "Values | Later":
    """Answer one SaslHandshake; the answer to one that is refused is held back."""
    session = session_of(context)
    if session is None:
        return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": ()}
    reply, values = session.handshake(request.mechanism, context.version, context.slot.peer)
    return partial(held_back, session, values) if ends(session, reply) else values


def session_of(context: "RequestContext") -> Session | None:
    """Return the sign-in of the connection that a request came by, None where there is none."""
    session: Session | None = getattr(context.slot.owner, "session", None)
    return session


def ends(session: Session, reply: Reply) -> bool:
    """Whether the connection ends with this answer."""
    return reply.error is not ErrorCode.NONE and session.sasl.state is State.REFUSED


async def held_back(session: Session, values: Values) -> Values:
    """Return the answer to a sign-in that was refused, later."""
    await session.refused()
    return values
