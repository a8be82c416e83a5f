"""
The rows of a table and of what came behind it, as one query: the folds are the declaration's own SQL. Pure.

Whoever asks it, Sail or Spark, reads the table at its version and the tail's events from a file, and merges them by the
expressions that a run merges a batch by (:mod:`fluvial.tables.plan.frames`).
"""

from collections.abc import Mapping, Sequence

from fluvial.query.references import quoted
from fluvial.tables.declare.declarations import State
from fluvial.tables.declare.folds import PLACE
from fluvial.tables.plan import frames

Types = Mapping[str, str]
"""The columns of a table in their order, with Spark's names of their types."""


def history(table: str, tail: str, types: Types) -> str:
    """
    The rows of a history: `table` and `tail` are what stands behind FROM.
    """
    names = _listed(types)
    return f"SELECT {names} FROM {table} UNION ALL SELECT {names} FROM {tail}"


def compacted(key: str, fields: Sequence[str], table: str, tail: str, types: Types) -> str:
    """
    The latest row of each key; one that is newer in the table stays, as a key may be in two partitions.
    """
    row = frames.compacted_struct([name for name in fields if name != key], deleted="_tombstone")
    rows = f"SELECT _entity, {PLACE} AS _place, {row} AS _row FROM {tail}"
    latest = f"SELECT _entity, {frames.LATEST_ROW} FROM ({rows}) GROUP BY _entity"
    of_key = f"t.{quoted(key)} = s._entity"
    newer = "(s._row._partition > t._partition OR (s._row._partition = t._partition AND s._row._offset > t._offset))"
    made = ", ".join(
        f"CAST({'s._entity' if name == key else f's._row.{quoted(name)}'} AS {kind}) AS {quoted(name)}"
        for name, kind in types.items()
    )
    return (
        f"SELECT {_listed(types, 't.')} FROM {table} t LEFT ANTI JOIN ({latest}) s ON {of_key} AND {newer} "
        f"UNION ALL SELECT {made} FROM ({latest}) s LEFT JOIN {table} t ON {of_key} "
        f"WHERE NOT s._row._deleted AND (t.{quoted(key)} IS NULL OR {newer})"
    )


def state(declaration: State, table: str, tail: str, keys: str, types: Types) -> str:
    """
    The rows of a state of folds; `keys` has the entities of the tail, each once, as `_entity`.
    """
    aggregates = ", ".join(frames.state_aggregates(declaration))
    events = f"SELECT * FROM (SELECT *, {frames.ENDED_AT} FROM {tail}) WHERE {frames.COUNTS}"
    partials = f"SELECT _entity, {aggregates} FROM ({events}) GROUP BY _entity"
    key = quoted(declaration.key)
    merged = frames.merged_columns(declaration, types, is_new=f"t.{key} IS NULL")
    made = ", ".join(merged[name] for name in types)
    return (
        f"{untouched(declaration, table, keys, types)} UNION ALL "
        f"SELECT {made} FROM ({partials}) s LEFT JOIN {table} t ON s._entity = t.{key} WHERE s._alive"
    )


def reduced(declaration: State, table: str, made: str, keys: str, types: Types) -> str:
    """
    The rows of a state whose reducer has made those in `made` of the entities in `keys`.
    """
    return f"{untouched(declaration, table, keys, types)} UNION ALL SELECT {_listed(types)} FROM {made}"


def untouched(declaration: State, table: str, keys: str, types: Types) -> str:
    """
    The rows of a table whose entities are not among `keys`.
    """
    on = f"t.{quoted(declaration.key)} = k._entity"
    return f"SELECT {_listed(types, 't.')} FROM {table} t LEFT ANTI JOIN {keys} k ON {on}"


def touched(declaration: State, table: str, keys: str) -> str:
    """
    The rows of the entities in `keys`, with what a reducer goes on from.
    """
    columns = _listed((declaration.key, *declaration.columns), "t.")
    return f"SELECT {columns} FROM {table} t LEFT SEMI JOIN {keys} k ON t.{quoted(declaration.key)} = k._entity"


def of_keys(key: str, table: str, keys: str, types: Types) -> str:
    """
    The rows of a table whose `key` is among the entities in `keys`.
    """
    return f"SELECT {_listed(types, 't.')} FROM {table} t LEFT SEMI JOIN {keys} k ON t.{quoted(key)} = k._entity"


def of_other_keys(names: Mapping[str, str], table: str, keys: str, types: Types) -> str:
    """
    The rows of a table whose key is not in `keys`, whose columns have these `names` there; null is a value of a key.
    """
    same = " AND ".join(f"t.{quoted(name)} <=> k.{quoted(there)}" for name, there in names.items())
    return f"SELECT {_listed(types, 't.')} FROM {table} t LEFT ANTI JOIN {keys} k ON {same}"


def cast(rows: str, types: Types) -> str:
    """
    The columns of a table by their names, with their types.
    """
    columns = ", ".join(f"CAST({quoted(name)} AS {kind}) AS {quoted(name)}" for name, kind in types.items())
    return f"SELECT {columns} FROM {rows}"


def listed(table: str, types: Types) -> str:
    """
    The columns of a table by their names.
    """
    return f"SELECT {_listed(types)} FROM {table}"


def _listed(names: Sequence[str] | Types, source: str = "") -> str:
    return ", ".join(f"{source}{quoted(name)}" for name in names)
