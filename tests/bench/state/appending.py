"""
History: appending a topic of two schema versions, beside two hand-written streams.

One decodes in the JVM as ours does, one schema id in a CASE after the other; one decodes in Python, as is usual where
a batch mixes versions. All three write the same columns. A batch is what one trigger takes in.
"""

import io
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import Progress

from fluvial.config import Settings
from fluvial.spark.session import build_session
from fluvial.tables import history
from fluvial.tables.drive.runner import materialize
from tests.bench.state.events import NEWER, SCHEMA_ID, TOPIC, Contract, Source, TwoVersions, broker

OURS, JVM, PYTHON = "fluvial", "by hand, decoded in the JVM", "by hand, decoded in Python"
EVENTS = 400_000
ROUNDS = 5
WARM_UP = 2
_META = "_topic STRING, _partition INT, _offset BIGINT, _timestamp TIMESTAMP, _key BINARY, _schema_id INT"
_PLACE = ("topic AS _topic", "partition AS _partition", "offset AS _offset", "timestamp AS _timestamp", "key AS _key")


class Ours:
    """`history(topic)`."""

    def __init__(self, spark: Any, folder: Path, servers: str) -> None:
        self._spark = spark
        self._settings = Settings(warehouse=str(folder), bootstrap_servers=servers)
        self.path = str(folder / "history" / TOPIC)

    def run(self) -> float:
        began = time.monotonic()
        materialize(history(TOPIC), self._settings, self._spark, schemas=TwoVersions())
        return time.monotonic() - began


class Stream:
    """Structured Streaming into a Delta table."""

    def __init__(self, spark: Any, folder: Path, servers: str, *, python: bool) -> None:
        self.path = str(folder / "table")
        self._checkpoint = str(folder / "checkpoint")
        self._servers = servers
        self._decoded = _in_python if python else _in_the_jvm
        self._spark = spark.newSession()

    def run(self) -> float:
        records = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._servers)
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .load()
        )
        query = (
            self._decoded(records)
            .writeStream.format("delta")
            .option("checkpointLocation", self._checkpoint)
            .trigger(availableNow=True)
            .start(self.path)
        )
        query.awaitTermination()
        # Of the trigger alone: a stream that goes on running starts once.
        return float(sum(each["durationMs"]["triggerExecution"] for each in query.recentProgress)) / 1000


def _in_the_jvm(records: Any) -> Any:
    from pyspark.sql import functions as sql
    from pyspark.sql.avro.functions import from_avro

    body = sql.expr("substring(value, 6)")
    writer = sql.expr("CAST(conv(hex(substring(value, 2, 4)), 16, 10) AS INT)")
    reader = {"avroSchema": TwoVersions.schema}
    value = sql.when(writer == SCHEMA_ID, from_avro(body, Contract.schema, reader)).when(
        writer == NEWER, from_avro(body, TwoVersions.schema)
    )
    return records.select(value.alias("value"), *map(sql.expr, _PLACE), writer.alias("_schema_id")).select(
        "value.*", *(name.split()[0] for name in _META.split(", "))
    )


def _in_python(records: Any) -> Any:
    from pyspark.sql import functions as sql

    def decode(frames: Iterable[Any]) -> Iterator[Any]:
        import fastavro
        import pandas as pd

        schemas = {
            SCHEMA_ID: fastavro.parse_schema(Contract.parsed),
            NEWER: fastavro.parse_schema(TwoVersions.parsed),
        }
        reader = schemas[NEWER]
        for frame in frames:
            rows = []
            for raw in frame["value"]:
                schema_id = int.from_bytes(raw[1:5], "big")
                writer = schemas[schema_id]
                row: Any = fastavro.schemaless_reader(io.BytesIO(raw[5:]), writer, reader)
                rows.append({**row, "_schema_id": schema_id})
            yield pd.concat([pd.DataFrame(rows), frame.drop(columns="value")], axis=1)

    fields = (
        "sensor STRING, kind STRING, sequence BIGINT, celsius DOUBLE, pascal DOUBLE, humidity INT, battery FLOAT, "
        "remark STRING, calibrated BOOLEAN, at TIMESTAMP, station STRING"
    )
    return records.select("value", *map(sql.expr, _PLACE)).mapInPandas(decode, f"{fields}, {_META}")


def measure(progress: Progress) -> dict[str, float]:
    """Median seconds of a warm batch of EVENTS events of each side. Raises SystemExit when the tables differ."""
    seconds: dict[str, list[float]] = {OURS: [], JVM: [], PYTHON: []}
    task = progress.add_task(f"history, {EVENTS:,} events a batch", total=ROUNDS + WARM_UP)
    with tempfile.TemporaryDirectory(prefix="bench-state-") as temporary:
        folder = Path(temporary)
        with broker(folder / "log") as servers:
            source = Source(servers, 200_000, versions=2)
            spark = build_session(Settings(warehouse=str(folder / "ours"), spark_conf={"spark.driver.memory": "4g"}))
            pipelines: dict[str, Ours | Stream] = {
                OURS: Ours(spark, folder / "ours", servers),
                JVM: Stream(spark, folder / "jvm", servers, python=False),
                PYTHON: Stream(spark, folder / "python", servers, python=True),
            }
            for _ in range(ROUNDS + WARM_UP):
                source.write(EVENTS)
                for name, pipeline in pipelines.items():
                    seconds[name].append(pipeline.run())
                progress.advance(task)
            ours = spark.read.format("delta").load(pipelines[OURS].path)
            for name in (JVM, PYTHON):
                theirs = spark.read.format("delta").load(pipelines[name].path).select(*ours.columns)
                if ours.exceptAll(theirs).count() or theirs.exceptAll(ours).count():
                    raise SystemExit(f"history: the tables of {OURS} and {name} differ")
    return {name: median(each[WARM_UP:]) for name, each in seconds.items()}
