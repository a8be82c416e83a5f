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
from typing import Any, Literal, get_args

from fluvial.errors import FluvialError

Build = Callable[[Any], Sequence[Any]]


Failing = Literal["warn", "quarantine", "stop"]
"""What becomes of rows that fail: they are told of, or kept aside as well, or hold back what reads the table too."""


class SuiteError(FluvialError):
    """A suite is declared for something that is not a table, or in a way that is none."""


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

    A table of more than `rows_max` rows is not read as a whole; None reads any. `keeps` says whether rows that fail are
    kept in a table of the quarantine.
    """

    table: str
    name: str
    build: Build
    blocking: bool
    scope: Scope
    description: str | None
    rows_max: int | None = None
    keeps: bool = True

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
    failing: Failing | None = None,
    scope: Scope | None = None,
    name: str | None = None,
    rows_max: int | None = None,
) -> Callable[[Build], Suite]:
    """
    Declare the decorated function as the suite of `table`; it takes `great_expectations.expectations`, returns a list.

    It fails while rows that fail are in the table. Of a history only new rows are read where each row alone shows if it
    fails; any other table is read as a whole, unless `scope` says otherwise or it has more than `rows_max` rows. An
    expectation's own `severity` decides whether its failure is an error or a warning.

    `failing` says what becomes of rows that fail: "warn" tells of them, "quarantine" also keeps them in a table of the
    quarantine (as without it), "stop" also holds back what reads the table, as `blocking=True` does. They stay in their
    own table in any case, which is what the log says. It is the same under Dagster and in `fluvial run --continuous`.
    """
    if failing is not None and failing not in get_args(Failing):
        raise SuiteError(
            f'expectations("{table}"): failing is {failing!r}: write failing="warn", "quarantine" or "stop"'
        )
    if blocking and failing not in (None, "stop"):
        raise SuiteError(f'expectations("{table}"): blocking is failing="stop": leave out one of the two')
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
            blocking=blocking or failing == "stop",
            scope=scope_of_table,
            description=inspect.getdoc(build),
            rows_max=rows_max,
            keeps=failing != "warn",
        )

    return declare
