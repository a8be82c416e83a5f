"""
States by a reducer, and states that keep their versions, against a plain Python fold; and what a wrong reducer does.
"""

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from log_topic import Schemas, Sent, Topic
from plain_fold import (
    FIELDS,
    RETURNS,
    SCHEMA,
    plain_steps,
    plain_versions,
    random_events,
    reduce_readings,
    states_by_fields,
    states_by_reducer,
)

from fluvial.config import Settings
from fluvial.delta import row_swap, upkeep
from fluvial.delta.stamp import TableError
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import DeclarationError, State, count, state
from fluvial.tables.drive import runner
from fluvial.tables.drive.continuous import Watcher, follow
from fluvial.tables.drive.rebuild import rebuild
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify
from fluvial.tables.plan import table_index
from fluvial.tables.plan.reducer_plan import ReducerError
from fluvial.tables.plan.table_index import TableIndexes

pytestmark = pytest.mark.spark

MEMORY = ("_fold",)
LOCK = threading.Lock()
# One of each kind.
VERSIONED_NAMES = (
    *("ups", "up_total", "lowest", "highest", "mean_amount"),
    *("latest_up", "known_down", "first_amount", "amounts", "kinds"),
)
VERSIONED = {name: FIELDS[name] for name in VERSIONED_NAMES}


def declarations(topic: Topic) -> tuple[State, ...]:
    reducer: Any = {"reduce": reduce_readings, "returns": RETURNS}
    return (
        state("reduced", topic=topic.name, key="id", **reducer),
        state("reduced_versions", topic=topic.name, key="id", scd2=True, **reducer),
        state("folded_versions", topic=topic.name, key="id", fields=VERSIONED, scd2="at"),
    )


def timed(events: list[Sent], seed: int) -> list[Sent]:
    """The events with timestamps of the last hour, in no order."""
    dice, now = random.Random(seed), int(time.time() * 1000)
    return [replace(each, timestamp_ms=now - dice.randrange(3_600_000)) for each in events]


def rows_of(spark: Any, table: str) -> list[dict[str, Any]]:
    rows = spark.table(table).drop(*MEMORY).toArrow().to_pylist(maps_as_pydicts="strict")
    return sorted(rows, key=lambda row: (row.get("_partition", 0), row.get("_offset", 0), row["id"]))


def versioned(records: list[Sent]) -> list[dict[str, Any] | None]:
    return [found and {name: found[name] for name in VERSIONED} for found in states_by_fields(records)]


def check(spark: Any, topic: Topic) -> None:
    latest = {key: states_by_reducer([each for _, _, each in steps])[-1] for key, steps in plain_steps(topic).items()}
    expected = [{"id": key, **found} for key, found in sorted(latest.items()) if found is not None]
    assert rows_of(spark, "state.reduced") == expected
    by_timestamp = plain_versions(topic, states_by_reducer, lambda record: record.timestamp_ms)
    assert rows_of(spark, "state.reduced_versions") == by_timestamp
    by_field = plain_versions(topic, versioned, lambda record: int((record.value or {})["at"]))
    assert rows_of(spark, "state.folded_versions") == by_field


@pytest.mark.parametrize(
    ("way", "batches"),
    [
        ("index", 2),
        pytest.param("small", 3, marks=pytest.mark.rota),
        pytest.param("saved index", 3, marks=pytest.mark.rota),
        pytest.param("join", 3, marks=pytest.mark.rota),
        pytest.param("MERGE", 3, marks=pytest.mark.rota),
    ],
)
def test_tables_equal_a_plain_fold_wherever_batches_are_cut(
    way: str,
    batches: int,
    spark: Any,
    settings: Settings,
    schemas: Schemas,
    make_topic: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if way == "MERGE":
        monkeypatch.setattr(row_swap, "DELTA_VERSIONS", frozenset())
    if way == "join":
        monkeypatch.setattr(runner, "ONE_BATCH_RECORDS_MAX", 0)
    indexes = TableIndexes() if way.endswith("index") else None
    if indexes is not None:
        monkeypatch.setattr(upkeep, "FILES_MAX", 1)
        monkeypatch.setattr(upkeep, "BATCHES_BETWEEN", 1)
        monkeypatch.setattr(table_index, "SAVED_MIN", 1)
    topic = make_topic(SCHEMA, partitions=2)
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    events = [*random_events(seed, 299, partitions=2), Sent(key="key 1", raw=b"no avro", partition=1)]
    events = timed(events, seed)
    cuts = sorted(random.Random(seed).sample(range(1, 300), batches - 1))
    for start, end in zip([0, *cuts], [*cuts, 300], strict=True):
        topic.send(events[start:end])
        indexes = TableIndexes() if way == "saved index" else indexes
        for declaration in declarations(topic):
            materialize(declaration, settings, spark, schemas=schemas, indexes=indexes)
    check(spark, topic)
    once = "MERGE" if way == "MERGE" else "STREAMING UPDATE"
    for declaration in declarations(topic):
        operations = [row.operation for row in spark.sql(f"DESCRIBE HISTORY {declaration.table}").collect()]
        assert [each for each in operations if each != "OPTIMIZE"] == [once] * (batches - 1) + ["WRITE"]
        # Rows of former versions stay, so those tables always have files to write together.
        if indexes is not None and declaration.scd2 is not None:
            assert "OPTIMIZE" in operations
    if way != "join":
        return
    for declaration in declarations(topic):
        found = verify(declaration, settings, spark, schemas=schemas)
        assert found.is_exact, found
        assert found.rows == spark.table(declaration.table).count()


def summed(state: dict[str, Any] | None, events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    total = 0 if state is None else state["total"]
    for event in events:
        total += 100 // event["amount"]
    return {"total": total}


def sent(*amounts: int, key: str = "a") -> list[Sent]:
    return [Sent(key=key, value={"kind": "up", "amount": each, "weight": None, "at": 0}) for each in amounts]


def test_a_reducer_that_raises_stops_its_table_alone_and_a_rebuild_repairs_it(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA)
    wrong = state("wrong", topic=topic.name, key="id", reduce=summed, returns="total BIGINT")
    fine = state("fine", topic=topic.name, key="id", fields={"n": count()})
    topic.send(sent(5, 10))
    for declaration in (wrong, fine):
        materialize(declaration, settings, spark, schemas=schemas)
    topic.send([*sent(4), *sent(0, key="b")])
    stop = threading.Event()
    seen: list[str] = []

    def batch(result: Any) -> None:
        seen.append(result.table)
        stop.set()

    errors = follow([wrong, fine], settings, spark, stop, schemas=schemas, watcher=Watcher(batch=batch))
    assert seen == ["state.fine"]
    (error,) = errors.values()
    assert isinstance(error, ReducerError)
    assert (error.key, error.first, error.last) == ("b", (0, 3), (0, 3))
    said = str(error)
    assert said.startswith("state.wrong: its reducer raised ZeroDivisionError")
    assert "at key 'b', partition 0, offset 3: nothing of the batch was committed" in said
    assert "fluvial run --rebuild state.wrong" in said
    assert "\n" not in said
    assert rows_of(spark, "state.wrong") == [{"id": "a", "total": 30}]

    repaired = state(
        "wrong",
        topic=topic.name,
        key="id",
        reduce=lambda state, events: {
            "total": (state or {"total": 0})["total"] + sum(each["amount"] for each in events)
        },
        returns="total BIGINT",
    )
    with pytest.raises(TableError, match=r"another reducer or other columns.*fluvial run --rebuild state\.wrong"):
        materialize(repaired, settings, spark, schemas=schemas)
    rebuild(repaired, settings, spark, schemas=schemas)
    assert rows_of(spark, "state.wrong") == [{"id": "a", "total": 19}, {"id": "b", "total": 0}]


@pytest.mark.rota
def test_verify_finds_a_version_that_its_reducer_does_not_give(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA)
    table = state("versions", topic=topic.name, key="id", reduce=summed, returns="total BIGINT", scd2=True)
    topic.send([*sent(5, 10), *sent(20, key="b")])
    materialize(table, settings, spark, schemas=schemas)
    before = rows_of(spark, "state.versions")
    # It changes no state, so that it makes no version and leaves the rows as they are.
    topic.send(sent(1000))
    assert materialize(table, settings, spark, schemas=schemas).version_after == 1
    assert rows_of(spark, "state.versions") == before
    path = Warehouse.at(settings.warehouse).path(table.table)
    spark.sql(f"UPDATE delta.`{path}` SET total = 1 WHERE id = 'b'")
    spark.sql(f"UPDATE delta.`{path}` SET _end_offset = 9 WHERE id = 'a' AND NOT is_current")
    found = verify(table, settings, spark, schemas=schemas)
    assert {each.where: each.what for each in found.differences} == {
        "id a _partition 0 _offset 0": "has other values",
        "id b _partition 0 _offset 2": "has other values",
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"returns": "x NUMBERS"}, "column x: NUMBERS is no type"),
        ({"scd2": "amount"}, "scd2 = amount does not fit .* is int and no timestamp"),
        ({"scd2": "att"}, "scd2 = att does not fit .*att"),
        ({"reduce": lambda _state, _events: LOCK}, "cannot be sent to Spark"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_read(
    changes: Any, said: str, spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA)
    given: Any = {"reduce": summed, "returns": "total BIGINT", **changes}
    with pytest.raises(DeclarationError, match=said) as raised:
        materialize(state("bad", topic=topic.name, key="id", **given), settings, spark, schemas=schemas)
    assert "\n" not in str(raised.value)
