"""The tables that a key is erased from, and where the key is still found: in the log, in rows and in files."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from log_topic import Schemas, Sent, Topic

from fluvial.config import Settings
from fluvial.spark.kafka import Span, read_span, topic_bounds
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import Declaration, aggregate, compacted, count, history, latest, pipeline, state, sum_
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify

KEY = "ada-4711"
SCHEMA = {
    "type": "record",
    "name": "Customer",
    "fields": [{"name": "town", "type": "string"}, {"name": "spent", "type": "int"}],
}
TOWN = "Oakhamville"


def events(*, spent: int = 1) -> list[Sent]:
    sent = [
        Sent(key=KEY, value={"town": TOWN, "spent": spent}, partition=1),
        Sent(key="bob", value={"town": "Ely", "spent": spent}, partition=0),
        Sent(key=KEY, value={"town": TOWN, "spent": spent + 1}, partition=1),
        Sent(key="cid", value={"town": "Ely", "spent": spent}, partition=1),
    ]
    # Each at its own time, so that each makes a version of its row.
    now_ms = time.time_ns() // 1_000_000
    return [replace(each, timestamp_ms=now_ms + at) for at, each in enumerate(sent)]


def tables_of(topic: str) -> dict[str, Declaration]:
    from pyspark.sql import functions

    @pipeline(name="towns", inputs=["history.customers"], key="town", version="1")
    def towns(rows: Any) -> Any:
        return (
            rows.where("town IS NOT NULL")
            .groupBy("town")
            .agg(functions.sum("spent").alias("spent"), functions.max("_offset").alias("newest"))
        )

    @pipeline(name="big", inputs=["state.customers"], version="1")
    def big(rows: Any) -> Any:
        return rows.where("events > 0").select("id", "town")

    @pipeline(name="of_marts", inputs=["marts.big"], version="1")
    def of_marts(rows: Any) -> Any:
        return rows.selectExpr("id", "upper(town) AS town")

    fields = {"town": latest("town"), "events": count()}
    found: list[Declaration] = [
        history(topic, name="customers"),
        compacted(topic, name="customers", key="id"),
        state("customers", topic=topic, key="id", fields=fields),
        state("versions", topic=topic, key="id", fields=fields, scd2=True),
        towns,
        aggregate("compacted.customers", name="spent", by="id", fields={"spent": sum_("spent")}),
        big,
        of_marts,
    ]
    return {each.table: each for each in found}


def run(tables: Mapping[str, Declaration], settings: Settings, spark: Any, schemas: Schemas) -> None:
    for each in tables.values():
        materialize(each, settings, spark, schemas=schemas)


def holding(spark: Any, settings: Settings) -> list[str]:
    """The tables of which a row of the newest version has the key, or what only its events say."""
    warehouse = Warehouse.at(settings.warehouse)
    found = []
    for name in warehouse.tables():
        rows = spark.read.format("delta").load(warehouse.path(name)).collect()
        if any(mentions(value) for row in rows for value in row.asDict(recursive=True).values()):
            found.append(name)
    return found


def mentions(value: Any) -> bool:
    text = value.decode(errors="replace") if isinstance(value, bytes | bytearray) else str(value)
    return KEY in text or TOWN.lower() in text.lower()


def on_disk(folder: Path) -> list[str]:
    """The files that hold the key, or what only its events say: their bytes, and the values of Parquet files."""
    found = []
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        held = mentions(file.read_bytes())
        # A writer that is killed may leave an empty file.
        if file.name.endswith(".parquet") and file.stat().st_size:
            held = held or any(mentions(value) for value in values_of(file))
        if held:
            found.append(str(file.relative_to(folder)))
    return found


def values_of(file: Path) -> Iterator[Any]:
    for row in pq.read_table(file).to_pylist():
        yield from row.values()


def check_exact(tables: Mapping[str, Declaration], settings: Settings, spark: Any, schemas: Schemas) -> None:
    for each in tables.values():
        verdict = verify(each, settings, spark, schemas=schemas)
        assert verdict.is_exact, verdict


def last_records(topic: Topic, spark: Any, settings: Settings) -> list[tuple[int, bytes | None]]:
    """Partition and value of each record of the key in the log."""
    span = Span(topic=topic.name, ranges={0: (0, bounds_of(topic, settings)[0]), 1: (0, bounds_of(topic, settings)[1])})
    records = read_span(spark, settings.cluster, span).where(f"key = X'{KEY.encode().hex()}'")
    return [(row.partition, row.value) for row in records.collect()]


def bounds_of(topic: Topic, settings: Settings) -> Mapping[int, int]:
    return topic_bounds(settings.cluster, topic.name).ends
