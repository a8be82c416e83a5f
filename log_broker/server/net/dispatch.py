"""
From a request to its handler: one table by api key, and an answer for what is not in it.

A handler is a function of (node, header, body, slot). The data plane's read the body themselves. Those of the control
plane are functions of (node, context, request) that return the response's values or an awaitable of them: `control`
reads and writes around them, and runs what they leave to be awaited as a task, but for a `Promised`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from inspect import iscoroutinefunction
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from log_broker.core.security.acls import ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.core.security.principal import ANONYMOUS, Principal
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.net.memory_budget import CONGESTED_RETRY_SECONDS
from log_broker.server.net.peers import CLIENT_ID
from log_broker.server.net.promised import Promised
from log_broker.server.net.rights import Finish, Guarded, HasAuthorizer, guard_request, is_a_node, refused, rights_of
from log_broker.server.net.slots import Slot
from log_broker.server.process.ports import HasCounters, Process
from log_broker.server.process.turns import OneATurn
from log_broker.wire.apis import APIS, Api, ApiKey
from log_broker.wire.control import read_counted_request, write_refusal, write_response
from log_broker.wire.framing import RequestHeader, read_header
from log_broker.wire.reading import MalformedRequestError

_log = logging.getLogger(__name__)

T = TypeVar("T")

READ_AT_ONCE_BYTES = 16 * 1024  # of a request of the control plane; an element may take a few bytes
WRITTEN_AT_ONCE_MAX = 100  # elements of an array of an answer
WRITTEN_WITHIN_MAX = 1000  # of all arrays within one of these
ELEMENT_BYTES = 256  # what an element of a request takes when it has been read, about
ELEMENTS_LEFT_OUT = 64

Handler = Callable[[Any, RequestHeader, memoryview, "Slot"], None]
Values = Mapping[str, Any]
Encoded = bytes | bytearray
# For `isinstance` of every answer: it is quick with these, and not with unions and abstract classes.
_ENCODED, _ARRAYS = (bytes, bytearray), (list, tuple)
# What takes several turns of the event loop: begun by being called, so that none is made that is never awaited.
Later = Callable[[], Awaitable[Values | Encoded]]
Begin = Callable[[Any, "RequestContext", Any], Values | Encoded | Later]
ControlHandler = Begin | Callable[[Any, "RequestContext", Any], Awaitable[Values | Encoded]]


class HasWorkers(Protocol):
    """Runs what takes long in another thread."""

    def aside(self, work: Callable[[], T]) -> Awaitable[T]: ...


class Forwarder(Protocol):
    """Passes requests on to the active controller."""

    async def forward(self, context: "RequestContext") -> bytes:
        """Return the answer from behind the correlation id; raises BrokerError."""
        ...


class WorkHost(Process, Protocol):
    """What answering beside the event loop asks of the node."""

    @property
    def logs(self) -> HasWorkers: ...


class DispatchHost(HasAuthorizer, HasCounters, WorkHost, Protocol):
    """What passing requests to their handlers asks of the node."""

    @property
    def authority(self) -> Forwarder: ...

    @property
    def is_controller(self) -> bool: ...

    @property
    def is_serving(self) -> bool: ...

    @property
    def decisions(self) -> OneATurn:
        """Lets the controller decide for one request a turn: a client may ask for many in a row."""
        ...

    @property
    def large_decisions(self) -> asyncio.Lock:
        """For those that take several turns of the event loop."""
        ...

    @property
    def large_answers(self) -> asyncio.Lock:
        """For those that are made in several turns of the event loop."""
        ...

    def hold(self, request: Callable[[], None]) -> None:
        """Keep a request until the node serves."""
        ...


class RequestContext(NamedTuple):
    """What a control handler may want to know of a request beside its content."""

    header: RequestHeader
    slot: Slot
    body: memoryview

    @property
    def version(self) -> int:
        return self.header.api_version


# Looks at what whoever asks may do, beyond what the api's row tells: (node, rights, context, request so far).
Guard = Callable[[Any, Rights, RequestContext, Guarded], Guarded]


def dispatch(node: DispatchHost, header: RequestHeader, body: memoryview, slot: Slot) -> None:
    """Hand a request to its handler. Nothing that goes wrong in here reaches another connection."""
    api = APIS.get(header.api_key)
    if api is None or not api.supports(header.api_version):
        _refuse(header, slot)
        return
    slot.durations = node.counters.requests[header.api_key]
    handler = _handlers.get(header.api_key) or _load(api)
    try:
        handler(node, header, body, slot)
    except Exception as error:
        answer_failure(node, header, slot, error, body)


def handler_module(api: ApiKey) -> Any:
    """Import the module of an api's handler, as its row in the table of apis names it."""
    return import_module(f"log_broker.server.handlers.{APIS[api].handler}")


def _load(api: Api) -> Handler:
    """Import the handler of an api when it is first called: a broker that is only produced to needs few of them."""
    module = handler_module(api.key)
    guard: Guard | None = getattr(module, "guard", None)
    handler: Handler = module.handle if api.key in _RAW else control(module.handle, guard)
    _handlers[api.key] = handler
    return handler


_handlers: dict[int, Handler] = {}
_RAW = frozenset({ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS})
# What only the controller decides: any other node passes such a request on, so clients need not know who it is.
PASSED_ON = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.UPDATE_FEATURES,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
    }
)
# Each of these takes some tenths of a millisecond at once, and a client may send hundreds in a row.
_DECIDED = PASSED_ON | {
    ApiKey.ALLOCATE_PRODUCER_IDS,
    ApiKey.ALTER_PARTITION,
    ApiKey.BROKER_REGISTRATION,
    ApiKey.WRITE_TXN_MARKERS,
}
# Their answers follow what the node holds and not what was asked: they are made when there is memory for them,
LARGE_ANSWERS = frozenset(
    {
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.FETCH_SNAPSHOT,
        ApiKey.LIST_CONFIG_RESOURCES,
        ApiKey.LIST_GROUPS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.METADATA,
        ApiKey.OFFSET_FETCH,
    }
)
# and of those that take several turns of the event loop one after the other.
_MADE_ALONE = frozenset(
    {
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.OFFSET_FETCH,
    }
)
_NODES_ONLY = frozenset(api.key for api in APIS.values() if api.inter_broker)
_ASKED_OF_STARTING = frozenset({ApiKey.API_VERSIONS, ApiKey.DESCRIBE_QUORUM})
# What is not answered elsewhere. That is passed on, and this is asked by nodes: they are told, and look for the one.
_CONTROLLERS = PASSED_ON | frozenset(
    {
        ApiKey.ENVELOPE,
        ApiKey.BROKER_REGISTRATION,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.ALTER_PARTITION,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.UPDATE_RAFT_VOTER,
    }
)


def dispatch_while_starting(node: DispatchHost, header: RequestHeader, body: memoryview, slot: Slot) -> None:
    """
    Let clients wait until the node serves; other nodes must be answered, or none could start without the others.

    Where nobody is asked who they are, there is but the name by which nodes call themselves.
    """
    nodes = node.node_principals
    is_node = header.client_id == CLIENT_ID if nodes.is_open else nodes.include(slot.listener, slot.principal)
    if node.is_serving or is_node or header.api_key in _ASKED_OF_STARTING:
        dispatch(node, header, body, slot)
    else:
        node.hold(lambda: dispatch(node, header, body, slot))


async def answer_here(node: DispatchHost, request: bytes, peer: str, principal: Principal = ANONYMOUS) -> bytes:
    """Handle a request of a principal that stands in another one; return its answer from the correlation id on."""
    header, body = read_header(memoryview(bytearray(request)))
    owner = _Nested(peer, principal)
    dispatch(node, header, body, Slot(owner, len(request)))
    return await owner.answer


async def call_here(node: DispatchHost, api: ApiKey, version: int, values: Values) -> Any:
    """
    Have the handler of an api answer values as if they had been sent, without their way over the wire.

    `values` names every field that the handler looks at. Raises BrokerError.
    """
    module = handler_module(api)
    context = RequestContext(RequestHeader(api, version, 0, None), Slot(_Nested("this node"), 0), memoryview(b""))
    answer = _begun_when_called(module.handle)(node, context, _as_message(values))
    return _as_message(await answer() if callable(answer) else answer)


def _as_message(value: Any) -> Any:
    if isinstance(value, Mapping):
        return SimpleNamespace(**{name: _as_message(each) for name, each in value.items()})
    return tuple(map(_as_message, value)) if isinstance(value, list | tuple) else value


class _Nested:
    """Takes the answer to a request that no connection has brought."""

    is_closed = False
    listener = ""

    def __init__(self, peer: str, principal: Principal = ANONYMOUS) -> None:
        self.peer = peer
        self.host = peer.rpartition(":")[0]
        self.principal = principal
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def must_wait(self, slot: Slot) -> bool:
        return False

    def hold(self, size: int) -> None:
        """The connection that has brought the outer request counts its memory."""

    def way_out(self, slot: Slot) -> None:
        """What is stored is read, for whoever has asked."""

    def slot_done(self, slot: Slot, response_bytes: int) -> None:
        if not self.answer.done():
            self.answer.set_result(b"".join(slot.chunks)[4:])

    def fail(self, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, reason))


def control(handle: ControlHandler, guard: Guard | None = None) -> Handler:
    """Wrap a control handler: reads the request and writes what it returns, at once or when it has been awaited."""
    begin = _guarded(_begun_when_called(handle), guard)

    def handler(node: DispatchHost, header: RequestHeader, body: memoryview, slot: Slot) -> None:
        context = RequestContext(header, slot, body)
        if len(body) > READ_AT_ONCE_BYTES:
            node.run(_read_aside(node, context, begin))
            return
        try:
            request, elements = read_counted_request(header.api_key, header.api_version, body)
        except MalformedRequestError as error:
            slot.fail_connection(str(error))
            return
        work = _handle(node, context, begin, request, elements)
        if work is not None:
            node.run(work)

    return handler


def _begun_when_called(handle: ControlHandler) -> Begin:
    return partial(partial, handle) if iscoroutinefunction(handle) else cast("Begin", handle)


def _guarded(begin: Begin, guard: Guard | None) -> Begin:
    """Have a handler see only what whoever asks may do; `guard` looks at what the api's row cannot tell."""

    def guarded(node: DispatchHost, context: RequestContext, request: Any) -> Values | Encoded | Later:
        if context.header.api_key in _NODES_ONLY and not is_a_node(node, context.slot):
            raise refused(ResourceType.CLUSTER)
        rights = rights_of(node, context.slot)
        if rights is None:
            return begin(node, context, request)
        allowed = guard_request(rights, context.header.api_key, context.version, request)
        if guard is not None:
            allowed = guard(node, rights, context, allowed)
        # Of some requests nothing is left to ask a handler for.
        answer = {} if allowed.request is None else begin(node, context, allowed.request)
        return answer if allowed.finish is None else _finished(answer, allowed.finish)

    return guarded


def _finished(answer: Values | Encoded | Later, finish: Finish) -> Values | Encoded | Later:
    if callable(answer):

        async def later() -> Values | Encoded:
            return cast("Values | Encoded", _finished(await answer(), finish))

        return later
    assert isinstance(answer, Mapping), "a handler that encodes its answer looks at rights itself"
    return finish(answer)


async def _read_aside(node: DispatchHost, context: RequestContext, handle: Begin) -> None:
    """Read a large request outside the event loop and then handle it; those decided on here one after the other."""
    key, version = context.header.api_key, context.header.api_version
    # One that is passed on may come back, to a node that has become the controller meanwhile, and must not wait here.
    is_decided_here = key in _DECIDED and (node.is_controller or key not in PASSED_ON)
    with failures_answered(node, *context):
        async with node.large_decisions if is_decided_here else nullcontext():
            try:
                request, elements = await node.logs.aside(partial(read_counted_request, key, version, context.body))
            except MalformedRequestError as error:
                context.slot.fail_connection(str(error))
                return
            work = _handle(node, context, handle, request, elements)
            if work is not None:
                await work


def _handle(
    node: DispatchHost, context: RequestContext, handle: Begin, request: Any, elements: int
) -> Coroutine[Any, Any, None] | None:
    """Answer, or return the work that it takes."""
    header, slot, body = context
    if elements > ELEMENTS_LEFT_OUT:
        slot.hold(elements * ELEMENT_BYTES)
    if header.api_key in _CONTROLLERS and not node.is_controller:
        if header.api_key in PASSED_ON:
            return _answer_later(node, context, partial(node.authority.forward, context))
        refusal = BrokerError(ErrorCode.NOT_CONTROLLER, "this node is not the active controller")
        answer_failure(node, header, slot, refusal, body)
        return None
    answer = handle(node, context, request)
    if isinstance(answer, Promised):
        answer.on_result(partial(_answer_promised, node, context, answer))
        return None
    if callable(answer):
        made_alone = node.large_answers if header.api_key in _MADE_ALONE else None
        return _answer_later(node, context, answer if made_alone is None else partial(_alone, made_alone, slot, answer))
    if _is_long(answer):
        return _answer_long(node, context, answer)
    slot.complete(_encode(header, answer))
    return None


async def room_for_answer(slot: Slot) -> None:
    """Return when a large answer may be made, or nobody waits for it any more."""
    while slot.must_wait and not slot.closed:  # noqa: ASYNC110 much may end it, and few wait
        await asyncio.sleep(CONGESTED_RETRY_SECONDS)


async def _alone(lock: asyncio.Lock, slot: Slot, answer: Later) -> Values | Encoded:
    async with lock:
        await asyncio.sleep(0)  # else all that came in a turn would be made in the next one
        await room_for_answer(slot)
        return await answer()


async def _answer_later(node: DispatchHost, context: RequestContext, answer: Later) -> None:
    header, slot, _ = context
    with failures_answered(node, *context):
        if header.api_key in _DECIDED:
            await node.decisions.begin()
        values = await answer()
        if _is_long(values):
            await _answer_long(node, context, values)
        else:
            slot.complete(_encode(header, values))


def _answer_promised(node: DispatchHost, context: RequestContext, promised: Promised) -> None:
    header, slot, body = context
    try:
        values = promised.values()
        if _is_long(values):
            node.run(_answer_long(node, context, values))
        else:
            slot.complete(_encode(header, values))
    except Exception as error:
        answer_failure(node, header, slot, error, body)


async def _answer_long(node: DispatchHost, context: RequestContext, values: Values | Encoded) -> None:
    header, slot, _ = context
    with failures_answered(node, *context):
        slot.complete(await node.logs.aside(partial(_encode, header, values)))


@contextmanager
def failures_answered(
    node: WorkHost, header: RequestHeader, slot: Slot, body: memoryview | None = None
) -> Iterator[None]:
    """Answer with what goes wrong within a task: its request has nobody else to do it, and its client would wait."""
    try:
        yield
    except asyncio.CancelledError:
        slot.fail_connection("the broker is stopping")
        raise
    except Exception as error:
        answer_failure(node, header, slot, error, body)


def answer_failure(
    node: WorkHost, header: RequestHeader, slot: Slot, error: Exception, body: memoryview | None = None
) -> None:
    """Answer with the code of a BrokerError; anything else is our own fault and goes to the log."""
    if isinstance(error, BrokerError):
        code, message = error.code, str(error)
    else:
        code, message = ErrorCode.UNKNOWN_SERVER_ERROR, "the broker failed; see its log"
        _log.error("%s of %s failed", APIS[header.api_key].key.name, slot.peer, exc_info=error)
    encode = partial(_refusal, header, code, message, body)
    if body is None or len(body) <= READ_AT_ONCE_BYTES:
        _give(slot, encode)
    else:
        node.run(_give_aside(node, slot, encode))  # it names what was asked for, which is read once more


def _is_long(values: Values | Encoded) -> bool:
    """Whether an answer takes more than a turn of the event loop to write; a topic's settings take 0.2 ms."""
    if isinstance(values, _ENCODED):
        return False
    for each in values.values():
        if isinstance(each, _ARRAYS) and (len(each) > WRITTEN_AT_ONCE_MAX or _has_long_within(each)):
            return True
    return False


def _has_long_within(items: list[Any] | tuple[Any, ...]) -> bool:
    count = 0
    for item in items:
        if isinstance(item, dict):
            for each in item.values():
                if isinstance(each, _ARRAYS):
                    count += len(each)
    return count > WRITTEN_WITHIN_MAX


def _encode(header: RequestHeader, answer: Values | Encoded) -> Encoded:
    """A handler that keeps encoded answers returns them from behind the correlation id on."""
    if isinstance(answer, _ENCODED):
        return header.correlation_id.to_bytes(4, "big", signed=True) + answer
    return write_response(header.api_key, header.api_version, header.correlation_id, answer)


def supported_apis() -> list[Values]:
    """Return the table of apis as the response has it."""
    return [
        {"api_key": api.key, "min_version": api.version_min, "max_version": api.version_max}
        for api in APIS.values()
        if not api.inter_broker
    ]


def _refuse(header: RequestHeader, slot: Slot) -> None:
    """Answer an api or version that is not served. ApiVersions is asked again at the version that we do serve."""
    if header.api_key == ApiKey.API_VERSIONS:
        values = {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": supported_apis()}
        slot.complete(write_response(ApiKey.API_VERSIONS, 0, header.correlation_id, values))
        return
    message = f"api {header.api_key} version {header.api_version} is not supported"
    _log.info("%s asked for %s", slot.peer, message)
    _give(slot, lambda: _refusal(header, ErrorCode.UNSUPPORTED_VERSION, message))


def _refusal(header: RequestHeader, error: ErrorCode, message: str, body: memoryview | None = None) -> bytearray:
    return write_refusal(header.api_key, header.api_version, header.correlation_id, error, message, body=body)


def _give(slot: Slot, encode: Callable[[], bytearray]) -> None:
    """Fill a slot whose request went wrong; without an encodable answer the connection must end."""
    with _ended_without_answer(slot):
        slot.complete(encode())


async def _give_aside(node: WorkHost, slot: Slot, encode: Callable[[], bytearray]) -> None:
    with _ended_without_answer(slot):
        slot.complete(await node.logs.aside(encode))


@contextmanager
def _ended_without_answer(slot: Slot) -> Iterator[None]:
    try:
        yield
    except asyncio.CancelledError:
        slot.fail_connection("the broker is stopping")
        raise
    except Exception:
        _log.exception("no answer could be written for %s", slot.peer)
        slot.fail_connection("its request failed and there is no answer to it")
