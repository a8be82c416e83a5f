"""The ways in which a JSON Schema can turn down what another one takes, under the names of Confluent's registry."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Any

Path = tuple[str, ...]


class Fault(StrEnum):
    """The kinds of difference that keep data of one schema from being valid under another."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[Any]) -> str:
        return name

    SCHEMA_ADDED = auto()
    TYPE_NARROWED = auto()
    TYPE_CHANGED = auto()
    MAX_LENGTH_ADDED = auto()
    MAX_LENGTH_DECREASED = auto()
    MIN_LENGTH_ADDED = auto()
    MIN_LENGTH_INCREASED = auto()
    PATTERN_ADDED = auto()
    PATTERN_CHANGED = auto()
    MAXIMUM_ADDED = auto()
    MAXIMUM_DECREASED = auto()
    MINIMUM_ADDED = auto()
    MINIMUM_INCREASED = auto()
    EXCLUSIVE_MAXIMUM_ADDED = auto()
    EXCLUSIVE_MAXIMUM_DECREASED = auto()
    EXCLUSIVE_MINIMUM_ADDED = auto()
    EXCLUSIVE_MINIMUM_INCREASED = auto()
    MULTIPLE_OF_ADDED = auto()
    MULTIPLE_OF_EXPANDED = auto()
    MULTIPLE_OF_CHANGED = auto()
    REQUIRED_ATTRIBUTE_ADDED = auto()
    MAX_PROPERTIES_ADDED = auto()
    MAX_PROPERTIES_DECREASED = auto()
    MIN_PROPERTIES_ADDED = auto()
    MIN_PROPERTIES_INCREASED = auto()
    ADDITIONAL_PROPERTIES_REMOVED = auto()
    ADDITIONAL_PROPERTIES_NARROWED = auto()
    UNEVALUATED_PROPERTIES_REMOVED = auto()
    UNEVALUATED_PROPERTIES_NARROWED = auto()
    DEPENDENCY_ARRAY_ADDED = auto()
    DEPENDENCY_ARRAY_EXTENDED = auto()
    DEPENDENCY_ARRAY_CHANGED = auto()
    DEPENDENCY_SCHEMA_ADDED = auto()
    REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL = auto()
    REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL = auto()
    OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL = auto()
    REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL = auto()
    PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL = auto()
    PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL = auto()
    PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL = auto()
    MAX_ITEMS_ADDED = auto()
    MAX_ITEMS_DECREASED = auto()
    MIN_ITEMS_ADDED = auto()
    MIN_ITEMS_INCREASED = auto()
    MAX_CONTAINS_ADDED = auto()
    MAX_CONTAINS_DECREASED = auto()
    MIN_CONTAINS_ADDED = auto()
    MIN_CONTAINS_INCREASED = auto()
    UNIQUE_ITEMS_ADDED = auto()
    ADDITIONAL_ITEMS_REMOVED = auto()
    ADDITIONAL_ITEMS_NARROWED = auto()
    UNEVALUATED_ITEMS_REMOVED = auto()
    UNEVALUATED_ITEMS_NARROWED = auto()
    ITEM_ADDED_TO_OPEN_CONTENT_MODEL = auto()
    ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL = auto()
    ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL = auto()
    ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL = auto()
    ENUM_ARRAY_NARROWED = auto()
    ENUM_ARRAY_CHANGED = auto()
    COMBINED_TYPE_CHANGED = auto()
    PRODUCT_TYPE_EXTENDED = auto()
    SUM_TYPE_NARROWED = auto()
    COMBINED_TYPE_SUBSCHEMAS_CHANGED = auto()
    NOT_TYPE_EXTENDED = auto()
    # Ours: what Confluent's registry passes over.
    SUM_TYPE_OVERLAPS = auto()
    CONDITION_ADDED = auto()
    CONDITION_CHANGED = auto()
    CONTAINS_ADDED = auto()
    PROPERTY_NAMES_ADDED = auto()
    PATTERN_PROPERTY_ADDED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One reason why data is turned down; `path` leads through the schemas from their roots."""

    fault: Fault
    path: Path

    def below(self, path: Path) -> "Difference":
        """The same seen from further up."""
        return Difference(fault=self.fault, path=(*path, *self.path)) if path else self


def fault(kind: Fault, *path: str) -> list[Difference]:
    """A single difference, as a list to be added to others."""
    return [Difference(fault=kind, path=path)]


def all_below(path: Path, found: Iterable[Difference]) -> list[Difference]:
    """Differences of a part, seen from the whole."""
    return [each.below(path) for each in found]


_NOT_PRESENT = "The keyword at path '{path}' in the {reader} schema is not present in the {writer} schema"
_MORE = "The value at path '{path}' in the {reader} schema is more than its value in the {writer} schema"
_LESS = "The value at path '{path}' in the {reader} schema is less than its value in the {writer} schema"
_VALUE_CHANGED = "The value at path '{path}' is different between the {reader} and {writer} schema"
_FEWER = "An array or combined type at path '{path}' has fewer elements in the {reader} schema than the {writer} schema"
_MORE_ELEMENTS = (
    "An array or combined type at path '{path}' has more elements in the {reader} schema than the {writer} schema"
)
_TYPE = "A type at path '{path}' is different between the {reader} schema and the {writer} schema"
_ADDED_TO_OPEN = (
    "The {reader} schema has an open content model and has a property or item at path '{path}' which is missing in "
    "the {writer} schema"
)
_REMOVED_UNCOVERED = (
    "A property or item is missing in the {reader} schema but present at path '{path}' in the {writer} schema and is "
    "not covered by its partially open content model"
)
_ADDED_UNCOVERED = (
    "The {reader} schema has a property or item at path '{path}' which is missing in the {writer} schema and is not "
    "covered by its partially open content model"
)
_REMOVED_FROM_CLOSED = (
    "The {reader} has a closed content model and is missing a property or item present at path '{path}' in the "
    "{writer} schema"
)

_SENTENCES = {
    Fault.REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL: "The {reader} schema has an unopen content model and has a "
    "required property at path '{path}' which is missing in the {writer} schema",
    Fault.SUM_TYPE_OVERLAPS: "What a type of the oneOf at path '{path}' takes may also be taken by another one in the "
    "{reader} schema, which it was not in the {writer} schema; give each a property of its own constant, or write "
    "anyOf",
    Fault.SCHEMA_ADDED: _NOT_PRESENT,
    Fault.PATTERN_CHANGED: _VALUE_CHANGED,
    Fault.MULTIPLE_OF_CHANGED: _VALUE_CHANGED,
    Fault.MULTIPLE_OF_EXPANDED: _MORE,
    Fault.DEPENDENCY_ARRAY_CHANGED: _VALUE_CHANGED,
    Fault.CONDITION_CHANGED: _VALUE_CHANGED,
    Fault.ENUM_ARRAY_CHANGED: _TYPE,
    Fault.TYPE_NARROWED: _TYPE,
    Fault.TYPE_CHANGED: _TYPE,
    Fault.COMBINED_TYPE_CHANGED: _TYPE,
    Fault.COMBINED_TYPE_SUBSCHEMAS_CHANGED: _TYPE,
    Fault.ADDITIONAL_ITEMS_REMOVED: _NOT_PRESENT,
    Fault.ADDITIONAL_PROPERTIES_REMOVED: _NOT_PRESENT,
    Fault.UNEVALUATED_ITEMS_REMOVED: _NOT_PRESENT,
    Fault.UNEVALUATED_PROPERTIES_REMOVED: _NOT_PRESENT,
    Fault.REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL: _ADDED_TO_OPEN,
    Fault.REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL: _ADDED_TO_OPEN,
    Fault.OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL: _ADDED_TO_OPEN,
    Fault.ITEM_ADDED_TO_OPEN_CONTENT_MODEL: _ADDED_TO_OPEN,
    Fault.PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL: _REMOVED_FROM_CLOSED,
    Fault.ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL: _REMOVED_FROM_CLOSED,
    Fault.PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL: _REMOVED_UNCOVERED,
    Fault.ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL: _REMOVED_UNCOVERED,
    Fault.PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL: _ADDED_UNCOVERED,
    Fault.ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL: _ADDED_UNCOVERED,
}
_BY_ENDING = {
    "_ADDED": _NOT_PRESENT,
    "_INCREASED": _MORE,
    "_DECREASED": _LESS,
    "_NARROWED": _FEWER,
    "_EXTENDED": _MORE_ELEMENTS,
}


def sentence(difference: Difference, *, reader: str, writer: str) -> str:
    """How Confluent's registry words it; the quote before the last brace is its own."""
    kind = difference.fault
    form = _SENTENCES.get(kind) or _BY_ENDING[f"_{kind.rpartition('_')[2]}"]
    description = form.format(path="#/" + "/".join(difference.path), reader=reader, writer=writer)
    return f'{{errorType:"{kind}", description:"{description}\'}}'
