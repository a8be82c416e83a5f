"""Parts of aggregates that are merged in this process: the values are those of all rows together."""

from collections import Counter
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from fluvial.tables import aggregate, count, count_distinct, max_, mean, min_, sum_, top
from fluvial.tables.declare.aggregates import PARTS, ROWS
from fluvial.tables.declare.folds import Kind
from fluvial.tables.plan.part_merge import UnmergedError, can_merge, make_parts, merge_parts, merge_values

FIELDS = {
    "n": count(),
    "spent": sum_("amount"),
    "mean": mean("amount"),
    "low": min_("amount"),
    "last": max_("item"),
    "items": count_distinct("item"),
}
AGGREGATION = aggregate("history.orders", name="spend", by="who", fields=FIELDS).aggregation
assert AGGREGATION is not None
MEAN = pa.struct([("sum", pa.int64()), ("count", pa.int64())])
ENTRIES = pa.list_(pa.struct([("key", pa.string()), ("value", pa.int64())]))
SCHEMA = pa.schema(
    [("who", pa.string()), ("n", pa.int64()), ("spent", pa.int64()), ("mean", pa.float64()), ("low", pa.int64()),
     ("last", pa.string()), ("items", pa.int64()), (ROWS, pa.int64()),
     (PARTS, pa.struct([("mean", MEAN), ("items", ENTRIES)]))]
)  # fmt: skip
KINDS = {"who": "string", **{f"_v{at}": kind for at, kind in enumerate(["int", "bigint", "bigint", "bigint", "string",
                                                                        "string"])}}  # fmt: skip
VALUES = pa.schema(
    [("who", pa.string()), ("_v0", pa.int32()), *((f"_v{at}", pa.int64()) for at in (1, 2, 3)), ("_v4", pa.string()),
     ("_v5", pa.string())]
)  # fmt: skip

Rows = list[tuple[int | None, str | None]]


def parts_of(rows: Rows) -> tuple[Any, ...]:
    amounts = [amount for amount, _ in rows if amount is not None]
    items = Counter(item for _, item in rows if item is not None)
    entries = [{"key": item, "value": items[item]} for item in sorted(items, key=str.encode)]
    mean_parts = {"sum": sum(amounts), "count": len(amounts)}
    return (
        len(rows),
        sum(amounts),
        mean_parts,
        min(amounts, default=None),
        max(items, key=str.encode, default=None),
        (entries),
    )


def table_of(groups: dict[str | None, Rows | None]) -> pa.Table:
    """What the table has of some keys, null for one of which it has no row."""
    found = []
    for who, rows in groups.items():
        if rows is None:
            found.append(dict.fromkeys(SCHEMA.names))
            continue
        n, spent, parts, low, last, entries = parts_of(rows)
        mean_ = spent / parts["count"] if parts["count"] else None
        found.append({"who": who, "n": n, "spent": spent, "mean": mean_, "low": low, "last": last,
                      "items": len(entries), ROWS: n, PARTS: {"mean": parts, "items": entries}})  # fmt: skip
    return pa.Table.from_pylist(found, schema=SCHEMA)


def came_of(groups: dict[str | None, Rows]) -> pa.Table:
    """The parts of rows that came, whose order is any."""
    values = [
        {"who": who, "_v0": 1, **{f"_v{at}": amount for at in (1, 2, 3)}, "_v4": item, "_v5": item}
        for who, rows in groups.items()
        for amount, item in rows
    ]
    Random(len(values)).shuffle(values)
    return make_parts(AGGREGATION, pa.Table.from_pylist(values, schema=VALUES))


def random_rows(random: Random, most: int) -> Rows:
    items = [None, "", "a", "ab", "é", "\U0001f600", *(f"item {number}" for number in range(30))]
    return [
        (random.choice([None, random.randint(-9, 9)]), random.choice(items)) for _ in range(random.randint(0, most))
    ]


@pytest.mark.parametrize("seed", range(20))
def test_merged_parts_are_those_of_all_rows(seed: int) -> None:
    random = Random(seed)
    whose: list[str | None] = [None, *(f"customer {number}" for number in range(random.randint(0, 30)))]
    before = {who: random.choice([None, random_rows(random, 40)]) for who in whose}
    new = {who: random_rows(random, 4) or [(1, "x")] for who in whose}
    came = came_of(new)
    whose = came["who"].to_pylist()
    merged = merge_parts(AGGREGATION, came, table_of({who: before[who] for who in whose}), SCHEMA)
    assert merged == table_of({who: [*(before[who] or []), *new[who]] for who in whose})


def test_nothing_that_came_merges_to_nothing() -> None:
    assert merge_parts(AGGREGATION, came_of({}), table_of({}), SCHEMA) == SCHEMA.empty_table()


def test_a_sum_that_is_too_large_is_not_wrapped() -> None:
    came = came_of({"a": [(2**61, None)]})
    with pytest.raises(UnmergedError, match="overflow"):
        merge_parts(AGGREGATION, came, table_of({"a": [(2**62 + 2**61, None)]}), SCHEMA)


def test_sums_of_rows_that_came_are_not_wrapped_either() -> None:
    with pytest.raises(UnmergedError, match="too large"):
        came_of({"a": [(2**62, None), (2**62, None)]})


def test_values_out_of_their_order_are_not_merged() -> None:
    old = table_of({"a": [(1, "b"), (1, "a")]})
    entries = [{"key": "b", "value": 1}, {"key": "a", "value": 1}]
    row = old.to_pylist()[0] | {PARTS: {"mean": {"sum": 2, "count": 2}, "items": entries}}
    with pytest.raises(UnmergedError, match="order"):
        merge_parts(AGGREGATION, came_of({"a": [(1, "c")]}), pa.Table.from_pylist([row], schema=SCHEMA), SCHEMA)


def test_rows_that_are_parts_of_themselves_are_merged_as_they_are() -> None:
    values = {"spent": Kind.SUM, "n": Kind.COUNT, "last": Kind.MAX}
    schema = pa.schema([("who", pa.string()), ("n", pa.int64()), ("spent", pa.int64()), ("last", pa.string())])
    came = [("a", 2, 5, "x"), ("b", 1, None, None), ("c", 1, None, "y"), ("d", 1, 7, "z")]
    old = [("a", 1, None, "z"), ("b", 1, 4, None), (None, None, None, None), (None, None, None, None)]
    both = [pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)
            for rows in (came, old)]  # fmt: skip
    assert [*merge_values(values, ["who"], *both, schema).to_pylist()] == [
        {"who": "a", "n": 3, "spent": 5, "last": "z"},
        {"who": "b", "n": 2, "spent": 4, "last": None},
        {"who": "c", "n": 1, "spent": None, "last": "y"},
        {"who": "d", "n": 1, "spent": 7, "last": "z"},
    ]


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [(pa.int8(), -1, 1), (pa.int16(), -1, 1), (pa.int32(), -1, 1), (pa.int64(), -1, 1), (pa.string(), "", "a"),
     (pa.date32(), 1, 2), (pa.timestamp("us", "UTC"), 1, 2)],
)  # fmt: skip
def test_values_of_every_type_that_is_merged_here_are(kind: pa.DataType, low: Any, high: Any) -> None:
    fields = {"lo": min_("v"), "hi": max_("v"), "d": count_distinct("v")}
    folds = aggregate("history.orders", name="t", by="who", fields=fields).aggregation
    entries = pa.list_(pa.struct([("key", kind), ("value", pa.int64())]))
    schema = pa.schema([("who", kind), ("lo", kind), ("hi", kind), ("d", pa.int64()), (ROWS, pa.int64()),
                        (PARTS, pa.struct([("d", entries)]))])  # fmt: skip

    def row(*values: Any) -> dict[str, Any]:
        counted = [{"key": each, "value": values.count(each)} for each in sorted({*values})]
        return {"who": low, "lo": min(values), "hi": max(values), "d": len(counted), ROWS: len(values),
                PARTS: {"d": counted}}  # fmt: skip

    values = pa.schema([("who", kind), *((f"_v{at}", kind) for at in range(3))])
    came = [{"who": low, **dict.fromkeys(("_v0", "_v1", "_v2"), each)} for each in (low, None, high)]
    assert folds is not None
    parts = make_parts(folds, pa.Table.from_pylist(came, schema=values))
    merged = merge_parts(folds, parts, pa.Table.from_pylist([row(high)], schema=schema), schema)
    assert merged == pa.Table.from_pylist([row(low, high, high) | {ROWS: 4}], schema=schema)


def test_sums_of_short_decimals_are_merged_here() -> None:
    folds = aggregate("history.orders", name="t", by="who", fields={"spent": sum_("v"), "paid": sum_("w")}).aggregation
    assert folds is not None
    kinds = {"who": "string", "_v0": "decimal(8,2)", "_v1": "decimal(7,0)"}
    assert can_merge(folds, kinds)
    for wide in ("decimal(9,2)", "decimal(38,2)"):
        assert not can_merge(folds, kinds | {"_v0": wide})
    values = pa.schema([("who", pa.string()), ("_v0", pa.decimal128(8, 2)), ("_v1", pa.decimal128(7, 0))])
    schema = pa.schema([("who", pa.string()), ("spent", pa.decimal128(18, 2)), ("paid", pa.decimal128(17, 0)),
                        (ROWS, pa.int64())])  # fmt: skip
    random = Random(11)
    came = [(who, _decimal(random, 8, 2), _decimal(random, 7, 0)) for who in "abcab" * 40]
    before = [("a", Decimal("-123456.78"), Decimal(5), 3), ("b", Decimal("9999000000000000.99"), Decimal(0), 1)]
    # Of a slice, as a batch of Arrow's may be.
    table = pa.Table.from_pylist([_row(values, each) for each in [("c", None, None), *came]], schema=values)[1:]
    parts = make_parts(folds, table)
    assert parts["who"].to_pylist() == ["a", "b", "c"]
    old = pa.Table.from_pylist([*(_row(schema, each) for each in before), {}], schema=schema)
    wanted = [
        (who, sum((v or 0 for w, v, _ in came if w == who), start=spent),
         sum((v or 0 for w, _, v in came if w == who), start=paid), rows + sum(w == who for w, _, _ in came))
        for who, spent, paid, rows in [*before, ("c", Decimal(0), Decimal(0), 0)]
    ]  # fmt: skip
    merged = merge_parts(folds, parts, old, schema)
    assert [tuple(row.values()) for row in merged.to_pylist()] == wanted


def test_a_sum_of_decimals_with_too_many_digits_is_not_merged_here() -> None:
    folds = aggregate("history.orders", name="t", by="who", fields={"spent": sum_("v")}).aggregation
    assert folds is not None
    values = pa.table({"who": ["a"], "_v0": pa.array([Decimal("1.00")], pa.decimal128(8, 2))})
    schema = pa.schema([("who", pa.string()), ("spent", pa.decimal128(18, 2)), (ROWS, pa.int64())])
    old = pa.Table.from_pylist([_row(schema, ("a", Decimal("9999999999999999.99"), 1))], schema=schema)
    with pytest.raises(UnmergedError):
        merge_parts(folds, make_parts(folds, values), old, schema)


def _decimal(random: Random, digits: int, scale: int) -> Decimal | None:
    if random.random() < 0.1:
        return None
    return Decimal(random.randint(-(10**digits) + 1, 10**digits - 1)).scaleb(-scale)


def _row(schema: pa.Schema, values: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(schema.names, values, strict=True))


def test_only_types_that_arrow_orders_and_adds_as_spark_does_are_merged_here() -> None:
    assert can_merge(AGGREGATION, KINDS)
    for column, kind in {"who": "double", "_v1": "decimal(38,2)", "_v3": "double", "_v4": "string collate UNICODE",
                         "_v5": "double"}.items():  # fmt: skip
        assert not can_merge(AGGREGATION, KINDS | {column: kind}), column
    tops = aggregate("history.orders", name="t", by="who", fields={"t": top("amount", 2)}).aggregation
    assert tops is not None
    assert not can_merge(tops, {"who": "string", "_v0": "bigint"})
