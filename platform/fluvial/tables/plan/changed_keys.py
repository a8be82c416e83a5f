"""
The keys of a pipeline whose rows may differ from those that its table has, and the inputs' rows of these keys.

They are the keys of all rows that came to an input or went since the version that the table was made from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import InputVersion
from fluvial.delta.row_swap import row_changes
from fluvial.tables.declare.declarations import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Beyond so many keys they are not sent to every task whole.
BROADCAST_MAX = 1_000_000
_KEY = "_fluvial_key_"
_ROWS = "_fluvial_rows"
# Commits that change single rows, or none; a WRITE that removes no file adds rows.
_OF_ROWS = frozenset(
    {"STREAMING UPDATE", "MERGE", "UPDATE", "DELETE", "WRITE", "OPTIMIZE", "VACUUM START", "VACUUM END",
     "SET TBLPROPERTIES", "UNSET TBLPROPERTIES"}
)  # fmt: skip
_COMMITS_MAX = 1000
_LOST_FILE = ("FileNotFoundException", "FILE_NOT_EXIST", "DELTA_FILE_NOT_FOUND")


class UnreadableChangesError(Exception):
    """
    What changed in an input cannot be read from its commits; the text says why.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedKeys:
    """
    The `frame` of `keys` that changed, a row each, by `rows` that came or went.
    """

    frame: "DataFrame"
    keys: int
    rows: int

    def of(self, rows: "DataFrame", path: Sequence[str]) -> "DataFrame":
        """
        The rows whose expressions `path` are a key that changed.
        """
        return self._join(rows, path, "left_semi")

    def not_of(self, rows: "DataFrame", path: Sequence[str]) -> "DataFrame":
        """
        The rows of other keys.
        """
        return self._join(rows, path, "left_anti")

    def _join(self, rows: "DataFrame", path: Sequence[str], how: str) -> "DataFrame":
        from pyspark.sql.functions import expr

        keys = self.frame.drop(_ROWS)
        # A key may be null, and is then one like others.
        same = " AND ".join(f"({step}) <=> {_KEY}{index}" for index, step in enumerate(path))
        return rows.join(keys.hint("broadcast") if self.keys <= BROADCAST_MAX else keys, expr(same), how)


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
) -> ChangedKeys:
    """
    Read the keys that changed in the inputs between two versions of each; the frame is persisted and must be let go.

    Raises :class:`UnreadableChangesError`.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql.functions import expr

    parts = []
    for table, path in declaration.paths.items():
        if until[table] == since[table].version or path is None:
            continue
        try:
            changes = row_changes(session, logs[table].path, since=since[table].version, until=until[table])
        except AnalysisException as error:
            raise UnreadableChangesError(f"the changes of {table} cannot be read") from error
        if changes is None:
            raise UnreadableChangesError("this Spark or this version of Delta does not tell which rows changed")
        parts.append(_keys_of(changes, path))
    if not parts:
        # Nothing but files that were written together.
        table, path = next((table, path) for table, path in declaration.paths.items() if path is not None)
        parts.append(_keys_of(session.read.format("delta").load(logs[table].path), path).where("false"))
    names = parts[0].columns
    keys = reduce(lambda one, other: one.unionAll(other), parts).groupBy(*names).agg(expr(f"count(*) AS {_ROWS}"))
    keys = keys.persist()
    try:
        count, rows = keys.selectExpr("count(*)", f"coalesce(sum({_ROWS}), 0)").collect()[0]
    except Exception as error:
        keys.unpersist()
        if any(mark in str(error) for mark in _LOST_FILE):
            raise UnreadableChangesError("files of the versions in between are gone (VACUUM)") from error
        raise
    return ChangedKeys(frame=keys, keys=count, rows=rows)


def _keys_of(rows: "DataFrame", path: Sequence[str]) -> "DataFrame":
    return rows.selectExpr(*(f"{step} AS {_KEY}{index}" for index, step in enumerate(path)))
