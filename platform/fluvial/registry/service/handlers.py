"""
The calls of Confluent's Schema Registry REST API about subjects and schemas, one function each, named in its docstring.

What a handler raises as `RefusedError` becomes the error reply.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from fluvial.registry import errors
from fluvial.registry.errors import RefusedError
from fluvial.registry.formats.kinds import KINDS
from fluvial.registry.model import names
from fluvial.registry.model.commands import DeleteSubject, DeleteVersion, Draft, Register
from fluvial.registry.model.names import DEFAULT_CONTEXT
from fluvial.registry.model.records import Body, SchemaRecord
from fluvial.registry.model.registry import Registry
from fluvial.registry.model.state import RegistryState
from fluvial.registry.service import replies, requests, rights
from fluvial.registry.service.policy import ANYONE
from fluvial.registry.service.replies import RawText, Reply
from fluvial.registry.service.rights import Asked
from log_broker.core.security.principal import Principal

SUBJECTS_A_TURN = 1_000
# A list that holds more text than this is not put together before it is sent.
WHOLE_CHARACTERS_MAX = 256 * 1024


def registry_of(request: Request) -> Registry:
    """The registry that a request is made to."""
    registry: Registry = request.app.state.registry
    return registry


def principal_of(request: Request) -> Principal:
    """Who makes a request."""
    principal: Principal = getattr(request.state, "principal", ANYONE)
    return principal


def subject_asked(request: Request) -> str | None:
    """The subject that a request is about, None where it is about all, or about a context as a whole."""
    if "subject" not in request.path_params:
        return None
    if request.url.path.startswith(("/config", "/mode")):
        return requests.scope_name(request.path_params["subject"])
    return _subject(request)


def _subject(request: Request) -> str:
    return _unaliased(registry_of(request).state, requests.subject_name(request.path_params["subject"]))


def _unaliased(state: RegistryState, subject: str) -> str:
    alias = state.settings.stored_config(subject).get("alias")
    return names.qualified(alias, subject) if alias else subject


def _id(request: Request) -> int:
    text: str = request.path_params["id"]
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 10:
        raise RefusedError(404, 404, "HTTP 404 Not Found")
    return int(text)


async def _formatted(request: Request, record: SchemaRecord) -> Body:
    """The record's body in the form that `format` asks for, and what it refers to as `referenceFormat` asks."""
    body, context = record.body, names.context_of(record.subject)
    form = request.query_params.get("format", "").strip()
    if form:
        text = await registry_of(request).formatted(body, context, form)
        body = body if text is None else replace(body, schema=text)
    if request.query_params.get("referenceFormat") == "qualified" and context != DEFAULT_CONTEXT:
        references = (replace(each, subject=names.qualified(each.subject, record.subject)) for each in body.references)
        body = replace(body, references=tuple(references))
    return body


async def root(request: Request) -> Response:
    """GET /"""
    return Reply({})


async def list_subjects(request: Request) -> Response:
    """GET /subjects"""
    state, found = registry_of(request).state, []
    deleted, deleted_only = requests.flag(request, "deleted"), requests.flag(request, "deletedOnly")
    async for subject in _in_turns(state.named(request.query_params.get("subjectPrefix", names.ALL_CONTEXTS))):
        if state.is_listed(subject, deleted=deleted, deleted_only=deleted_only) and rights.may_read(request, subject):
            found.append(subject)
    return Reply(requests.page(request, found))


async def _in_turns(subjects: list[str]) -> AsyncIterator[str]:
    """Subjects one by one; others have their turns on the event loop in between."""
    for number, subject in enumerate(subjects, 1):
        yield subject
        if number % SUBJECTS_A_TURN == 0:
            await asyncio.sleep(0)


async def look_up(request: Request) -> Response:
    """POST /subjects/{subject}: under which version is this schema registered?"""
    registry, subject = registry_of(request), _subject(request)
    deleted = requests.flag(request, "deleted")
    draft = await _draft(request)
    found = await registry.look_up(subject, draft, normalize=requests.flag(request, "normalize"), deleted=deleted)
    if found is None or not rights.may_read(request, found.subject):
        known = registry.state.has_subject(subject, deleted=deleted)
        raise errors.schema_not_found() if known else errors.subject_not_found(subject)
    return Reply(replies.version(request, found, await _formatted(request, found)))


async def delete_subject(request: Request) -> Response:
    """DELETE /subjects/{subject}"""
    command = DeleteSubject(subject=_subject(request), permanent=requests.flag(request, "permanent"))
    return Reply(await registry_of(request).apply(command, principal=principal_of(request), action="delete"))


async def latest_with_metadata(request: Request) -> Response:
    """GET /subjects/{subject}/metadata: the last version whose properties have each `key` at the `value` beside it."""
    state, subject = registry_of(request).state, _subject(request)
    deleted = requests.flag(request, "deleted")
    keys, values = request.query_params.getlist("key"), request.query_params.getlist("value")
    wanted = dict(zip(keys, values, strict=False)).items()
    for each in reversed(state.versions(subject, deleted=deleted)):
        metadata = each.body.as_json().get("metadata")
        if metadata is not None and wanted <= metadata.get("properties", {}).items():
            return Reply(replies.version(request, each, await _formatted(request, each)))
    known = state.has_subject(subject, deleted=deleted)
    raise errors.schema_not_found() if known else errors.subject_not_found(subject)


async def list_versions(request: Request) -> Response:
    """GET /subjects/{subject}/versions"""
    state, subject = registry_of(request).state, _subject(request)
    deleted, deleted_only = requests.flag(request, "deleted"), requests.flag(request, "deletedOnly")
    negative = requests.flag(request, "deletedAsNegative")
    if not state.has_subject(subject, deleted=deleted or deleted_only):
        raise errors.subject_not_found(subject)
    versions = state.versions(subject, deleted=deleted or deleted_only or negative)
    if negative:
        numbers = [-each.version if each.deleted else each.version for each in versions]
    else:
        numbers = [each.version for each in versions if each.deleted or not deleted_only]
    return Reply(requests.page(request, numbers))


async def register(request: Request) -> Response:
    """POST /subjects/{subject}/versions"""
    command = await _register_command(request)
    if not rights.caller_of(request).may(Asked.WRITE, command.subject, registry_of(request).state.ownership):
        # To send again what is registered already takes no more than to read it; serializers do so at each start.
        known = await registry_of(request).known(command) if rights.may_read(request, command.subject) else None
        if known is None:
            raise rights.denied(Asked.WRITE, command.subject)
        return await _registered(request, command, known)
    found = await registry_of(request).apply(command, principal=principal_of(request), action="register")
    return await _registered(request, command, found)


async def register_known(request: Request) -> Response | None:
    """Answer `register` where the schema is registered already, None when that takes a write."""
    command = await _register_command(request)
    if not rights.may_read(request, command.subject):
        return None
    found = await registry_of(request).known(command)
    return None if found is None else await _registered(request, command, found)


async def _draft(request: Request) -> Draft:
    """The schema that a request carries; what it refers to would be shown by it, and has to be readable."""
    draft = await requests.draft(request)
    for each in draft.references:
        rights.demand(request, Asked.READ, names.qualified(each.subject, _subject(request)))
    return draft


async def _register_command(request: Request) -> Register:
    draft = await _draft(request)
    return Register(subject=_subject(request), draft=draft, normalize=requests.flag(request, "normalize"))


async def _registered(request: Request, command: Register, found: SchemaRecord) -> Response:
    # Whoever sends metadata or rules is told how they came out after the subject's own were added.
    in_full = command.draft.metadata is not None or command.draft.rule_set is not None
    body = await _formatted(request, found)
    if body.schema_type == "PROTOBUF" and "format" not in request.query_params and command.draft.schema.strip():
        # Confluent's Python client keeps this answer and reads it later as what it sent: a descriptor, not the text.
        body = replace(body, schema=command.draft.schema)
    return Reply(replies.registered(request, found, body, in_full=in_full))


def _version(request: Request, *, deleted: bool) -> SchemaRecord:
    state, subject = registry_of(request).state, _subject(request)
    number = requests.version_number(request.path_params["version"])
    rights.demand(request, Asked.READ, subject)
    for each in state.in_any_context(subject):
        found = state.version(each, number, deleted=deleted)
        if found is not None and rights.may_read(request, each):
            return found
    known = state.has_subject(subject, deleted=deleted)
    raise errors.version_not_found(number) if known else errors.subject_not_found(subject)


async def get_version(request: Request) -> Response:
    """GET /subjects/{subject}/versions/{version}"""
    found = _version(request, deleted=requests.flag(request, "deleted"))
    return Reply(replies.version(request, found, await _formatted(request, found)))


async def get_version_schema(request: Request) -> Response:
    """GET /subjects/{subject}/versions/{version}/schema"""
    found = _version(request, deleted=requests.flag(request, "deleted"))
    return RawText((await _formatted(request, found)).schema)


async def referenced_by(request: Request) -> Response:
    """GET /subjects/{subject}/versions/{version}/referencedby"""
    found = _version(request, deleted=True)
    deleted = requests.flag(request, "deleted")
    referrers = registry_of(request).state.referrers(found.subject, found.version, deleted=deleted)
    return Reply(requests.page(request, sorted({each.id for each in referrers})))


async def delete_version(request: Request) -> Response:
    """DELETE /subjects/{subject}/versions/{version}"""
    command = DeleteVersion(
        subject=_subject(request),
        version=requests.version_number(request.path_params["version"]),
        permanent=requests.flag(request, "permanent"),
    )
    return Reply(await registry_of(request).apply(command, principal=principal_of(request), action="delete"))


async def list_schemas(request: Request) -> Response:
    """GET /schemas"""
    state, found = registry_of(request).state, []
    deleted, latest_only = requests.flag(request, "deleted"), requests.flag(request, "latestOnly")
    rule_type = request.query_params.get("ruleType", "")
    async for subject in _in_turns(sorted(state.named(request.query_params.get("subjectPrefix", "")))):
        if not rights.may_read(request, subject):
            continue
        versions = state.versions(subject, deleted=deleted)
        for each in versions[-1:] if latest_only else versions:
            if not rule_type or _has_rule(each.body, rule_type):
                found.append(each)
    shown = requests.page(request, found, most=requests.SCHEMAS_MAX)
    if sum(len(each.body.schema) for each in shown) <= WHOLE_CHARACTERS_MAX:
        return Reply([replies.version(request, each) for each in shown])
    return StreamingResponse(_listed(request, shown), media_type=replies.MEDIA_TYPE)


async def _listed(request: Request, found: list[SchemaRecord]) -> AsyncIterator[bytes]:
    """A list of versions as JSON, one after the other: each may be as large as a request."""
    for number, each in enumerate(found):
        yield (b"," if number else b"[") + Reply(replies.version(request, each)).body
    yield b"]" if found else b"[]"


def _has_rule(body: Body, rule_type: str) -> bool:
    lists = (body.as_json().get("ruleSet") or {}).values()
    return any(rule.get("type") == rule_type for rules in lists if isinstance(rules, list) for rule in rules)


async def schema_types(request: Request) -> Response:
    """GET /schemas/types"""
    return Reply(list(KINDS))


def _by_id(request: Request) -> SchemaRecord | None:
    """What `_any_by_id` finds, under a subject that the caller may read; raises `RefusedError` where there is none."""
    found = _any_by_id(request)
    if found is None or rights.may_read(request, found.subject):
        return found
    readable = _readable_place(request, found.id, names.context_of(found.subject))
    if readable is None:
        raise rights.denied(Asked.READ, found.subject)
    return readable


def _readable_place(request: Request, schema_id: int, context: str) -> SchemaRecord | None:
    """Where a schema stands under a subject that the caller may read: its text is the same everywhere."""
    places = registry_of(request).state.places(schema_id, deleted=True, context=context) or ()
    return next((each for each in places if rights.may_read(request, each.subject)), None)


def _any_by_id(request: Request) -> SchemaRecord | None:
    """What an id stands for: in the context of `subject`, or where there is that subject, or in the default one."""
    state, schema_id = registry_of(request).state, _id(request)
    asked = request.query_params.get("subject")
    if not asked:
        return state.first_place(schema_id)
    subject = _unaliased(state, names.normalized(asked))
    context, name = names.split(subject)
    if not name:
        return state.first_place(schema_id, context)
    for each in state.in_any_context(subject):
        places = state.places(schema_id, deleted=True, context=names.context_of(each)) or ()
        found = [record for record in places if record.subject == each]
        if found:
            return found[-1]
    return state.first_place(schema_id) if context == DEFAULT_CONTEXT else None


async def schema_by_id(request: Request) -> Response:
    """GET /schemas/ids/{id}"""
    found = _by_id(request)
    if found is None:
        raise errors.schema_not_found(_id(request))
    context = names.context_of(found.subject)
    max_id = registry_of(request).state.highest_id_of(context) if requests.flag(request, "fetchMaxId") else None
    placed = bool(request.query_params.get("subject"))
    body = await _formatted(request, found)
    return Reply(replies.schema(request, found, body, placed=placed, max_id=max_id))


async def schema_text_by_id(request: Request) -> Response:
    """GET /schemas/ids/{id}/schema"""
    found = _by_id(request)
    if found is None:
        raise errors.schema_not_found(_id(request))
    return RawText((await _formatted(request, found)).schema)


def _places(request: Request) -> list[SchemaRecord]:
    found = _by_id(request)
    if found is None:
        raise errors.schema_not_found()
    places = registry_of(request).state.places(
        found.id, deleted=requests.flag(request, "deleted"), context=names.context_of(found.subject)
    )
    return [each for each in places or () if rights.may_read(request, each.subject)]


async def subjects_of_id(request: Request) -> Response:
    """GET /schemas/ids/{id}/subjects"""
    return Reply(requests.page(request, list(dict.fromkeys(each.subject for each in _places(request)))))


async def versions_of_id(request: Request) -> Response:
    """GET /schemas/ids/{id}/versions"""
    found = [{"subject": each.subject, "version": each.version} for each in _places(request)]
    return Reply(requests.page(request, found))


async def schema_by_guid(request: Request) -> Response:
    """GET /schemas/guids/{guid}"""
    state, guid = registry_of(request).state, request.path_params["guid"]
    for context, schema_id in await registry_of(request).ids_of_guid(guid):
        found = state.first_place(schema_id, context)
        assert found is not None, "an id that has a GUID is registered"
        if not rights.may_read(request, found.subject):
            found = _readable_place(request, schema_id, context)
            if found is None:
                continue
        return Reply(replies.schema(request, found, await _formatted(request, found)))
    raise errors.schema_not_found(guid[:100])


async def ids_of_guid(request: Request) -> Response:
    """GET /schemas/guids/{guid}/ids"""
    found = await registry_of(request).ids_of_guid(request.path_params["guid"])
    readable = [(context, id_) for context, id_ in found if _readable_place(request, id_, context) is not None]
    return Reply([{"context": context, "id": schema_id} for context, schema_id in readable])


async def test_compatibility(request: Request) -> Response:
    """POST /compatibility/subjects/{subject}/versions and …/versions/{version}"""
    registry, subject = registry_of(request), _subject(request)
    if "version" in request.path_params:
        number = requests.version_number(request.path_params["version"])
        found = registry.state.version(subject, number)
        if found is None and number != -1:
            raise errors.version_not_found(number)
        earlier = [found] if found is not None else []
    else:
        earlier = registry.state.versions(subject)
    verbose = requests.flag(request, "verbose")
    draft = await _draft(request)
    try:
        normalize = requests.flag(request, "normalize")
        messages = await registry.judge(subject, draft, earlier, normalize=normalize)
    except RefusedError as refusal:
        if not verbose or refusal.code != 42201:
            raise
        messages = [str(refusal)]
    return Reply({"is_compatible": not messages, **({"messages": messages} if verbose else {})})
