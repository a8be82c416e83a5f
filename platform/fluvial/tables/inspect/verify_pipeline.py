"""
Proof that a pipeline's table is what its transform makes of the versions of the inputs that its stamp names.

The transform runs over the whole inputs, and the rows are compared by the key, or as a whole where there is none.
Floating-point numbers may differ by 1e-9 of the larger one: sums and means depend on the order of their rows.
"""

from typing import TYPE_CHECKING, Any

from fluvial.delta.errors import TableError
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import InputVersion, MartStamp, newest_made
from fluvial.spark.connect import session_of_its_own
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import Pipeline
from fluvial.tables.declare.windows import WINDOW_START
from fluvial.tables.plan.late_rows import LATE_COLUMNS, LATE_PLACE
from fluvial.tables.publishing.changes import LostVersionError, explain_lost_files, read_version
from fluvial.tables.refresh.comparison import SHOWN_MAX, Difference, NotBuiltError, Verdict, comparable, same_value
from fluvial.tables.refresh.late_table import LateTable, late_table_of
from fluvial.tables.refresh.pipeline_inputs import code_version, read_input, transformed
from fluvial.tables.refresh.windowed_inputs import all_on_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def verify_pipeline(declaration: Pipeline, warehouse: Warehouse, spark: "SparkSession") -> Verdict:
    """
    Compare a pipeline's table with the batch query at the versions of its inputs that it was made from.

    Raises :class:`~fluvial.delta.errors.TableError` where these can no longer be read, or the code has changed.
    """
    if declaration.output_mode is not None:
        raise TableError(
            f"{declaration.table} is made by a streaming query, whose answer may depend on how its inputs came: no "
            "batch query tells what it must be"
        )
    log = TableLog(spark, warehouse.path(declaration.table))
    log.check()
    version = log.newest_version()
    made = None if version is None else newest_made(log, until=version)
    if version is None or made is None:
        raise NotBuiltError(f"{declaration.table} does not exist: run it first (`fluvial run {declaration.table}`)")
    _check_code(declaration, made.stamp)
    with session_of_its_own(spark) as session:
        frames = []
        late = _recorded_late(declaration, warehouse, session, made.stamp)
        for table, at in made.stamp.inputs.items():
            path = warehouse.path(table)
            _check_input(declaration, TableLog(session, path), table, at)
            frames.append(all_on_time(declaration, table, read_version(session, path, at.version), made.stamp, late))
        table = read_input(session, log.path, version)
        try:
            with explain_lost_files():
                rows, different, shown, close = _compared(declaration, transformed(declaration, frames), table)
                wrong = _late_difference(declaration, warehouse, session, made.stamp, late)
        except LostVersionError as error:
            raise _lost(declaration, "files of an input are gone (VACUUM)") from error
    return Verdict(
        table=declaration.table,
        version=version,
        ranges={},
        rows=rows,
        different=different + len(wrong),
        differences=(*wrong, *shown),
        inputs={table: at.version for table, at in made.stamp.inputs.items()},
        close=tuple(close),
    )


def _recorded_late(
    declaration: Pipeline, warehouse: Warehouse, session: "SparkSession", stamp: MartStamp
) -> "DataFrame | None":
    """The late rows that a stamp names; None where rows of no input can be late."""
    if stamp.watermarks is None or stamp.watermarks.late is None:
        return None
    table = LateTable(declaration=declaration, warehouse=warehouse, session=session)
    return read_version(session, table.log.path, stamp.watermarks.late.version).select(*LATE_COLUMNS)


def _late_difference(
    declaration: Pipeline, warehouse: Warehouse, session: "SparkSession", stamp: MartStamp, held: "DataFrame | None"
) -> list[Difference]:
    """What the late rows that are `held` with a stamp have otherwise than the inputs tell."""
    if held is None or stamp.watermarks is None:
        return []
    table = LateTable(declaration=declaration, warehouse=warehouse, session=session)
    expected = table.whole(stamp)
    assert expected is not None, "an input has a watermark"
    missing, more = expected.exceptAll(held), held.exceptAll(expected)
    if stamp.watermarks.final is not None:
        # Rows that came for what was final are late whatever their own partition's watermark was.
        missing = missing.select(*LATE_PLACE).exceptAll(held.select(*LATE_PLACE))
        more = more.where(f"unix_micros({WINDOW_START}) > {stamp.watermarks.final}L")
    lacking, surplus = missing.count(), more.count()
    if not (lacking or surplus):
        return []
    what = f"lacks {lacking:,} rows that are late, and has {surplus:,} that are not"
    return [Difference(where=late_table_of(declaration), what=what)]


def _check_code(declaration: Pipeline, stamp: MartStamp) -> None:
    if stamp.pipeline != declaration.name or stamp.code != code_version(declaration):
        raise TableError(
            f"the code of {declaration.table} has changed since it was written: `fluvial run {declaration.table}` "
            "writes it again"
        )
    if list(stamp.inputs) != list(declaration.inputs):
        raise TableError(f"{declaration.table} was made from other inputs: `fluvial run {declaration.table}`")


def _check_input(declaration: Pipeline, log: TableLog, table: str, at: InputVersion) -> None:
    commits = {commit.version: commit for commit in log.newest_first(above=at.version - 1)}
    found = commits.get(at.version)
    if found is None:
        raise _lost(declaration, f"version {at.version} of {table} is no longer in its log")
    if found.txn_id != at.commit:
        raise _lost(declaration, f"{table} was made again since")


def _lost(declaration: Pipeline, why: str) -> TableError:
    return TableError(
        f"{declaration.table} cannot be compared with the inputs that it was made from: {why}; run it, then verify it"
    )


def _compared(
    declaration: Pipeline, batch: "DataFrame", table: "DataFrame"
) -> tuple[int, int, list[Difference], list[str]]:
    """The rows of the batch query, how many keys differ, the first of them, and the columns that are only close."""
    if sorted(batch.columns) != sorted(table.columns):
        shown = Difference(where="the table", what=f"has the columns {', '.join(table.columns)}")
        return batch.count(), 1, [shown], []
    close = [name for name, kind in batch.dtypes if kind in {"double", "float"} and name not in declaration.key]
    exact = [name for name in batch.columns if name not in close and name not in declaration.key]
    by = list(declaration.key) or exact
    inner = [*(exact if declaration.key else ()), *close]
    same = [same_value(f"one._c{index}", f"other._c{index}", close=name in close) for index, name in enumerate(inner)]
    all_same = f"forall(zip_with(b._rows, t._rows, (one, other) -> {' AND '.join(same) or 'true'}), each -> each)"
    verdict = (
        "CASE WHEN t._rows IS NULL THEN 'is missing' WHEN b._rows IS NULL THEN 'is not in the batch query' "
        "WHEN size(b._rows) <> size(t._rows) THEN "
        "concat('has ', size(t._rows), ' rows, and ', size(b._rows), ' in the batch query') "
        f"WHEN NOT {all_same} THEN 'has other values' END"
    )
    places = ", ".join(
        f"', {name} ', coalesce(CAST(b._by{index} AS STRING), CAST(t._by{index} AS STRING), 'null')"
        for index, name in enumerate(by)
    )
    from pyspark.sql.functions import expr

    on = " AND ".join(f"b._by{index} <=> t._by{index}" for index in range(max(len(by), 1)))
    compared = (
        _grouped(batch, by, inner)
        .alias("b")
        .join(_grouped(table, by, inner).alias("t"), expr(on), "full_outer")
        .selectExpr(
            f"substring(concat({places or repr(', all')}), 3) AS _where",
            f"{verdict} AS _what",
            "greatest(coalesce(size(b._rows), 0), 0) AS _n",
        )
        .persist()
    )
    try:
        rows = compared.selectExpr("coalesce(sum(_n), 0)").collect()[0][0]
        wrong = compared.where("_what IS NOT NULL")
        different = wrong.count()
        found: list[Any] = wrong.orderBy("_where").limit(SHOWN_MAX).collect() if different else []
    finally:
        compared.unpersist()
    return rows, different, [Difference(where=row._where, what=row._what) for row in found], close


def _grouped(rows: "DataFrame", by: list[str], inner: list[str]) -> "DataFrame":
    """The rows of each value of the columns `by`, in an order that both sides have."""
    from pyspark.sql.functions import expr

    groups = [f"{comparable(rows, name)} AS _by{index}" for index, name in enumerate(by)] or ["1 AS _by0"]
    fields = ", ".join(f"'_c{index}', {comparable(rows, name)}" for index, name in enumerate(inner)) or "'_c0', 1"
    selected = rows.selectExpr(*groups, f"named_struct({fields}) AS _row")
    names = [f"_by{index}" for index in range(len(groups))]
    return selected.groupBy(*names).agg(expr("sort_array(collect_list(_row)) AS _rows"))
