"""
A reducer over the events behind a table, in this process, by the code that runs on Spark's workers. Pure.
"""

from typing import TYPE_CHECKING

from fluvial.tables.declare.declarations import State
from fluvial.tables.plan import reducer_worker
from fluvial.tables.plan.reducer_plan import ReducerError

if TYPE_CHECKING:
    import pyarrow as pa


def reduced_rows(declaration: State, old: "pa.Table", events: "pa.Table") -> "pa.Table":
    """
    The rows of the entities of `events` that are left, where `old` are those in the table: the key, then the state.

    Raises :class:`~fluvial.tables.plan.reducer_plan.ReducerError` as a run would.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    reducer = declaration.reducer
    assert reducer is not None, "the declaration has a reducer"
    names = [name for name in events.column_names if name not in ("_entity", "_tombstone")]
    state = [old.schema.field(name).type for name in reducer.names]
    wide = [
        ("_entity", pa.string()),
        ("_tombstone", pa.bool_()),
        *((f"_event_{number}", events.schema.field(name).type) for number, name in enumerate(names)),
        *((f"_state_{number}", kind) for number, kind in enumerate(state)),
    ]
    shape = pa.schema(wide)
    none = [None] * len(names), [None] * len(state)
    rows = pa.concat_tables(
        [
            _shaped(old, [declaration.key, None, *none[0], *reducer.names], shape),
            _shaped(events, ["_entity", "_tombstone", *names, *none[1]], shape),
        ]
    )
    partition, offset = (rows[f"_event_{names.index(name)}"] for name in ("_partition", "_offset"))
    # The row that is in the table, which has no place, comes before the events.
    order = pa.table({"entity": rows["_entity"], "partition": pc.fill_null(partition, -1), "offset": offset})
    rows = rows.take(pc.sort_indices(order, sort_keys=[(name, "ascending") for name in order.column_names]))
    answer = pa.schema([("_entity", pa.string()), *zip(reducer.names, state, strict=True), ("_alive", pa.bool_())])
    try:
        found = reducer_worker.fold_batches(
            rows.to_batches(max_chunksize=reducer_worker.ROWS_MAX),
            reducer.function,
            events=names,
            columns=reducer.columns,
            carried=0,
            schema=answer,
            each=False,
        )
        made = pa.Table.from_batches(found, answer)
    except reducer_worker.ReduceError as error:
        raise (ReducerError.from_cause(error, declaration.table) or error) from error
    return made.filter(made["_alive"]).drop_columns("_alive").rename_columns([declaration.key, *reducer.names])


def _shaped(rows: "pa.Table", names: "list[str | None]", shape: "pa.Schema") -> "pa.Table":
    import pyarrow as pa

    columns = [
        pa.nulls(rows.num_rows, field.type) if name is None else rows[name].cast(field.type)
        for name, field in zip(names, shape, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=shape)
