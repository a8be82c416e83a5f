"""Requests of the REST API into values: bounded, decoded and checked for their form before anything looks at them."""

import asyncio
import json
import unicodedata
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from starlette.requests import ClientDisconnect, Request

from fluvial.registry import errors
from fluvial.registry.errors import RefusedError
from fluvial.registry.model import annotations, names
from fluvial.registry.model.commands import Draft
from fluvial.registry.model.records import Reference, stable_json

BODY_BYTES_MAX = 1024 * 1024  # unless the cluster says otherwise
BODY_SECONDS_MAX = 30
SUBJECT_CHARACTERS_MAX = 1_000
REFERENCES_MAX = 1_000
# A page of any site may send a body of no type, or of a form's, without asking first; none of these.
JSON_TYPES = frozenset(
    {
        "application/json",
        "application/octet-stream",
        "application/vnd.schemaregistry+json",
        "application/vnd.schemaregistry.v1+json",
    }
)
VERSION_MAX = 2**31 - 1
# What a request may set, besides the level, which the wire calls `compatibility` and the log `compatibilityLevel`.
TEXT_SETTINGS = ("alias", "aliasForDeks", "compatibilityPolicy", "compatibilityGroup")
FLAG_SETTINGS = ("normalize", "validateFields", "validateNewSchemas", "validateRules")
METADATA_SETTINGS = ("defaultMetadata", "overrideMetadata")
RULE_SETTINGS = ("defaultRuleSet", "overrideRuleSet")
# A listing of schemas is cut here, as it is by Confluent's registry; clients ask for the next part by `offset`.
SCHEMAS_MAX = 1_000


async def body_of(request: Request) -> bytes:
    """The body, kept for whoever asks for it again. Raises `RefusedError` for one that is too large or too slow."""
    known: bytes | None = getattr(request.state, "body", None)
    if known is not None:
        return known
    body = bytearray()
    most: int = request.app.state.request_bytes_max()
    too_large = errors.too_large(f"The request is larger than {most} bytes (fluvial.registry.request.max.bytes)")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > most:
        raise too_large
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        raise RefusedError(408, 408, "HTTP 408 Request Timeout") from None
    except ClientDisconnect:
        raise RefusedError(400, 400, "The request ended early") from None
    request.state.body = known = bytes(body)
    return known


async def json_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object. Raises `RefusedError` for one that is too large, not UTF-8 or no JSON object."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in JSON_TYPES:
        raise RefusedError(415, 415, "HTTP 415 Unsupported Media Type")
    body = await body_of(request)
    try:
        parsed = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise errors.malformed_json(f"The request is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise errors.invalid_request("The request is nested too deeply") from None
    except ValueError as error:
        raise errors.malformed_json(f"The request is not JSON: {error}") from None
    if parsed is None:
        raise RefusedError(422, 422, "The request is null")
    if not isinstance(parsed, dict):
        raise errors.invalid_request("The request is not a JSON object")
    return parsed


async def draft(request: Request) -> Draft:
    """The schema that a request carries. Fields that we do not know are passed over."""
    content = await json_object(request)
    schema = content.get("schema")
    schema_type = content.get("schemaType")
    if schema is not None and not isinstance(schema, str):
        raise errors.invalid_request("`schema` is not a string")
    if schema_type is not None and not isinstance(schema_type, str):
        raise errors.invalid_request("`schemaType` is not a string")
    metadata, rule_set = annotations.metadata(content.get("metadata")), annotations.rule_set(content.get("ruleSet"))
    annotations.check_rules(rule_set)
    version = _number(content, "version")
    schema_id = _number(content, "id")
    try:
        return Draft(
            schema=_encodable(schema or ""),
            schema_type=schema_type or "AVRO",
            references=_references(content.get("references")),
            metadata=_encodable(annotations.text(metadata)) if metadata else None,
            rule_set=_encodable(annotations.text(rule_set)) if rule_set else None,
            # Clients say "choose one" by an id of -1 and a version of 0, or by leaving them out.
            id=schema_id if schema_id is not None and schema_id > 0 else None,
            version=version or None,
        )
    except RecursionError:
        raise errors.invalid_request("The request is nested too deeply") from None


def _encodable(text: Any) -> str:
    """JSON can spell half a surrogate pair, which no UTF-8 log can keep."""
    try:
        str(text).encode("utf-8")
    except UnicodeEncodeError:
        raise errors.invalid_request("The request holds half of a surrogate pair (\\ud800 to \\udfff)") from None
    return str(text)


def _number(content: dict[str, Any], name: str) -> int | None:
    value = content.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value <= VERSION_MAX:
        raise errors.invalid_request(f"`{name}` is not a whole number of 32 bits")
    return value


def _references(value: Any) -> tuple[Reference, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise errors.invalid_request("`references` is not a list")
    if len(value) > REFERENCES_MAX:
        raise errors.invalid_schema(f"More than {REFERENCES_MAX} references")
    return tuple(_reference(each) for each in value)


def _reference(value: Any) -> Reference:
    if not isinstance(value, dict):
        raise errors.invalid_request("A reference is an object of name, subject and version")
    name, subject, version = value.get("name"), value.get("subject"), _number(value, "version")
    if not isinstance(name, str) or not isinstance(subject, str) or version is None:
        raise errors.invalid_schema("Invalid reference: name, subject and version are needed")
    return Reference(name=_encodable(name), subject=_encodable(subject), version=version)


async def settings(request: Request) -> dict[str, Any]:
    """The settings that a request changes, under the names that the log uses; None takes one away."""
    content = await json_object(request)
    level = content.get("compatibility", content.get("compatibilityLevel"))
    if level is not None and not isinstance(level, str):
        raise errors.invalid_compatibility()
    changes: dict[str, Any] = {name: _of_type(content, name, str) for name in TEXT_SETTINGS if name in content}
    changes |= {name: _of_type(content, name, bool) for name in FLAG_SETTINGS if name in content}
    if "compatibility" in content or "compatibilityLevel" in content:
        changes["compatibilityLevel"] = None if level is None else level.upper()
    changes |= {name: annotations.metadata(content[name]) for name in METADATA_SETTINGS if name in content}
    for name in RULE_SETTINGS:
        if name in content:
            changes[name] = annotations.rule_set(content[name])
            annotations.check_rules(changes[name])
    _encodable(stable_json(changes))
    return changes


def _of_type(content: Mapping[str, Any], name: str, kind: type) -> Any:
    value = content[name]
    if value is not None and not isinstance(value, kind):
        raise errors.invalid_request(f"`{name}` is not a {kind.__name__}")
    return value


async def mode(request: Request) -> str:
    """The mode that a request asks for."""
    content = await json_object(request)
    value = content.get("mode")
    if not isinstance(value, str):
        raise errors.invalid_mode()
    return value.upper()


def subject_name(text: str) -> str:
    """A subject that may be registered under, from its escaped form in a path."""
    name = scope_name(text)
    context, plain = names.split(name or "")
    if not plain.strip() or context == names.GLOBAL_CONTEXT:
        raise errors.invalid_subject(text[:100])
    return names.joined(context, plain)


def scope_name(text: str) -> str | None:
    """A subject or context that settings may be of, from its escaped form in a path; None for the default context."""
    try:
        text = unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise errors.invalid_subject(text[:100]) from None
    context, name = names.split(text)
    if (
        len(text) > SUBJECT_CHARACTERS_MAX
        or name in names.RESERVED
        or context == names.ALL_CONTEXTS
        or any(unicodedata.category(each) in {"Cc", "Cs"} for each in text)
    ):
        raise errors.invalid_subject(text[:100])
    return names.normalized(text) or None


def version_number(text: str) -> int:
    """A version from its escaped form in a path; -1 stands for the latest."""
    text = unquote(text)
    word = text.strip().lower()
    if word in {"latest", "-1"}:
        return -1
    if not word.isascii() or not word.isdigit() or len(word) > 10 or not 1 <= int(word) <= VERSION_MAX:
        raise errors.invalid_version(text)
    return int(word)


def flag(request: Request, name: str) -> bool:
    """A query parameter that is true or not there."""
    return request.query_params.get(name, "").lower() == "true"


def page(request: Request, found: list[Any], *, most: int | None = None) -> list[Any]:
    """The part of a list that `offset` and `limit` ask for; without a limit, or one over `most`, as much as that."""
    try:
        offset = int(request.query_params.get("offset", "0"))
        limit = int(request.query_params.get("limit", "-1"))
    except ValueError:
        raise RefusedError(404, 404, "HTTP 404 Not Found") from None
    found = found[max(offset, 0) :]
    if limit <= 0 or (most is not None and limit > most):
        return found if most is None else found[:most]
    return found[:limit]
