"""
The records of the `_schemas` topic, keyed and written as Confluent's registry keeps them.

Keys and values are JSON. A later record replaces an earlier one with the same key, null deletes it. One record is our
own addition and is passed over by other readers: NOOP may carry `maxId`, the highest id ever given, and the same by
context, because a hard deletion lets compaction forget the records from which it could be read.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fluvial.registry.model import ownership


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """`name`, as the schema writes it, is defined by that version of another subject."""

    name: str
    subject: str
    version: int

    def as_json(self) -> dict[str, Any]:
        """As it stands in requests, replies and the log."""
        return {"name": self.name, "subject": self.subject, "version": self.version}


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What a schema says, wherever it is registered: equal bodies share an id. `metadata` and `rule_set` are JSON."""

    schema: str
    schema_type: str = "AVRO"
    references: tuple[Reference, ...] = ()
    metadata: str | None = None
    rule_set: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields that other registries write, in their order; what is empty is left out."""
        shape: dict[str, Any] = {}
        if self.schema_type != "AVRO":
            shape["schemaType"] = self.schema_type
        if self.references:
            shape["references"] = [each.as_json() for each in self.references]
        if self.metadata is not None:
            shape["metadata"] = json.loads(self.metadata)
        if self.rule_set is not None:
            shape["ruleSet"] = json.loads(self.rule_set)
        shape["schema"] = self.schema
        return shape


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRecord:
    """One version of a subject; `at_ms` is when its record entered the log."""

    subject: str
    version: int
    id: int
    body: Body
    deleted: bool = False
    at_ms: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaGone:
    """The hard deletion of one version."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectDeleted:
    """The soft deletion of every version up to `version`."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """The settings of a subject, or of all when it is None; None takes them away."""

    subject: str | None
    settings: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeRecord:
    """The mode of a subject, or of all when it is None; None takes it away."""

    subject: str | None
    mode: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRecord:
    """A context that is used, or no longer is."""

    context: str
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HighestId:
    """No id up to this one may be given again; `contexts` says the same of contexts other than the default one."""

    id: int
    contexts: Mapping[str, int] = field(default_factory=dict)


Record = (
    SchemaRecord
    | SchemaGone
    | SubjectDeleted
    | ConfigRecord
    | ModeRecord
    | ContextRecord
    | HighestId
    | ownership.OwnershipRecord
)


def encode(record: Record) -> tuple[bytes, bytes | None]:  # noqa: PLR0911 (one return a case)
    """The key and value under which a record enters the log."""
    match record:
        case SchemaRecord():
            value = {"subject": record.subject, "version": record.version, "id": record.id}
            value |= record.body.as_json() | {"deleted": record.deleted}
            return _schema_key(record.subject, record.version), _json(value)
        case SchemaGone():
            return _schema_key(record.subject, record.version), None
        case SubjectDeleted():
            key = {"keytype": "DELETE_SUBJECT", "subject": record.subject, "magic": 0}
            return _json(key), _json({"subject": record.subject, "version": record.version})
        case ConfigRecord():
            value_or_none = None if record.settings is None else _json(_named(record.subject) | {**record.settings})
            return _json({"keytype": "CONFIG", **_named(record.subject), "magic": 0}), value_or_none
        case ModeRecord():
            value_or_none = None if record.mode is None else _json(_named(record.subject) | {"mode": record.mode})
            return _json({"keytype": "MODE", **_named(record.subject), "magic": 0}), value_or_none
        case ContextRecord():
            name = {"tenant": "default", "context": record.context}
            return _json({"keytype": "CONTEXT", **name, "magic": 0}), None if record.gone else _json(name)
        case HighestId():
            contexts = {"contexts": dict(record.contexts)} if record.contexts else {}
            return _json({"keytype": "NOOP", "magic": 0}), _json({"maxId": record.id, **contexts})
        case _:
            key, content = ownership.encode(record)
            return _json(key), None if content is None else _json(content)


def decode(key: bytes | None, value: bytes | None) -> Record | None:  # noqa: PLR0911 (one return a case)
    """
    The record of a key and value from the log; None for one of a kind that we do not keep.

    Raises ValueError for bytes that are not such a record at all.
    """
    if key is None:
        return None
    parsed = json.loads(key)
    content = json.loads(value) if value is not None else None
    subject = parsed.get("subject")
    match parsed.get("keytype"):
        case "SCHEMA":
            if content is None:
                return SchemaGone(subject=subject, version=parsed["version"])
            return SchemaRecord(
                subject=subject,
                version=parsed["version"],
                id=content["id"],
                body=_body(content),
                deleted=bool(content.get("deleted", False)),
            )
        case "DELETE_SUBJECT" if content is not None:
            return SubjectDeleted(subject=subject, version=content["version"])
        case "CONFIG":
            settings = None if content is None else {name: each for name, each in content.items() if name != "subject"}
            return ConfigRecord(subject=subject, settings=settings)
        case "MODE":
            return ModeRecord(subject=subject, mode=None if content is None else content.get("mode"))
        case "NOOP" if ownership.OWN in parsed:
            return ownership.decode(parsed, content)
        case "NOOP" if content is not None and "maxId" in content:
            return HighestId(id=content["maxId"], contexts=content.get("contexts") or {})
        case "CONTEXT":
            return ContextRecord(context=parsed["context"], gone=content is None)
        case _:
            return None


def _body(content: dict[str, Any]) -> Body:
    references = content.get("references") or ()
    return Body(
        schema=content["schema"],
        schema_type=content.get("schemaType") or "AVRO",
        references=tuple(
            Reference(name=each["name"], subject=each["subject"], version=each["version"]) for each in references
        ),
        metadata=stable_json(content.get("metadata")),
        rule_set=stable_json(content.get("ruleSet")),
    )


def stable_json(value: Any) -> str | None:
    """JSON as text, so that bodies can be compared; None stays None."""
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _named(subject: str | None) -> dict[str, Any]:
    return {} if subject is None else {"subject": subject}


def _schema_key(subject: str, version: int) -> bytes:
    return _json({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1})


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
