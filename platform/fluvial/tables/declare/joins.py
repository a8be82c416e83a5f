"""
Joins of two inputs by time: pairs of rows that are not further apart than declared, and events with what held then.

They are pipelines whose key ends with a window of the left row's time. The right row of a pair lies in the windows of
all left rows that it may be paired with; a version leads to the windows of the events while which it is another one
than before. So a row that comes, changes or goes on either side names the windows to compute again.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, get_args

from fluvial.tables.declare.declarations import DeclarationError, Pipeline, check_column, checked_duration
from fluvial.tables.declare.pipelines import pipeline
from fluvial.tables.declare.validity import Validity
from fluvial.tables.declare.windows import WINDOW_END, WINDOW_START, TimeWindows, WindowKind, micros, tumbling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

How = Literal["inner", "left"]
_AT, _UNTIL = "_fluvial_at", "_fluvial_until"
# What a version of a state with scd2 says beside its values: it has none of these for another reason than its time.
_SAID = ("is_current", "_end_offset")
_PERIOD_MIN = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalJoin:
    """
    The transform: rows of both inputs in their windows, joined by `on` (columns of the left one by those of the right).

    A right row is paired with the left ones whose time is between `within[1]` and `within[0]` before its own. `names`
    are those of the inputs in `select`, expressions in SQL; None for all columns of the left one, and of the right one
    those that the left one does not have. Of the left one only rows for which `where` holds are there.
    """

    names: tuple[str, str]
    on: Mapping[str, str] = field(hash=False)
    times: tuple[str, str]
    within: tuple[timedelta, timedelta]
    how: How
    select: tuple[str, ...] | None
    where: str | None

    def __call__(self, left: "DataFrame", right: "DataFrame") -> "DataFrame":
        left = left if self.where is None else left.where(self.where)
        one, other = (
            rows.drop(WINDOW_END).selectExpr("*", f"unix_micros({time}) AS {_AT}").alias(name)
            for rows, time, name in zip((left, right), self.times, self.names, strict=True)
        )
        first, second = self.names
        apart = f"{second}.{_AT} - {first}.{_AT} BETWEEN {micros(self.within[0])}L AND {micros(self.within[1])}L"
        condition = f"{first}.{WINDOW_START} = {second}.{WINDOW_START} AND {apart}"
        chosen = self.select or _all(self.names, left.columns, right.columns, self.on)
        return _joined(self, one, other, condition, chosen)

    @property
    def description(self) -> str:
        """
        The table in a sentence.
        """
        return f"Rows of {self.names[0]}, each with those of {self.names[1]} that are near it in time."

    @property
    def version(self) -> str:
        """
        A fingerprint of what decides the rows.
        """
        return _fingerprint(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOfJoin:
    """
    The transform: rows of events in their windows, each with the version that holds for its `on` at its `time`.

    `names`, `on`, `how`, `select` and `where` are as in an :class:`IntervalJoin`.
    """

    names: tuple[str, str]
    on: Mapping[str, str] = field(hash=False)
    time: str
    validity: Validity
    how: How
    select: tuple[str, ...] | None
    where: str | None

    def __call__(self, events: "DataFrame", versions: "DataFrame") -> "DataFrame":
        first, second = self.names
        # When a version ends is no value of it: it would change for events that lie long before.
        hidden = {self.validity.until, *self.validity.said}
        holding = versions.selectExpr(
            *(f"`{name}`" for name in versions.columns if name not in hidden), f"`{self.validity.until}` AS {_UNTIL}"
        )
        since, until = f"{second}.`{self.validity.since}`", f"{second}.{_UNTIL}"
        events = events if self.where is None else events.where(self.where)
        timed = events.drop(WINDOW_END).selectExpr("*", f"{self.time} AS {_AT}").alias(first)
        holds = f"{since} <= {first}.{_AT} AND ({until} > {first}.{_AT} OR {until} IS NULL)"
        chosen = self.select or _all(self.names, events.columns, holding.drop(self.validity.since).columns, self.on)
        return _joined(self, timed, holding.alias(second), holds, chosen)

    @property
    def description(self) -> str:
        """
        The table in a sentence.
        """
        return f"Rows of {self.names[0]}, each with the one of {self.names[1]} that held at its time."

    @property
    def version(self) -> str:
        """
        A fingerprint of what decides the rows.
        """
        return _fingerprint(self)


def _fingerprint(join: IntervalJoin | AsOfJoin) -> str:
    return hashlib.sha256(repr(join).encode()).hexdigest()[:16]


def _joined(
    join: IntervalJoin | AsOfJoin, one: "DataFrame", other: "DataFrame", condition: str, chosen: Sequence[str]
) -> "DataFrame":
    """The key and what is `chosen` of rows of the same `on` for which the condition holds."""
    from pyspark.sql.functions import expr

    first, second = join.names
    same = [f"{first}.`{mine}` = {second}.`{theirs}`" for mine, theirs in join.on.items()]
    joined = one.join(other, expr(" AND ".join((*same, condition))), join.how)
    return joined.selectExpr(*(f"{first}.`{name}`" for name in (*join.on, WINDOW_START)), *chosen)


def _all(names: tuple[str, str], left: Sequence[str], right: Sequence[str], on: Mapping[str, str]) -> list[str]:
    """All columns of the left one but the key, and of the right one those that it does not have."""
    ours = {*(name.lower() for name in left), WINDOW_START, WINDOW_END}
    mine = [name for name in left if name not in {WINDOW_START, WINDOW_END, *on}]
    theirs = [name for name in right if name.lower() not in ours | {*on.values()} and not name.startswith("_")]
    return [*(f"{names[0]}.`{name}`" for name in mine), *(f"{names[1]}.`{name}`" for name in theirs)]


def interval_join(
    left: str,
    right: str,
    *,
    name: str,
    on: str | Sequence[str] | Mapping[str, str],
    times: tuple[str, str],
    within: tuple[str, str],
    how: How = "inner",
    select: Sequence[str] | None = None,
    where: str | None = None,
) -> Pipeline:
    """
    Declare `marts.<name>`: the rows of `left`, each with those of `right` that have the same `on` and whose time is
    `within` so long of its own.

    `on` names columns of both, or is a mapping of those of `left` to those of `right`. `times` are a column or SQL
    expression of type timestamp for each. `within` is how much later the right row is, at least and at most:
    `("0 minutes", "1 hour")` for one that follows within an hour, `("-5 minutes", "5 minutes")` for one on either side.
    With `how="left"` a left row that has no right one is there with nulls until one comes. `where` is a condition for
    left rows.

    The table has the columns `on`, `window_start`, which is a period of the left row's time by which it is refreshed,
    and those that `select` names, in which each table has its own name, without the database:
    `["orders.amount", "payments.paid_at"]`. Rows whose time is null are left out. No row is ever too late.
    """
    what = f'interval_join("{left}", "{right}", name="{name}")'
    steps = _checked_on(what, on, how)
    if isinstance(times, str) or len(times) != 2:
        raise DeclarationError(f'{what}: times are {times!r}: name one for each, as in times=("ordered_at", "paid_at")')
    least, most = _checked_within(what, within)
    names = _names(what, left, right)
    join = IntervalJoin(
        names=names,
        on=steps,
        times=(times[0], times[1]),
        within=(least, most),
        how=how,
        select=None if select is None else tuple(select),
        where=_checked_where(what, where),
    )
    period = max(most - least, _PERIOD_MIN)
    windows = TimeWindows(kind=WindowKind.TUMBLING, time=times[0], size=period, every=period)
    reaching = TimeWindows(kind=WindowKind.TUMBLING, time=times[1], size=period, every=period, reach=(least, most))
    return pipeline(
        name=name,
        inputs={left: tuple(steps), right: tuple(map(_quoted, steps.values()))},
        key=tuple(steps),
        version=join.version,
        windows={left: windows, right: reaching},
    )(join)


def as_of(
    events: str,
    versions: str,
    *,
    name: str,
    on: str | Sequence[str] | Mapping[str, str],
    time: str,
    select: Sequence[str] | None = None,
    where: str | None = None,
    how: How = "left",
    valid: tuple[str, str] = ("valid_from", "valid_to"),
    period: str = "1 day",
) -> Pipeline:
    """
    Declare `marts.<name>`: the rows of `events`, each with the row of `versions` that held for its `on` at its `time`.

    `versions` is a table like that of a state with `scd2`: a row holds from the first of the columns `valid` on, and
    before the second, for ever where that is null; when it ends cannot be selected. `on`, `how`, `select` and `where`
    are as for :func:`interval_join`, and without `select` all but the two are there. Events whose time is null are left
    out. No row is ever too late: an event that comes late finds what held at its time, and a version that comes late
    changes the events of its time.

    The table has the columns `on` and `window_start`, a `period` of the event's time by which it is refreshed.
    """
    what = f'as_of("{events}", "{versions}", name="{name}")'
    steps = _checked_on(what, on, how)
    if isinstance(valid, str) or len(valid) != 2:
        raise DeclarationError(f'{what}: valid is {valid!r}: name two columns, as in valid=("valid_from", "valid_to")')
    validity = Validity(since=valid[0], until=valid[1], said=_SAID)
    join = AsOfJoin(
        names=_names(what, events, versions),
        on=steps,
        time=time,
        validity=validity,
        how=how,
        select=None if select is None else tuple(select),
        where=_checked_where(what, where),
    )
    declared = pipeline(
        name=name,
        inputs={events: tuple(steps), versions: None},
        key=tuple(steps),
        version=join.version,
        windows={events: tumbling(time, period)},
    )(join)
    paths = {**declared.paths, versions: tuple(map(_quoted, steps.values()))}
    return replace(declared, paths=MappingProxyType(paths), validity=MappingProxyType({versions: validity}))


def _checked_on(what: str, on: str | Sequence[str] | Mapping[str, str], how: str) -> dict[str, str]:
    steps = dict(on) if isinstance(on, Mapping) else {each: each for each in ((on,) if isinstance(on, str) else on)}
    if not steps:
        raise DeclarationError(f'{what}: on names no column: name one that both have, such as on="order_id"')
    for column in steps:
        check_column(column, what, "column of on")
    if how not in get_args(How):
        raise DeclarationError(
            f'{what}: how is {how!r}: write "inner" or "left"; for what the right one has alone, turn the two round'
        )
    return steps


def _checked_where(what: str, where: str | None) -> str | None:
    if where is not None and (not isinstance(where, str) or not where.strip()):
        raise DeclarationError(f"{what}: where is {where!r}: write it as a line of SQL")
    return where


def _checked_within(what: str, within: tuple[str, str]) -> tuple[timedelta, timedelta]:
    if isinstance(within, str) or len(within) != 2:
        raise DeclarationError(
            f"{what}: within is {within!r}: say how much later the right row is, at least and at most, as in "
            'within=("0 minutes", "1 hour")'
        )
    least, most = (_signed(what, each) for each in within)
    if most < least:
        raise DeclarationError(f"{what}: within ends before it begins ({within[0]} to {within[1]}): turn the two round")
    return least, most


def _signed(what: str, text: str) -> timedelta:
    if isinstance(text, str) and text.lstrip().startswith("-"):
        return -checked_duration(what, "within", text.lstrip().removeprefix("-"), least=0)
    return checked_duration(what, "within", text, least=0)


def _quoted(column: str) -> str:
    return column if column.isidentifier() else f"`{column}`"


def _names(what: str, left: str, right: str) -> tuple[str, str]:
    """What the tables are called in `select`."""
    if left == right:
        raise DeclarationError(f"{what} joins a table with itself: write @pipeline(…, key=…) for that")
    names = left.rpartition(".")[2], right.rpartition(".")[2]
    return (left.replace(".", "_"), right.replace(".", "_")) if names[0] == names[1] else names
