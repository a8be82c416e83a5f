"""
What a request may do, looked at before its handler sees it.

The rows of `wire/apis.py` say what each api asks for. Without an authorizer everything is allowed and nothing is looked
at. What is not allowed is taken out of the request, so that no handler can forget to ask, and is answered with Kafka's
error codes beside what the handler answers.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from log_broker.core.security.acls import Operation, ResourceType
from log_broker.core.security.authorizer import Authorizer, Rights
from log_broker.core.security.nodes import NodePrincipals
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.net.slots import Slot
from log_broker.wire.apis import APIS
from log_broker.wire.control import refused_entries
from log_broker.wire.messages import Values
from log_broker.wire.rights import AskedRight, Checked

ApiVersion = tuple[int, int]
Finish = Callable[[Values], Values]

_REFUSALS = {
    ResourceType.TOPIC: (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."),
    ResourceType.GROUP: (ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."),
    ResourceType.CLUSTER: (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."),
    ResourceType.TRANSACTIONAL_ID: (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "Transactional Id authorization failed.",
    ),
}


class HasAuthorizer(Protocol):
    """A node that may have an authorizer."""

    @property
    def authorizer(self) -> Authorizer | None: ...

    @property
    def node_principals(self) -> NodePrincipals: ...


class Guarded(NamedTuple):
    """A request as far as it is allowed, None where nothing is left of it, and what is to be done to the answer."""

    request: Any
    finish: Finish | None = None


def rights_of(node: HasAuthorizer, slot: Slot) -> Rights | None:
    """Return what whoever sent a request may do; None for everything."""
    authorizer = node.authorizer
    return None if authorizer is None else Rights(authorizer, slot.principal, slot.host)


def is_a_node(node: HasAuthorizer, slot: Slot) -> bool:
    """Whether a request comes from a node, by its principal and the listener that it came by, as far as is known."""
    rights = rights_of(node, slot)
    if rights is None:
        return node.node_principals.include(slot.listener, slot.principal)
    return node.node_principals.come_by(slot.listener) and rights.may_cluster(Operation.CLUSTER_ACTION)


def refused(resource: ResourceType) -> BrokerError:
    """Return the error of a request that is not allowed what it is about."""
    return BrokerError(*_REFUSALS[resource])


def code_of(resource: ResourceType) -> ErrorCode:
    """Return the code of what is not allowed."""
    return _REFUSALS[resource][0]


def guard_request(rights: Rights, api_key: int, version: int, request: Any) -> Guarded:
    """Look at the rights that an api's row tells; raises BrokerError for a request that is refused whole."""
    guarded = Guarded(request)
    for right in APIS[api_key].rights:
        match right.checked:
            case Checked.CLUSTER:
                if not any(rights.may_cluster(operation) for operation in right.operations):
                    raise refused(ResourceType.CLUSTER)
            case Checked.FIELD:
                name = getattr(guarded.request, right.path)
                if name is not None and not rights.may(right.operations[0], right.resource, name):
                    raise refused(right.resource)
            case Checked.EACH:
                guarded = _each(rights, right, (api_key, version), guarded)
            case Checked.INSIDE:
                pass
    return guarded


def split(entries: Iterable[Any], is_allowed: Callable[[Any], bool]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return what is allowed of some entries, and the others."""
    allowed: list[Any] = []
    denied: list[Any] = []
    for entry in entries:
        (allowed if is_allowed(entry) else denied).append(entry)
    return tuple(allowed), tuple(denied)


def only(
    api: ApiVersion, guarded: Guarded, array: str, is_allowed: Callable[[Any], bool], resource: ResourceType
) -> Guarded:
    """Leave in an array of a request what is allowed; each other entry is answered by the error of its resource."""
    api_key, version = api
    allowed, denied = split(getattr(guarded.request, array) or (), is_allowed)
    if not denied:
        return guarded
    code, message = _REFUSALS[resource]
    entries = refused_entries(api_key, version, replace(guarded.request, **{array: denied}), code, message)
    return Guarded(
        replace(guarded.request, **{array: allowed}), then(guarded.finish, lambda answer: joined(answer, entries))
    )


def joined(answer: Values, entries: Values) -> Values:
    """Return an answer with more entries in its arrays; as in Kafka, one that went wrong as a whole stays as it is."""
    if answer.get("error_code", ErrorCode.NONE) is not ErrorCode.NONE:
        return answer
    return {**answer, **{name: [*(answer.get(name) or ()), *more] for name, more in entries.items()}}


def then(first: Finish | None, second: Finish | None) -> Finish | None:
    """Return what does one thing to an answer and then another, each of which may be nothing."""
    if first is None or second is None:
        return first or second
    return lambda answer: second(first(answer))


def _each(rights: Rights, right: AskedRight, api: ApiVersion, guarded: Guarded) -> Guarded:
    array, _, field = right.path.partition(".")
    (operation,) = right.operations

    def is_allowed(entry: Any) -> bool:
        return rights.may(operation, right.resource, getattr(entry, field) if field else entry)

    return only(api, guarded, array, is_allowed, right.resource)
