"""
The rows of keys as a query. Pure.
"""

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from fluvial.query.references import quoted
from fluvial.query.words import literal

_KINDS = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT", "string": ""}


def lookup(table: str, columns: Sequence[str], key: Sequence[tuple[str, str, Any]]) -> str:
    """
    The statement that reads `columns` of the rows with a key: its columns, their types of Delta's schema and values.
    """
    named = ", ".join(map(quoted, columns))
    place = ".".join(map(quoted, table.split(".")))
    of_key = " AND ".join(f"{quoted(name)} = {_literal(name, kind, value)}" for name, kind, value in key)
    return f"SELECT {named} FROM {place} WHERE {of_key}"


def lookup_all(table: str, columns: Sequence[str], keys: Sequence[Sequence[tuple[str, str, Any]]]) -> str:
    """
    The statement that reads `columns` of the rows with one of some keys, each as :func:`lookup` takes it.
    """
    named = ", ".join(map(quoted, columns))
    place = ".".join(map(quoted, table.split(".")))
    return f"SELECT {named} FROM {place} WHERE {_among(keys)}"


def _among(keys: Sequence[Sequence[tuple[str, str, Any]]]) -> str:
    if not keys:
        return "false"
    if len(keys[0]) == 1:
        values = ", ".join(_literal(*part) for (part,) in keys)
        return f"{quoted(keys[0][0][0])} IN ({values})"
    if len(keys) == 1:
        return " AND ".join(f"{quoted(name)} = {_literal(name, kind, value)}" for name, kind, value in keys[0])
    # Halves, as parsers go down a long row of OR as deep as it is long.
    middle = len(keys) // 2
    return f"({_among(keys[:middle])}) OR ({_among(keys[middle:])})"


def _literal(name: str, kind: str, value: Any) -> str:
    match value:
        case bytes():
            return f"unhex('{value.hex()}')"
        case bool():
            text = str(value).lower()
        case dt.datetime():
            zone = "" if value.tzinfo is None else "Z"
            utc = value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
            text = f"{utc.isoformat(sep=' ')}{zone}"
        case Decimal():
            text = f"{value:f}"  # engines need not read an exponent as a decimal
        case _:
            text = str(value)
    return literal(text, _KINDS.get(kind, kind.upper()), name=name)
