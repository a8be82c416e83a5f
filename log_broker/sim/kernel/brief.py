"""Values in few words, for the story of a run."""

from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any

_TEXT_LENGTH_MAX = 40
_ITEMS_MAX = 3


def brief(value: Any) -> str:
    """
    Return a value in few words: `Fetch(epoch=3, replica=2/d2.0, log_end=17/3)`.

    Fields that hold their default are left out, pairs lose their names, bytes and tuples are cut short.
    """
    if is_dataclass(value) and not isinstance(value, type):
        shown = [
            f"{field.name}={brief(getattr(value, field.name))}"
            for field in fields(value)
            if field.default is MISSING or getattr(value, field.name) != field.default
        ]
        return f"{type(value).__name__}({', '.join(shown)})"
    match value:
        case Enum():
            return value.name
        case bytes():
            text = value.decode(errors="replace")
            return text if len(text) <= _TEXT_LENGTH_MAX else f"{text[:_TEXT_LENGTH_MAX]}…"
        case tuple() if hasattr(value, "_fields"):
            parts = [brief(part) for part in value]
            return "/".join(parts) if len(parts) <= _ITEMS_MAX else f"{type(value).__name__}({', '.join(parts)})"
        case tuple():
            parts = [brief(part) for part in value[:_ITEMS_MAX]]
            more = f" … {len(value)} in all" if len(value) > _ITEMS_MAX else ""
            return f"[{', '.join(parts)}{more}]"
    return str(value)
