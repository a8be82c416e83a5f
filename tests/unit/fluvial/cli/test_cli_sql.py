"""`fluvial sql` with a real Spark: the answer alone on stdout, one line for a mistake."""

import csv
import io
import json
from decimal import Decimal

import pytest
from fluvial_command import Cli

pytestmark = pytest.mark.spark

QUERY = """
    select id, id / 4 as quarter, cast(id as decimal(20,2)) as price, timestamp'2013-01-01 05:15:00' as at,
           cast('N14228' as binary) as _key, if(id = 1, null, 'a,b') as text, array(id, null) as many
    from range(2000) order by id
"""


def test_json_is_one_array_alone_on_stdout(cli: Cli) -> None:
    done = cli.run("sql", "--format", "json", QUERY)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout, parse_float=Decimal)
    assert [row["id"] for row in rows] == list(range(2000))
    assert rows[1] == {
        "id": 1,
        "quarter": Decimal("0.25"),
        "price": Decimal("1.00"),
        "at": "2013-01-01T05:15:00Z",
        "_key": "TjE0MjI4",
        "text": None,
        "many": [1, None],
    }


def test_csv_is_a_header_and_all_rows_from_stdin(cli: Cli) -> None:
    printed = cli.ok("sql", "--format", "csv", "-", stdin=QUERY)
    rows = list(csv.reader(io.StringIO(printed, newline="")))
    assert rows[0] == ["id", "quarter", "price", "at", "_key", "text", "many"]
    assert rows[2] == ["1", "0.25", "1.00", "2013-01-01T05:15:00Z", "TjE0MjI4", "", "[1, null]"]
    assert len(rows) == 2001


def test_a_table_shows_the_first_rows_and_keys_as_text(cli: Cli) -> None:
    printed = cli.ok("sql", QUERY)
    assert "N14228" in printed
    assert "the first 50 rows" in printed
    assert len(printed.splitlines()) < 60


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("select * from history.flight_event", "history.flight_event"),
        ("selec 1", "selec"),
        ("select cast('x' as int)", "'x'"),
    ],
)
def test_a_mistake_is_one_line_and_no_answer(cli: Cli, query: str, says: str) -> None:
    done = cli.run("sql", "--format", "json", query)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert says in line


def test_a_lost_file_of_a_table_is_one_line_with_the_repair(cli: Cli) -> None:
    path = cli.data_dir / "warehouse" / "state" / "things"
    cli.ok("sql", f"create table delta.`{path}` using delta as select 1 as id")
    [file] = path.glob("*.parquet")
    file.unlink()
    done = cli.run("sql", "--format", "json", "select * from state.things")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert f"the data file {file} of state.things is missing" in line
    assert "`fluvial run --rebuild state.things`" in line
