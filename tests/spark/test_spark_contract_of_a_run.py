"""
The contract that a run is given: read once for all that looks at it, and again only when newer records need it.
"""

from dataclasses import replace
from typing import Any

import pytest
from log_topic import Schemas, Sent

from fluvial.config import Settings
from fluvial.spark.avro import read_contract
from fluvial.tables import history
from fluvial.tables.drive.preflight import look_ahead
from fluvial.tables.drive.runner import materialize

pytestmark = pytest.mark.spark

FIRST = {"type": "record", "name": "Order", "fields": [{"name": "n", "type": "int"}]}
SECOND = {**FIRST, "fields": [*FIRST["fields"], {"name": "note", "type": "string", "default": "none"}]}


class Counted:
    """The registry, and how often a contract was read from it."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas, self.reads = schemas, 0

    def versions_of_subject(self, subject: str) -> Any:
        self.reads += 1
        return self._schemas.versions_of_subject(subject)

    def latest(self, subject: str) -> Any:
        return self._schemas.latest(subject)


def test_a_contract_that_was_checked_before_the_run_is_not_read_again(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(FIRST)
    orders, counted = history(topic.name, name="orders"), Counted(schemas)
    topic.send([Sent(key="a", value={"n": 1})])
    contract = look_ahead([orders], {}, settings).contracts["history.orders"]
    for rows in (1, 0):
        assert materialize(orders, settings, spark, schemas=counted, contract=contract).rows == rows
    assert counted.reads == 0
    # What does not decode may be of a newer version: asked once, and put aside when it is of none.
    topic.send([Sent(key="a", raw=b"bad"), Sent(key="a", value={"n": 2})])
    done = materialize(orders, settings, spark, schemas=counted, contract=contract)
    assert (done.rows, done.quarantined, counted.reads) == (1, 1, 1)


def test_records_of_a_version_that_came_since_are_read_as_it_says(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(FIRST)
    orders, counted = history(topic.name, name="orders"), Counted(schemas)
    topic.send([Sent(key="a", value={"n": 1})])
    first = read_contract(schemas, topic.name)
    materialize(orders, settings, spark, schemas=counted, contract=first)
    schemas.register(topic.subject, SECOND)
    topic.send([Sent(key="b", value={"n": 2, "note": "gift"})])
    done = materialize(orders, settings, spark, schemas=counted, contract=first)
    assert (done.quarantined, counted.reads) == (0, 2)  # once more after the table's rows were brought to it
    found = spark.table("history.orders").orderBy("_offset").collect()
    assert [(row.n, row.note) for row in found] == [(1, "none"), (2, "gift")]
    # The table knows a newer version than the contract now: it is read again before anything else.
    topic.send([Sent(key="b", value={"n": 3, "note": "late"})])
    counted.reads = 0
    materialize(orders, settings, spark, schemas=counted, contract=first)
    assert counted.reads == 1
    assert [row.note for row in spark.table("history.orders").orderBy("_offset").collect()] == ["none", "gift", "late"]


def test_a_record_without_a_key_is_counted_once_when_the_batch_is_planned_again(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    from fluvial.tables import compacted

    topic = make_topic({**FIRST, "fluvial.key": "n"})
    newest = compacted(topic.name, name="newest", key="n_key", keyless="quarantine")
    first = read_contract(schemas, topic.name)
    schemas.register(topic.subject, {**SECOND, "fluvial.key": "n"})
    topic.send([Sent(key=None, value={"n": 1, "note": ""}), Sent(key="2", value={"n": 2, "note": "gift"})])
    done = materialize(replace(newest), settings, spark, schemas=schemas, contract=first)
    assert (done.rows, done.quarantined) == (1, 1)
    assert [row.note for row in spark.table("compacted.newest").collect()] == ["gift"]
