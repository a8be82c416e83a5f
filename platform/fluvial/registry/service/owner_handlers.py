"""
The calls that are ours and not Confluent's: producers, who owns which subject, and who registered what and when.

`PUT /fluvial/producers/{producer}` introduces the producer that the request's HTTP Basic credentials name, and
`PUT /fluvial/owners/{subject}` gives a subject to an owner. Passwords come in and never go out.
"""

import time
from collections.abc import Mapping
from email.utils import parseaddr
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from fluvial.registry import errors
from fluvial.registry.model.ownership import GiveTo, Introduce, Owned, Ownership, Producer
from fluvial.registry.model.registry import Registry
from fluvial.registry.service import requests, rights
from fluvial.registry.service.auth import (
    NAME_CHARACTERS_MAX,
    NO_PASSWORD,
    PASSWORD_CHARACTERS_MAX,
    PASSWORD_CHARACTERS_MIN,
    read_basic,
)
from fluvial.registry.service.handlers import principal_of
from fluvial.registry.service.policy import ANYONE
from fluvial.registry.service.replies import Reply
from fluvial.registry.service.rights import Asked
from log_broker.core.security.principal import Principal

CONTACT_CHARACTERS_MAX = 1_000


def _registry(request: Request) -> Registry:
    registry: Registry = request.app.state.registry
    return registry


async def list_producers(request: Request) -> Response:
    """GET /fluvial/producers"""
    ownership = _registry(request).state.ownership
    return Reply([_producer_json(request, each, ownership) for each in requests.page(request, ownership.producers())])


async def get_producer(request: Request) -> Response:
    """GET /fluvial/producers/{producer}"""
    ownership, name = _registry(request).state.ownership, _name(request)
    known = ownership.producer(name)
    if known is None:
        raise errors.producer_not_found(name)
    return Reply(_producer_json(request, known, ownership))


async def put_producer(request: Request) -> Response:
    """
    PUT /fluvial/producers/{producer}: `contact`, and `password` where it is to become another.

    A producer that is not known yet is introduced with the password that the request is sent with.
    """
    registry, name = _registry(request), _name(request)
    content = await requests.json_object(request)
    known = registry.state.ownership.producer(name)
    if request.app.state.is_secured:
        return await _put_user(request, name, content)
    header = request.headers.get("authorization")
    given = read_basic(header)
    introduces_itself = known is None and given is not None and given[0] == name
    principal = Principal(name=name) if introduces_itself else await registry.authenticator.principal(header)
    reason = registry.policy.may_introduce(ANYONE if introduces_itself else principal, known)
    if reason is None and known is None and principal == ANYONE:
        reason = f"Who introduces {name} sends its name and password by HTTP Basic"
    if reason is not None:
        raise errors.forbidden(reason)
    password = content.get("password")
    if password is None and introduces_itself:
        assert given is not None
        password = given[1]
    hashed = known.password if known is not None else None
    if password is not None:
        if not isinstance(password, str) or not PASSWORD_CHARACTERS_MIN <= len(password) <= PASSWORD_CHARACTERS_MAX:
            raise errors.weak_password(PASSWORD_CHARACTERS_MIN)
        if known is None or not await registry.authenticator.is_right(known, password):
            hashed = await registry.authenticator.hashed(password)
    if hashed is None:
        raise errors.invalid_request("`password` is missing")
    command = Introduce(
        name=name,
        contact=_contact(content.get("contact"), known),
        password=hashed,
        before=None if known is None else known.password,
    )
    producer = await registry.apply(command, principal=principal, action="introduce")
    return Reply(_producer_json(request, producer, registry.state.ownership))


async def _put_user(request: Request, name: str, content: Mapping[str, Any]) -> Response:
    """How a user of the cluster is reached; its password is not the registry's."""
    registry, caller = _registry(request), rights.caller_of(request)
    known = registry.state.ownership.producer(name)
    if content.get("password") is not None:
        raise errors.invalid_request(
            f"{name} is a user of the cluster: its password is changed by `fluvial user set-password {name}`"
        )
    is_itself = caller.principal == Principal(name)
    reason = None if is_itself else registry.policy.may_introduce(caller.principal, known)
    if reason is None and not is_itself and known is None and not _may_introduce_others(request, caller):
        reason = f"{name} says itself how it is reached, or an administrator does"
    if reason is not None:
        raise errors.forbidden(reason)
    command = Introduce(
        name=name,
        contact=_contact(content.get("contact"), known),
        password=NO_PASSWORD if known is None else known.password,
        before=None if known is None else known.password,
    )
    producer = await registry.apply(command, principal=caller.principal, action="introduce")
    return Reply(_producer_json(request, producer, registry.state.ownership))


def _may_introduce_others(request: Request, caller: rights.Caller) -> bool:
    return (
        caller.may_change_all() if caller.rights is not None else _registry(request).policy.is_admin(caller.principal)
    )


async def who_asks(request: Request) -> Response:
    """GET /fluvial/principal: who asks, as the cluster knows it; null where the registry asks nobody who that is."""
    caller = rights.caller_of(request)
    return Reply({"principal": str(caller.principal) if request.app.state.is_secured else None})


async def list_owned(request: Request) -> Response:
    """GET /fluvial/owners"""
    ownership = _registry(request).state.ownership
    readable = [each for each in ownership.all_owned() if rights.may_read(request, each.subject)]
    return Reply([_owned_json(each, ownership) for each in requests.page(request, readable)])


async def get_owned(request: Request) -> Response:
    """GET /fluvial/owners/{subject}: who owns it, and through whose hands it went."""
    ownership, subject = _registry(request).state.ownership, _subject(request)
    owned = ownership.owned(subject)
    if owned is None:
        raise errors.owner_not_found(subject)
    return Reply(_owned_json(owned, ownership, with_history=True))


async def put_owned(request: Request) -> Response:
    """PUT /fluvial/owners/{subject}: give it to `owner`; null gives it up. Who claims a subject gives it to itself."""
    registry, subject = _registry(request), _subject(request)
    content = await requests.json_object(request)
    owner = content.get("owner")
    if "owner" not in content or not isinstance(owner, str | None):
        raise errors.invalid_request("`owner` is missing; it is the name of a producer, or null to give the subject up")
    principal = principal_of(request)
    now_ms = time.time_ns() // 1_000_000
    command = GiveTo(subject=subject, owner=owner, by="" if principal == ANYONE else principal.name, at_ms=now_ms)
    owned = await registry.apply(command, principal=principal, action="give")
    return Reply(_owned_json(owned, registry.state.ownership, with_history=True))


async def list_registrations(request: Request) -> Response:
    """GET /fluvial/registrations/{subject}: its versions with the time at which they were registered, and by whom."""
    state, subject = _registry(request).state, _subject(request)
    versions = state.versions(subject, deleted=True)
    if not versions:
        raise errors.subject_not_found(subject)
    return Reply(
        [
            {
                "version": each.version,
                "id": each.id,
                "at": each.at_ms,
                "by": state.ownership.registered_by(subject, each.version),
                "deleted": each.deleted,
            }
            for each in requests.page(request, versions)
        ]
    )


def _subject(request: Request) -> str:
    return requests.subject_name(request.path_params["subject"])


def _name(request: Request) -> str:
    name = requests.subject_name(request.path_params["producer"])
    if len(name) > NAME_CHARACTERS_MAX or ":" in name:
        raise errors.invalid_request(f"A producer's name has no colon and at most {NAME_CHARACTERS_MAX} characters")
    return name


def _contact(value: Any, known: Producer | None) -> str:
    if value is None and known is not None:
        return known.contact
    if not isinstance(value, str) or len(value) > CONTACT_CHARACTERS_MAX or "@" not in parseaddr(value)[1]:
        raise errors.invalid_request("`contact` holds no e-mail address")
    if not value.isprintable():
        raise errors.invalid_request("`contact` holds characters that cannot be printed")
    return value


def _producer_json(request: Request, producer: Producer, ownership: Ownership) -> dict[str, Any]:
    owned = (each.subject for each in ownership.all_owned() if each.owner == producer.name)
    subjects = [each for each in owned if rights.may_read(request, each)]
    return {"producer": producer.name, "contact": producer.contact, "subjects": subjects}


def _owned_json(owned: Owned, ownership: Ownership, *, with_history: bool = False) -> dict[str, Any]:
    owner = ownership.owner(owned.subject)
    found: dict[str, Any] = {
        "subject": owned.subject,
        "owner": owned.owner,
        "contact": None if owner is None else owner.contact,
    }
    return found | ({"history": [each.as_json() for each in owned.history]} if with_history else {})


ROUTES = (
    ("GET", "/fluvial/principal", who_asks, Asked.NOTHING),
    ("GET", "/fluvial/producers", list_producers, Asked.INSIDE),
    ("GET", "/fluvial/producers/{producer}", get_producer, Asked.INSIDE),
    ("PUT", "/fluvial/producers/{producer}", put_producer, Asked.INSIDE),
    ("GET", "/fluvial/owners", list_owned, Asked.INSIDE),
    ("GET", "/fluvial/owners/{subject}", get_owned, Asked.READ),
    ("PUT", "/fluvial/owners/{subject}", put_owned, Asked.WRITE),
    ("GET", "/fluvial/registrations/{subject}", list_registrations, Asked.READ),
)
