"""One `fluvial serve` that is asked by a notebook, Polars, ADBC, beeline and curl: each is given the same rows."""

import base64
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
import pyarrow as pa
import pytest
from adbc_driver_flightsql import dbapi
from beeline import PATIENCE_SECONDS, rows
from hand_written_table import HandWrittenTable
from nbclient import NotebookClient
from serving import serving_beside

from fluvial.delta.stamp import Stamp

pytest.importorskip("pysail", reason="Sail is an extra: fluvial[sql]")

pytestmark = pytest.mark.spark

COLUMNS = {"customer": pa.string(), "orders": pa.int64(), "spent": pa.float64(), "_fold": pa.string()}
STATEMENT = (
    "select customer, orders, spent, orders is null as missing from state.customers order by customer nulls first"
)
ROWS = [
    (None, 9_007_199_254_740_993, -0.125, False),
    ("", 0, None, False),
    ('Zoë, "the last"', None, 1e300, True),
    ("ada", 7, 1.5, False),
]
SETTINGS = '[spark]\n"spark.driver.memory" = "1g"\n"spark.sql.codegen.wholeStage" = "false"\n'
Addresses = Mapping[str, str]
Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """The addresses of one process."""
    folder = tmp_path_factory.mktemp("doors")
    (folder / "fluvial.toml").write_text(SETTINGS)
    table = HandWrittenTable(folder / "warehouse" / "state" / "customers", COLUMNS)
    table.commit([("old", 1, 1.0, "x")], Stamp(topic="orders", topic_id=None, batch=1, offsets={0: (0, 1)}))
    rows = [(*row[:3], "x") for row in reversed(ROWS)]
    table.commit(rows, Stamp(topic="orders", topic_id=None, batch=2, offsets={0: (1, 9)}), instead=True)
    ports = ("--flight-port", "0", "--connect-port", "0", "--thrift-port", "0")
    schemes = ("grpc", "sc", "hive2")
    with serving_beside(folder, folder / "warehouse", *ports, schemes=schemes) as (_, found):
        yield found


def by_notebook(server: Addresses, folder: Path) -> Rows:
    """PySpark in Jupyter's kernel, over Spark Connect."""
    cells = (
        f"from pyspark.sql import SparkSession\nspark = SparkSession.builder.remote({server['sc']!r}).getOrCreate()",
        f"import json\nprint(json.dumps([list(row) for row in spark.sql({STATEMENT!r}).collect()]))",
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    (said,) = [each.text for each in notebook.cells[-1].outputs if each.get("name") == "stdout"]
    return tuples(json.loads(said))


def by_polars(server: Addresses, folder: Path) -> Rows:
    polars = pytest.importorskip("polars", reason="Polars is not installed")
    with dbapi.connect(server["grpc"], autocommit=True) as connection:
        return tuples(polars.read_database(STATEMENT, connection).rows())


def by_adbc(server: Addresses, folder: Path) -> Rows:
    with dbapi.connect(server["grpc"], autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(STATEMENT)
        return tuples(cursor.fetchall())


def by_beeline(server: Addresses, folder: Path) -> Rows:
    """As JSON in base64: its own forms tell neither null from nothing nor a comma from the next column."""
    line = "base64(cast(to_json(struct(*), map('ignoreNullFields', 'false')) as binary))"
    found = rows(f"jdbc:{server['hive2']}", f"select {line} as line from ({STATEMENT})")
    return tuples(list(json.loads(base64.b64decode(row["line"])).values()) for row in found)


def by_curl(server: Addresses, folder: Path) -> Rows:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("there is no curl")
    done = subprocess.run(
        [curl, "--silent", "--fail", "--data", STATEMENT, f"{server['http']}/sql"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    return tuples(list(row.values()) for row in json.loads(done.stdout))


def tuples(found: "Sequence[Sequence[Any]] | Iterator[Sequence[Any]]") -> Rows:
    return [tuple(row) for row in found]


@pytest.mark.parametrize("ask", [by_notebook, by_polars, by_adbc, by_beeline, by_curl])
def test_each_is_given_the_same_rows(
    server: Addresses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Addresses, Path], Rows]
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    assert ask(server, tmp_path) == ROWS
