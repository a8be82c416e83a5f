"""What `fluvial table erase` and `fluvial table replay` say, and what they refuse before Spark starts."""

import json

import pytest
import typer

from fluvial.cli.table.erase import as_json, as_lines
from fluvial.cli.table.table_replay import _places
from fluvial.tables import history, pipeline, publish, state
from fluvial.tables.declare.folds import count
from fluvial.tables.erasure.erase import ErasureReport, Gone, Remains
from fluvial.tables.erasure.survey import EraseError, topic_of

REPORT = ErasureReport(
    topic="customers",
    records=1_204,
    tombstones={3: 17, 1: 9},
    number=4,
    gone=(
        Gone(table="history.customers", rows=1_204, version=8),
        Gone(table="marts.spend", rows=None, version=5),
        Gone(table="marts.new", rows=None, version=None),
    ),
    remains=(Remains(where="topic customers (1,204 records)", until="compaction has removed them"),),
)


def test_the_report_says_what_went_from_where_and_what_is_left() -> None:
    assert as_lines(REPORT) == [
        "customers: 1,204 records of the key in the log",
        "customers: tombstone at partition 1, offset 9",
        "customers: tombstone at partition 3, offset 17",
        "history.customers: 1,204 rows, version 8",
        "marts.spend: follows its inputs, version 5",
        "marts.new: follows its inputs",
        "still readable: topic customers (1,204 records): until compaction has removed them",
    ]
    assert json.loads(json.dumps(as_json(REPORT))) == {
        "topic": "customers",
        "records": 1_204,
        "tombstones": {"1": 9, "3": 17},
        "erasure": 4,
        "tables": [
            {"table": "history.customers", "rows": 1_204, "version": 8},
            {"table": "marts.spend", "rows": None, "version": 5},
            {"table": "marts.new", "rows": None, "version": None},
        ],
        "remains": [{"where": "topic customers (1,204 records)", "until": "compaction has removed them"}],
    }


def test_a_key_that_is_nowhere_is_said_in_a_line() -> None:
    nothing = ErasureReport(
        topic="customers",
        records=0,
        tombstones={},
        number=1,
        gone=(Gone(table="state.customers", rows=0, version=2),),
        remains=(),
    )
    assert as_lines(nothing) == [
        "customers and the tables made from it hold nothing of the key",
        "state.customers: 0 rows, version 2",
    ]


def test_a_table_stands_for_its_topic_and_a_mart_for_none() -> None:
    customers = state("customers", topic="people", key="id", fields={"events": count()})
    spend = pipeline(name="spend", inputs=["state.customers"])(lambda rows: rows)
    published = publish("state.customers", topic="customer-state", key="id")
    declared = {each.table: each for each in (customers, history("people"), spend, published)}
    assert topic_of("state.customers", declared) == topic_of("history.people", declared) == "people"
    assert topic_of("people", declared) == "people"
    assert topic_of(published.table, declared) == "customer-state"
    with pytest.raises(EraseError, match=r"marts\.spend is made from state\.customers: erase the key of a topic"):
        topic_of("marts.spend", declared)


def test_records_to_replay_are_named_by_partition_and_offset() -> None:
    assert _places(["0:17", "2:3", "0:17"]) == {(0, 17), (2, 3)}
    for text in ("17", "0:", "-1:3", "a:b", "0:1:2", "0:" + "9" * 40):
        with pytest.raises(typer.BadParameter, match="write partition and offset"):
            _places([text])
