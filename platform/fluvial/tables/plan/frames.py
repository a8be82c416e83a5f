"""
Decoded records to the rows of a table: `DataFrame -> DataFrame`, no reading or writing.

A batch is first planned as most batches are: every record decodes, and no tombstone ends an entity. A guard in the plan
(:mod:`fluvial.tables.plan.guards`) stops the job at the first record that is otherwise, before anything is committed,
and the batch is planned again with what that record needs. So the common batch reads and decodes its records once. A
record without a key is for no table of entities: it is left out, or stops the run where the contract says which field
the key is.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fluvial.delta.row_swap import FILE, ROW, WRITTEN
from fluvial.spark.avro import Contract, is_undecodable, reason
from fluvial.tables.declare.declarations import FOLD_COLUMN, State
from fluvial.tables.declare.folds import PLACE
from fluvial.tables.plan.guards import Care, Guard, unless

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

META_COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "_key", "_schema_id")
LATEST_ROW = "max_by(_row, _place) AS _row"
"""Of the rows of a key the one that stays."""
ENDED_AT = f"max(CASE WHEN _tombstone THEN {PLACE} END) OVER (PARTITION BY _entity) AS _ended_at"
"""The place of an entity's last tombstone, and what of its events counts."""
COUNTS = f"_ended_at IS NULL OR {PLACE} >= _ended_at"
_IS_TEXT = "is_valid_utf8(CAST(_key AS STRING))"
COMPACTED_COLUMNS = ("_partition", "_offset", "_timestamp", "_schema_id")


def keyed(decoded: "DataFrame", care: Care) -> "DataFrame":
    """
    The records that have a key, which is text: others are left out, or stop the job where there must be none.
    """
    with_key = "_key IS NOT NULL" if care.keyless else unless("_key IS NULL", Guard.KEYLESS)
    with_text = f"_key IS NULL OR {_IS_TEXT}" if care.binary_keys else unless(f"NOT {_IS_TEXT}", Guard.BINARY_KEY)
    return decoded.where(with_key).where(with_text)


def decodable(decoded: "DataFrame", care: Care) -> "DataFrame":
    """
    The rows that belong in a table: those that go to quarantine are left out, or stop the job where none is expected.
    """
    if care.undecodable:
        return decoded.where(f"NOT ({is_undecodable()})")
    return decoded.where(unless(is_undecodable(), Guard.UNDECODABLE))


def quarantine_rows(decoded: "DataFrame", contract: Contract) -> "DataFrame":
    """
    The records that do not decode, as they came, with the reason.
    """
    return decoded.where(is_undecodable()).selectExpr(
        "_topic", "_partition", "_offset", "_timestamp", "_key", "_raw AS _value", f"{reason(contract)} AS _reason"
    )


def keyless_rows(decoded: "DataFrame", guard: Guard) -> "DataFrame":
    """
    The records that decode and at which a guard of keys stops a job, as they came, with the reason.
    """
    wrong = "_key IS NULL" if guard is Guard.KEYLESS else f"NOT {_IS_TEXT}"
    return decoded.where(f"{wrong} AND NOT ({is_undecodable()})").selectExpr(
        "_topic", "_partition", "_offset", "_timestamp", "_key", "_raw AS _value", f"'{guard}' AS _reason"
    )


def history_rows(decoded: "DataFrame", contract: Contract, care: Care) -> "DataFrame":
    """
    One row a record: the contract's fields (null for a tombstone), then where the record stands in the log.
    """
    if care.undecodable:
        return decodable(decoded, care).selectExpr(*_fields(contract), *META_COLUMNS)
    # The guard stands in a column: as a filter it would be pushed below the decoding, and decode each record once more.
    guard = f"CASE WHEN {unless(is_undecodable(), Guard.UNDECODABLE)} THEN _schema_id END AS _schema_id"
    return decoded.selectExpr(*_fields(contract), *META_COLUMNS[:-1], guard)


def compacted_rows(decoded: "DataFrame", contract: Contract, care: Care, *, key: str) -> "DataFrame":
    """
    One row a key: `key`, the fields of its latest record, its place, and `_deleted` where that is a tombstone.
    """
    inner = [name for name in contract.field_names if name != key]
    kept = compacted_struct(inner, source="value.", deleted="_raw IS NULL")
    return (
        decodable(keyed(decoded, care), care)
        .selectExpr("CAST(_key AS STRING) AS _entity", f"{PLACE} AS _place", f"{kept} AS _row")
        .groupBy("_entity")
        .agg(_sql_expr(LATEST_ROW))
        .selectExpr(f"_entity AS `{key}`", "_row.*")
    )


def compacted_struct(fields: Sequence[str], *, source: str = "", deleted: str) -> str:
    """
    A record as a row of a compacted table: `fields` of `source`, its place, and `_deleted` where `deleted` holds.
    """
    named = (f"'{name}', {source}`{name}`" for name in fields)
    place = (f"'{name}', {name}" for name in COMPACTED_COLUMNS)
    kept = ", ".join([*named, *place, f"'_deleted', {deleted}"])
    return f"named_struct({kept})"


def compacted_swaps(latest: "DataFrame", table: "DataFrame", *, key: str) -> "DataFrame":
    """
    What the latest rows of a batch, `latest`, change in a compacted table whose rows are `table`, each with its place.

    A row that is newer in the table stays: a key may have been written to two partitions.
    """
    old = rows_of(table, key, latest.selectExpr(f"`{key}`")).selectExpr(
        f"`{key}` AS _old_key", f"{PLACE} AS _old_place", FILE, ROW
    )
    columns = [f"`{name}`" for name in latest.columns if name != "_deleted"]
    return (
        latest.join(old, _sql_expr(f"`{key}` = _old_key"), "left")
        .where(f"{FILE} IS NULL AND NOT _deleted OR {PLACE} > _old_place")
        .selectExpr(*columns, FILE, ROW, f"NOT _deleted AS {WRITTEN}")
    )


def keyed_events(decoded: "DataFrame", contract: Contract, care: Care) -> "DataFrame":
    """
    The rows that folds are written over: the contract's fields, the record's place and time, `_entity`, `_tombstone`.
    """
    return decodable(keyed(decoded, care), care).selectExpr(
        *_fields(contract), *META_COLUMNS, "CAST(_key AS STRING) AS _entity", "_raw IS NULL AS _tombstone"
    )


def state_events(decoded: "DataFrame", contract: Contract, care: Care) -> "DataFrame":
    """
    Of the :func:`keyed_events`, for each entity only its last tombstone and what came after it.
    """
    rows = keyed_events(decoded, contract, care)
    if not care.tombstones:
        return rows.where(unless("_tombstone", Guard.TOMBSTONE))
    return rows.selectExpr("*", ENDED_AT).where(COUNTS)


def state_partials(events: "DataFrame", declaration: State) -> "DataFrame":
    """
    One row an entity of the batch: `_entity`, a partial value a field (`_p_<field>`), `_ended`, `_alive`.

    `_ended` says that a tombstone took away what the table holds; `_alive`, that events came (after it).
    """
    return events.groupBy("_entity").agg(*map(_sql_expr, state_aggregates(declaration)))


def state_aggregates(declaration: State) -> list[str]:
    """
    The aggregates over an entity's events that :func:`state_partials` has as columns.
    """
    place = place_of(declaration)
    aggregates = [f"{fold.partial(place)} AS `_p_{name}`" for name, fold in declaration.fields.items()]
    return [*aggregates, "bool_or(_tombstone) AS _ended", "count(*) FILTER (WHERE NOT _tombstone) > 0 AS _alive"]


def place_of(declaration: State) -> str:
    """
    What an event comes before or after another by, in SQL.
    """
    return PLACE if declaration.order is None else f"struct({declaration.order} AS _order, _partition, _offset)"


def state_rows(partials: "DataFrame", declaration: State) -> "DataFrame":
    """
    The rows of a table that holds nothing yet.
    """
    columns = _state_columns(declaration, merged=False)
    return partials.where("_alive").selectExpr(*(f"{expression} AS `{name}`" for name, expression in columns.items()))


def state_updates(declaration: State) -> dict[str, str]:
    """
    Column to expression for a MERGE of partials `s` into the table `t`, for an entity that is there.
    """
    return _state_columns(declaration, merged=True, source="s.")


def state_inserts(declaration: State) -> dict[str, str]:
    """
    Column to expression for a MERGE of partials `s`, for an entity that is new.
    """
    return _state_columns(declaration, merged=False, source="s.")


def rows_of(table: "DataFrame", key: str, keys: "DataFrame") -> "DataFrame":
    """
    The rows of a table whose column `key` is among `keys`, a frame of one column.
    """
    (name,) = keys.columns
    # The keys of a batch are brought to the table's rows, and not these to them.
    wanted = keys.selectExpr(f"`{name}` AS _key_here").hint("broadcast")
    return table.join(wanted, _sql_expr(f"`{key}` = _key_here"), "left_semi")


def ordered(rows: "DataFrame", key: str) -> "DataFrame":
    """
    Rows that are written in the order of their keys: who looks for one skips all pages of a data file but its own.
    """
    return rows.sortWithinPartitions(f"`{key}`")


def state_swaps(partials: "DataFrame", old: "DataFrame", declaration: State) -> "DataFrame":
    """
    What the partial values of a batch change in a state table. `old` are the rows of their entities, with their places.
    """
    merged = state_merged(partials, old, declaration, f"s._alive AS {WRITTEN}", FILE, ROW)
    return merged.where(f"{WRITTEN} OR {FILE} IS NOT NULL")


def state_merged(partials: "DataFrame", old: "DataFrame", declaration: State, *more: str) -> "DataFrame":
    """
    The columns of a state table that partial values and the rows of their entities, `old`, make, with `more`.
    """
    types = {field.name: field.dataType.simpleString() for field in old.schema}
    columns = merged_columns(declaration, types, is_new=f"{FILE} IS NULL").values()
    joined = partials.alias("s").join(old.alias("t"), _sql_expr(f"s._entity = t.`{declaration.key}`"), "left")
    return joined.selectExpr(*columns, *more)


def merged_columns(declaration: State, types: Mapping[str, str], *, is_new: str) -> dict[str, str]:
    """
    By name the columns that partials `s` and rows `t` make, of these `types`; `is_new` holds where there is no row.
    """
    inserts, updates = state_inserts(declaration), state_updates(declaration)
    return {
        name: f"CAST(CASE WHEN {is_new} THEN {inserts[name]} ELSE {updates[name]} END AS {types[name]}) AS `{name}`"
        for name in updates
    }


def _state_columns(declaration: State, *, merged: bool, source: str = "") -> dict[str, str]:
    columns = {declaration.key: f"{source}_entity"}
    remembered = []
    for name, fold in declaration.fields.items():
        partial = f"{source}`_p_{name}`"
        if merged:
            old = f"t.`{FOLD_COLUMN}`.`{name}`" if fold.remembers else f"t.`{name}`"
            partial = f"(CASE WHEN s._ended THEN {partial} ELSE {fold.merge(old, partial)} END)"
        columns[name] = fold.result(partial)
        if fold.remembers:
            remembered.append(f"'{name}', {partial}")
    if remembered:
        columns[FOLD_COLUMN] = f"named_struct({', '.join(remembered)})"
    return columns


def _fields(contract: Contract) -> list[str]:
    return [f"value.`{name}`" for name in contract.field_names]


def _sql_expr(text: str) -> Any:
    from pyspark.sql.functions import expr

    return expr(text)
