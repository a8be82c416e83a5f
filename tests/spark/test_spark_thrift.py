"""`fluvial serve --thrift-port`: what Spark's own beeline is answered there, and what the server's JVM cannot do."""

import csv
import io
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from beeline import PATIENCE_SECONDS, beeline, rows
from serving import serving_beside

from fluvial.query import jail

pytestmark = pytest.mark.spark

MEMORY = '[spark]\n"spark.driver.memory" = "1g"\n"spark.sql.codegen.wholeStage" = "false"\n'
PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}


@dataclass
class Served:
    """A running `fluvial serve` with the port of JDBC."""

    process: "subprocess.Popen[str]"
    warehouse: Path
    http: str
    jdbc: str

    def jvm(self) -> psutil.Process:
        """The process of the door's Spark."""
        (jvm,) = [each for each in psutil.Process(self.process.pid).children(recursive=True) if each.name() == "java"]
        return jvm

    def ask(self, statement: str) -> list[dict[str, str]]:
        """What beeline is answered, each value as text."""
        return rows(self.jdbc, statement)

    def refusals(self, *statements: str) -> list[str]:
        """The first line of what beeline says of each statement that fails."""
        done = beeline(self.jdbc, *statements, options=["--force=true"])
        return re.findall(r"^Error: .*$", done.stderr, re.MULTILINE)


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    warehouse = folder / "warehouse"
    write_table(warehouse, "marts.cities", ["Bern", "Basel"])
    (folder / "fluvial.toml").write_text(MEMORY)
    with serving_beside(folder, warehouse, "--thrift-port", "0", schemes=["hive2"]) as (process, found):
        yield Served(process, warehouse, found["http"], f"jdbc:{found['hive2']}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("a thrift server")) as server:
        yield server


@pytest.mark.rota
def test_beeline_is_answered_as_over_http(server: Served) -> None:
    statement = "select city, length(city) as letters from marts.cities order by city"
    over_http = httpx.post(f"{server.http}/sql?format=csv", content=statement, timeout=60)
    assert over_http.status_code == 200, over_http.text
    expected = list(csv.DictReader(io.StringIO(over_http.text)))
    assert server.ask(statement) == expected
    assert [row["city"] for row in expected] == ["Basel", "Bern"]


def test_tables_and_versions_that_come_later_are_seen(server: Served) -> None:
    write_table(server.warehouse, "state.people", ["ada"])
    end = time.monotonic() + PATIENCE_SECONDS
    while "people" not in [row["tableName"] for row in server.ask("show tables in state")]:
        assert time.monotonic() < end, "the table gets no name"
    assert server.ask("select * from state.people") == [{"city": "ada"}]
    write_table(server.warehouse, "state.people", ["ada", "bob"], version=1)
    assert server.ask("select count(*) as n from state.people") == [{"n": "2"}]


@pytest.mark.skipif(not jail.is_possible(), reason="this kernel has no landlock")
def test_it_reads_the_warehouse_alone_and_writes_nothing_there(server: Served, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("mine")
    before = files_of(server.warehouse)
    statements = (
        f"select * from text.`{secret}`",
        "insert into marts.cities values ('Genf')",
        "delete from marts.cities",
        f"create table marts.mine using delta location '{server.warehouse}/marts/mine' as select 1 as a",
        f"insert overwrite directory '{tmp_path}/made' using parquet select 1 as a",
    )
    refusals = server.refusals("select 1", *statements)
    assert len(refusals) == len(statements), refusals
    assert files_of(server.warehouse) == before
    assert [path.name for path in tmp_path.iterdir()] == ["secret.txt"]
    assert server.ask("select count(*) as n from marts.cities") == [{"n": "2"}]


def test_its_jvm_listens_on_this_machine_alone_and_ends_with_the_server(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        jvm = server.jvm()
        listening = [each for each in jvm.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        assert {each.laddr.ip.removeprefix("::ffff:") for each in listening} == {"127.0.0.1"}
        server.process.send_signal(signal.SIGKILL)
        jvm.wait(60)


def test_a_port_that_is_taken_while_it_starts_is_said_in_a_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        given = {
            "port": port, "warehouse": str(tmp_path), "scratch": str(tmp_path), "confined": False,
            "spark_master": "local[1]", "spark_conf": {"spark.driver.memory": "1g"},
        }  # fmt: skip
        command = [sys.executable, "-P", "-m", "fluvial.serve.doors.thrift_worker", json.dumps(given)]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"127.0.0.1:{port}: Address already in use")


def files_of(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if ".serve" not in path.parts}


def write_table(warehouse: Path, table: str, cities: list[str], *, version: int = 0) -> None:
    """One version of a table with one column, that holds these rows beside those of its earlier versions."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = warehouse.joinpath(*table.split("."))
    (folder / "_delta_log").mkdir(parents=True, exist_ok=True)
    file = folder / f"part-{version}.parquet"
    pq.write_table(pa.table({"city": cities[version:]}), file)
    fields = [{"name": "city", "type": "string", "nullable": True, "metadata": {}}]
    metadata = {
        "id": f"{table}-0", "format": {"provider": "parquet", "options": {}}, "partitionColumns": [],
        "schemaString": json.dumps({"type": "struct", "fields": fields}), "configuration": {}, "createdTime": 0,
    }  # fmt: skip
    added = {
        "path": file.name, "partitionValues": {}, "size": file.stat().st_size, "modificationTime": 1,
        "dataChange": True,
    }  # fmt: skip
    first = [] if version else [{"protocol": PROTOCOL}, {"metaData": metadata}]
    text = "".join(f"{json.dumps(each)}\n" for each in [*first, {"add": added}])
    (folder / "_delta_log" / f"{version:020d}.json").write_text(text)
