"""
The rows that came to a table on this machine and went with some commits: read here, without a job of Spark's.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fluvial.delta.log import TableLog
from fluvial.delta.row_places import opened, rows_at, rows_there
from fluvial.delta.row_swap import CHANGE, CHANGED_AT
from fluvial.delta.table_here import plain_schema, table_here

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Action = Mapping[str, Any]
# Of larger files, of which few rows are marked as gone, Spark reads the parts side by side.
_BYTES_MAX = 64 << 20


def changes_here(session: "SparkSession", path: str, *, since: int, until: int) -> "DataFrame | None":
    """
    The rows as :func:`~fluvial.delta.row_swap.row_changes` has them, as a frame of what this process has read; None
    where they are for Spark to read: the table is not on this machine or has nested values, or they are in large files.

    Raises :class:`~fluvial.delta.errors.TableError` for a data file that is missing or damaged.
    """
    import pyarrow as pa
    from pyspark.sql.types import LongType, StringType, StructType

    snapshot, log = table_here(path, until), TableLog(None, path)
    schema = None if snapshot is None else plain_schema(snapshot)
    if snapshot is None or schema is None:
        return None
    commits = {version: changed_files(log, version) for version in range(since + 1, until + 1)}
    if sum(_size(*file) for files in commits.values() for file in files) > _BYTES_MAX:
        return None
    parts = [
        rows.append_column(CHANGE, pa.repeat("insert" if came else "delete", rows.num_rows)).append_column(
            CHANGED_AT, pa.repeat(pa.scalar(version, pa.int64()), rows.num_rows)
        )
        for version, files in commits.items()
        for before, after in files
        for came, rows in _changes(path, before, after, schema)
        # Spark reads no further than a part that is empty.
        if rows.num_rows
    ]
    columns = pa.schema([*schema, (CHANGE, pa.string()), (CHANGED_AT, pa.int64())])
    rows = pa.concat_tables(parts) if parts else columns.empty_table()
    kinds = StructType.fromJson(json.loads(snapshot.schema)).add(CHANGE, StringType()).add(CHANGED_AT, LongType())
    return session.createDataFrame(rows, schema=kinds)


def changed_files(log: TableLog, version: int) -> list[tuple[Action | None, Action | None]]:
    """
    What a commit says of each data file with a change of rows: how it was removed and how it was added, either of them
    None where it was not there before or is no longer; both where other rows of it are marked.
    """
    files: dict[str, dict[str, Action]] = defaultdict(dict)
    for action in log.actions(version):
        for kind in ("add", "remove"):
            file = action.get(kind)
            if file is not None and file.get("dataChange", True):
                files[file["path"]][kind] = file
    return [(file.get("remove"), file.get("add")) for file in files.values()]


def _changes(
    path: str, before: Action | None, after: Action | None, schema: "pa.Schema"
) -> "Iterator[tuple[bool, pa.Table]]":
    with opened(path, after or before or {}) as file:
        count, nothing = file.metadata.num_rows, np.empty(0, np.int64)
        was, is_there = (nothing if each is None else rows_there(path, each, count) for each in (before, after))
        yield False, rows_at(file, np.setdiff1d(was, is_there, assume_unique=True), schema)
        yield True, rows_at(file, np.setdiff1d(is_there, was, assume_unique=True), schema)


def _size(before: Action | None, after: Action | None) -> int:
    return int((after or before or {}).get("size") or 0)
