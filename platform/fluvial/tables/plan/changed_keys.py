"""
The keys of a pipeline whose rows may differ from those that its table has, and the inputs' rows of these keys.

They are the keys of all rows that came to an input or went since the version that the table was made from.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING

from fluvial.delta.changes_here import changed_files, changes_here
from fluvial.delta.errors import LostFileError
from fluvial.delta.file_stats import Bounds, FileStats, Key, comparable_type, marked_rows, of_action, ranges
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import InputVersion
from fluvial.delta.row_swap import knows_delta, row_changes
from fluvial.tables.declare.declarations import Pipeline

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

# Beyond so many keys they are not sent to every task whole.
BROADCAST_MAX = 1_000_000
VALUES_MAX = 50_000
"""So many keys are compared with the bounds of each file."""
RANGES_MAX = 8
"""Each row that is read is compared with so many ranges."""
KNOWN = "_fluvial_known"
_KEY = "_fluvial_key_"
_ROWS = "_fluvial_rows"
# Commits that change single rows, or none; a WRITE that removes no file adds rows.
_OF_ROWS = frozenset(
    {"STREAMING UPDATE", "MERGE", "UPDATE", "DELETE", "WRITE", "OPTIMIZE", "VACUUM START", "VACUUM END",
     "SET TBLPROPERTIES", "UNSET TBLPROPERTIES"}
)  # fmt: skip
_PLAIN = frozenset({"string", "tinyint", "smallint", "int", "bigint", "boolean", "date", "timestamp", "timestamp_ntz"})
_COMMITS_MAX = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOST = "files of the versions in between are gone (VACUUM)"
_LOST_FILE = ("FileNotFoundException", "FILE_NOT_EXIST", "DELTA_FILE_NOT_FOUND")


class UnreadableChangesError(Exception):
    """
    What changed in an input cannot be read from its commits; the text says why.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedKeys:
    """
    The `frame` of `keys` that changed, a row each, by `rows` that came or went; `here` has them in this process, None
    where they are too many.

    `values` has for each column of the key those that occur, ascending, and whether null does; None where they are too
    many or of a type whose bounds files do not tell. `moments` has the timestamps that occur in the last column of the
    key, None where it is no timestamp or they are too many.
    """

    frame: "DataFrame"
    keys: int
    rows: int
    here: "pa.Table | None" = None
    values: tuple[tuple[Sequence[Key], bool] | None, ...] = ()
    moments: "Sequence[datetime] | None" = None

    def of(self, rows: "DataFrame", path: Sequence[str]) -> "DataFrame":
        """
        The rows whose expressions `path` are a key that changed.
        """
        return rows.join(self._sent(), self._same(path), "left_semi")

    def in_files(self, files: Sequence[FileStats], path: Sequence[str]) -> list[FileStats]:
        """
        Those of an input's files that may hold rows of a key that changed.
        """
        known = [(step, found) for step, found in zip(path, self.values, strict=False) if found is not None]
        return [
            file
            for file in files
            if all(
                step not in file.bounds or file.bounds[step].may_hold(keys, null=null) for step, (keys, null) in known
            )
        ]

    def within(self, rows: "DataFrame", files: Sequence[FileStats], path: Sequence[str]) -> "DataFrame":
        """
        The rows of an input by conditions that let Delta leave out files beside `files` (:meth:`in_files`).
        """
        from pyspark.sql.functions import col, expr

        for step, found in zip(path, self.values, strict=False):
            if found is None or not all(step in file.bounds for file in files):
                continue
            is_inside = col(f"`{step}`").isNull() if found[1] else expr("false")
            for least, most in ranges((file.bounds[step] for file in files), RANGES_MAX):
                is_inside |= col(f"`{step}`").between(least, most)
            rows = rows.where(is_inside)
        return rows

    def in_time(self, rows: "DataFrame", time: str, span: tuple[timedelta, timedelta]) -> "DataFrame":
        """
        The rows of an input whose `time`, a column, is within the `span` after one of the moments, by conditions that
        let Delta leave out files; it may keep more.
        """
        from pyspark.sql.functions import expr

        if not self.moments:
            return rows
        spans = ranges(
            (Bounds(least=each + span[0], most=each + span[1], has_null=False) for each in self.moments), RANGES_MAX
        )
        inside = " OR ".join(
            f"{time} >= timestamp_micros({_micros(least)}L) AND {time} <= timestamp_micros({_micros(most)}L)"
            for least, most in spans
        )
        return rows.where(expr(inside))

    def known(self, rows: "DataFrame", path: Sequence[str], refusal: "Column") -> "DataFrame":
        """
        The same rows, which fail with the text `refusal` where one is of another key as they are read.

        They have the column KNOWN, which must be read.
        """
        from pyspark.sql.functions import col, expr, raise_error, when

        flagged = rows.join(self._sent().withColumn(KNOWN, expr("true")), self._same(path), "left_outer")
        is_known = when(col(KNOWN), expr("true")).otherwise(raise_error(refusal).cast("boolean"))
        return flagged.select(*(f"`{name}`" for name in rows.columns), is_known.alias(KNOWN))

    def _sent(self) -> "DataFrame":
        keys = self.frame.drop(_ROWS)
        return keys.hint("broadcast") if self.keys <= BROADCAST_MAX else keys

    def _same(self, path: Sequence[str]) -> "Column":
        from pyspark.sql.functions import expr

        return expr(same_key(path))


def rows_changed(log: TableLog, since: int, until: int) -> int:
    """
    How many rows came or went with the commits after a version, as far as these tell: no data file is read.
    """
    total = 0
    for version in range(since + 1, until + 1):
        for before, after in changed_files(log, version):
            if before is not None and after is not None:  # one that stays, in which other rows are marked
                total += abs(marked_rows(after) - marked_rows(before))
            else:
                total += sum(of_action(each, {}).rows for each in (before, after) if each is not None)
    return total


def rows_went(log: TableLog, since: int, until: int) -> bool:
    """
    Whether rows went with the commits after a version, or were only written to other files.
    """
    return any("remove" in log.data_changes(version) for version in range(since + 1, until + 1))


def check_commits(log: TableLog, table: str, since: InputVersion, until: int) -> None:
    """
    Raise :class:`UnreadableChangesError` where the commits after a version do not tell which rows came and went.
    """
    versions = {commit.version: commit for commit in log.newest_first(above=since.version - 1)}
    if since.version not in versions or versions[since.version].txn_id != since.commit:
        known = since.version in versions
        raise UnreadableChangesError(
            f"{table} was made again"
            if known or since.version > until
            else f"the log of {table} no longer has version {since.version}"
        )
    if until < since.version:
        raise UnreadableChangesError(f"{table} is read at version {until}, which is an earlier one")
    if until - since.version > _COMMITS_MAX:
        raise UnreadableChangesError(f"{table} has {until - since.version:,} new versions")
    for version in range(since.version + 1, until + 1):
        commit = versions.get(version)
        if commit is None:
            raise UnreadableChangesError(f"the log of {table} no longer has version {version}")
        changes = log.data_changes(version)
        if "metaData" in changes and commit.operation not in {"SET TBLPROPERTIES", "UNSET TBLPROPERTIES"}:
            raise UnreadableChangesError(f"the columns of {table} changed with version {version}")
        if commit.operation not in _OF_ROWS or (commit.operation == "WRITE" and "remove" in changes):
            raise UnreadableChangesError(f"{table} was written whole by version {version} ({commit.operation})")


def has_changes(log: TableLog, table: str, since: InputVersion, until: int) -> bool:
    """
    Whether commits after a version changed rows or columns. Raises as :func:`check_commits` does.
    """
    check_commits(log, table, since, until)
    return any(log.data_changes(version) for version in range(since.version + 1, until + 1))


def changed_keys(
    session: "SparkSession",
    declaration: Pipeline,
    logs: Mapping[str, TableLog],
    since: Mapping[str, InputVersion],
    until: Mapping[str, int],
    *,
    few: bool,
    keys: "Callable[[str, DataFrame], DataFrame]",
    also: "Sequence[DataFrame]" = (),
) -> ChangedKeys:
    """
    Read the keys that changed in the inputs between two versions of each; the frame may be persisted and must be let
    go. With `few`, the changed rows fit into this process. `keys` has the keys that rows of an input lead to, as
    :func:`keys_of` does, and `also` further ones.

    Raises :class:`UnreadableChangesError`.
    """
    parts = list(also)
    for table, path in declaration.paths.items():
        if until[table] != since[table].version and path is not None:
            changes = read_changes(session, logs[table], table, since[table].version, until[table], few=few)
            parts.append(keys(table, changes))
    if not parts:
        # Nothing but files that were written together.
        table = next(
            table for table, path in declaration.paths.items() if path is not None and table not in declaration.validity
        )
        parts.append(keys(table, session.read.format("delta").load(logs[table].path)).where("false"))
    together = reduce(lambda one, other: one.unionAll(other), parts)
    with explain_lost_changes():
        return _gathered(together, few=few)


def keys_of_rows(rows: "DataFrame", path: Sequence[str], *, few: bool) -> ChangedKeys:
    """
    The keys of `rows`, to which the expressions `path` lead, as :func:`changed_keys` gives those of changed rows.
    """
    return _gathered(keys_of(rows, path), few=few)


def distinct_keys(parts: "Sequence[DataFrame]", *, few_max: int) -> ChangedKeys:
    """
    All keys of `parts`, which are as :func:`keys_of` has them; taken into this process where they are `few_max` at
    most.
    """
    keys = reduce(lambda one, other: one.unionAll(other), parts).distinct().persist()
    try:
        return _gathered(keys, few=keys.count() <= few_max)
    finally:
        keys.unpersist()


@contextmanager
def explain_lost_changes() -> Iterator[None]:
    """
    For a ``with``: raises :class:`UnreadableChangesError` where changes are read whose files are gone.
    """
    try:
        yield
    except Exception as error:
        if any(mark in str(error) for mark in _LOST_FILE):
            raise UnreadableChangesError(_LOST) from error
        raise


def _gathered(rows: "DataFrame", *, few: bool) -> ChangedKeys:
    return _collected(rows) if few and _are_plain(rows) else _counted(rows)


def read_changes(
    session: "SparkSession", log: TableLog, table: str, since: int, until: int, *, few: bool
) -> "DataFrame":
    """
    The rows that came to a table and went, as :func:`~fluvial.delta.row_swap.row_changes` has them; where there are
    `few`, they may be read already.

    Raises :class:`UnreadableChangesError`.
    """
    from pyspark.errors import AnalysisException

    try:
        here = changes_here(session, log.path, since=since, until=until) if few and knows_delta(session) else None
        if here is not None:
            return here
        changes = row_changes(session, log.path, since=since, until=until)
    except LostFileError as error:
        raise UnreadableChangesError(_LOST) from error
    except AnalysisException as error:
        raise UnreadableChangesError(f"the changes of {table} cannot be read") from error
    if changes is None:
        raise UnreadableChangesError("this Spark or this version of Delta does not tell which rows changed")
    return changes


def _micros(moment: Key) -> int:
    assert isinstance(moment, datetime), "a moment is a timestamp"
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _are_plain(rows: "DataFrame") -> bool:
    """Whether keys can be compared here as they are there."""
    return all(kind in _PLAIN or kind.startswith("decimal") for _, kind in rows.dtypes)


def _collected(rows: "DataFrame") -> ChangedKeys:
    """The keys by one job that reads the changes: without a shuffle of them, and none is read a second time."""
    import pyarrow.compute as pc

    changed = rows.toArrow()
    keys = changed.group_by(changed.column_names).aggregate([]) if changed.num_rows else changed
    values = tuple(
        (sorted(pc.unique(keys[name]).drop_null().to_pylist()), keys[name].null_count > 0)
        if comparable_type(kind) and keys.num_rows <= VALUES_MAX
        else None
        for name, kind in rows.dtypes
    )
    frame = rows.sparkSession.createDataFrame(keys, schema=rows.schema)
    last, kind = rows.dtypes[-1]
    is_moment = kind == "timestamp" and keys.num_rows <= VALUES_MAX
    moments = sorted(pc.unique(keys[last]).drop_null().to_pylist()) if is_moment else None
    return ChangedKeys(
        frame=frame, keys=keys.num_rows, rows=changed.num_rows, here=keys, values=values, moments=moments
    )


def _counted(rows: "DataFrame") -> ChangedKeys:
    from pyspark.sql.functions import expr

    keys = rows.groupBy(*rows.columns).agg(expr(f"count(*) AS {_ROWS}")).persist()
    try:
        count, changed = keys.selectExpr("count(*)", f"coalesce(sum({_ROWS}), 0)").collect()[0]
    except Exception:
        keys.unpersist()
        raise
    return ChangedKeys(frame=keys, keys=count, rows=changed)


def key_columns(path: Sequence[str]) -> list[str]:
    """
    The columns of :class:`ChangedKeys` for each part of a key.
    """
    return [f"{_KEY}{index}" for index in range(len(path))]


def same_key(path: Sequence[str]) -> str:
    """
    The condition that the expressions `path` are a key in the columns of :class:`ChangedKeys`.
    """
    # A key may be null, and is then one like others.
    return " AND ".join(f"({step}) <=> {name}" for step, name in zip(path, key_columns(path), strict=True))


def keys_of(rows: "DataFrame", path: Sequence[str]) -> "DataFrame":
    """
    The key of each row, to which the expressions `path` lead, in the columns that :class:`ChangedKeys` has.
    """
    return rows.selectExpr(*(f"{step} AS {name}" for step, name in zip(path, key_columns(path), strict=True)))
