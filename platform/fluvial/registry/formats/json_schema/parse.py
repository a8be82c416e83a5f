"""
JSON Schema text to `Node`s: the form of every word checked, every `$ref` led to the schema it names.

A `$ref` leads to a place in the same text, to an `$id` or anchor in it, or to one of the references that were
registered with it. Nothing is ever fetched.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from fluvial.registry.formats import json_text
from fluvial.registry.formats.json_schema.keywords import (
    DEFAULT_DRAFT,
    FLAG_OR_SCHEMA,
    SCHEMA_URIS,
    SUBSCHEMAS,
    excerpt,
    form_fault,
    json_key,
    type_of,
    words_of,
)
from fluvial.registry.formats.schema_kind import Parsed, SchemaSyntaxError

# Twelve bytes of text can describe a level, so the text's size bounds nothing.
DEPTH_MAX = 100
NODES_MAX = 100_000
# Each `$ref` is joined to the URI of the schema that it stands in.
URI_CHARACTERS_MAX = 2_000
# As many as the largest number with a fraction has.
WHOLE_DIGITS_MAX = 310
# Of each word, where an error says where it is.
PLACE_CHARACTERS_MAX = 100
# Words that make one schema depend on who refers to it: what they mean is only known when data is there.
DYNAMIC = frozenset({"$recursiveRef", "$dynamicRef"})


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """
    One schema. `words` holds the words that its draft knows, with `Node`s for the schemas inside; nothing changes it
    after parsing. `always` is set for the schemas true and false, which have no words.
    """

    draft: int
    words: dict[str, Any] = field(default_factory=dict)
    always: bool | None = None
    target: "Node | None" = None  # of `$ref`
    value: Any = None  # as it was written
    reference: str = ""  # of `$ref`, absolute
    # Of `enum` and `const`: their values as texts that are equal where the values are, and the types of them.
    allowed: frozenset[str] | None = None
    allowed_types: frozenset[str] | None = None
    required: frozenset[str] = frozenset()

    def resolved(self) -> "Node":
        """The schema that counts: drafts up to 7 pass over whatever stands beside a `$ref`."""
        node = self
        while node.target is not None and node.draft <= 7:
            node = node.target
        return node


def parse(text: str, *, references: Mapping[str, str] | None = None, normalize: bool = False) -> Parsed:
    """
    Parse a schema into a `Node`. `references` are the texts that a `$ref` may name.

    Raises `SchemaSyntaxError`, also for text that is nested too deeply or describes too many schemas.
    """
    value = load(text)
    try:
        stored = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=normalize)
        stored.encode("utf-8")
        reader = _Reader()
        draft = reader.draft_of(value, DEFAULT_DRAFT, "#")
        root = reader.document("", value, draft)
        for name, each in (references or {}).items():
            content = load(each)
            reader.document(name, content, reader.draft_of(content, draft, name))
        reader.connect()
    except RecursionError:
        raise SchemaSyntaxError(f"nested more than {DEPTH_MAX} levels deep") from None
    except UnicodeEncodeError:
        # JSON can spell half of a surrogate pair, which no text that is stored can hold.
        raise SchemaSyntaxError("holds half of a surrogate pair (\\ud800 to \\udfff)") from None
    return Parsed(schema=root, text=stored, types=reader.count)


def load(text: str) -> Any:
    """JSON as Python has it, without the words NaN and Infinity that Python would take."""
    try:
        return json_text.loads(text, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole)
    except RecursionError:
        raise SchemaSyntaxError(f"nested more than {DEPTH_MAX} levels deep") from None
    except json.JSONDecodeError as error:
        raise SchemaSyntaxError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except ValueError as error:
        raise SchemaSyntaxError(f"not JSON: {error}") from None


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON value")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _whole(text: str) -> int:
    if len(text) > WHOLE_DIGITS_MAX:
        raise ValueError(f"the number {text[:40]} is too large")
    return int(text)


class _Place(NamedTuple):
    """Where a schema stands; written out only for an error, for a place may be named at great length."""

    parent: "_Place | None"
    word: str

    def below(self, word: str | int) -> "_Place":
        return _Place(self, str(word))

    def __str__(self) -> str:
        words: list[str] = []
        place: _Place | None = self
        while place is not None:
            words.append(place.word if place.parent is None else _escaped(place.word)[:PLACE_CHARACTERS_MAX])
            place = place.parent
        return "/".join(reversed(words))


@dataclass(slots=True, eq=False, repr=False)
class _Resource:
    """A schema with a URI of its own: fragments count from its root."""

    uri: str
    value: Any
    draft: int


class _Reader:
    """Holds what is known by URI, and the `$ref`s whose ends are not known yet."""

    def __init__(self) -> None:
        self.resources: dict[str, _Resource] = {}
        self.anchors: dict[str, Node] = {}
        self.nodes: dict[int, Node] = {}  # by the id() of the value it was made of, which the node keeps alive
        self.open: list[tuple[Node, _Resource, _Place]] = []
        self.count = 0

    def draft_of(self, value: Any, default: int, path: object) -> int:
        if not isinstance(value, dict) or "$schema" not in value:
            return default
        uri = value["$schema"]
        draft = SCHEMA_URIS.get(uri.removesuffix("#")) if isinstance(uri, str) else None
        if draft is None:
            raise SchemaSyntaxError(
                f"the meta-schema {excerpt(uri)} at {path}/$schema is not kept here; "
                f"write {', '.join(sorted(SCHEMA_URIS))}, or leave $schema out for draft 7"
            )
        return draft

    def document(self, uri: str, value: Any, draft: int) -> Node:
        resource = _Resource(uri, value, draft)
        self.resources.setdefault(uri, resource)
        return self.schema(value, resource, _Place(None, "#"), 0)

    def schema(self, value: Any, resource: _Resource, path: _Place, depth: int) -> Node:
        self.count += 1
        if depth > DEPTH_MAX:
            raise SchemaSyntaxError(f"nested more than {DEPTH_MAX} levels deep")
        if self.count > NODES_MAX:
            raise SchemaSyntaxError(f"more than {NODES_MAX} schemas in one")
        if isinstance(value, bool) and (resource.draft > 4 or path.word in FLAG_OR_SCHEMA):
            return Node(resource.draft, always=value, value=value)
        if not isinstance(value, dict):
            wanted = "an object" if resource.draft == 4 else "an object, true or false"
            raise SchemaSyntaxError(f"the schema at {path} is {excerpt(value)}; it is {wanted}")
        node = Node(resource.draft, value=value)
        self.nodes[id(value)] = node
        resource = self._named(node, value, resource, path)
        for word in sorted(DYNAMIC & value.keys()):
            if resource.draft >= 2019:
                raise SchemaSyntaxError(
                    f"{word} at {path} is not kept here: what it means depends on who refers to it; "
                    "write $ref and say where it leads"
                )
        only_reference = "$ref" in value and resource.draft <= 7
        for word, form in words_of(resource.draft).items():
            if word in value:
                place = path.below(word)
                fault = form_fault(form, value[word])
                if fault is not None:
                    raise SchemaSyntaxError(f"`{word}` at {path} is {excerpt(value[word])}; it is {fault}")
                found = self._inside(form, value[word], resource, place, depth + 1)
                if not only_reference or word == "$ref":
                    node.words[word] = found
        _enumerate(node)
        node.required = frozenset(node.words.get("required", ()))
        if "$ref" in node.words:
            self.open.append((node, resource, path))
        return node

    def _named(self, node: Node, value: dict[str, Any], resource: _Resource, path: _Place) -> _Resource:
        """Take down under which URIs a schema is known; it may begin a resource of its own, of another draft."""
        own = value.get("id" if resource.draft == 4 else "$id")
        if isinstance(own, str) and own and not ("$ref" in value and resource.draft <= 7):
            uri, fragment = urldefrag(_joined(resource.uri, own))
            if fragment and resource.draft <= 7:
                self.anchors[f"{uri}#{fragment}"] = node
            if not own.startswith("#"):
                draft = self.draft_of(value, resource.draft, path)
                resource = node_resource = _Resource(uri, value, draft)
                node.draft = draft
                self.resources.setdefault(uri, node_resource)
        anchor = value.get("$anchor")
        if isinstance(anchor, str) and resource.draft >= 2019:
            self.anchors[f"{resource.uri}#{anchor}"] = node
        return resource

    def _inside(self, form: str, value: Any, resource: _Resource, path: _Place, depth: int) -> Any:
        if form not in SUBSCHEMAS:
            return value
        if isinstance(value, list) and form != "schema":
            return [self.schema(each, resource, path.below(index), depth) for index, each in enumerate(value)]
        if form in {"schemas", "dependencies"}:
            return {
                name: self._dependency(each, resource, path.below(name), depth, form) for name, each in value.items()
            }
        return self.schema(value, resource, path, depth)

    def _dependency(self, value: Any, resource: _Resource, path: _Place, depth: int, form: str) -> Any:
        if form == "schemas" or not isinstance(value, list):
            return self.schema(value, resource, path, depth)
        fault = form_fault("some_names" if resource.draft == 4 else "names", value)
        if fault is not None:
            raise SchemaSyntaxError(f"the value at {path} is {excerpt(value)}; it is {fault}, or a schema")
        return value

    def connect(self) -> None:
        """Lead every `$ref` to its schema. Places that are no known schema, such as `#/components/x`, become one."""
        while self.open:
            node, resource, path = self.open.pop()
            node.target = self._target(node, resource, path)
        done: set[int] = set()
        for start in list(self.nodes.values()):
            chain: dict[int, Node] = {}
            node = start
            while node.target is not None and node.draft <= 7 and id(node) not in done:
                if id(node) in chain:
                    raise SchemaSyntaxError(f"the $ref {excerpt(node.words['$ref'])} leads round in a circle")
                chain[id(node)] = node
                node = node.target
            for each in chain.values():
                each.target = node.resolved()
            done.update(chain)

    def _target(self, node: Node, resource: _Resource, path: _Place) -> Node:
        reference = node.words["$ref"]
        uri, fragment = urldefrag(_joined(resource.uri, reference))
        found = self.resources.get(uri) or self.resources.get(urldefrag(reference)[0] or uri)
        if found is None:
            raise SchemaSyntaxError(
                f"the $ref {excerpt(reference)} at {path} leads to no schema that is known here, and nothing is "
                f"fetched; register that schema and name it {excerpt(urldefrag(reference)[0])} in `references`"
            )
        node.reference = f"{found.uri}#{fragment}"
        anchored = self.anchors.get(node.reference)
        if anchored is not None:
            return anchored
        value = _at(found.value, unquote(fragment))
        if value is _NOTHING:
            raise SchemaSyntaxError(f"the $ref {excerpt(reference)} at {path} leads to nothing")
        known = self.nodes.get(id(value)) if isinstance(value, dict) else None
        return known if known is not None else self.schema(value, found, _Place(None, f"#{fragment}"), 0)


_NOTHING = object()


def _enumerate(node: Node) -> None:
    named = [node.words["enum"]] if "enum" in node.words else []
    named += [[node.words["const"]]] if "const" in node.words else []
    if named:
        values = [{json_key(each): type_of(each) for each in each_list} for each_list in named]
        kept = {key: kind for key, kind in values[0].items() if all(key in each for each in values)}
        node.allowed, node.allowed_types = frozenset(kept), frozenset(kept.values())


def _at(value: Any, pointer: str) -> Any:
    """What a JSON pointer leads to."""
    if pointer and not pointer.startswith("/"):
        return _NOTHING
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isascii() and name.isdigit() and len(name) < 7 and int(name) < len(value):
            value = value[int(name)]
        else:
            return _NOTHING
    return value


def _joined(base: str, reference: str) -> str:
    try:
        found = urljoin(base, reference) if base and len(reference) <= URI_CHARACTERS_MAX else reference
    except ValueError as error:
        raise SchemaSyntaxError(f"{excerpt(reference)} is not a URI: {error}") from None
    if len(found) > URI_CHARACTERS_MAX:
        raise SchemaSyntaxError(f"the URI {excerpt(reference)} has more than {URI_CHARACTERS_MAX} characters")
    return found


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
