"""
The declaration of a suite: which expectations hold for which rows of a table.

Great Expectations takes seconds to import, and definitions have to load in less than that. So a suite is a function
that receives the module of expectations when the check runs:

    @expectations("history.flight_events", blocking=True)
    def known_events(gxe):
        "Every event is of a known type."
        return [gxe.ExpectColumnValuesToBeInSet(column="event_type", value_set=["DEPARTED", "ARRIVED", "CANCELLED"])]
"""

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fluvial.errors import FluvialError

Build = Callable[[Any], Sequence[Any]]


class SuiteError(FluvialError):
    """A suite is declared for something that is not a table."""


class Scope(StrEnum):
    """Which rows of its table a suite reads; what it says is of the whole table either way."""

    BATCH = "batch"
    """Rows added since the last evaluation, for expectations of each row alone; a table of records has their ranges."""
    TABLE = "table"
    """Every row, each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """
    A named list of expectations about one table; a blocking suite that fails holds back what reads the table.

    A table of more than `rows_max` rows is not read as a whole; None reads any.
    """

    table: str
    name: str
    build: Build
    blocking: bool
    scope: Scope
    description: str | None
    rows_max: int | None = None

    @property
    def fingerprint(self) -> str:
        """
        A digest that changes with what the suite asks: its text, and the constants and closed-over values it names.

        It is taken without building the suite, which would import Great Expectations.
        """
        named = inspect.getclosurevars(self.build)
        values = {**named.globals, **named.nonlocals}
        constants = [f"{name}={_stable(value)}" for name, value in sorted(values.items()) if not callable(value)]
        limit = [] if self.rows_max is None else [f"rows_max={self.rows_max}"]
        asked = "\n".join([self.table, self.name, self.scope, inspect.getsource(self.build), *constants, *limit])
        return hashlib.sha256(asked.encode()).hexdigest()[:12]


def _stable(value: Any) -> str:
    """Return a text of `value` that is the same in every process: the order of a set of strings is not."""
    return repr(sorted(value, key=repr)) if isinstance(value, set | frozenset) else repr(value)


def expectations(
    table: str,
    *,
    blocking: bool = False,
    scope: Scope | None = None,
    name: str | None = None,
    rows_max: int | None = None,
) -> Callable[[Build], Suite]:
    """
    Declare the decorated function as the suite of `table`; it takes `great_expectations.expectations`, returns a list.

    It fails while rows that fail are in the table. Of a history only new rows are read where each row alone shows if it
    fails; any other table is read as a whole, unless `scope` says otherwise or it has more than `rows_max` rows. An
    expectation's own `severity` decides whether its failure is an error or a warning.
    """
    database, dot, bare_name = table.partition(".")
    if not (database and dot and bare_name):
        raise SuiteError(
            f"expectations({table!r}): a table is named database.name, such as history.{table or 'orders'}"
        )
    scope_of_table = scope or (Scope.BATCH if database == "history" else Scope.TABLE)

    def declare(build: Build) -> Suite:
        return Suite(
            table=table,
            name=name or build.__name__,
            build=build,
            blocking=blocking,
            scope=scope_of_table,
            description=inspect.getdoc(build),
            rows_max=rows_max,
        )

    return declare
