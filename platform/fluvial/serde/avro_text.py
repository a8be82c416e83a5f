"""Cells of CSV as JSON values: what a text means is what the schema of its field says."""

import json
import re
from collections.abc import Mapping
from typing import Any

from fluvial.serde.avro_json import MismatchError, Schema, convert

_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_BOOLEANS = {"true": True, "false": False}


def value_of_text(schema: Schema, text: str, named: Mapping[str, Schema]) -> Any:
    """
    Return the JSON value that a text is under a field's schema, or the text itself where it is none.

    An empty text is null where the field may be null. Arrays, maps and records are JSON. Never raises: whether the
    value fits is for `convert` to say.
    """
    if isinstance(schema, list):
        return _of_union(schema, text, named)
    if isinstance(schema, str) and schema in named:
        return value_of_text(named[schema], text, named)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return value_of_text(kind, text, named)
    read: Any = text
    if kind in ("int", "long"):
        read = int(text) if _WHOLE.fullmatch(text.strip()) else text
    elif kind in ("float", "double"):
        read = _number(text)
    elif kind == "boolean":
        read = _BOOLEANS.get(text.strip().lower(), text)
    elif kind == "null":
        read = text or None
    elif kind in ("record", "array", "map"):
        read = _json(text)
    return read


def _of_union(branches: list[Schema], text: str, named: Mapping[str, Schema]) -> Any:
    if not text and "null" in branches:
        return None
    for branch in branches:
        value = value_of_text(branch, text, named)
        try:
            convert(branch, value, named)
        except MismatchError:
            continue
        return value
    others = [branch for branch in branches if branch != "null"]
    return value_of_text(others[0], text, named) if len(others) == 1 else text


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
