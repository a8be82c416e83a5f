"""`fluvial table` and `fluvial group lag`, on logs that the test writes and a broker in this process."""

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from fluvial_command import Cli

from fluvial.delta.snapshot import read_snapshot, type_text
from log_broker import embedded

SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "string", "nullable": False, "metadata": {}},
        {
            "name": "tags",
            "type": {"type": "array", "elementType": "long", "containsNull": True},
            "nullable": True,
            "metadata": {},
        },
    ],
}
METADATA = {"metaData": {"schemaString": json.dumps(SCHEMA), "partitionColumns": ["id"], "configuration": {"a": "b"}}}


def add(path: str, rows: int | None, size: int = 100, marked: int = 0) -> dict[str, Any]:
    stats = {} if rows is None else {"stats": json.dumps({"numRecords": rows})}
    vector = {"deletionVector": {"cardinality": marked}} if marked else {}
    return {"add": {"path": path, "size": size, **stats, **vector}}


def remove(path: str) -> dict[str, Any]:
    return {"remove": {"path": path}}


def info(operation: str, offsets: dict[str, list[int]] | None = None, **metrics: int) -> dict[str, Any]:
    said: dict[str, Any] = {"operation": operation, "operationMetrics": metrics, "timestamp": 1_767_225_600_000}
    if offsets is not None:
        stamp = {"topic": "orders", "batch": 1, "offsets": offsets, "run": "r"}
        said["userMetadata"] = json.dumps({"fluvial": stamp})
    return {"commitInfo": said}


def commit(folder: Path, version: int, *actions: dict[str, Any]) -> None:
    log = folder / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020d}.json").write_text("".join(f"{json.dumps(each)}\n" for each in actions))


@dataclass
class Tables:
    cli: Cli
    cluster: tuple[str, ...]

    def json(self, *words: str) -> Any:
        return json.loads(self.cli.ok(*words, "--format", "json", *self.cluster))


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    """A topic of 2 partitions with 5 records each; history.orders has 3 and 5 of them, marts.sums is made of it."""
    cli = Cli(tmp_path_factory.mktemp("tables"))
    orders = cli.data_dir / "warehouse" / "history" / "orders"
    txn = {"txn": {"appId": "fluvial/orders", "version": 1}}
    commit(orders, 0, METADATA, add("a", 4, 10), txn, info("WRITE", {"0": [0, 2], "1": [0, 2]}, numOutputRows=4))
    commit(orders, 1, add("b", 4, 20), txn, info("WRITE", {"0": [2, 3], "1": [2, 5]}, numOutputRows=4))
    commit(orders, 2, remove("a"), add("a", 4, 10, marked=1), info("DELETE", numDeletedRows=1))
    commit(cli.data_dir / "warehouse" / "marts" / "sums", 0, METADATA, add("s", None), info("WRITE"))
    with embedded(topics={"orders": 2}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(10):
            producer.produce("orders", b"x", partition=number % 2)
        producer.flush()
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "readers"})
        consumer.commit(offsets=[Place("orders", 0, 1), Place("orders", 1, 5)], asynchronous=False)
        consumer.close()
        yield Tables(cli, ("--bootstrap-server", broker.bootstrap_servers))


def test_tables_are_listed_with_their_lag(tables: Tables) -> None:
    orders, sums = tables.json("table", "list")
    assert orders == {
        "table": "history.orders",
        "kind": "history",
        "topic": "orders",
        "version": 2,
        "rows": 7,
        "files": 2,
        "bytes": 30,
        "offsets": {"0": 3, "1": 5},
        "lag": 2,
    }
    assert (sums["table"], sums["rows"], sums["lag"], sums["topic"]) == ("marts.sums", None, None, None)
    assert "history.orders" in tables.cli.ok("table", "list", *tables.cluster)


def test_without_a_cluster_the_lag_alone_is_unknown(tables: Tables) -> None:
    done = tables.cli.run("table", "list", "--bootstrap-server", "127.0.0.1:1", "--format", "json")
    assert [row["lag"] for row in json.loads(done.stdout)] == [None, None]
    assert done.stderr.startswith("the lag is not known: no Kafka broker at 127.0.0.1:1")


def test_a_table_is_shown(tables: Tables) -> None:
    shown = tables.json("table", "show", "history.orders")
    assert shown["columns"] == [
        {"name": "id", "type": "string", "nullable": False},
        {"name": "tags", "type": "array<long>", "nullable": True},
    ]
    assert shown["partitions"] == [
        {"partition": 0, "end_offset": 3, "lag": 2},
        {"partition": 1, "end_offset": 5, "lag": 0},
    ]
    assert (shown["partitioned_by"], shown["properties"]) == (["id"], {"a": "b"})
    assert "array<long>" in tables.cli.ok("table", "show", "history.orders", *tables.cluster)


def test_the_history_of_a_table(tables: Tables) -> None:
    newest, written, first = tables.json("table", "history", "history.orders")
    assert (newest["operation"], newest["rows_removed"], newest["offsets"]) == ("DELETE", 1, {})
    assert (written["rows_written"], written["offsets"]) == (4, {"0": [2, 3], "1": [2, 5]})
    assert first["time"] == "2026-01-01T00:00:00.000Z"
    drawn = tables.cli.ok("table", "history", "history.orders", "--limit", "2", *tables.cluster)
    assert "0: [2, 3), 1: [2, 5)" in drawn
    assert "[0, 2)" not in drawn


def test_an_unknown_table_and_a_broken_one_are_told(tables: Tables, cli: Cli) -> None:
    assert "did you mean history.orders?" in tables.cli.refused("table", "show", "orders", *tables.cluster)
    assert "only Spark reads them" in cli.refused("table", "list", "--warehouse", "s3a://lake/tables")
    commit(cli.data_dir / "warehouse" / "state" / "torn", 0)
    done = cli.run("table", "list", "--format", "json")
    assert [row["version"] for row in json.loads(done.stdout)] == [None]
    assert "state.torn: " in done.stderr


def test_a_checkpoint_stands_for_the_commits_before_it(tmp_path: Path) -> None:
    commit(tmp_path, 2, remove("a"), add("c", 5, 7), info("WRITE"))
    schema = pa.schema(
        [
            ("add", pa.struct([("path", pa.string()), ("size", pa.int64()), ("stats", pa.string())])),
            ("remove", pa.struct([("path", pa.string())])),
            (
                "metaData",
                pa.struct(
                    [
                        ("schemaString", pa.string()),
                        ("partitionColumns", pa.list_(pa.string())),
                        ("configuration", pa.map_(pa.string(), pa.string())),
                    ]
                ),
            ),
        ]
    )
    metadata = METADATA["metaData"] | {"configuration": [("a", "b")]}
    rows = [{"metaData": metadata}, add("a", 1), add("b", 2, 3)]
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "_delta_log" / f"{1:020d}.checkpoint.parquet")
    found = read_snapshot(str(tmp_path))
    assert found is not None
    assert (found.version, found.rows, found.files, found.bytes, found.properties) == (2, 7, 2, 10, {"a": "b"})
    assert read_snapshot(str(tmp_path / "none")) is None


def test_a_nested_type_is_written_as_spark_does() -> None:
    inner = {"type": "map", "keyType": "string", "valueType": "long"}
    assert type_text({"type": "struct", "fields": [{"name": "a", "type": inner}]}) == "struct<a:map<string,long>>"


def test_the_lag_of_a_group(tables: Tables) -> None:
    shown = tables.json("group", "lag", "readers")
    assert (shown["lag"], [each["lag"] for each in shown["partitions"]]) == (4, [4, 0])
    assert tables.cli.ok("group", "lag", "readers", *tables.cluster).startswith("readers: empty, lag 4\n")
    assert "no group 'reader'" in tables.cli.refused("group", "lag", "reader", *tables.cluster)


def test_the_lag_of_a_group_is_watched_until_ctrl_c(tables: Tables) -> None:
    words = ("--watch", "--interval", "0.1", "--format", "json")
    watching = tables.cli.start("group", "lag", "readers", *words, *tables.cluster)
    assert watching.stdout is not None
    seen = [json.loads(watching.stdout.readline()) for _ in range(2)]
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=60)
    assert watching.returncode == 0
    assert [each["lag"] for each in seen] == [4, 4]
