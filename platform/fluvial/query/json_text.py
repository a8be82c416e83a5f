"""
Spark's values as JSON, which loses nothing: an instant is ISO 8601 in UTC, a decimal keeps its digits, binary is in
base64.
"""

import base64
import datetime as dt
import json
import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

ZONELESS = "timestamp_ntz"


def json_text(value: Any, kind: str = "") -> str:
    """
    Return a value as JSON text.
    """
    match value:
        case None | bool() | int():
            text = json.dumps(value)
        case float():
            # JSON has no words for what is not finite; Spark's own to_json writes strings, too.
            text = json.dumps(value if math.isfinite(value) else not_finite(value))
        case Decimal():
            # The text of the number itself: a float would round it.
            text = f"{value:f}"
        case dict():
            text = _json_object(((plain_text(key, kind), each) for key, each in value.items()), kind)
        case _ if hasattr(value, "toJson"):
            # Spark's variant is JSON already.
            text = str(value.toJson())
        case tuple() if hasattr(value, "__fields__"):
            text = _json_object(zip(value.__fields__, value, strict=True), kind)
        case list() | tuple():
            text = f"[{', '.join(json_text(each, kind) for each in value)}]"
        case _:
            text = json.dumps(plain_text(value, kind), ensure_ascii=False)
    return text


def _json_object(pairs: Iterable[tuple[str, Any]], kind: str) -> str:
    fields = (f"{json.dumps(name, ensure_ascii=False)}: {json_text(value, kind)}" for name, value in pairs)
    return f"{{{', '.join(fields)}}}"


def plain_text(value: Any, kind: str) -> str:
    """
    Return what is no number and nothing nested as a string.
    """
    match value:
        case str():
            return value
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case dt.datetime():
            # The session's zone is UTC, and so is this process's while it reads an answer.
            return value.isoformat() if ZONELESS in kind else f"{value.isoformat()}Z"
        case dt.date() | dt.time():
            return value.isoformat()
    return str(value)


def not_finite(value: float) -> str:
    """
    Return what a number is called that JSON has no digits for.
    """
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
