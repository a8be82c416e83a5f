"""
What a registration carries beside its schema: metadata and rules, in the form that Confluent's registry gives them.

Both are JSON objects here. What they hold is sorted where its order means nothing, what is empty or unknown is left
out, and defaults are written out, so that equal ones are equal texts.
"""

import hashlib
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fluvial.registry import errors
from fluvial.registry.model.records import Body, Reference, stable_json

Json = dict[str, Any]

VERSION_PROPERTY = "confluent:version"
RULE_NAME_CHARACTERS_MAX = 256
RULES_MAX = 1_000  # in each of the lists
ENTRIES_MAX = 10_000  # in each object or list of metadata
RULE_KINDS = frozenset({"TRANSFORM", "CONDITION"})
MIGRATION_MODES = frozenset({"UPGRADE", "DOWNGRADE", "UPDOWN"})
RECORD_MODES = frozenset({"WRITE", "READ", "WRITEREAD"})
BOTH_WAYS = frozenset({"WRITEREAD", "UPDOWN"})
RULE_LISTS: Mapping[str, tuple[str, frozenset[str]]] = {
    "migrationRules": ("Migration rules can only be UPGRADE, DOWNGRADE, UPDOWN", MIGRATION_MODES),
    "domainRules": ("Domain rules can only be WRITE, READ, WRITEREAD", RECORD_MODES),
    "encodingRules": ("Encoding rules can only be WRITE, READ, WRITEREAD", RECORD_MODES),
}
_RULE_TEXTS = ("name", "doc", "kind", "mode", "type", "expr", "onSuccess", "onFailure")
_RULE_ORDER = ("name", "doc", "kind", "mode", "type", "tags", "params", "expr", "onSuccess", "onFailure", "disabled")


def metadata(value: Any) -> Json | None:
    """Metadata as a request carries it, in its one form. Raises `RefusedError` for JSON of another shape."""
    if value is None:
        return None
    content = _object(value, "metadata")
    tags = {name: _texts(each, "metadata.tags") for name, each in _object(content.get("tags"), "metadata.tags").items()}
    properties = _text_map(content.get("properties"), "metadata.properties")
    sensitive = _texts(content.get("sensitive"), "metadata.sensitive")
    return _filled(tags=dict(sorted(tags.items())), properties=properties, sensitive=sensitive)


def rule_set(value: Any) -> Json | None:
    """A rule set as a request carries it, in its one form. Raises `RefusedError` for JSON of another shape."""
    if value is None:
        return None
    content = _object(value, "ruleSet")
    lists = {
        name: [_rule(each) for each in _list(content.get(name), f"ruleSet.{name}", most=RULES_MAX)]
        for name in RULE_LISTS
    }
    return _filled(**lists, enableAt=_text(content.get("enableAt"), "ruleSet.enableAt"))


def check_rules(rules: Json | None) -> None:
    """Raise `RefusedError` for rules that no client could run."""
    names: set[str] = set()
    for kind, (modes_said, modes) in RULE_LISTS.items():
        for rule in (rules or {}).get(kind, ()):
            name = rule.get("name")
            if name in names:
                raise errors.invalid_rule_set(f"Found rule with duplicate name '{name}'")
            _check_rule_name(name)
            names.add(name)
            if rule.get("type") is None:
                raise errors.invalid_rule_set("Missing rule type")
            for action in (rule.get("onSuccess"), rule.get("onFailure")):
                if action is not None and "," in action and rule["mode"] not in BOTH_WAYS:
                    raise errors.invalid_rule_set("Multiple actions only valid with WRITEREAD and UPDOWN")
            if rule["mode"] not in modes:
                raise errors.invalid_rule_set(modes_said)


def _check_rule_name(name: str | None) -> None:
    if name is None:
        raise errors.invalid_rule_set("Missing rule name")
    if not name:
        raise errors.invalid_rule_set("Empty rule name")
    if len(name) > RULE_NAME_CHARACTERS_MAX:
        raise errors.invalid_rule_set("Rule name too long")
    if not (name[0].isalpha() or name[0] == "_"):
        raise errors.invalid_rule_set(f"Illegal initial character in rule name: {name}")
    if not all(each.isalnum() or each in "_-" for each in name):
        raise errors.invalid_rule_set(f"Illegal character in rule name: {name}")


def merged_metadata(*layers: Json | None) -> Json | None:
    """Metadata laid over metadata, the last on top; None where there is none at all."""
    result: Json | None = None
    for layer in layers:
        if result is None or layer is None:
            result = layer if result is None else result
            continue
        result = _filled(
            tags=dict(sorted({**result.get("tags", {}), **layer.get("tags", {})}.items())),
            properties=dict(sorted({**result.get("properties", {}), **layer.get("properties", {})}.items())),
            sensitive=sorted({*result.get("sensitive", ()), *layer.get("sensitive", ())}),
        )
    return result


def merged_rules(*layers: Json | None) -> Json | None:
    """Rules added to rules; a later one takes the place of an earlier one of its name."""
    result: Json | None = None
    for layer in layers:
        if result is None or layer is None:
            result = layer if result is None else result
            continue
        result = _filled(
            **{kind: _rules_over(result.get(kind, []), layer.get(kind, [])) for kind in RULE_LISTS},
            enableAt=layer.get("enableAt", result.get("enableAt")),
        )
    return result


def _rules_over(under: list[Json], over: list[Json]) -> list[Json]:
    replaced = {each.get("name") for each in over}
    return [*(each for each in under if each.get("name") not in replaced), *over]


def with_version(content: Json | None, version: int) -> Json:
    """Metadata that names the version it belongs to."""
    content = content or {}
    properties = dict(sorted({**content.get("properties", {}), VERSION_PROPERTY: str(version)}.items()))
    return _filled(tags=content.get("tags"), properties=properties, sensitive=content.get("sensitive"))


def without_version(content: Json | None) -> Json | None:
    """Metadata that does not say which version it belongs to."""
    if content is None or VERSION_PROPERTY not in content.get("properties", {}):
        return content
    properties = {name: each for name, each in content["properties"].items() if name != VERSION_PROPERTY}
    return _filled(tags=content.get("tags"), properties=properties, sensitive=content.get("sensitive"))


def named_version(content: Json | None) -> int | None:
    """The version that metadata names."""
    text = (content or {}).get("properties", {}).get(VERSION_PROPERTY, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def guid(body: Body) -> str:
    """See `guid_bytes`, as a UUID is written."""
    return str(uuid.UUID(bytes=guid_bytes(body)))


def guid_bytes(body: Body) -> bytes:
    """The same 128 bits for the same body in whatever context and registry: what record headers carry."""
    digest = hashlib.md5(body.schema.encode(), usedforsecurity=False)
    for part in _reference_bytes(body.references):
        digest.update(part)
    content = body.as_json()
    if body.metadata is not None:
        digest.update(b"\1")
        digest.update("".join(_metadata_texts(content["metadata"])).encode())
    if body.rule_set is not None:
        digest.update(b"\1")
        for kind in RULE_LISTS:
            for rule in content["ruleSet"].get(kind, ()):
                digest.update("".join(_rule_texts(rule)).encode())
                digest.update(b"\1" if rule.get("disabled") else b"")
        digest.update(content["ruleSet"].get("enableAt", "").encode())
    return digest.digest()


def _reference_bytes(references: Iterable[Reference]) -> Iterator[bytes]:
    for each in references:
        yield each.name.encode() + each.subject.encode() + each.version.to_bytes(4, "big", signed=True)


def _metadata_texts(content: Json) -> Iterator[str]:
    for tag, values in content.get("tags", {}).items():
        yield tag
        yield from values
    for name, value in content.get("properties", {}).items():
        yield name + value
    yield from content.get("sensitive", ())


def _rule_texts(rule: Json) -> Iterator[str]:
    for name in _RULE_ORDER[:-1]:
        value = rule.get(name)
        if name == "tags":
            yield from value or ()
        elif name == "params":
            yield from (key + each for key, each in (value or {}).items())
        else:
            yield value or ""


def text(content: Json | None) -> str | None:
    """The JSON text under which metadata or rules are kept."""
    return stable_json(content or None)


def _rule(value: Any) -> Json:
    content = _object(value, "rule")
    rule: Json = {name: _text(content.get(name), f"rule.{name}") for name in _RULE_TEXTS}
    rule["kind"] = rule["kind"] or "TRANSFORM"
    rule["mode"] = rule["mode"] or "WRITEREAD"
    if rule["kind"] not in RULE_KINDS or rule["mode"] not in MIGRATION_MODES | RECORD_MODES:
        raise errors.invalid_request(f"A rule of kind {rule['kind'][:50]} and mode {rule['mode'][:50]} is not known")
    rule["tags"] = _texts(content.get("tags"), "rule.tags")
    rule["params"] = _text_map(content.get("params"), "rule.params")
    ordered = {name: rule.get(name) for name in _RULE_ORDER}
    return {**_filled(**ordered), "disabled": content.get("disabled") is True}


def _filled(**content: Any) -> Json:
    return {name: value for name, value in content.items() if value}


def _object(value: Any, what: str) -> Json:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise errors.invalid_request(f"`{what}` is not a JSON object")
    if len(value) > ENTRIES_MAX:
        raise errors.invalid_request(f"`{what}` has more than {ENTRIES_MAX} entries")
    return value


def _list(value: Any, what: str, *, most: int = ENTRIES_MAX) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise errors.invalid_request(f"`{what}` is not a list")
    if len(value) > most:
        raise errors.invalid_request(f"`{what}` has more than {most} entries")
    return value


def _text(value: Any, what: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise errors.invalid_request(f"`{what}` is not a string")
    return value


def _texts(value: Any, what: str) -> list[str]:
    found = _list(value, what)
    if not all(isinstance(each, str) for each in found):
        raise errors.invalid_request(f"`{what}` is not a list of strings")
    return sorted(set(found))


def _text_map(value: Any, what: str) -> dict[str, str]:
    found = _object(value, what)
    if not all(isinstance(each, str) for each in found.values()):
        raise errors.invalid_request(f"`{what}` is not an object of strings")
    return dict(sorted(found.items()))
