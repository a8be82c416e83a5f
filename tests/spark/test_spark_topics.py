"""Topics as decoded frames in a user's own job: ranges of them, and streams over versions of their contract."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from log_topic import Schemas, Sent

from fluvial.config import Settings
from fluvial.spark import read_topic, stream_topic
from fluvial.spark.avro import ContractError, read_contract
from fluvial.spark.kafka import TopicError
from fluvial.spark.newer_schemas import NewColumns

pytestmark = pytest.mark.spark

FIELDS = [
    {"name": "item", "type": "string"},
    {"name": "amount", "type": "int"},
    {"name": "note", "type": ["null", "string"], "default": None},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
]
ORDER = {"type": "record", "name": "Order", "fields": FIELDS}
# Two fields that went, and one that came.
NEWER = {**ORDER, "fields": [*FIELDS[:2], {"name": "discount", "type": ["null", "double"], "default": None}]}


def order(item: str, amount: int, **more: Any) -> dict[str, Any]:
    return {"item": item, "amount": amount, "note": None, "at": 5000, **more}


def rows(frame: Any, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.select(*columns).orderBy("_partition", "_offset").collect()]


def test_a_range_of_a_topic_is_a_frame_of_its_contract(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(ORDER, partitions=2)
    topic.send(
        [
            Sent(key="a", value=order("ink", 1), timestamp_ms=1_700_000_000_000),
            Sent(key="a", value=order("pen", 2, note="x"), timestamp_ms=1_700_000_010_000),
            Sent(key="b", value=None, partition=1, timestamp_ms=1_700_000_020_000),
            Sent(key="b", raw=b"plain text", partition=1, timestamp_ms=1_700_000_030_000),
        ]
    )
    every = read_topic(spark, topic.name, settings=settings, undecodable="drop")
    place = ["_topic", "_partition", "_offset", "_timestamp", "_key", "_schema_id"]
    assert every.columns == [*(each["name"] for each in FIELDS), *place]
    assert rows(every, "item", "amount", "note", "_partition", "_offset") == [
        ("ink", 1, None, 0, 0), ("pen", 2, "x", 0, 1), (None, None, None, 1, 0)
    ]  # fmt: skip
    some = read_topic(spark, topic.name, start={0: 1}, end={1: 1}, settings=settings)
    assert rows(some, "item", "_partition", "_offset") == [("pen", 0, 1), (None, 1, 0)]
    between = read_topic(
        spark,
        topic.name,
        start=datetime.fromtimestamp(1_700_000_005, UTC),
        end=datetime.fromtimestamp(1_700_000_020, UTC),
        settings=settings,
    )
    assert rows(between, "item") == [("pen",)]
    with pytest.raises(Exception, match=f"does not decode: {topic.name}-1 at offset 1, not framed") as raised:
        read_topic(spark, topic.name, settings=settings).collect()
    assert 'undecodable="drop"' in str(raised.value)

    for where, why in (
        ({5: 0}, "start names partition 5, and there are 2, from 0"),
        ({0: 9}, "start is offset 9 of partition 0, which holds 0 to 2: read within them"),
        (datetime.fromisoformat("2025-01-01"), "of no time zone"),
        ("oldest", "start is 'oldest': write \"earliest\""),
    ):
        with pytest.raises(TopicError) as refused:
            read_topic(spark, topic.name, start=where, settings=settings)  # type: ignore[arg-type]
        assert why in str(refused.value)
    with pytest.raises(ContractError, match="undecodable is 'skip'"):
        read_topic(spark, topic.name, undecodable="skip", settings=settings)  # type: ignore[arg-type]
    with pytest.raises(TopicError, match="there is no topic nothing_here"):
        stream_topic(spark, "nothing_here", settings=settings)


def test_a_stream_reads_newer_versions_into_the_columns_that_it_began_with(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any, tmp_path: Path
) -> None:
    topic = make_topic(ORDER)
    other = schemas.register(f"{topic.name}-other", {**ORDER, "name": "Other"})
    topic.send([Sent(key="a", value=order("ink", 1)), Sent(key="a", value=None)])

    def started() -> Any:
        frame = stream_topic(spark, topic.name, settings=settings, undecodable="drop", records_max=100)
        writer = frame.writeStream.format("delta").option("mergeSchema", "true")
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "table"))

    began_with = read_contract(schemas, topic.name)
    query = started()
    try:
        query.processAllAvailable()
        newest = schemas.register(topic.subject, NEWER)
        topic.send(
            [
                Sent(key="b", value={"item": "pen", "amount": 2, "discount": 0.5}),
                Sent(key="b", raw=b"\0" + other.to_bytes(4, "big") + b"\x04up\x02\0\0"),
                Sent(key="b", raw=b"\0" + newest.to_bytes(4, "big") + b"\xfe\xff\xff\xff\x0f"),
                Sent(key="b", value=order("cap", 3, note="old"), schema_id=began_with.reader_id),
            ]
        )
        query.processAllAvailable()
    finally:
        query.stop()
    table = spark.read.format("delta").load(str(tmp_path / "table"))
    assert rows(table, "item", "amount", "note", "_offset", "_schema_id") == [
        ("ink", 1, None, 0, began_with.reader_id),
        (None, None, None, 1, None),
        ("pen", 2, None, 2, newest),
        ("cap", 3, "old", 5, began_with.reader_id),
    ]
    assert "discount" not in table.columns

    said: list[str] = []
    times = iter((0.0, 0.0, 5.0, 60.0, 60.0))
    columns = NewColumns(began_with, settings.registry, said.append, clock=lambda: next(times))
    columns.look()
    columns.look()
    columns.look()
    assert said == [
        f"{topic.subject} has version 2 with discount: running queries read its records into the columns that they "
        "have; start them again to have these too"
    ]

    query = started()
    try:
        topic.send([Sent(key="c", value={"item": "nib", "amount": 4, "discount": 0.25})])
        query.processAllAvailable()
    finally:
        query.stop()
    table = spark.read.format("delta").load(str(tmp_path / "table"))
    assert rows(table.where("_offset > 5"), "item", "amount", "discount") == [("nib", 4, 0.25)]
