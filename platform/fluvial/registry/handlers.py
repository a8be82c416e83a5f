"""
The calls of Confluent's Schema Registry REST API, one function each, named in its docstring.

What a handler raises as `RefusedError` becomes the error reply.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fluvial.registry import errors, requests
from fluvial.registry.avro_text import canonical
from fluvial.registry.commands import (
    DeleteConfig,
    DeleteMode,
    DeleteSubject,
    DeleteVersion,
    Register,
    SetConfig,
    SetMode,
)
from fluvial.registry.errors import RefusedError
from fluvial.registry.policy import ANYONE, Principal
from fluvial.registry.records import Body, SchemaRecord
from fluvial.registry.registry import Registry

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


class Reply(JSONResponse):
    """A JSON reply under the registry's content type."""

    media_type = MEDIA_TYPE

    def render(self, content: Any) -> bytes:
        """Write the JSON; a message that quotes half of a surrogate pair must not fail for it."""
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")


class RawText(Response):
    """A schema's text as it is, without a JSON envelope."""

    media_type = MEDIA_TYPE
    charset = "utf-8"


def _registry(request: Request) -> Registry:
    registry: Registry = request.app.state.registry
    return registry


def _principal(request: Request) -> Principal:
    principal: Principal = getattr(request.state, "principal", ANYONE)
    return principal


def _subject(request: Request) -> str:
    return requests.subject_name(request.path_params["subject"])


def _subject_or_all(request: Request) -> str | None:
    return _subject(request) if "subject" in request.path_params else None


def _id(request: Request) -> int:
    text: str = request.path_params["id"]
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise RefusedError(404, 404, "HTTP 404 Not Found")
    return int(text)


def _version_json(record: SchemaRecord, body: Body | None = None) -> dict[str, Any]:
    return {
        "subject": record.subject,
        "version": record.version,
        "id": record.id,
        **(body or record.body).as_json(),
        **({"deleted": True} if record.deleted else {}),
    }


async def _formatted(request: Request, body: Body) -> Body:
    """The body in the form the caller asks for: `format=resolved` spells out what it refers to."""
    if request.query_params.get("format") != "resolved" or not body.references:
        return body
    registry = _registry(request)
    parsed = await registry.parsed(body)
    return replace(body, schema=canonical(parsed.schema), references=())


def _settings_json(settings: Mapping[str, Any], *, level_name: str) -> dict[str, Any]:
    rest = {name: settings[name] for name in requests.SETTINGS if name in settings}
    level = {level_name: settings["compatibilityLevel"]} if "compatibilityLevel" in settings else {}
    return rest | level


async def root(request: Request) -> Response:
    """GET /"""
    return Reply({})


async def list_subjects(request: Request) -> Response:
    """GET /subjects"""
    prefix = request.query_params.get("subjectPrefix", "")
    found = _registry(request).state.subjects(
        prefix="" if prefix == ":*:" else prefix.removeprefix(":.:"),
        deleted=requests.flag(request, "deleted"),
        deleted_only=requests.flag(request, "deletedOnly"),
    )
    return Reply(requests.page(request, found))


async def look_up(request: Request) -> Response:
    """POST /subjects/{subject}: under which version is this schema registered?"""
    registry, subject = _registry(request), _subject(request)
    deleted = requests.flag(request, "deleted")
    draft = await requests.draft(request)
    found = await registry.look_up(subject, draft, normalize=requests.flag(request, "normalize"), deleted=deleted)
    if found is None:
        known = registry.state.has_subject(subject, deleted=deleted)
        raise errors.schema_not_found() if known else errors.subject_not_found(subject)
    return Reply(_version_json(found))


async def delete_subject(request: Request) -> Response:
    """DELETE /subjects/{subject}"""
    command = DeleteSubject(subject=_subject(request), permanent=requests.flag(request, "permanent"))
    return Reply(await _registry(request).apply(command, principal=_principal(request), action="delete"))


async def list_versions(request: Request) -> Response:
    """GET /subjects/{subject}/versions"""
    state, subject = _registry(request).state, _subject(request)
    deleted, deleted_only = requests.flag(request, "deleted"), requests.flag(request, "deletedOnly")
    if not state.has_subject(subject, deleted=deleted or deleted_only):
        raise errors.subject_not_found(subject)
    versions = state.versions(subject, deleted=deleted or deleted_only)
    numbers = [each.version for each in versions if each.deleted or not deleted_only]
    return Reply(requests.page(request, numbers))


async def register(request: Request) -> Response:
    """POST /subjects/{subject}/versions"""
    command = await _register_command(request)
    return _registered(
        command, await _registry(request).apply(command, principal=_principal(request), action="register")
    )


async def register_known(request: Request) -> Response | None:
    """Answer `register` where the schema is registered already, None when that takes a write."""
    command = await _register_command(request)
    found = await _registry(request).known(command)
    return None if found is None else _registered(command, found)


async def _register_command(request: Request) -> Register:
    draft = await requests.draft(request)
    return Register(subject=_subject(request), draft=draft, normalize=requests.flag(request, "normalize"))


def _registered(command: Register, found: SchemaRecord) -> Response:
    draft = command.draft
    if draft.metadata is None and draft.rule_set is None:
        return Reply({"id": found.id})
    # Whoever sends metadata or rules is told how they came out after the subject's own were added.
    return Reply({"id": found.id, "version": found.version, **found.body.as_json()})


def _version(request: Request, *, deleted: bool) -> SchemaRecord:
    state, subject = _registry(request).state, _subject(request)
    number = requests.version_number(request.path_params["version"])
    found = state.version(subject, number, deleted=deleted)
    if found is None:
        known = state.has_subject(subject, deleted=deleted)
        raise errors.version_not_found(number) if known else errors.subject_not_found(subject)
    return found


async def get_version(request: Request) -> Response:
    """GET /subjects/{subject}/versions/{version}"""
    found = _version(request, deleted=requests.flag(request, "deleted"))
    return Reply(_version_json(found, await _formatted(request, found.body)))


async def get_version_schema(request: Request) -> Response:
    """GET /subjects/{subject}/versions/{version}/schema"""
    found = _version(request, deleted=requests.flag(request, "deleted"))
    return RawText((await _formatted(request, found.body)).schema)


async def referenced_by(request: Request) -> Response:
    """GET /subjects/{subject}/versions/{version}/referencedby"""
    found = _version(request, deleted=True)
    deleted = requests.flag(request, "deleted")
    referrers = _registry(request).state.referrers(found.subject, found.version, deleted=deleted)
    return Reply(requests.page(request, sorted({each.id for each in referrers})))


async def delete_version(request: Request) -> Response:
    """DELETE /subjects/{subject}/versions/{version}"""
    command = DeleteVersion(
        subject=_subject(request),
        version=requests.version_number(request.path_params["version"]),
        permanent=requests.flag(request, "permanent"),
    )
    return Reply(await _registry(request).apply(command, principal=_principal(request), action="delete"))


async def list_schemas(request: Request) -> Response:
    """GET /schemas"""
    found = _registry(request).state.all_versions(
        prefix=request.query_params.get("subjectPrefix", ""),
        deleted=requests.flag(request, "deleted"),
        latest_only=requests.flag(request, "latestOnly"),
    )
    return Reply([_version_json(each) for each in requests.page(request, found)])


async def schema_types(request: Request) -> Response:
    """GET /schemas/types"""
    return Reply(["AVRO"])


async def schema_by_id(request: Request) -> Response:
    """GET /schemas/ids/{id}"""
    state, schema_id = _registry(request).state, _id(request)
    body = state.body(schema_id)
    if body is None:
        raise errors.schema_not_found(schema_id)
    most = {"maxId": state.highest_id} if requests.flag(request, "fetchMaxId") else {}
    return Reply((await _formatted(request, body)).as_json() | most)


async def schema_text_by_id(request: Request) -> Response:
    """GET /schemas/ids/{id}/schema"""
    schema_id = _id(request)
    body = _registry(request).state.body(schema_id)
    if body is None:
        raise errors.schema_not_found(schema_id)
    return RawText((await _formatted(request, body)).schema)


def _places(request: Request) -> list[SchemaRecord]:
    found = _registry(request).state.places(_id(request), deleted=requests.flag(request, "deleted"))
    if found is None:
        raise errors.schema_not_found()
    return found


async def subjects_of_id(request: Request) -> Response:
    """GET /schemas/ids/{id}/subjects"""
    return Reply(requests.page(request, list(dict.fromkeys(each.subject for each in _places(request)))))


async def versions_of_id(request: Request) -> Response:
    """GET /schemas/ids/{id}/versions"""
    found = [{"subject": each.subject, "version": each.version} for each in _places(request)]
    return Reply(requests.page(request, found))


async def test_compatibility(request: Request) -> Response:
    """POST /compatibility/subjects/{subject}/versions and …/versions/{version}"""
    registry, subject = _registry(request), _subject(request)
    if "version" in request.path_params:
        number = requests.version_number(request.path_params["version"])
        found = registry.state.version(subject, number)
        if found is None and number != -1:
            raise errors.version_not_found(number)
        earlier = [found] if found is not None else []
    else:
        earlier = registry.state.versions(subject)
    verbose = requests.flag(request, "verbose")
    draft = await requests.draft(request)
    if not draft.schema.strip():
        raise errors.empty_schema()
    try:
        normalize = requests.flag(request, "normalize")
        messages = await registry.judge(subject, draft, earlier, normalize=normalize)
    except RefusedError as refusal:
        if not verbose or refusal.code != 42201:
            raise
        messages = [str(refusal)]
    return Reply({"is_compatible": not messages, **({"messages": messages} if verbose else {})})


async def get_config(request: Request) -> Response:
    """GET /config and /config/{subject}"""
    state, subject = _registry(request).state, _subject_or_all(request)
    in_scope = requests.flag(request, "defaultToGlobal")
    settings = state.config_in_scope(subject) if in_scope else state.config(subject)
    if settings is None:
        raise errors.config_not_found(str(subject))
    return Reply(_settings_json(settings, level_name="compatibilityLevel"))


async def put_config(request: Request) -> Response:
    """PUT /config and /config/{subject}"""
    command = SetConfig(subject=_subject_or_all(request), settings=await requests.settings(request))
    settings = await _registry(request).apply(command, principal=_principal(request), action="configure")
    return Reply(_settings_json(settings, level_name="compatibility"))


async def delete_config(request: Request) -> Response:
    """DELETE /config and /config/{subject}"""
    command = DeleteConfig(subject=_subject_or_all(request))
    settings = await _registry(request).apply(command, principal=_principal(request), action="configure")
    return Reply(_settings_json(settings, level_name="compatibilityLevel"))


async def get_mode(request: Request) -> Response:
    """GET /mode and /mode/{subject}"""
    state, subject = _registry(request).state, _subject_or_all(request)
    in_scope = requests.flag(request, "defaultToGlobal")
    mode = state.mode_in_scope(subject) if in_scope else state.mode(subject)
    if mode is None:
        raise errors.mode_not_found(str(subject))
    return Reply({"mode": mode})


async def put_mode(request: Request) -> Response:
    """PUT /mode and /mode/{subject}"""
    mode = await requests.mode(request)
    command = SetMode(subject=_subject_or_all(request), mode=mode, force=requests.flag(request, "force"))
    await _registry(request).apply(command, principal=_principal(request), action="set_mode")
    return Reply({"mode": mode})


async def delete_mode(request: Request) -> Response:
    """DELETE /mode and /mode/{subject}"""
    command = DeleteMode(subject=_subject_or_all(request))
    return Reply({"mode": await _registry(request).apply(command, principal=_principal(request), action="set_mode")})


async def contexts(request: Request) -> Response:
    """GET /contexts: there is one."""
    return Reply(["."])


async def server_version(request: Request) -> Response:
    """GET /v1/metadata/version"""
    from importlib.metadata import version

    return Reply({"version": version("fluvial"), "commitId": ""})
