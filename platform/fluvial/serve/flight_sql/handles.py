"""
Handles of statements: they hold the statement and the values of its parameters, so that the server keeps nothing.

Whoever makes one up has written a statement, and it is judged as every other.
"""

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from fluvial.query.words import StatementError, bound, literal, parameters_in_order
from fluvial.serve.errors import BadRequestError, RefusedStatementError
from fluvial.serve.flight_sql.reading import NEWEST, Reading
from fluvial.serve.statements import CHARACTERS_MAX

if TYPE_CHECKING:
    import pyarrow as pa

_INTS = range(-(1 << 31), 1 << 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """
    A statement and the SQL literals of its parameters, by name in lower case, and as of when it reads.
    """

    statement: str
    literals: Mapping[str, str] = field(default_factory=dict)
    reading: Reading = NEWEST

    @classmethod
    def of(cls, body: bytes) -> "Handle":
        """
        Read what :meth:`encoded` has written. Raises :class:`BadRequestError`.
        """
        try:
            given = json.loads(body)
            statement, literals, reading = given["sql"], given["literals"], Reading(**given.get("reading", {}))
            texts = [statement, *literals.values(), *reading.at, *reading.at_least]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _unknown() from error
        if not all(isinstance(each, str) for each in texts) or not isinstance(reading.fresh, bool):
            raise _unknown()
        return cls(statement=statement, literals=literals, reading=reading).checked()

    def encoded(self) -> bytes:
        """
        The handle as it is sent.
        """
        given = {"sql": self.statement, "literals": dict(self.literals), "reading": asdict(self.reading)}
        return json.dumps(given, ensure_ascii=False).encode()

    def checked(self) -> "Handle":
        """
        This, if its statement is there and not too long. Raises :class:`BadRequestError`.
        """
        if not self.statement.strip():
            raise BadRequestError("the statement is missing")
        if len(self.statement) > CHARACTERS_MAX:
            raise BadRequestError(f"a statement has at most {CHARACTERS_MAX:,} characters")
        return self

    @property
    def parameters(self) -> list[str]:
        """
        The names of the statement's parameters, as they first come. Raises :class:`BadRequestError`.
        """
        try:
            return parameters_in_order(self.statement)
        except StatementError as error:
            raise BadRequestError(str(error)) from error

    @property
    def text(self) -> str:
        """
        The statement with its values. Raises :class:`BadRequestError` for a parameter without one.
        """
        missing = next((name for name in self.parameters if name not in self.literals), None)
        if missing is not None:
            raise BadRequestError(f"parameter :{missing[:100]} has no value: bind one")
        try:
            return bound(self.statement, self.literals, characters_max=CHARACTERS_MAX)
        except StatementError as error:
            raise BadRequestError(str(error)) from error

    def without_values(self) -> "Handle":
        """
        The statement with NULL for each of its parameters.
        """
        literals = dict.fromkeys(self.parameters, "NULL")
        return replace(self, literals=literals)

    def with_values(self, batches: "Sequence[pa.RecordBatch]") -> "Handle":
        """
        The statement with the values of one row, whose columns have the parameters' names, or their order.

        Raises :class:`BadRequestError` and :class:`RefusedStatementError`.
        """
        if sum(each.num_rows for each in batches) != 1:
            raise RefusedStatementError("a statement is asked with one row of values at a time")
        (row,) = (each for each in batches if each.num_rows)
        names, wanted = [name.lower() for name in row.schema.names], self.parameters
        if set(names) != set(wanted):
            if len(names) != len(wanted):
                raise BadRequestError(
                    f"the statement has {len(wanted)} parameters (:name), and {len(names)} values are bound"
                )
            names = wanted
        literals = {name: _literal(name, column) for name, column in zip(names, row.columns, strict=True)}
        return replace(self, literals=literals)


def _unknown() -> BadRequestError:
    return BadRequestError("this is no handle or ticket of this server")


def _literal(name: str, column: "pa.Array") -> str:
    """The SQL literal of the one value of a column."""
    import pyarrow as pa
    from pyarrow import types

    kind = column.type
    if not types.is_timestamp(kind) or not column[0].is_valid:
        return _of_python(name, column[0].as_py())
    is_zoned = kind.tz is not None
    value = column.cast(pa.timestamp("us", "UTC" if is_zoned else None), safe=False)[0].as_py()
    return literal(value.isoformat(" "), "TIMESTAMP" if is_zoned else "TIMESTAMP_NTZ", name=name)


def _of_python(name: str, value: Any) -> str:
    text, kind = _text_and_kind(value)
    return text if kind is None else literal(text, kind, name=name)


def _text_and_kind(value: Any) -> tuple[str, str | None]:
    """What is written for a value, and of which type of SQL that is: "" for a string, None for what is a literal."""
    if value is None:
        return "NULL", None
    if isinstance(value, bytes):
        return f"X'{value.hex()}'", None
    if isinstance(value, Decimal):
        return f"{value:f}", _decimal(value)
    kinds: dict[type[Any], Callable[[Any], tuple[str, str | None]]] = {
        bool: lambda value: (str(value).lower(), None),
        int: lambda value: (str(value), "INT" if value in _INTS else "BIGINT"),
        float: lambda value: (repr(value), "DOUBLE"),
        str: lambda value: (value, ""),
        dt.date: lambda value: (value.isoformat(), "DATE"),
    }
    if type(value) not in kinds:
        raise BadRequestError(f"a parameter is bound to a value of a type that none has: {type(value).__name__}")
    return kinds[type(value)](value)


def _decimal(value: Decimal) -> str:
    _, digits, exponent = value.as_tuple()
    scale = max(0, -exponent) if isinstance(exponent, int) else 0
    return f"DECIMAL({max(len(digits), scale + 1)},{scale})"
