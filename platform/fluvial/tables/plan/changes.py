"""
What a batch changes in a state that a reducer makes, or that keeps its versions: rows that are new, and rows in the
place of others.

Versions are made of the state after each event, whichever fold gave it: where the state is another than before, a
version ends and the next begins. The table's current row stands before the events of its entity, so that it makes no
difference where batches were cut.
"""

from typing import TYPE_CHECKING

from fluvial.delta.row_swap import FILE, ROW, WRITTEN
from fluvial.tables.declare.declarations import FOLD_COLUMN, VERSION_COLUMNS, State
from fluvial.tables.plan import frames
from fluvial.tables.plan.reducer_plan import reduced

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VALID_FROM, VALID_TO, IS_CURRENT = VERSION_COLUMNS
# The first event of a version, and the offset of the one that ended it.
_PLACE_COLUMNS = ("_partition", "_offset", "_end_offset")

_EARLIER = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
_SO_FAR = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
_ALL = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"


def is_stepwise(declaration: State) -> bool:
    """
    Whether the table is made by :func:`state_changes`, and not by partial values alone.
    """
    return declaration.reducer is not None or declaration.scd2 is not None


def state_changes(events: "DataFrame", old: "DataFrame | None", declaration: State) -> "DataFrame":
    """
    The table's columns, FILE, ROW and WRITTEN of each row that a batch changes.

    `events` are :func:`~fluvial.tables.plan.frames.keyed_events`, `old` the rows of their entities in the table, each
    with FILE and ROW; of a state with versions only the current ones. A row with a FILE takes the place of that one.
    """
    return _one_row(events, old, declaration) if declaration.scd2 is None else _versions(events, old, declaration)


def state_rows(events: "DataFrame", declaration: State) -> "DataFrame":
    """
    The rows of a table that holds nothing yet.
    """
    return state_changes(events, None, declaration).where(WRITTEN).drop(FILE, ROW, WRITTEN)


def state_steps(events: "DataFrame", declaration: State) -> "DataFrame":
    """
    The state after each of all events of some entities: `_entity`, `_partition`, `_offset`, `_alive` and its columns.
    """
    events = events.selectExpr("*", "_timestamp AS _at")
    if declaration.reducer is not None:
        steps = reduced(events, None, declaration, carried=("_partition", "_offset", "_at"), each=True)
    else:
        steps = _folded_steps(events, None, declaration)
    columns = [f"_entity AS `{declaration.key}`", *_quoted(declaration.columns)]
    return steps.selectExpr("_entity", "_partition", "_offset", "_alive", *columns)


def _one_row(events: "DataFrame", old: "DataFrame | None", declaration: State) -> "DataFrame":
    columns = [f"_entity AS `{declaration.key}`", *_quoted(declaration.columns)]
    if old is None:
        nowhere = (f"CAST(NULL AS STRING) AS {FILE}", f"CAST(NULL AS BIGINT) AS {ROW}")
        return reduced(events, None, declaration).selectExpr(*columns, *nowhere, f"_alive AS {WRITTEN}")
    found = reduced(events, old, declaration, carried=(FILE, ROW))
    return found.selectExpr(*columns, FILE, ROW, f"_alive AS {WRITTEN}")


def _versions(events: "DataFrame", old: "DataFrame | None", declaration: State) -> "DataFrame":
    at = f"CASE WHEN _tombstone THEN _timestamp ELSE coalesce({declaration.scd2}, _timestamp) END AS _at"
    events = events.selectExpr("*", at)
    if declaration.reducer is not None:
        steps = reduced(events, old, declaration, carried=("_partition", "_offset", "_at"), each=True)
    else:
        steps = _folded_steps(events, old, declaration)
    remembers = FOLD_COLUMN in steps.columns
    memory = f"`{FOLD_COLUMN}`" if remembers else "CAST(NULL AS STRING)"
    inner = ", ".join(f"'{name}', `{name}`" for name in declaration.columns)
    shape = (f"named_struct({inner}) AS _state", f"{memory} AS _memory")
    rows = steps.selectExpr(
        *("_entity", "_partition", "_offset", "_at", "_alive", *shape),
        *(f"CAST(NULL AS STRING) AS {FILE}", f"CAST(NULL AS BIGINT) AS {ROW}"),
    )
    if old is not None:
        begun = (f"`{declaration.key}` AS _entity", "_partition", "_offset", f"{VALID_FROM} AS _at", "true AS _alive")
        rows = rows.unionAll(old.selectExpr(*begun, *shape, FILE, ROW))
    one = "PARTITION BY _entity"
    # The row that is in the table comes before the events.
    ordered = f"{one} ORDER BY {FILE} IS NULL, _partition, _offset"
    state = _comparable(rows, "_state")
    compared = rows.selectExpr(
        "*",
        f"coalesce(lag(_alive) OVER ({ordered}), false) AS _was",
        f"{state} <=> lag({state}) OVER ({ordered}) AS _same",
        f"last(_memory) OVER ({ordered} {_ALL}) AS _memory_now",
    )
    # From here on only rows that begin a version or end the entity, which a life of it ends with.
    cuts = compared.where("CASE WHEN _alive THEN NOT _was OR NOT _same ELSE _was END").selectExpr(
        "*", f"count(CASE WHEN NOT _alive THEN 1 END) OVER ({ordered} {_EARLIER}) AS _life"
    )
    # A clock may go back, and the log does not: no version begins before the one that it follows.
    lives = f"PARTITION BY _entity, _life ORDER BY {FILE} IS NULL, _partition, _offset {_SO_FAR}"
    timed = cuts.selectExpr("*", f"max(_at) OVER ({lives}) AS {VALID_FROM}")
    closed = timed.selectExpr(
        "*",
        f"lead({VALID_FROM}) OVER ({ordered}) AS {VALID_TO}",
        f"lead(_offset) OVER ({ordered}) AS _end_offset",
        f"lead(_alive) OVER ({ordered}) IS NULL AS {IS_CURRENT}",
    )
    # A current row that stays as it is need not be written again.
    changed = closed.where(
        f"_alive AND NOT ({FILE} IS NOT NULL AND {IS_CURRENT} AND {_comparable(closed, '_memory')} <=> "
        f"{_comparable(closed, '_memory_now')})"
    )
    return changed.selectExpr(
        f"_entity AS `{declaration.key}`",
        *(f"_state.`{name}` AS `{name}`" for name in declaration.columns),
        *VERSION_COLUMNS,
        *_PLACE_COLUMNS,
        *([f"CASE WHEN {IS_CURRENT} THEN _memory_now END AS `{FOLD_COLUMN}`"] if remembers else []),
        *(FILE, ROW, f"true AS {WRITTEN}"),
    )


def _folded_steps(events: "DataFrame", old: "DataFrame | None", declaration: State) -> "DataFrame":
    """The state after each event, by the declaration's folds: `_entity`, the place, `_at`, `_alive`, the columns."""
    ordered = "PARTITION BY _entity ORDER BY _partition, _offset"
    lives = events.selectExpr("*", f"count(CASE WHEN _tombstone THEN 1 END) OVER ({ordered} {_EARLIER}) AS _life")
    over = f"PARTITION BY _entity, _life ORDER BY _partition, _offset {_SO_FAR}"
    place = frames.place_of(declaration)
    partials = lives.selectExpr(
        *("_entity", "_partition", "_offset", "_at", "NOT _tombstone AS _alive", "_life > 0 AS _ended"),
        *(f"{fold.partial(place, over)} AS `_p_{name}`" for name, fold in declaration.fields.items()),
    )
    step = [f"s.{name}" for name in ("_entity", "_partition", "_offset", "_at", "_alive")]
    if old is None:
        columns = (f"{expression} AS `{name}`" for name, expression in frames.state_inserts(declaration).items())
        return partials.alias("s").selectExpr(*columns, *step)
    return frames.state_merged(partials, old, declaration, *step)


def _comparable(rows: "DataFrame", name: str) -> str:
    """The column in a form that can be compared, which maps cannot."""
    return f"to_json({name})" if "map<" in rows.schema[name].dataType.simpleString() else name


def _quoted(names: tuple[str, ...]) -> list[str]:
    return [f"`{name}`" for name in names]
