"""What made a row, told record by record: by folds, by a reducer, of the latest value and of a history."""

from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from log_topic import Schemas, Sent, Topic

from fluvial.cli.table.explain_row import as_json, as_lines
from fluvial.config import Settings
from fluvial.tables import Declaration, compacted, count, history, latest, state, sum_
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.explain_row import RowStory, explain_row
from fluvial.tables.refresh.comparison import NotBuiltError

pytestmark = pytest.mark.spark

SCHEMA = {
    "type": "record",
    "name": "Payment",
    "fields": [{"name": "town", "type": ["null", "string"]}, {"name": "paid", "type": "int"}],
}
FIELDS = {"payments": count(), "paid": sum_("paid"), "town": latest("town"), "large": count("paid > 10")}


def sent(key: str, town: str | None, paid: int, **more: Any) -> Sent:
    return Sent(key=key, value={"town": town, "paid": paid}, **more)


def pay(row: dict[str, Any] | None, events: Any) -> dict[str, Any] | None:
    for event in events:
        row = {"paid": (0 if row is None else row["paid"]) + event["paid"]}
    return row


@pytest.fixture
def topic(make_topic: Any) -> Topic:
    made: Topic = make_topic(SCHEMA, partitions=2)
    return made


def tables_of(topic: Topic) -> dict[str, Declaration]:
    found: list[Declaration] = [
        state("customers", topic=topic.name, key="id", fields=FIELDS),
        state("reduced", topic=topic.name, key="id", reduce=pay, returns="paid BIGINT"),
        compacted(topic.name, name="customers", key="id"),
        history(topic.name, name="payments"),
    ]
    return {each.table: each for each in found}


@pytest.mark.rota
def test_every_step_of_a_row_is_told(spark: Any, settings: Settings, schemas: Schemas, topic: Topic) -> None:
    tables = tables_of(topic)
    with pytest.raises(NotBuiltError):
        explain_row(tables["state.customers"], "ada", settings, spark, schemas=schemas)
    topic.send([sent("ada", "Ely", 5), sent("bob", "Ely", 1), sent("ada", None, 20), Sent(key="ada", raw=b"bad")])
    for each in tables.values():
        materialize(each, settings, spark, schemas=schemas)
    topic.send([Sent(key="ada"), sent("ada", "Bath", 7), sent("ada", "Bath", 8, partition=1)])
    for each in tables.values():
        materialize(each, settings, spark, schemas=schemas)

    def told(table: str, **how: Any) -> RowStory:
        return explain_row(tables[table], "ada", settings, spark, schemas=schemas, **how)

    def rows(story: RowStory) -> list[tuple[int, int, Mapping[str, Any] | None]]:
        return [(step.partition, step.offset, step.row) for step in story.steps]

    def row(payments: int, paid: int, town: str | None, large: int) -> dict[str, Any]:
        return {"id": "ada", "payments": payments, "paid": paid, "town": town, "large": large}

    story = told("state.customers")
    assert rows(story) == [
        (0, 0, row(1, 5, "Ely", 0)),
        (0, 2, row(2, 25, None, 1)),
        (0, 4, None),
        (0, 5, row(1, 7, "Bath", 0)),
        (1, 0, row(2, 15, "Bath", 0)),
    ]
    assert [step.schema for step in story.steps] == [1, 1, None, 1, 1]
    assert [step.fields for step in story.steps][:3] == [
        {"town": "Ely", "paid": 5}, {"town": None, "paid": 20}, None,
    ]  # fmt: skip
    assert [each.taken.version for each in story.steps if each.taken] == [0, 0, 1, 1, 1]
    assert len({each.taken.run for each in story.steps if each.taken}) == 2
    assert [(each.partition, each.offset) for each in story.aside] == [(0, 3)]
    assert story.source == f"topic {topic.name}"
    # The last step is the row that the table has.
    has = spark.table("state.customers").where("id = 'ada'").first().asDict()
    assert {name: has[name] for name in story.steps[-1].row or {}} == story.steps[-1].row

    assert rows(told("state.customers", until={0: 2, 1: -1})) == rows(story)[:2]
    cut = told("state.customers", limit=2)
    assert (rows(cut), cut.left_out) == (rows(story)[-2:], 3)
    assert [step.row and step.row["paid"] for step in told("state.reduced").steps] == [5, 25, None, 7, 15]
    assert rows(told("compacted.customers"))[1:4] == [
        (0, 2, {"id": "ada", "town": None, "paid": 20}), (0, 4, None), (0, 5, {"id": "ada", "town": "Bath", "paid": 7}),
    ]  # fmt: skip
    of_history = told("history.payments")
    assert (of_history.source, [step.row for step in of_history.steps]) == (
        "history.payments", [step.fields for step in story.steps],
    )  # fmt: skip
    nobody = explain_row(tables["state.customers"], "nobody", settings, spark, schemas=schemas)
    assert list(as_lines(nobody, None))[1:] == ["no record has this key"]

    lines = list(as_lines(story, "shop"))
    assert lines[0] == (
        f"state.customers 'ada' at version 1, by topic {topic.name} ({topic.subject}, a contract of shop)"
    )
    assert "    payments: 1 → 2" in lines
    assert "    no row" in lines
    assert any(line.endswith("in quarantine") for line in lines)
    told_json = as_json(story, "shop")
    assert told_json["steps"][0]["row"] == row(1, 5, "Ely", 0)
    assert told_json["quarantined"][0]["offset"] == 3


def test_what_the_log_has_dropped_is_told_by_the_history(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic
) -> None:
    tables = {name: each for name, each in tables_of(topic).items() if name in ("state.customers", "history.payments")}
    topic.send([sent("ada", "Ely", 5), sent("ada", "Ely", 20)])
    for each in tables.values():
        materialize(each, settings, spark, schemas=schemas)
    before = explain_row(tables["state.customers"], "ada", settings, spark, schemas=schemas)
    admin = AdminClient({"bootstrap.servers": topic.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic.name, 0, 1)]).values():
        future.result(30)
    after = explain_row(tables["state.customers"], "ada", settings, spark, schemas=schemas)
    assert (before.source, after.source) == (f"topic {topic.name}", "history.payments")
    assert [step.row for step in after.steps] == [step.row for step in before.steps]
    assert dict(after.begins) == {}
