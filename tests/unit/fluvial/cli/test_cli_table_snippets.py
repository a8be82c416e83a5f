"""`fluvial table snippets`, on tables that the test writes; the lines are run where what they are for is installed."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from fluvial_command import Cli
from hand_written_table import HandWrittenTable

COLUMNS = {"customer": pa.string(), "orders": pa.int64(), "_fold": pa.string()}


@pytest.fixture
def warehouse(cli: Cli) -> Path:
    warehouse = cli.data_dir / "warehouse"
    HandWrittenTable(warehouse / "state" / "customers", COLUMNS).commit([("ada", 7, "x")])
    HandWrittenTable(warehouse / "marts" / "days", {"day": pa.string()}).commit([("monday",)])
    return warehouse


def test_each_table_has_a_line_for_each_program(cli: Cli, warehouse: Path) -> None:
    plain, folded = json.loads(cli.ok("table", "snippets", "--format", "json"))
    assert (plain["table"], folded["table"]) == ("marts.days", "state.customers")
    path = str(warehouse / "state" / "customers")
    assert folded == {
        "table": "state.customers",
        "path": path,
        "polars": f'polars.scan_delta("{path}").drop("_fold")',
        "pandas": f'polars.scan_delta("{path}").drop("_fold").collect().to_pandas()',
        "duckdb": f"SELECT * EXCLUDE (_fold) FROM delta_scan('{path}')",
        "trino": "CALL delta.system.register_table(schema_name => 'state', table_name => 'customers', "
        f"table_location => 'file://{path}')",
        "spark": f'spark.read.format("delta").load("{path}").drop("_fold")',
    }
    assert "drop" not in plain["polars"]
    assert "EXCLUDE" not in plain["duckdb"]
    shown = cli.ok("table", "snippets", "state.customers").splitlines()
    assert shown[0] == "state.customers"
    assert shown[2].split(maxsplit=1) == ["polars", folded["polars"]]
    assert "no table 'state.customer'" in cli.refused("table", "snippets", "state.customer")


def test_the_lines_of_polars_and_pandas_give_the_rows(cli: Cli, warehouse: Path) -> None:
    polars = pytest.importorskip("polars", reason="Polars is not installed")
    pytest.importorskip("deltalake", reason="what Polars reads Delta by is not installed")
    (found,) = json.loads(cli.ok("table", "snippets", "state.customers", "--format", "json"))
    rows = [{"customer": "ada", "orders": 7}]
    assert eval(found["polars"], {"polars": polars}).collect().to_dicts() == rows
    assert eval(found["pandas"], {"polars": polars}).to_dict("records") == rows
