"""Reducers without Spark: what their declarations are answered with, and the fold over Arrow batches."""

import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from fluvial.tables import DeclarationError, State, count, state
from fluvial.tables.plan.checks import state_definition
from fluvial.tables.plan.reducer_worker import MARK, ReduceError, fold_batches

RETURNS = "total DECIMAL(10,2), seen TIMESTAMP, tags MAP<STRING, INT>"


def spend(state: dict[str, Any] | None, events: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    for event in events:
        state = state or {"total": Decimal(0), "seen": None, "tags": {}}
        state["total"] += event["amount"]
        state["seen"] = event["_timestamp"]
        state["tags"][event["tag"]] = state["tags"].get(event["tag"], 0) + 1
        if state["total"] < 0:
            state = None
    return state


def declared(**changes: Any) -> State:
    given: dict[str, Any] = {"topic": "t", "key": "k", "reduce": spend, "returns": RETURNS}
    return state("s", **{**given, **changes})


def yielding(_state: Any, events: Any) -> Any:
    yield from events


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reduce": "spend"}, "reduce is 'spend', not a function"),
        ({"reduce": lambda events: events}, r"called with \(state, events\), and cannot be"),
        ({"reduce": yielding}, "without yield or async"),
        ({"reduce": max}, 'source text of its reducer cannot be read.*give it version="1"'),
        ({"returns": None}, "does not say what its reducer returns"),
        ({"reduce": None}, "has returns and no reducer"),
        ({"reduce": None, "returns": None, "version": "1"}, "has version and no reducer"),
        ({"version": 1}, "version is 1: write a text"),
        ({"fields": {"n": count()}}, "both fields and a reducer"),
        ({"order": "at"}, "a reducer sees events as they come"),
        ({"returns": " "}, "returns names no column"),
        ({"returns": "total"}, "returns has 'total' for a column"),
        ({"returns": 3}, "returns is 3: name the columns"),
        ({"returns": "total INT NOT NULL"}, "says more of a column than name and type"),
        ({"returns": "_total INT"}, "starts with an underscore"),
        ({"returns": "`a b` INT"}, "no column name"),
        ({"returns": "K INT"}, "two columns named K"),
        ({"returns": "a INT, A STRING"}, "two columns named A"),
        ({"returns": "valid_to INT", "scd2": True}, "valid_to is a column that scd2 adds"),
        ({"key": "is_current", "scd2": True}, "is_current is a column that scd2 adds"),
        ({"scd2": " "}, "name a time"),
    ],
)
def test_a_mistake_is_said_when_it_is_declared(changes: Any, said: str) -> None:
    with pytest.raises(DeclarationError, match=said) as raised:
        declared(**changes)
    assert str(raised.value).startswith('state("s")')
    assert "\n" not in str(raised.value)


def test_columns_are_read_from_a_line_of_ddl_or_a_type_of_spark() -> None:
    from pyspark.sql.types import DecimalType, StringType, StructField, StructType

    nested = declared(returns="a: INT, `b` DECIMAL(10, 2), c STRUCT<x: INT, y: MAP<STRING, INT>>")
    assert nested.reducer is not None
    assert nested.reducer.columns == (
        *(("a", "INT"), ("b", "DECIMAL(10, 2)")),
        ("c", "STRUCT<x: INT, y: MAP<STRING, INT>>"),
    )
    assert nested.columns == ("a", "b", "c")
    typed = declared(returns=StructType([StructField("a", StringType()), StructField("b", DecimalType(10, 2))]))
    assert typed.reducer is not None
    assert typed.reducer.columns == (("a", "string"), ("b", "decimal(10,2)"))


def test_the_definition_changes_with_the_columns_and_the_code_and_with_nothing_else() -> None:
    def made(text: str) -> Callable[..., Any]:
        import linecache

        # As if it stood in a file: that is where the text of a function is read from.
        name = f"<{random.random()}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        space: dict[str, Any] = {}
        exec(compile(text, name, "exec"), space)
        function: Callable[..., Any] = space["last"]
        return function

    plain = "def last(state, events):\n    return {'x': len(list(events))}\n"
    said = "def last(state,\n         events):\n    # how many\n    return {'x': len(list(events))}\n"
    other = plain.replace("len(", "1 + len(")
    columns = "x INT"
    names = [state_definition(declared(reduce=made(text), returns=columns)) for text in (plain, plain, said, other)]
    assert names[0] == names[1] == names[2] != names[3]
    assert state_definition(declared(reduce=made(plain), returns="x BIGINT")) != names[0]
    versions = [declared(reduce=made(text), returns=columns, version="1") for text in (plain, other)]
    assert state_definition(versions[0]) == state_definition(versions[1])
    assert state_definition(declared(scd2=True)) != state_definition(declared())


NAMES = ("amount", "tag", "_partition", "_offset", "_timestamp")
TYPES = [pa.decimal128(10, 2), pa.string(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC")]
STATE = [
    pa.field("total", pa.decimal128(10, 2)),
    pa.field("seen", pa.timestamp("us", "UTC")),
    pa.field("tags", pa.map_(pa.string(), pa.int32())),
]
COLUMNS = (("total", "DECIMAL(10,2)"), ("seen", "TIMESTAMP"), ("tags", "MAP<STRING, INT>"))
Rows = list[tuple[str, dict[str, Any] | None]]
Table = dict[str, dict[str, Any]]


def batches_of(events: Rows, table: Table, *, each: bool, rows_max: int) -> Iterator[pa.RecordBatch]:
    """What Spark hands over: by entity, first its row in the table, then its events, in batches of any size."""
    carried = pa.int64()
    rows: list[tuple[Any, ...]] = []
    for entity in sorted({entity for entity, _ in events}):
        if entity in table:
            rows.append((entity, None, None if each else 7, *([None] * len(NAMES)), *table[entity].values()))
        for offset, (other, event) in enumerate(events):
            if other == entity:
                place = {
                    "_partition": 0,
                    "_offset": offset,
                    "_timestamp": datetime(2024, 1, 1, 0, offset % 60, tzinfo=UTC),
                }
                values = {**dict.fromkeys(NAMES), **(event or {}), **place}
                rows.append((entity, event is None, offset if each else None, *values.values(), *([None] * len(STATE))))
    types = [pa.string(), pa.bool_(), carried, *TYPES, *(field.type for field in STATE)]
    for start in range(0, len(rows), rows_max):
        columns = zip(*rows[start : start + rows_max], strict=True)
        arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=[str(number) for number in range(len(types))])


def fold(
    events: Rows, table: Table, reduce: Any = spend, *, each: bool = False, rows_max: int = 5
) -> list[dict[str, Any]]:
    schema = pa.schema(
        [pa.field("_entity", pa.string()), *STATE, pa.field("carried", pa.int64()), pa.field("_alive", pa.bool_())]
    )
    batches = batches_of(events, table, each=each, rows_max=rows_max)
    answer = fold_batches(batches, reduce, events=NAMES, columns=COLUMNS, carried=1, schema=schema, each=each)
    return [row for batch in answer for row in batch.to_pylist(maps_as_pydicts="strict")]


def some_events(dice: random.Random, number: int) -> Rows:
    return [
        (
            f"key {dice.randrange(4)}",
            None
            if dice.random() < 0.1
            else {"amount": Decimal(dice.randrange(-300, 400)) / 100, "tag": dice.choice("ab")},
        )
        for _ in range(number)
    ]


def test_a_fold_cut_anywhere_ends_in_the_same_states_as_one_call_an_entity() -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(60):
        events = some_events(dice, dice.randrange(1, 40))
        cuts = sorted(dice.choices(range(len(events) + 1), k=dice.randrange(4)))
        table: Table = {}
        for start, end in zip([0, *cuts], [*cuts, len(events)], strict=True):
            # Offsets go on counting from batch to batch.
            part: Rows = [("", None)] * start + events[start:end]
            before = dict(table)
            for row in fold(part, table, rows_max=dice.randrange(1, 9)):
                entity, alive, carried = row.pop("_entity"), row.pop("_alive"), row.pop("carried")
                if entity == "":
                    continue
                assert (carried == 7) == (entity in before)
                if alive:
                    table[entity] = row
                else:
                    del table[entity]
        whole = fold(events, {}, rows_max=1000)
        assert table == {row["_entity"]: {name: row[name] for name, _ in COLUMNS} for row in whole if row["_alive"]}


def test_each_event_puts_out_the_state_after_it_which_later_events_do_not_change() -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    events = some_events(random.Random(seed), 60)
    rows = {row["carried"]: row for row in fold(events, {}, each=True)}
    assert len(rows) == len(events)
    for offset, (entity, event) in enumerate(events):
        ends = {row["_entity"]: row for row in fold(events[: offset + 1], {})}
        row = rows[offset]
        assert row["_entity"] == entity
        assert row["_alive"] == (event is not None and entity in ends)
        if row["_alive"]:
            assert {name: row[name] for name, _ in COLUMNS} == {name: ends[entity][name] for name, _ in COLUMNS}


def test_events_that_a_reducer_leaves_are_behind_it() -> None:
    def first_of_each_run(state: Any, events: Iterator[dict[str, Any]]) -> Any:
        event = next(events)
        total = event["amount"] + (0 if state is None else state["total"])
        return {"total": total, "seen": None, "tags": None}

    events: Rows = [("a", {"amount": Decimal(number), "tag": "x"}) for number in range(1, 4)]
    (row,) = fold([*events, ("a", None), *events], {}, first_of_each_run)
    assert (row["total"], row["_alive"]) == (Decimal(1), True)


GOOD = {"total": Decimal(1), "seen": None, "tags": {}}


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ([1], r"returned \[1\], which is neither a dict of total, seen, tags nor None"),
        ({"total": Decimal(1), "seen": None}, "returned no tags: a state has all of total, seen, tags"),
        ({**GOOD, "more": 1}, "returned 'more', which `returns` does not declare"),
        (
            {**GOOD, "total": Decimal("1.005")},
            r"returned Decimal\('1.005'\) for total, which does not fit .* as DECIMAL",
        ),
        ({**GOOD, "total": "a lot"}, "for total, which does not fit"),
        ({**GOOD, "seen": datetime(2024, 1, 1)}, "for seen, which would come back as .*UTC.* as TIMESTAMP"),
        ({**GOOD, "tags": [("a", 1)]}, "for tags, which would come back as {'a': 1}"),
    ],
)
def test_what_is_no_state_is_told_with_its_key_and_its_events(answer: Any, what: str) -> None:
    def wrong(_state: Any, events: Iterator[dict[str, Any]]) -> Any:
        return answer if [*events][-1]["tag"] == "b" else GOOD

    events: Rows = [("a", {"tag": "a"}), ("b", {"tag": "a"}), ("b", {"tag": "b"}), ("c", {"tag": "a"})]
    with pytest.raises(ReduceError, match=what) as raised:
        fold(events, {}, wrong)
    told = json.loads(str(raised.value).removeprefix(MARK))
    assert (told["key"], told["first"], told["last"]) == ("b", [0, 1], [0, 2])


def test_what_a_reducer_raises_is_told_with_the_event_that_it_was_at() -> None:
    def raising(_state: Any, events: Iterator[dict[str, Any]]) -> Any:
        for event in events:
            assert event["tag"] != "b", "no b"
        return GOOD

    events: Rows = [("a", {"tag": tag}) for tag in "aabaa"]
    with pytest.raises(
        ReduceError, match=r"raised AssertionError: no b.*test_entities_reducers.py, line \d+"
    ) as raised:
        fold(events, {}, raising)
    told = json.loads(str(raised.value).removeprefix(MARK))
    assert (told["key"], told["first"], told["last"]) == ("a", [0, 0], [0, 2])


def test_numbers_that_are_none_are_kept() -> None:
    schema = pa.schema([("_entity", pa.string()), ("mean", pa.float64()), ("_alive", pa.bool_())])
    row = pa.RecordBatch.from_pydict(
        {"e": ["a"], "t": [False], "p": [0], "o": [0], "s": pa.array([None], pa.float64())}
    )
    (batch,) = fold_batches(
        [row],
        lambda _state, _events: {"mean": float("nan")},
        events=("_partition", "_offset"),
        columns=(("mean", "DOUBLE"),),
        carried=0,
        schema=schema,
        each=False,
    )
    (value,) = batch["mean"].to_pylist()
    assert value != value
