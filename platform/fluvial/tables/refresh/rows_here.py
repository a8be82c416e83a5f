"""
Rows of a table that are made again in this process, without a job of Spark's, and put in the place of the old ones.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fluvial.delta.mart_stamp import MartStamp
from fluvial.delta.row_places import all_places, file_name, find_places, find_rows, read_places
from fluvial.delta.row_swap import swap_arrow_rows, takes_swaps
from fluvial.delta.snapshot import Snapshot
from fluvial.delta.table_here import plain_schema, table_here
from fluvial.tables.plan.changed_keys import ChangedKeys, key_columns
from fluvial.tables.plan.part_merge import UnmergedError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

BYTES_HERE_MAX = 128 << 20
"""So many bytes of a table's files hold the rows that are made again here."""
FEW_ROWS_MAX = 50_000
"""So many rows of an input are read here, and so many of the table written."""
FEW_BYTES_MAX = 16 << 20
"""So many bytes of a table's files hold these."""
ROWS_A_TASK = 20_000
"""So many rows are a task, and nothing that is made of them is exchanged between tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsHere:
    """
    The rows of some keys as they are now, and where the table's rows of these lie, by file.
    """

    rows: "pa.Table"
    places: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TableHere:
    """
    A table at `path` that has one row for each value of its `key`, at a `version`, in a session of the table's own.
    """

    session: "SparkSession"
    path: str
    version: int
    key: Sequence[str]

    @cached_property
    def _snapshot(self) -> Snapshot | None:
        return table_here(self.path, self.version)

    def merged(
        self,
        came: "pa.Table",
        columns: Sequence[str],
        merge: "Callable[[pa.Table, pa.Table, pa.Schema], pa.Table]",
        *,
        of: Sequence[str] | None = None,
    ) -> RowsHere | None:
        """
        The rows of the keys of `came`, each merged with the `columns` of the table's row of the same key; None where
        that cannot be done here, or the table has other columns than those `of` which it should be.
        """
        snapshot = self._snapshot
        if snapshot is None or snapshot.bytes * came.num_rows > BYTES_HERE_MAX * max(snapshot.rows or 0, came.num_rows):
            return None
        schema = plain_schema(snapshot)
        if schema is None or (of is not None and {*of} != {*schema.names}):
            return None
        keys = came.select([*self.key]).cast(_part(schema, self.key))
        found = find_rows(self.path, snapshot, keys, _part(schema, columns))
        try:
            return RowsHere(rows=merge(came, found.by_key(), schema), places=found.places)
        except UnmergedError:
            return None

    def columns_of_few(self, share: float) -> "pa.Schema | None":
        """
        The table's columns as rows written here have them; None where these are about too great a `share` of the
        table's, or of columns that are for Spark to write.
        """
        snapshot = self._snapshot
        if snapshot is None or not _are_few(snapshot, share) or not all(each.nullable for each in snapshot.columns):
            return None
        return plain_schema(snapshot)

    def takes(self, answer: "DataFrame") -> bool:
        """
        Whether :meth:`replaced_by` may be used: the table is small, and has the very columns of `answer`.
        """
        if self._snapshot is None or self.columns_of_few(1.0) is None:
            return False
        is_known = takes_swaps(self.session, self.path, only_came=True)
        return is_known and _fields(_struct(self._snapshot)) == _fields(answer.schema)

    def replaced_by(self, answer: "DataFrame") -> RowsHere:
        """
        The rows of `answer` in the place of all that the table has: no file of it is read.
        """
        columns = self.columns_of_few(1.0)
        assert columns is not None, "the table takes it"
        assert self._snapshot is not None, "the table takes it"
        counts = {each["path"]: json.loads(each["stats"])["numRecords"] for each in self._snapshot.added}
        return RowsHere(
            rows=answer.toArrow().select(columns.names).cast(columns),
            places={file_name(path): np.arange(count) for path, count in counts.items()},
        )

    def places(self, changed: ChangedKeys) -> Mapping[str, Any] | None:
        """
        Where the table's rows of these keys lie, by file; None where that is for Spark to find.
        """
        import pyarrow as pa

        if changed.here is None or self._snapshot is None:
            return None
        return find_rows(self.path, self._snapshot, changed.here.rename_columns([*self.key]), pa.schema([])).places

    def put(self, here: RowsHere, stamp: MartStamp) -> None:
        """
        Put the rows in the place of the old ones in one commit. Raises as
        :func:`~fluvial.delta.row_swap.swap_arrow_rows`.
        """
        swap_arrow_rows(self.session, self.path, here.rows, here.places, version=self.version, stamp=stamp)


def input_here(
    session: "SparkSession", path: str, version: int, *, steps: Sequence[str], changed: ChangedKeys, share: float
) -> "DataFrame | None":
    """
    The rows of an input at `path` that may be of a key that changed, as a frame of what this process has read: those
    whose columns among the `steps` that lead to the key have the values of such a key. About a `share` of the rows is
    expected. None where that is for Spark to read.
    """
    snapshot = None if changed.here is None else table_here(path, version)
    if snapshot is None or changed.here is None or not _are_few(snapshot, share):
        return None
    columns = {each.name for each in snapshot.columns}
    led = {step: name for step, name in zip(steps, key_columns(steps), strict=True) if step in columns}
    schema = plain_schema(snapshot)
    keys = changed.here.select([*led.values()]).rename_columns([*led])
    if not led or schema is None or keys.schema.types != _part(schema, [*led]).types:
        return None
    places = find_places(path, snapshot, keys.group_by(keys.column_names).aggregate([]))
    if sum(len(each.numbers) for each in places) > FEW_ROWS_MAX:
        return None
    return _frame(session, snapshot, read_places(path, places, schema))


def small_inputs(inputs: Iterable[tuple[str, int]]) -> "dict[str, tuple[Snapshot, pa.Schema]]":
    """
    What there is to read of inputs, and their columns, by path: where all of them, by path and version, are small, else
    of none. Of a frame of rows that are read here (:func:`whole_input`) Spark does not know the size: it would not send
    it to the tasks of a large input to join it there.
    """
    found = {}
    for path, version in inputs:
        snapshot = table_here(path, version)
        schema = None if snapshot is None or not _are_few(snapshot, 1.0) else plain_schema(snapshot)
        if snapshot is None or schema is None:
            return {}
        found[path] = snapshot, schema
    return found


def whole_input(session: "SparkSession", path: str, snapshot: Snapshot, schema: "pa.Schema") -> "DataFrame":
    """
    All rows of an input at `path`, as a frame of what this process has read.
    """
    return _frame(session, snapshot, read_places(path, all_places(path, snapshot), schema))


def _frame(session: "SparkSession", snapshot: Snapshot, rows: "pa.Table") -> "DataFrame":
    """Rows of a table as a frame of as few parts as are worth a task."""
    frame = session.createDataFrame(rows, schema=_struct(snapshot))
    return frame.coalesce(1) if rows.num_rows <= ROWS_A_TASK else frame


def _struct(snapshot: Snapshot) -> "StructType":
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(snapshot.schema))


def _fields(schema: "StructType") -> Mapping[str, Any]:
    """Type and metadata, such as a comment, by column."""
    return {each.name: (each.dataType, each.metadata) for each in schema.fields}


def _are_few(snapshot: Snapshot, share: float) -> bool:
    return share * (snapshot.rows or 0) <= FEW_ROWS_MAX and share * snapshot.bytes <= FEW_BYTES_MAX


def _part(schema: "pa.Schema", names: Sequence[str]) -> "pa.Schema":
    import pyarrow as pa

    return pa.schema([schema.field(name) for name in names])
