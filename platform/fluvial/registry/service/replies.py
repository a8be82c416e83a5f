"""
The forms of what the registry answers: content types, and JSON with its fields in the order of Confluent's registry.

A caller that sends `Confluent-Accept-Unknown-Properties: true` or `Confluent-Client-Version`, as today's clients do, is
answered with the fields of release 8 (`guid`, `schemaType` also for Avro, `ts`, `deleted`), any other with those of
release 7.
"""

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fluvial.registry.formats.kinds import DEFAULT_KIND
from fluvial.registry.model import annotations
from fluvial.registry.model.records import Body, SchemaRecord

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
# With the server's own preference among those that a caller takes equally.
PRODUCED = {MEDIA_TYPE: 1.0, "application/vnd.schemaregistry+json": 0.9, "application/json": 0.5}
ACCEPTED_MAX = 100
UNKNOWN_HEADER = "confluent-accept-unknown-properties"
CLIENT_HEADER = "confluent-client-version"
CONFIG_ORDER = (
    "alias",
    "aliasForDeks",
    "normalize",
    "validateFields",
    "validateNewSchemas",
    "validateRules",
    "compatibilityLevel",
    "compatibilityPolicy",
    "compatibilityGroup",
    "defaultMetadata",
    "overrideMetadata",
    "defaultRuleSet",
    "overrideRuleSet",
)


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


def media_type(accept: str) -> str | None:
    """The content type that suits an `Accept` header best; None when it takes none of ours."""
    ranges = [_range(each) for each in accept.split(",")[:ACCEPTED_MAX]]
    scored = [(_quality(ranges, name), preference, name) for name, preference in PRODUCED.items()]
    quality, _, best = max(scored)
    return best if quality > 0 else None


def _range(text: str) -> tuple[str, float]:
    name, *parameters = (part.strip().lower() for part in text.split(";"))
    for each in parameters:
        key, _, value = each.partition("=")
        if key.strip() == "q":
            try:
                return name, float(value)
            except ValueError:
                return name, 0.0
    return name, 1.0


def _quality(ranges: list[tuple[str, float]], name: str) -> float:
    for wanted in (name, "application/*", "*/*"):
        found = [quality for each, quality in ranges if each == wanted]
        if found:
            return max(found)
    return 0.0


def takes_new_fields(request: Request) -> bool:
    """Whether the caller says that it passes over fields it does not know, or is a client known to."""
    headers = request.headers
    return headers.get(UNKNOWN_HEADER, "").lower() == "true" or CLIENT_HEADER in headers


def version(request: Request, record: SchemaRecord, body: Body | None = None) -> dict[str, Any]:
    """One version of a subject; `body` is in the form that was asked for, if that is not the stored one."""
    fields = (body or record.body).as_json()
    new: dict[str, Any] = {"deleted": True} if record.deleted else {}
    head: dict[str, Any] = {}
    if takes_new_fields(request):
        head = {"guid": annotations.guid(record.body), "schemaType": record.body.schema_type}
        new = {**_at(record), "deleted": record.deleted}
    rules = {"ruleSet": fields.pop("ruleSet")} if "ruleSet" in fields else {}
    return {
        "subject": record.subject,
        "version": record.version,
        "id": record.id,
        **head,
        **_in_order(fields, "schemaType", "references", "metadata", "schema"),
        **new,
        **rules,
    }


def schema(
    request: Request, record: SchemaRecord, body: Body, *, placed: bool = False, max_id: int | None = None
) -> dict[str, Any]:
    """What an id or a GUID stands for; where, only for a caller that asked about a subject (`placed`)."""
    head: dict[str, Any] = {}
    tail: dict[str, Any] = {} if max_id is None else {"maxId": max_id}
    if takes_new_fields(request):
        # Confluent's own leaves out the id, and then its Python client takes the schema for one that has none.
        place = {"subject": record.subject, "version": record.version, "id": record.id} if placed else {}
        head = {**place, "guid": annotations.guid(record.body), "schemaType": record.body.schema_type}
        tail |= {**_at(record), "deleted": record.deleted}
    fields = _in_order(body.as_json(), "schemaType", "schema", "references", "metadata", "ruleSet")
    return {**head, **fields, **tail}


def registered(request: Request, record: SchemaRecord, body: Body, *, in_full: bool) -> dict[str, Any]:
    """The answer to a registration, with more than the id where it is asked for or `in_full`."""
    head: dict[str, Any] = {"id": record.id}
    if takes_new_fields(request):
        head |= {"version": record.version, "guid": annotations.guid(record.body), "schemaType": DEFAULT_KIND}
    elif in_full:
        head |= {"version": record.version}
    else:
        return head
    return {**head, **_in_order(body.as_json(), "schemaType", "references", "metadata", "ruleSet", "schema")}


def config(settings: Mapping[str, Any], *, level_name: str = "compatibilityLevel") -> dict[str, Any]:
    """Settings; the level has another name in the answer to a change."""
    return {
        level_name if name == "compatibilityLevel" else name: settings[name]
        for name in CONFIG_ORDER
        if name in settings
    }


def _at(record: SchemaRecord) -> dict[str, Any]:
    return {} if record.at_ms is None else {"ts": record.at_ms}


def _in_order(fields: Mapping[str, Any], *order: str) -> dict[str, Any]:
    return {name: fields[name] for name in order if name in fields}
