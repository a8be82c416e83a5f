"""
A small run of everything that a driver does, for the classes that it loads.

`python -m fluvial.testing.class_archive FILE`: a topic on an embedded broker becomes a history, a compacted and a state
table in two batches; then they are asked. The JVM writes its classes to FILE when it ends
(:mod:`fluvial.spark.class_archive` says what for).
"""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from fluvial.registry.client import RegistryClient
from fluvial.spark.class_archive import options_to_make
from fluvial.spark.session import build_session, run_sql
from fluvial.tables import compacted, count, history, latest, state, sum_
from fluvial.tables.drive.runner import materialize
from fluvial.tables.plan.table_index import TableIndexes
from fluvial.testing.embedded import embedded_platform

TOPIC = "training"
SCHEMA = {
    "type": "record",
    "name": "Training",
    "fluvial.key": "name",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "amount", "type": ["null", "long"], "default": None},
        {"name": "price", "type": "double"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
EVENTS = 200


def train(archive: Path) -> None:
    """Do the run, and end the JVM so that `archive` is written."""
    with tempfile.TemporaryDirectory(prefix="fluvial-training-") as folder, embedded_platform() as platform:
        with RegistryClient(platform.registry_url) as registry:
            registry.register(f"{TOPIC}-value", json.dumps(SCHEMA))
        options = {"spark.driver.extraJavaOptions": options_to_make(archive)}
        settings = replace(platform.settings(folder), spark_conf=options)
        spark = build_session(settings, "fluvial training")
        gateway: Any = spark.sparkContext._gateway
        tables = (
            history(TOPIC),
            compacted(TOPIC),
            state(
                TOPIC, topic=TOPIC, key="name", fields={"n": count(), "sum": sum_("amount"), "last": latest("price")}
            ),
        )
        indexes = TableIndexes()
        for batch in range(2):
            platform.send(TOPIC, [_event(batch, number) for number in range(EVENTS)], key="name")
            for table in tables:
                materialize(table, settings, spark, indexes=indexes)
        for question in (
            f"SELECT name, count(*) n, max(_offset) FROM history.{TOPIC} GROUP BY 1 ORDER BY 2 DESC LIMIT 5",
            f"SELECT s.*, c.at FROM state.{TOPIC} s JOIN compacted.{TOPIC} c USING (name) WHERE s.n > 1",
        ):
            run_sql(spark, settings, question).collect()
        spark.stop()
    # Closing its input ends the JVM in order; who only leaves it behind does not wait for what it writes.
    gateway.shutdown()
    gateway.proc.stdin.close()
    if gateway.proc.wait() != 0:
        raise SystemExit(f"the JVM ended with {gateway.proc.returncode}")


def _event(batch: int, number: int) -> dict[str, Any]:
    at = 1_700_000_000_000 + batch * EVENTS + number
    return {"name": f"name {number % 50}", "amount": number, "price": number / 4, "at": at}


if __name__ == "__main__":
    train(Path(sys.argv[1]))
