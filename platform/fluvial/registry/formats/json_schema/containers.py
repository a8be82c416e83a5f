"""
What objects and arrays of one JSON Schema another one does not take.

A schema that takes any further property or item is open, one that takes none closed, one that has a schema for them
partially open: the words of Confluent's registry, whose rules these are. Where it passes over words that tell data
apart (`required` without `properties`, `patternProperties`, `propertyNames`, `contains`), these do not.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fluvial.registry.formats.json_schema.difference import Difference, Fault, all_below, fault
from fluvial.registry.formats.json_schema.parse import Node
from fluvial.registry.formats.json_schema.values import at_least, at_most

Within = Callable[[Node, Node], list[Difference]]

# Words through which a schema looks at a value in place: what they have seen is not "unevaluated".
IN_PLACE = frozenset({"$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"})
# A pattern with one repetition and no group is tried in time that grows with the square of the name.
NAME_CHARACTERS_MAX = 64
PATTERN_CHARACTERS_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rest:
    """What becomes of the properties, or items, that a schema does not name. `schema` is None where it is open."""

    schema: Node | None
    word: str

    @property
    def is_open(self) -> bool:
        return self.schema is None or accepts_all(self.schema)

    @property
    def is_closed(self) -> bool:
        return self.schema is not None and self.schema.resolved().always is False


def accepts_all(node: Node) -> bool:
    """Whether a schema says nothing: `true`, or `{}` with a title at most."""
    node = node.resolved()
    said = node.words.keys() - {"$schema", "id", "$id", "$anchor", "$comment", "title", "description", "default"}
    return node.always is True or (node.always is None and not said - {"examples", "definitions", "$defs"})


def is_separable(node: Node) -> bool:
    """Whether `unevaluated…` words can be judged: nothing else of the schema looks at the value in place."""
    return not IN_PLACE & node.words.keys()


def compare_objects(old: Node, new: Node, within: Within) -> list[Difference]:
    """Why objects of `old` are turned down by `new`."""
    found = _compare_required(old, new)
    found += _compare_properties(old, new, within)
    found += _compare_patterns(old, new, within)
    found += _compare_dependencies(old, new, within)
    found += _compare_rest(
        _rest_of_object(old),
        _rest_of_object(new),
        within,
        removed=(Fault.ADDITIONAL_PROPERTIES_REMOVED, Fault.UNEVALUATED_PROPERTIES_REMOVED),
        narrowed=(Fault.ADDITIONAL_PROPERTIES_NARROWED, Fault.UNEVALUATED_PROPERTIES_NARROWED),
    )
    if "propertyNames" in new.words and not accepts_all(new.words["propertyNames"]):
        if "propertyNames" in old.words:
            found += all_below(("propertyNames",), within(old.words["propertyNames"], new.words["propertyNames"]))
        else:
            found += fault(Fault.PROPERTY_NAMES_ADDED, "propertyNames")
    found += at_most(
        "maxProperties",
        old.words,
        new.words,
        added=Fault.MAX_PROPERTIES_ADDED,
        decreased=Fault.MAX_PROPERTIES_DECREASED,
    )
    return found + at_least(
        "minProperties",
        old.words,
        new.words,
        added=Fault.MIN_PROPERTIES_ADDED,
        increased=Fault.MIN_PROPERTIES_INCREASED,
    )


def _rest_of_object(node: Node) -> _Rest:
    words = node.words
    if "additionalProperties" in words:
        return _Rest(schema=words["additionalProperties"], word="additionalProperties")
    if "unevaluatedProperties" in words and is_separable(node):
        return _Rest(schema=words["unevaluatedProperties"], word="unevaluatedProperties")
    return _Rest(schema=None, word="additionalProperties")


def _compare_required(old: Node, new: Node) -> list[Difference]:
    """A property that gets a default may become required: whoever fills defaults in can read old data."""
    found: list[Difference] = []
    properties, before = new.words.get("properties", {}), old.words.get("properties", {})
    for name in new.words.get("required", ()):
        if name in old.required:
            continue
        if name not in properties or (name in before and not _has_default(properties[name])):
            found += fault(Fault.REQUIRED_ATTRIBUTE_ADDED, "required", name)
    return found


def _has_default(node: Node) -> bool:
    return "default" in node.words or "default" in node.resolved().words


def _compare_properties(old: Node, new: Node, within: Within) -> list[Difference]:
    found: list[Difference] = []
    before, after = old.words.get("properties", {}), new.words.get("properties", {})
    for name in dict.fromkeys([*before, *after]):
        place = ("properties", name)
        if name not in after:
            found += all_below(place, _removed(name, before[name], new, within))
        elif name not in before:
            found += all_below(place, _added(name, after[name], old, new, within))
        else:
            found += all_below(place, within(before[name], after[name]))
    return found


def _removed(name: str, schema: Node, new: Node, within: Within) -> list[Difference]:
    """A property that `new` does not name has to pass whatever else `new` says about properties."""
    certain, possible = _patterns_of(name, new)
    rest = _rest_of_object(new)
    found = [each for pattern in [*certain, *possible] for each in within(schema, pattern)]
    if not certain and not rest.is_open:
        if rest.is_closed:
            if schema.resolved().always is not False:
                return fault(Fault.PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL)
        elif rest.schema is not None:
            found += within(schema, rest.schema)
    if found:
        found += fault(Fault.PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL)
    return found


def _added(name: str, schema: Node, old: Node, new: Node, within: Within) -> list[Difference]:
    """A property that `old` did not name may have been there all the same, in any form that `old` takes."""
    required = name in new.required and name not in old.required
    certain, possible = _patterns_of(name, old)
    rest = _rest_of_object(old)
    found: list[Difference] = []
    if rest.is_open and not old.words.get("patternProperties"):
        if accepts_all(schema):
            return fault(Fault.REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL) if required else []
        if not required:
            return fault(Fault.OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL)
        if _has_default(schema):
            return fault(Fault.REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL)
        return fault(Fault.REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL)
    if certain:
        verdicts = [within(pattern, schema) for pattern in certain]
        found += next((each for each in verdicts if not each), verdicts[0])
    else:
        found += [each for pattern in possible for each in within(pattern, schema)]
        if rest.is_open and not accepts_all(schema):
            found += fault(Fault.OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL)
        elif rest.schema is not None and not rest.is_open:
            found += within(rest.schema, schema)
    if found:
        found += fault(Fault.PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL)
    if required and not _has_default(schema):
        found += fault(Fault.REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL)
    return found


def _patterns_of(name: str, node: Node) -> tuple[list[Node], list[Node]]:
    """The schemas whose pattern a name certainly has, and those whose pattern it may have."""
    verdicts = [(matches(pattern, name), schema) for pattern, schema in node.words.get("patternProperties", {}).items()]
    certain = [schema for verdict, schema in verdicts if verdict is True]
    return certain, [schema for verdict, schema in verdicts if verdict is None]


def matches(pattern: str, name: str) -> bool | None:
    """Whether a name has a pattern; None where finding out could take long, or Python reads the pattern otherwise."""
    if len(name) > NAME_CHARACTERS_MAX or len(pattern) > PATTERN_CHARACTERS_MAX:
        return None
    plain = re.fullmatch(r"\^?[\w\- ./:@]*(?:\.[*+]|\[[\w\- ]+\][*+]?)?[\w\- /:@]*\$?", pattern, re.ASCII)
    if plain is None:
        return None
    try:
        return re.search(pattern.removesuffix("$") + r"\Z" if pattern.endswith("$") else pattern, name) is not None
    except re.error:
        return None


def _compare_patterns(old: Node, new: Node, within: Within) -> list[Difference]:
    found: list[Difference] = []
    before, after = old.words.get("patternProperties", {}), new.words.get("patternProperties", {})
    old_rest, new_rest = _rest_of_object(old), _rest_of_object(new)
    for pattern, schema in after.items():
        place = ("patternProperties", pattern)
        if pattern in before:
            found += all_below(place, within(before[pattern], schema))
            continue
        if accepts_all(schema):
            continue
        # A name that has this pattern may have had another one, or none, and been named in `properties` or not.
        named = [each for name, each in old.words.get("properties", {}).items() if matches(pattern, name) is not False]
        further = [] if old_rest.schema is None else [old_rest.schema]
        failing = any(within(each, schema) for each in [*named, *before.values(), *further])
        if failing or old_rest.is_open:
            found += fault(Fault.PATTERN_PROPERTY_ADDED, *place)
    if not new_rest.is_open and new_rest.schema is not None:
        for pattern, schema in before.items():
            if pattern not in after and within(schema, new_rest.schema):
                found += fault(
                    Fault.PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL, "patternProperties", pattern
                )
    return found


def _compare_dependencies(old: Node, new: Node, within: Within) -> list[Difference]:
    """Draft 2019-09 gave the two kinds of `dependencies` a word each."""
    found: list[Difference] = []
    before = _dependencies(old, list, "dependentRequired")
    for name, wanted in _dependencies(new, list, "dependentRequired").items():
        given = before.get(name)
        if given is None:
            found += fault(Fault.DEPENDENCY_ARRAY_ADDED, "dependencies", name) if wanted else []
        elif not set(wanted) <= set(given):
            extended = set(given) <= set(wanted)
            kind = Fault.DEPENDENCY_ARRAY_EXTENDED if extended else Fault.DEPENDENCY_ARRAY_CHANGED
            found += fault(kind, "dependencies", name)
    before = _dependencies(old, Node, "dependentSchemas")
    for name, wanted in _dependencies(new, Node, "dependentSchemas").items():
        given = before.get(name)
        if given is not None:
            found += all_below(("dependencies", name), within(given, wanted))
        elif not accepts_all(wanted):
            found += fault(Fault.DEPENDENCY_SCHEMA_ADDED, "dependencies", name)
    return found


def _dependencies(node: Node, kind: type, later_word: str) -> dict[str, Any]:
    if node.draft > 7:
        return dict(node.words.get(later_word, {}))
    return {name: each for name, each in node.words.get("dependencies", {}).items() if isinstance(each, kind)}


def compare_arrays(old: Node, new: Node, within: Within) -> list[Difference]:
    """Why arrays of `old` are turned down by `new`."""
    before, old_rest = _items(old)
    after, new_rest = _items(new)
    found: list[Difference] = []
    for index, (given, wanted) in enumerate(zip(before, after, strict=False)):
        found += all_below((f"items/{index}",), within(given, wanted))
    for index, given in enumerate(before[len(after) :], len(after)):
        found += all_below((f"items/{index}",), _item_removed(given, new_rest, within))
    for index, wanted in enumerate(after[len(before) :], len(before)):
        found += all_below((f"items/{index}",), _item_added(wanted, old_rest, within))
    found += _compare_rest(
        old_rest,
        new_rest,
        within,
        removed=(Fault.ADDITIONAL_ITEMS_REMOVED, Fault.UNEVALUATED_ITEMS_REMOVED),
        narrowed=(Fault.ADDITIONAL_ITEMS_NARROWED, Fault.UNEVALUATED_ITEMS_NARROWED),
    )
    found += at_most("maxItems", old.words, new.words, added=Fault.MAX_ITEMS_ADDED, decreased=Fault.MAX_ITEMS_DECREASED)
    found += at_least(
        "minItems", old.words, new.words, added=Fault.MIN_ITEMS_ADDED, increased=Fault.MIN_ITEMS_INCREASED
    )
    if new.words.get("uniqueItems") and not old.words.get("uniqueItems"):
        found += fault(Fault.UNIQUE_ITEMS_ADDED, "uniqueItems")
    return found + _compare_contains(old, new, within)


def _items(node: Node) -> tuple[list[Node], _Rest]:
    """The schemas of the first items, and that of all further ones."""
    words = node.words
    if node.draft >= 2020:
        first, rest = words.get("prefixItems", []), words.get("items")
        word = "items"
    elif isinstance(words.get("items"), list):
        first, rest = words["items"], words.get("additionalItems")
        word = "additionalItems"
    else:
        first, rest = [], words.get("items")
        word = "items"
    if rest is None and "unevaluatedItems" in words and is_separable(node) and "contains" not in words:
        rest, word = words["unevaluatedItems"], "unevaluatedItems"
    return first, _Rest(schema=rest, word=word)


def _item_removed(given: Node, rest: _Rest, within: Within) -> list[Difference]:
    if rest.is_open or rest.schema is None or given.resolved().always is False:
        return []
    if rest.is_closed:
        return fault(Fault.ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL)
    found = within(given, rest.schema)
    return found + fault(Fault.ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL) if found else []


def _item_added(wanted: Node, rest: _Rest, within: Within) -> list[Difference]:
    if rest.is_closed or accepts_all(wanted):
        return []
    if rest.schema is None or rest.is_open:
        return fault(Fault.ITEM_ADDED_TO_OPEN_CONTENT_MODEL)
    found = within(rest.schema, wanted)
    return found + fault(Fault.ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL) if found else []


def _compare_contains(old: Node, new: Node, within: Within) -> list[Difference]:
    if "contains" not in new.words:
        return []
    least, most = new.words.get("minContains", 1), new.words.get("maxContains")
    if least == 0 and most is None:
        return []
    if "contains" not in old.words:
        return fault(Fault.CONTAINS_ADDED, "contains")
    found: list[Difference] = []
    if least > 0:
        found += all_below(("contains",), within(old.words["contains"], new.words["contains"]))
        found += at_least(
            "minContains",
            old.words,
            new.words,
            added=Fault.MIN_CONTAINS_ADDED,
            increased=Fault.MIN_CONTAINS_INCREASED,
            default=1,
        )
    if most is not None:
        # What may only be there so often must not be more than it was.
        found += all_below(("contains",), within(new.words["contains"], old.words["contains"]))
        found += at_most(
            "maxContains", old.words, new.words, added=Fault.MAX_CONTAINS_ADDED, decreased=Fault.MAX_CONTAINS_DECREASED
        )
    return found


def _compare_rest(
    old: _Rest, new: _Rest, within: Within, *, removed: Iterable[Fault], narrowed: Iterable[Fault]
) -> list[Difference]:
    additional, unevaluated = 0, 1
    if new.is_open or new.schema is None or old.is_closed:
        return []
    which = unevaluated if new.word.startswith("unevaluated") else additional
    if new.word == "items" and old.word == "items" and (old.schema is None or new.schema.always is None):
        if old.schema is None:
            return fault(Fault.SCHEMA_ADDED, "items")
        return all_below(("items",), within(old.schema, new.schema))
    if new.is_closed:
        return fault(list(removed)[which], new.word)
    if old.schema is None or old.is_open:
        return fault(list(narrowed)[which], new.word)
    return all_below((new.word,), within(old.schema, new.schema))
