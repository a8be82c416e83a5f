"""
`verify` says "exact" of tables as runs leave them, and finds each way in which one can be wrong.
"""

import random
from typing import Any

import pytest
from log_topic import Schemas, Sent, Topic
from plain_fold import FIELDS, SCHEMA, random_events

from fluvial.config import Settings
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import Declaration, compacted, history, latest, mean, state
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import Verdict, verify

pytestmark = pytest.mark.spark


def declarations(topic: Topic) -> tuple[Declaration, ...]:
    return (
        history(topic.name, name="readings"),
        compacted(topic.name, name="readings", key="id"),
        state("readings", topic=topic.name, key="id", fields=FIELDS),
    )


def test_what_runs_leave_is_exact_and_what_others_did_is_found(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA, partitions=2)
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    events = [*random_events(seed, 120, partitions=2), Sent(key="key 1", raw=b"no avro", partition=1)]
    # The state in two batches, so that one was folded into rows that were there.
    topic.send(events[:50])
    materialize(declarations(topic)[2], settings, spark, schemas=schemas)
    topic.send(events[50:])
    for declaration in declarations(topic):
        materialize(declaration, settings, spark, schemas=schemas)
    # What came after the tables' position does not count against them.
    topic.send([Sent(key="key 1", value={"kind": "up", "amount": 1, "weight": None, "at": 0}, partition=1)])

    def verdict(declaration: Declaration) -> Verdict:
        return verify(declaration, settings, spark, schemas=schemas)

    def keys(declaration: Declaration) -> list[str]:
        return sorted(row.id for row in spark.table(declaration.table).select("id").collect())

    for declaration in declarations(topic):
        found = verdict(declaration)
        assert found.is_exact, found
        assert found.rows == spark.table(declaration.table).count()
        assert sum(end - start for start, end in found.ranges.values()) == len(events)

    events_table, compacted_table, state_table = declarations(topic)
    path = Warehouse.at(settings.warehouse).path
    # Which keys are left is the events' choice: some end with a tombstone.
    gone, changed = keys(state_table)[:2]
    spark.sql(f"DELETE FROM delta.`{path(state_table.table)}` WHERE id = '{gone}'")
    spark.sql(f"UPDATE delta.`{path(state_table.table)}` SET events = events + 1 WHERE id = '{changed}'")
    differences = {each.where: each.what for each in verdict(state_table).differences}
    assert differences == {f"id {gone}": "is missing", f"id {changed}": "has other values"}

    renamed = keys(compacted_table)[0]
    spark.sql(f"UPDATE delta.`{path(compacted_table.table)}` SET id = 'other' WHERE id = '{renamed}'")
    differences = {each.where: each.what for each in verdict(compacted_table).differences}
    assert differences == {f"id {renamed}": "is missing", "id other": "is not in the log"}

    twice = spark.table(events_table.table).where("_partition = 0").limit(1).collect()
    spark.createDataFrame(twice, spark.table(events_table.table).schema).write.format("delta").mode("append").save(
        path(events_table.table)
    )
    wrong = verdict(events_table)
    assert not wrong.is_exact
    assert wrong.differences[0].where.startswith("partition 0, offsets 0 to")
    assert "rows for" in wrong.differences[0].what


def test_only_floats_of_another_order_may_differ(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA, partitions=1)
    table = state("readings", topic=topic.name, key="id", fields={"weight": mean("weight")})
    weights = {"close": 3.0, "nan": 3.0, "infinite": 3.0, "null": 3.0, "far": 3.0, "number": None}
    topic.send(
        [Sent(key=key, value={"kind": "up", "amount": 1, "weight": weight, "at": 0}) for key, weight in weights.items()]
    )
    materialize(table, settings, spark, schemas=schemas)
    others = {
        "close": "weight + 1e-12",
        "nan": "double('NaN')",
        "infinite": "double('infinity')",
        "null": "NULL",
        "far": "3.1",
        "number": "3",
    }
    path = Warehouse.at(settings.warehouse).path(table.table)
    for key, other in others.items():
        spark.sql(f"UPDATE delta.`{path}` SET weight = {other} WHERE id = '{key}'")
    verdict = verify(table, settings, spark, schemas=schemas)
    assert verdict.different == len(others) - 1
    assert {each.where for each in verdict.differences} == {f"id {key}" for key in others if key != "close"}


def test_an_order_of_their_own_guards_against_events_that_come_late(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA, partitions=1)
    table = state("readings", topic=topic.name, key="id", fields={"kind": latest("kind")}, order="amount")

    def send(*amounts: tuple[str, int | None]) -> None:
        topic.send(
            [Sent(key="a", value={"kind": kind, "amount": amount, "weight": None, "at": 0}) for kind, amount in amounts]
        )
        materialize(table, settings, spark, schemas=schemas)

    def kind() -> str:
        (row,) = spark.table("state.readings").collect()
        return str(row.kind)

    send(("second", 2), ("first", 1))
    assert kind() == "second"
    send(("none", None), ("late", 0))
    assert kind() == "second"
    send(("second again", 2))
    assert kind() == "second again"
    assert verify(table, settings, spark, schemas=schemas).is_exact
