"""
The words of JSON Schema: which draft knows them and of what form their values are.

Drafts are 4, 6, 7, 2019 (2019-09) and 2020 (2020-12). The forms are those of the drafts' meta-schemas; patterns and
formats are texts here, for nothing evaluates them when a schema is registered.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

DRAFTS = (4, 6, 7, 2019, 2020)
# What a schema is taken for that does not say.
DEFAULT_DRAFT = 7
SCHEMA_URIS: Mapping[str, int] = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "http://json-schema.org/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
}
TYPES = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})

# Word → form, first and last draft. The forms in `SUBSCHEMAS` hold further schemas.
SUBSCHEMAS = frozenset({"schema", "schemas", "schema_list", "items", "dependencies"})
_WORDS: tuple[tuple[str, str, int, int], ...] = (
    ("$schema", "text", 4, 2020),
    ("id", "text", 4, 4),
    ("$id", "text", 6, 2020),
    ("$anchor", "text", 2019, 2020),
    ("$ref", "text", 4, 2020),
    ("$comment", "text", 7, 2020),
    ("title", "text", 4, 2020),
    ("description", "text", 4, 2020),
    ("format", "text", 4, 2020),
    ("contentEncoding", "text", 7, 2020),
    ("contentMediaType", "text", 7, 2020),
    ("readOnly", "flag", 7, 2020),
    ("writeOnly", "flag", 2019, 2020),
    ("deprecated", "flag", 2019, 2020),
    ("examples", "list", 6, 2020),
    ("type", "type", 4, 2020),
    ("enum", "values", 4, 4),
    ("enum", "list", 6, 2020),
    ("const", "any", 6, 2020),
    ("default", "any", 4, 2020),
    ("multipleOf", "positive", 4, 2020),
    ("maximum", "number", 4, 2020),
    ("minimum", "number", 4, 2020),
    ("exclusiveMaximum", "flag", 4, 4),
    ("exclusiveMinimum", "flag", 4, 4),
    ("exclusiveMaximum", "number", 6, 2020),
    ("exclusiveMinimum", "number", 6, 2020),
    ("maxLength", "count", 4, 2020),
    ("minLength", "count", 4, 2020),
    ("pattern", "text", 4, 2020),
    ("maxItems", "count", 4, 2020),
    ("minItems", "count", 4, 2020),
    ("uniqueItems", "flag", 4, 2020),
    ("contains", "schema", 6, 2020),
    ("maxContains", "count", 2019, 2020),
    ("minContains", "count", 2019, 2020),
    ("items", "items", 4, 2019),
    ("items", "schema", 2020, 2020),
    ("prefixItems", "schema_list", 2020, 2020),
    ("additionalItems", "schema", 4, 2019),
    ("unevaluatedItems", "schema", 2019, 2020),
    ("maxProperties", "count", 4, 2020),
    ("minProperties", "count", 4, 2020),
    ("required", "some_names", 4, 4),
    ("required", "names", 6, 2020),
    ("properties", "schemas", 4, 2020),
    ("patternProperties", "schemas", 4, 2020),
    ("additionalProperties", "schema", 4, 2020),
    ("unevaluatedProperties", "schema", 2019, 2020),
    ("propertyNames", "schema", 6, 2020),
    ("dependencies", "dependencies", 4, 2020),
    ("dependentRequired", "names_by_name", 2019, 2020),
    ("dependentSchemas", "schemas", 2019, 2020),
    ("definitions", "schemas", 4, 2020),
    ("$defs", "schemas", 2019, 2020),
    ("allOf", "schema_list", 4, 2020),
    ("anyOf", "schema_list", 4, 2020),
    ("oneOf", "schema_list", 4, 2020),
    ("not", "schema", 4, 2020),
    ("if", "schema", 7, 2020),
    ("then", "schema", 7, 2020),
    ("else", "schema", 7, 2020),
    ("contentSchema", "schema", 2019, 2020),
)
# Where draft 4, which has no schemas `true` and `false`, takes them all the same.
FLAG_OR_SCHEMA = frozenset({"additionalProperties", "additionalItems"})


@cache
def words_of(draft: int) -> Mapping[str, str]:
    """The words that a draft knows, each with the form of its value."""
    return {word: form for word, form, first, last in _WORDS if first <= draft <= last}


def form_fault(form: str, value: Any) -> str | None:  # noqa: PLR0911, PLR0912 (one branch a form)
    """What a value should be that does not have the form, None where it has; schemas inside it are not looked at."""
    match form:
        case "text":
            return None if isinstance(value, str) else "a string"
        case "flag":
            return None if isinstance(value, bool) else "true or false"
        case "number":
            return None if _is_number(value) else "a number"
        case "positive":
            return None if _is_number(value) and value > 0 else "a number above 0"
        case "count":
            return None if _is_number(value) and value >= 0 and value == int(value) else "a whole number from 0"
        case "type":
            names = value if isinstance(value, list) and value else [value]
            known = all(isinstance(each, str) and each in TYPES for each in names) and len(set(names)) == len(names)
            return None if known else f"one of {', '.join(sorted(TYPES))}, or a list of several"
        case "list":
            return None if isinstance(value, list) else "a list"
        case "values":
            distinct = isinstance(value, list) and value and len({json_key(each) for each in value}) == len(value)
            return None if distinct else "a list of different values"
        case "names" | "some_names":
            named = isinstance(value, list) and all(isinstance(each, str) for each in value)
            fits = named and len(set(value)) == len(value) and (value or form == "names")
            return None if fits else "a list of different names"
        case "names_by_name":
            fits = isinstance(value, dict) and all(form_fault("names", each) is None for each in value.values())
            return None if fits else "an object of lists of names"
        case "schemas" | "dependencies":
            return None if isinstance(value, dict) else "an object of schemas"
        case "schema_list":
            return None if isinstance(value, list) and value else "a list of schemas"
        case "items":
            return "a schema or a list of some" if value == [] else None
        case _:
            return None


def json_key(value: Any) -> str:
    """A text that is equal exactly where two JSON values are: 1 is 1.0 but not true."""
    return json.dumps(_whole_where_it_can_be(value), sort_keys=True)


def _whole_where_it_can_be(value: Any) -> Any:
    match value:
        case float():
            return int(value) if value.is_integer() else value
        case list():
            return [_whole_where_it_can_be(each) for each in value]
        case dict():
            return {name: _whole_where_it_can_be(each) for name, each in value.items()}
        case _:
            return value


def type_of(value: Any) -> str:  # noqa: PLR0911 (one return a type)
    """The JSON Schema type of a value; a number without a fraction is an integer."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def excerpt(value: Any) -> str:
    """The JSON that an error message shows, cut so that hostile text does not fill a log."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "…"
    return text if len(text) <= 200 else text[:200] + "…"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
