"""The tables of a project by name in a Hive metastore: a real one, runs, and a Spark of somebody else's."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hand_written_table import HandWrittenTable
from init_project import InitProject
from local_platform import LocalPlatform

from fluvial.spark.jars import require_jars
from tests.free_ports import free_ports_in_a_row
from tests.peers.hive_metastore import hive_metastore

pytestmark = pytest.mark.rota  # starts of Spark

# A Spark that knows the metastore alone.
READER = """
import json, sys
from pyspark.sql import SparkSession

address, jars, statement = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.extraClassPath", jars)
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.hadoop.hive.metastore.uris", address)
    .enableHiveSupport()
    .getOrCreate()
)
print(json.dumps([row.asDict() for row in spark.sql(statement).collect()], default=str))
"""


class Shop(InitProject):
    """Its tables are registered in a Hive metastore; its path has a blank."""

    def __init__(self, folder: Path, port: int) -> None:
        folder = folder / "a b"
        folder.mkdir()
        super().__init__(folder)
        self.address = f"thrift://127.0.0.1:{port}"
        self.write_mart("")
        self.set(f'\n[catalog]\nhive = "{self.address}"\nname = "shop"\n')

    def ask(self, statement: str) -> list[dict[str, Any]]:
        jars = ":".join(map(str, require_jars()))
        done = subprocess.run(
            [sys.executable, "-c", READER, self.address, jars, statement],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return list(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path, free_ports_in_a_row(1))
    made.platform.up()
    made.produce()
    yield made
    made.platform.down()


def test_what_runs_make_is_found_by_name_also_after_the_metastore_was_away(shop: Shop, tmp_path: Path) -> None:
    away = shop.platform.run("run")
    (line,) = [line for line in away.stderr.splitlines() if "not registered" in line]
    assert "Connection refused" in line
    assert shop.platform.versions() == {"state.customers": 0, "marts.spenders": 0}

    with hive_metastore(tmp_path, int(shop.address.rpartition(":")[2])):
        registered = json.loads(shop.platform.run("table", "register", "--format", "json").stdout)
        assert {each["outcome"] for each in registered} == {"registered"}
        assert shop.ask("select sum(orders) as orders from shop_state.customers") == [{"orders": 200}]

        shop.write_mart(', "orders"')
        assert "not registered" not in shop.platform.run("run").stderr
        found = shop.ask("select sum(orders) as orders, count(spent) as customers from shop_marts.spenders")
        assert found == [{"orders": 200, "customers": 5}]
        again = json.loads(shop.platform.run("table", "register", "--format", "json").stdout)
        assert {each["table"]: each["outcome"] for each in again} == {
            "marts.spenders": "up to date",
            "state.customers": "up to date",
        }


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n<html>"], ids=["nothing", "HTTP"])
def test_what_is_no_metastore_is_one_line(says: bytes, tmp_path: Path) -> None:
    platform = LocalPlatform(tmp_path / ".fluvial", folder=tmp_path, brokers=1)
    HandWrittenTable(platform.data_dir / "warehouse" / "state" / "customers", {"n": pa.int64()}).commit([(1,)])
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "fluvial.toml").write_text(f'[catalog]\nhive = "thrift://127.0.0.1:{server.getsockname()[1]}"\n')
        threading.Thread(target=_answer, args=(server, says), daemon=True).start()
        done = platform.run("table", "register", check=False)
        assert done.returncode == 1
        assert "the Hive metastore at thrift://127.0.0.1" in done.stderr.splitlines()[-1]
        server.shutdown(socket.SHUT_RDWR)


def _answer(server: socket.socket, says: bytes) -> None:
    """Say the same to everybody who connects, and keep the connection."""
    held = []
    with suppress(OSError):
        while True:
            held.append(server.accept()[0])
            held[-1].sendall(says)
