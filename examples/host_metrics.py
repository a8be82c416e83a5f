"""
Logs of several hosts in one topic, counted per host and minute: over what is there, and as a stream that goes on.

    python -m examples.host_metrics

One transform serves both. The table is written from the history; Structured Streaming reads the topic itself in
small batches, keeps its windows from one to the next, and ends with the same rows.
"""

import random
import tempfile
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from examples.program import Event, Platform, main
from fluvial.spark.avro import decode, read_contract
from fluvial.tables import history, pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC = "example-host-logs"
SCHEMA: Mapping[str, Any] = {
    "type": "record",
    "name": "HostLogLine",
    "fields": [
        {"name": "host", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "level", "type": "string"},
        {"name": "millis", "type": "int"},
    ],
}
HOSTS = tuple(f"host-{number}" for number in range(5))
EVENTS = 2000

events = history(TOPIC)  # history.example_host_logs
Counts = dict[tuple[str, str], tuple[int, int, int]]  # (host, minute) -> events, errors, milliseconds


@pipeline(name="example_host_minutes", inputs=[events.table])
def host_minutes(events: Any) -> Any:
    """What each host did in each minute of its own clock."""
    from pyspark.sql import functions as sql

    return (
        events.groupBy("host", sql.window("at", "1 minute").alias("of"))
        .agg(sql.expr("count(*) AS events"), sql.expr("count_if(level = 'ERROR') AS errors"), sql.sum("millis"))
        .selectExpr("host", "of.start AS minute", "events", "errors", "`sum(millis)` AS millis")
    )


def logged(seed: int = 276) -> list[Event]:
    """What the hosts wrote, as it arrives: each host's lines in order, one host up to minutes behind another."""
    dice = random.Random(seed)
    clocks = dict.fromkeys(HOSTS, datetime(2013, 11, 22, 9, tzinfo=UTC))
    found = []
    for _ in range(EVENTS):
        host = dice.choice(HOSTS)
        clocks[host] += timedelta(milliseconds=dice.randrange(6000))
        level = dice.choices(("INFO", "ERROR"), (19, 1))[0]
        found.append({"host": host, "at": clocks[host].isoformat(), "level": level, "millis": dice.randrange(1, 500)})
    return found


def counted(events: list[Event]) -> Counts:
    """Count in plain Python."""
    sums = Counter[tuple[str, str, str]]()
    for event in events:
        place = event["host"], event["at"][:16]
        sums += Counter(
            {(*place, "n"): 1, (*place, "e"): int(event["level"] == "ERROR"), (*place, "ms"): event["millis"]}
        )
    return {(h, m): (n, sums[h, m, "e"], sums[h, m, "ms"]) for (h, m, what), n in sums.items() if what == "n"}


def counts_of(rows: "DataFrame") -> Counts:
    """Return the rows of the table, or of the stream's."""
    found = rows.selectExpr("host", "date_format(minute, \"yyyy-MM-dd'T'HH:mm\")", "events", "errors", "millis")
    return {(row[0], row[1]): tuple(row[2:]) for row in found.collect()}


def stream(platform: Platform, folder: str) -> Counts:
    """Take in what the topic has got since the last call, a few hundred records at a time; return all windows."""
    with platform.settings.registry.client() as registry:
        contract = read_contract(registry, TOPIC)
    source = platform.spark.readStream.format("kafka").options(**platform.settings.cluster.spark_options())
    source = source.options(subscribe=TOPIC, startingOffsets="earliest", maxOffsetsPerTrigger=EVENTS * 2 // 3)
    windows = host_minutes(decode(source.load(), contract).select("value.*"))
    sink = windows.writeStream.format("delta").outputMode("complete").trigger(availableNow=True)
    sink.option("checkpointLocation", f"{folder}/checkpoint").start(f"{folder}/windows").awaitTermination()
    return counts_of(platform.spark.read.format("delta").load(f"{folder}/windows"))


def table(platform: Platform) -> Counts:
    """Bring the history and the table of minutes up to date; return it."""
    platform.bring_up(events, host_minutes)
    return counts_of(platform.sql("SELECT * FROM marts.example_host_minutes"))


def run(platform: Platform, folder: str | None = None) -> str:
    """The table, the stream and plain counting have the same rows; in `folder` the stream can be gone on with."""
    arriving = logged()
    if platform.open_topic(TOPIC, SCHEMA, partitions=2):
        platform.send(TOPIC, arriving, key="host")
    minutes = table(platform)
    with tempfile.TemporaryDirectory() as passing:
        assert minutes == stream(platform, folder or passing) == counted(arriving)
    return f"{len(minutes)} minutes of {len(HOSTS)} hosts, {EVENTS} lines: the stream's windows are the table's rows"


if __name__ == "__main__":
    main(run)
