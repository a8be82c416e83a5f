"""
What changed in a table between two versions, as the records that say so: `DataFrame -> DataFrame`, and where to read.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fluvial.delta.log import TableLog
from fluvial.delta.row_swap import CHANGE, CHANGED_AT, row_changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY, VALUE, ROWS = "_record_key", "_record_value", "_rows_of_key"

# Commits that leave nearly all rows as they are; of others, such as an overwriting, both versions are compared.
_SMALL = frozenset(
    {"STREAMING UPDATE", "MERGE", "UPDATE", "DELETE", "OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES"}
)
_COMMITS_MAX = 200
_LOST_FILE = ("FileNotFoundException", "FILE_NOT_EXIST", "DELTA_FILE_NOT_FOUND")


class LostVersionError(Exception):
    """
    A version of a table can no longer be read.
    """


def came_and_went(
    session: "SparkSession", log: TableLog, columns: Sequence[str], *, since: int | None, until: int
) -> "DataFrame":
    """
    The rows that went since one version and came up to the other, as `row_changes` gives them.

    Rows that are in both may be among them, as gone and come. `since` is None for a table of which nothing was there.
    """
    if since is not None and _is_small(log, since, until):
        changes = _row_changes(session, log, since, until)
        if changes is not None:
            return changes.select(*_quoted(columns), CHANGE, CHANGED_AT)
    came = read_version(session, log.path, until)
    if since is None:
        return came_rows(came, columns)
    return came_rows(came, columns).unionByName(
        went_rows(aligned(read_version(session, log.path, since), came, columns), columns)
    )


def came_rows(rows: "DataFrame", columns: Sequence[str]) -> "DataFrame":
    """
    Rows as having come.
    """
    return rows.selectExpr(*_quoted(columns), f"'insert' AS {CHANGE}", f"1L AS {CHANGED_AT}")


def went_rows(rows: "DataFrame", columns: Sequence[str]) -> "DataFrame":
    """
    Rows as having gone.
    """
    return rows.selectExpr(*_quoted(columns), f"'delete' AS {CHANGE}", f"1L AS {CHANGED_AT}")


def aligned(rows: "DataFrame", like: "DataFrame", columns: Sequence[str]) -> "DataFrame":
    """
    Rows with these columns in the types of `like`, null where they have none.
    """
    types = {field.name: field.dataType.simpleString() for field in like.schema}
    return rows.selectExpr(
        *(
            f"CAST(`{name}` AS {types[name]}) AS `{name}`"
            if name in rows.columns
            else f"CAST(NULL AS {types[name]}) AS `{name}`"
            for name in columns
        )
    )


def changed_keys(changes: "DataFrame", key: str) -> "DataFrame":
    """
    One row a key that changed: :data:`KEY` as text, `before` and `after` (null where there is none), :data:`ROWS`.

    A key whose row is as it was is left out. ROWS is the number of rows of the key that came with the last version that
    brought any; where it is not 1, or the key is null, the table has not one row a key.
    """
    from pyspark.sql.functions import expr

    columns = [name for name in changes.columns if name not in {CHANGE, CHANGED_AT}]
    row = ", ".join(f"'{name}', `{name}`" for name in columns)
    came, went = f"FILTER (WHERE {CHANGE} = 'insert')", f"FILTER (WHERE {CHANGE} = 'delete')"
    of_version = (
        changes.selectExpr(f"CAST(`{key}` AS STRING) AS {KEY}", f"named_struct({row}) AS row", CHANGE, CHANGED_AT)
        .groupBy(KEY, CHANGED_AT)
        .agg(
            expr(f"first(row) {came} AS came"),
            expr(f"first(row) {went} AS went"),
            expr(f"count(*) {came} AS n"),
        )
    )
    return (
        of_version.groupBy(KEY)
        .agg(
            # What stood there first went with the first version of all, or it was not there.
            expr(f"min_by(went, {CHANGED_AT}) AS before"),
            expr(f"max_by(came, {CHANGED_AT}) AS after"),
            expr(f"max_by(n, {CHANGED_AT}) AS {ROWS}"),
        )
        .where(f"NOT ({_comparable(changes, columns, 'before')} <=> {_comparable(changes, columns, 'after')}) OR "
               f"{ROWS} > 1 OR {KEY} IS NULL")
    )  # fmt: skip


def records(changed: "DataFrame", schema: str, schema_id: int) -> "DataFrame":
    """
    The records of changed keys: :data:`KEY`, :data:`VALUE` in Confluent's framing, null for a tombstone.
    """
    from pyspark.sql import functions as sql
    from pyspark.sql.avro.functions import to_avro

    framed = sql.concat(sql.lit(b"\0" + schema_id.to_bytes(4, "big")), to_avro(sql.col("after"), schema))
    return changed.select(KEY, sql.when(sql.col("after").isNotNull(), framed).alias(VALUE), ROWS)


def _comparable(changes: "DataFrame", columns: Sequence[str], of: str) -> str:
    """A row in a form that can be compared, which maps cannot."""
    maps = {field.name for field in changes.schema if "map<" in field.dataType.simpleString()}
    if not maps:
        return of
    fields = ", ".join(f"to_json({of}.`{name}`)" if name in maps else f"{of}.`{name}`" for name in columns)
    return f"struct({of} IS NULL, {fields})"


def _is_small(log: TableLog, since: int, until: int) -> bool:
    commits = [commit for commit in log.newest_first(above=since) if commit.version <= until]
    # A commit that was cleaned away may have been of any kind.
    whole = len(commits) == until - since
    return whole and len(commits) <= _COMMITS_MAX and all(commit.operation in _SMALL for commit in commits)


def _row_changes(session: "SparkSession", log: TableLog, since: int, until: int) -> "DataFrame | None":
    from pyspark.errors import AnalysisException

    try:
        return row_changes(session, log.path, since=since, until=until)
    except AnalysisException:
        # A column that came or changed in between, or a commit that is gone: both versions are compared instead.
        return None


def read_version(session: "SparkSession", path: str, version: int) -> "DataFrame":
    """
    The rows of a version of a table. Raises :class:`LostVersionError`.
    """
    from pyspark.errors import AnalysisException

    try:
        return session.read.format("delta").option("versionAsOf", str(version)).load(path)
    except AnalysisException as error:
        raise LostVersionError(f"version {version} of {path} is no longer in its log") from error


def _quoted(columns: Sequence[str]) -> list[str]:
    return [f"`{name}`" for name in columns]


@contextmanager
def explain_lost_files() -> Iterator[None]:
    """
    Raise :class:`LostVersionError` where a job fails for a data file that is gone, as VACUUM takes old versions' files.
    """
    try:
        yield
    except Exception as error:
        # Of a failed job Spark hands over the error of the JVM as it is, or one of its own.
        if any(mark in str(error) for mark in _LOST_FILE):
            raise LostVersionError(str(error)) from error
        raise
