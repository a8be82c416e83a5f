"""
A fold of one's own: a Python function from a state and the events that come after it to the next state.

Events come in the order of the log, any number at a time: where batches were cut must make no difference to the state,
so a reducer goes through them one by one and remembers in the state, and nowhere else, what it needs.
"""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fluvial.tables.declare.source_code import source_digest

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Event = dict[str, Any]
"""A row of the topic's history: the contract's fields, and `_topic`, `_partition`, `_offset` and so on."""
Values = dict[str, Any]
"""The value of each column of a state; times are aware datetimes in UTC."""
Reduce = Callable[[Any, Iterator[Event]], Values | None]

_COLUMN = re.compile(r"(?P<name>`[^`]+`|\w+)(?:\s*:\s*|\s+)(?P<type>\S.*)", re.DOTALL)
_OPTION = re.compile(r"\b(NOT\s+NULL|COMMENT|DEFAULT|GENERATED)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reducer:
    """
    The function, the columns of its state (name and SQL type), and a name for its code that changes when it does.
    """

    function: Reduce = field(repr=False)
    columns: tuple[tuple[str, str], ...]
    code: str

    @classmethod
    def of(cls, function: Any, returns: "str | StructType", version: str | None) -> "Reducer":
        """
        Check and name what a user gave. Raises ValueError with the reason, as the end of a sentence.
        """
        if not callable(function):
            raise ValueError(f"reduce is {function!r}, not a function: give one, as reduce=spend")
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise ValueError("its reducer must return the state: a plain function, without yield or async")
        try:
            inspect.signature(function).bind(None, iter(()))
        except TypeError as error:
            raise ValueError(f"its reducer is called with (state, events), and cannot be: {error}") from error
        except ValueError:
            pass  # a function of C, which does not tell what it takes
        return cls(function=function, columns=tuple(_columns(returns)), code=_code(function, version))

    @property
    def names(self) -> tuple[str, ...]:
        """
        The names of the state's columns.
        """
        return tuple(name for name, _ in self.columns)

    def __str__(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)


def module_of(function: Any) -> str | None:
    """
    The module that a function, or what was made of one, is from.
    """
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__module__", None) or type(function).__module__


def _columns(returns: Any) -> Iterator[tuple[str, str]]:
    if isinstance(returns, str):
        parts = [part.strip() for part in _split(returns)]
        if not any(parts):
            raise ValueError('returns names no column: write them as in returns="total DECIMAL(10,2), seen TIMESTAMP"')
        for part in parts:
            found = _COLUMN.fullmatch(part)
            if found is None:
                raise ValueError(f'returns has {part!r} for a column: write a name and a type, as in "total BIGINT"')
            if _OPTION.search(found["type"]) and "<" not in found["type"]:
                raise ValueError(f"returns says more of a column than name and type in {part!r}: leave the rest out")
            yield found["name"].strip("`"), found["type"]
    elif isinstance(getattr(returns, "fields", None), Iterable):
        if not returns.fields:
            raise ValueError("returns names no column: a state has at least one")
        for column in returns.fields:
            yield column.name, column.dataType.simpleString()
    else:
        raise ValueError(
            f"returns is {returns!r}: name the columns of the state and their types, as in "
            'returns="total DECIMAL(10,2), seen TIMESTAMP"'
        )


def _split(ddl: str) -> Iterator[str]:
    """The columns of a line of DDL: what stands between commas that are in no brackets."""
    depth, start = 0, 0
    for place, character in enumerate(ddl):
        if character in "<(":
            depth += 1
        elif character in ">)":
            depth -= 1
        elif character == "," and depth == 0:
            yield ddl[start:place]
            start = place + 1
    yield ddl[start:]


def _code(function: Any, version: str | None) -> str:
    """The version given by hand, or a fingerprint of the function and of what it uses in the project's modules."""
    if version is not None:
        return version
    try:
        return source_digest(function)
    except (OSError, TypeError) as error:
        raise ValueError(
            'the source text of its reducer cannot be read, so a change of it would go unseen: give it version="1" '
            "and count up"
        ) from error
