"""
The row of a key as a query. Pure.
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
