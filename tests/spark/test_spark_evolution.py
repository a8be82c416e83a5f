"""
Contracts that change while a topic is read.
"""

from typing import Any

import pytest
from log_topic import Schemas, Sent
from plain_fold import SCHEMA

from fluvial.config import Settings
from fluvial.delta.errors import TableError
from fluvial.spark.avro import ContractError
from fluvial.tables import DeclarationError, compacted, count, history, state, sum_
from fluvial.tables.drive.rebuild import rebuild
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify

pytestmark = pytest.mark.spark

LATER = {
    **SCHEMA,
    "fields": [
        *[field for field in SCHEMA["fields"] if field["name"] != "weight"],
        {"name": "unit", "type": "string", "default": "kg"},
    ],
}


def test_two_versions_in_one_batch_are_read_as_the_newest(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA)
    old = schemas.latest(topic.subject).id
    new = schemas.register(topic.subject, LATER)
    topic.send(
        [
            Sent(key="a", value={"kind": "up", "amount": 1, "weight": 2.0, "at": 0}, schema_id=old),
            Sent(key="b", value={"kind": "up", "amount": 2, "unit": "g", "at": 0}, schema_id=new),
            Sent(key="c", value={"kind": "up", "amount": 3, "weight": None, "at": 0}, schema_id=old),
        ]
    )
    materialize(history(topic.name, name="readings"), settings, spark, schemas=schemas)
    rows = spark.table("history.readings").orderBy("_offset").collect()
    assert [(row.amount, row.unit, row._schema_id) for row in rows] == [(1, "kg", old), (2, "g", new), (3, "kg", old)]


def test_a_new_version_between_batches_adds_its_columns(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA)
    tables = (
        history(topic.name, name="readings"),
        compacted(topic.name, name="readings", key="id"),
        state("readings", topic=topic.name, key="id", fields={"events": count()}),
    )
    topic.send([Sent(key=key, value={"kind": "up", "amount": 1, "weight": 2.0, "at": 0}) for key in ("a", "b")])
    for table in tables:
        materialize(table, settings, spark, schemas=schemas)
    schemas.register(topic.subject, LATER)
    topic.send([Sent(key="b", value={"kind": "up", "amount": 2, "unit": "g", "at": 0})])
    for table in tables:
        assert not materialize(table, settings, spark, schemas=schemas).skipped
    rows = spark.table("history.readings").orderBy("_offset").collect()
    assert [(row.weight, row.unit) for row in rows] == [(2.0, "kg"), (2.0, "kg"), (None, "g")]
    rows = spark.table("compacted.readings").orderBy("id").collect()
    assert [(row.id, row.amount, row.unit) for row in rows] == [("a", 1, "kg"), ("b", 2, "g")]
    assert {row.id: row.events for row in spark.table("state.readings").collect()} == {"a": 1, "b": 2}


def test_a_state_goes_on_after_a_rename_and_stops_at_a_changed_default(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    def contract(name: str, default: int, **more: Any) -> dict[str, Any]:
        field = {"name": name, "type": "int", "default": default, **more}
        return {"type": "record", "name": "R", "fields": [{"name": "at", "type": "long"}, field]}

    def totals(name: str) -> Any:
        return state("totals", topic=topic.name, key="id", fields={"total": sum_(name)})

    topic = make_topic({"type": "record", "name": "R", "fields": [{"name": "at", "type": "long"}]})
    topic.send([Sent(key="a", value={"at": 0})])
    schemas.register(topic.subject, contract("amount", 5))
    materialize(totals("amount"), settings, spark, schemas=schemas)
    schemas.register(topic.subject, contract("spent", 5, aliases=["amount"]))
    with pytest.raises(DeclarationError, match="no field amount any more: it was renamed to spent"):
        materialize(totals("amount"), settings, spark, schemas=schemas)
    topic.send([Sent(key="a", value={"at": 1, "spent": 2})])
    assert not materialize(totals("spent"), settings, spark, schemas=schemas).skipped
    assert [row.total for row in spark.table("state.totals").collect()] == [7]
    schemas.register(topic.subject, contract("spent", 6, aliases=["amount"]))
    with pytest.raises(TableError, match=r"spent would have been otherwise in records that were folded.*--rebuild"):
        materialize(totals("spent"), settings, spark, schemas=schemas)
    assert verify(totals("spent"), settings, spark, schemas=schemas).is_exact
    rebuild(totals("spent"), settings, spark, schemas=schemas)
    assert [row.total for row in spark.table("state.totals").collect()] == [8]


def test_a_topic_without_a_contract_is_refused(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(None)
    with pytest.raises(ContractError, match=f"no schema is registered for {topic.subject}"):
        materialize(history(topic.name), settings, spark, schemas=schemas)


def test_a_contract_must_be_a_record_without_our_names(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    plain = make_topic({"type": "string"})
    with pytest.raises(ContractError, match="is not a record"):
        materialize(history(plain.name), settings, spark, schemas=schemas)
    ours = make_topic({"type": "record", "name": "R", "fields": [{"name": "_offset", "type": "long"}]})
    with pytest.raises(ContractError, match="has a field _offset"):
        materialize(history(ours.name), settings, spark, schemas=schemas)
