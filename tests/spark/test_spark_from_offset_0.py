"""
The log is what is true: everything made from it may be deleted, or may have been made wrong, and is made again from it.
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from log_topic import Schemas, Sent, Topic
from plain_fold import FIELDS, SCHEMA, plain_steps, random_events

from examples.stores import KeyValues
from fluvial.config import Settings
from fluvial.delta.stamp import TableError
from fluvial.spark.session import register_tables
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import Declaration, compacted, history, pipeline, state
from fluvial.tables.drive.rebuild import rebuild
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify

pytestmark = pytest.mark.spark

FEW = {name: FIELDS[name] for name in ("events", "total", "latest_up", "amounts", "kinds")}
# An approximate count remembers the order in which it saw values; all other columns are a matter of what they saw.
REMEMBERED = ("_fold",)


@pipeline(name="by_kind", inputs=["history.readings", "state.readings"], version="1")
def by_kind(readings: Any, states: Any) -> Any:
    """How many events of each kind there are of entities that are left."""
    return readings.join(states, readings._key.cast("string") == states.id).groupBy("kind").count()


def tables_of(topic: Topic) -> tuple[Declaration, ...]:
    """One table of each kind, the pipeline last."""
    return (
        history(topic.name, name="readings"),
        compacted(topic.name, name="readings", key="id"),
        state("readings", topic=topic.name, key="id", fields=FEW),
        by_kind,
    )


def snapshot(spark: Any, settings: Settings) -> dict[str, bytes]:
    """The content of every table in the warehouse, in bytes that are the same for the same rows."""
    warehouse = Warehouse.at(settings.warehouse)
    found = {}
    for table in warehouse.tables(spark):
        rows = spark.read.format("delta").load(warehouse.path(table)).drop(*REMEMBERED)
        found[table] = "\n".join(sorted(map(repr, rows.toArrow().to_pylist()))).encode()
    return found


def stored(path: Path, topic: Topic) -> bytes:
    """A local key-value store of the topic's first partition, brought up to date, as bytes."""
    store = KeyValues(str(path))
    store.take(
        (offset, record.key, record.value)
        for partition, offset, record in topic.in_order()
        if partition == 0 and record.key is not None and record.decodes
    )
    content = repr(sorted(store.rows().items())).encode()
    store.close()
    return content


@pytest.mark.rota
def test_all_that_was_deleted_is_there_again_with_identical_content(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any, tmp_path: Path
) -> None:
    topic = make_topic(SCHEMA, partitions=2)
    tables = tables_of(topic)
    for seed, rubbish in ((11, []), (12, [Sent(key="key 0", raw=b"rubbish")])):
        topic.send([*random_events(seed, 30, partitions=2), *rubbish])
        for table in tables[:-1]:
            materialize(table, settings, spark, schemas=schemas)
    materialize(tables[-1], settings, spark, schemas=schemas)
    before, local = snapshot(spark, settings), stored(tmp_path / "values.db", topic)
    assert set(before) == {*(table.table for table in tables), "quarantine." + topic.name}
    assert all(before.values())

    shutil.rmtree(settings.warehouse)
    (tmp_path / "values.db").unlink()
    register_tables(spark, settings)
    assert not snapshot(spark, settings)
    for table in tables:
        materialize(table, settings, spark, schemas=schemas)
    assert snapshot(spark, settings) == before
    assert stored(tmp_path / "values.db", topic) == local


def wrong_balance(state: dict[str, Any] | None, events: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    """The deliberate mistake: what goes down is added as well."""
    balance = state["balance"] if state else 0
    for event in events:
        balance += event["amount"] or 0
    return {"balance": balance}


def right_balance(state: dict[str, Any] | None, events: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    """The same with the mistake repaired."""
    balance = state["balance"] if state else 0
    for event in events:
        balance += (event["amount"] or 0) * (-1 if event["kind"] == "down" else 1)
    return {"balance": balance}


def balances(topic: Topic) -> dict[str, int]:
    """What the repaired fold must say, in plain Python."""
    found: dict[str, int] = {}
    for key, steps in plain_steps(topic).items():
        lives: list[Sent] = []
        for _, _, record in steps:
            lives = [] if record.value is None else [*lives, record]
        values = [record.value or {} for record in lives]
        if values:
            found[key] = sum((each["amount"] or 0) * (-1 if each["kind"] == "down" else 1) for each in values)
    return found


def test_a_mistake_in_a_fold_is_repaired_by_reading_again_from_the_beginning(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA, partitions=2)

    def declared(reduce: Any) -> Any:
        return state("balances", topic=topic.name, key="id", reduce=reduce, returns="balance BIGINT")

    def rows() -> Sequence[tuple[str, int]]:
        return sorted(tuple(row) for row in spark.sql("SELECT id, balance FROM state.balances").collect())

    topic.send(random_events(21, 40, partitions=2))
    materialize(declared(wrong_balance), settings, spark, schemas=schemas)
    wrong = rows()
    assert wrong != sorted(balances(topic).items())
    with pytest.raises(TableError, match=r"fluvial run --rebuild state\.balances"):
        materialize(declared(right_balance), settings, spark, schemas=schemas)
    assert rows() == wrong, "readers have what they had until the repaired table is whole"

    done = rebuild(declared(right_balance), settings, spark, schemas=schemas)
    assert all(start == 0 for start, _ in done.offsets.values())
    assert rows() == sorted(balances(topic).items())
    # It goes on from where the log ends: nothing that was read again counts twice.
    topic.send(random_events(22, 40, partitions=2))
    materialize(declared(right_balance), settings, spark, schemas=schemas)
    assert rows() == sorted(balances(topic).items())
    verdict = verify(declared(right_balance), settings, spark, schemas=schemas)
    assert verdict.is_exact, verdict
