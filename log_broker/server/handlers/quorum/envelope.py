"""Envelope: another node passes on what a client asked it and only the controller decides (KIP-590)."""

from typing import TYPE_CHECKING, Any

from log_broker.core.security.principal import ANONYMOUS
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.net.dispatch import PASSED_ON, DispatchHost, answer_here
from log_broker.wire.framing import read_header
from log_broker.wire.principals import read_principal
from log_broker.wire.reading import MalformedRequestError

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


async def handle(node: DispatchHost, context: "RequestContext", request: Any) -> "Values":
    """
    Answer what is in the envelope, as its principal.

    The right that this api asks for lets nobody but brokers say who somebody else is.
    """
    peer = request.client_host_address.decode("utf-8", "replace")
    try:
        inner, _ = read_header(memoryview(request.request_data))
    except MalformedRequestError as error:
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, f"the request in the envelope: {error}") from None
    if inner.api_key not in PASSED_ON:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"api {inner.api_key} is not eligible for forwarding")
    try:
        principal = read_principal(request.request_principal) if request.request_principal else ANONYMOUS
    except MalformedRequestError as error:
        raise BrokerError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, str(error)) from None
    answer = await answer_here(node, request.request_data, peer, principal)
    return {"error_code": ErrorCode.NONE, "response_data": answer}
