"""
Records that do not decode: put aside once, with the reason, and never in a table of the topic.
"""

from typing import Any

import pytest
from log_topic import Schemas, Sent
from plain_fold import FIELDS, SCHEMA, plain_state

from fluvial.config import Settings
from fluvial.tables import compacted, history, state
from fluvial.tables.drive.runner import materialize

pytestmark = pytest.mark.spark

GOOD = {"kind": "up", "amount": 1, "weight": None, "at": 0}


def test_what_does_not_decode_is_put_aside_with_the_reason(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA)
    other = schemas.register(f"{topic.name}-other", {**SCHEMA, "name": "Other"})
    own = schemas.latest(topic.subject).id
    # A string that claims two gigabytes, a body cut short, and one that is empty.
    header = b"\0" + own.to_bytes(4, "big")
    topic.send(
        [
            Sent(key="a", value=GOOD),
            Sent(key="a", raw=b"plain text"),
            Sent(key="a", raw=b""),
            Sent(key="b", raw=b"\0" + other.to_bytes(4, "big") + b"\x04up\0\0\0"),
            Sent(key="b", raw=header + b"\xfe\xff\xff\xff\x0f"),
            Sent(key="b", raw=header + b"\x04u"),
            Sent(key="b", raw=header),
            Sent(key="b", value=GOOD),
        ]
    )
    result = materialize(history(topic.name, name="readings"), settings, spark, schemas=schemas)
    assert (result.rows, result.quarantined) == (2, 6)
    aside = spark.table(f"quarantine.{topic.name}").orderBy("_offset").collect()
    assert [(row._offset, bytes(row._value), bytes(row._key)) for row in aside] == [
        (offset, record.raw, record.key.encode()) for _, offset, record in topic.in_order() if not record.decodes
    ]
    reasons = [row._reason for row in aside]
    assert all("not framed" in reason for reason in reasons[:2])
    assert reasons[2] == f"schema id {other} is none of {topic.subject}"
    assert all(reason == f"the bytes do not decode with schema id {own}" for reason in reasons[3:])
    assert [row._offset for row in spark.table("history.readings").orderBy("_offset").collect()] == [0, 7]


def test_tables_of_one_topic_share_one_quarantine(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA)
    tables = (
        history(topic.name, name="readings"),
        compacted(topic.name, name="readings", key="id"),
        state("readings", topic=topic.name, key="id", fields=FIELDS),
    )
    for batch in range(2):
        topic.send([Sent(key="a", value=GOOD), Sent(key="a", raw=b"bad"), Sent(key="b"), Sent(key="b", value=GOOD)])
        quarantined = [materialize(table, settings, spark, schemas=schemas).quarantined for table in tables]
        assert quarantined == [1, 0, 0]
        offsets = [row._offset for row in spark.table(f"quarantine.{topic.name}").orderBy("_offset").collect()]
        assert offsets == [1, 5][: batch + 1]
    found = {row.id: row.events for row in spark.table("state.readings").collect()}
    assert found == {key: row["events"] for key, row in plain_state(topic).items()}


def test_a_record_of_nulls_is_no_damaged_record(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    fields = [{"name": "note", "type": ["null", "string"], "default": None}]
    topic = make_topic({"type": "record", "name": "Note", "fields": fields})
    topic.send([Sent(key="a", value={"note": None}), Sent(key="b")])
    result = materialize(history(topic.name, name="notes"), settings, spark, schemas=schemas)
    assert (result.rows, result.quarantined) == (2, 0)
    rows = spark.table("history.notes").orderBy("_offset").collect()
    assert [row._schema_id for row in rows] == [schemas.latest(topic.subject).id, None]
