"""
JSON whose depth is bounded by us.

Python's scanner refuses what is nested deeper than its stack, which is a thousand levels before Python 3.12 and ten
thousand from 3.13 on: what it lets through there would end a later walk, or not, by where the stack happens to stand.
"""

import json
from collections.abc import Callable
from typing import Any

LEVELS_MAX = 500


def loads(
    text: str,
    *,
    parse_constant: Callable[[str], Any] | None = None,
    parse_float: Callable[[str], Any] | None = None,
    parse_int: Callable[[str], Any] | None = None,
) -> Any:
    """`json.loads`, which raises RecursionError for more than `LEVELS_MAX` levels on every Python."""
    value = json.loads(text, parse_constant=parse_constant, parse_float=parse_float, parse_int=parse_int)
    if text.count("[") + text.count("{") <= LEVELS_MAX:
        return value
    level = [value]
    for _ in range(LEVELS_MAX + 1):
        level = [child for each in level if isinstance(each, list | dict) for child in _children(each)]
        if not level:
            return value
    raise RecursionError(f"nested more than {LEVELS_MAX} levels deep")


def _children(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value
