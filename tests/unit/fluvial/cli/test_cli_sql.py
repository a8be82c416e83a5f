"""`fluvial sql` with a real Spark: the answer alone on stdout, one line for a mistake."""

import csv
import io
import json
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import pytest
from fluvial_command import Cli

from fluvial.cli.main import execute

pytestmark = pytest.mark.spark

QUERY = """
    select id, id / 4 as quarter, cast(id as decimal(20,2)) as price, timestamp'2013-01-01 05:15:00' as at,
           cast('N14228' as binary) as _key, if(id = 1, null, 'a,b') as text, array(id, null) as many
    from range(2000) order by id
"""


class Answer(NamedTuple):
    """What a command has printed, and its exit status."""

    status: int
    stdout: str
    stderr: str


Ask = Callable[..., Answer]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Ask]:
    """`fluvial sql WORDS…` within this process, whose Spark stays for the next one."""
    from pyspark.sql import SparkSession

    def run(*words: str) -> Answer:
        capfd.readouterr()
        status = execute(["sql", *words])
        return Answer(status, *capfd.readouterr())

    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setenv("TZ", "UTC")
        patch.setattr(SparkSession, "stop", lambda _: None)
        yield run
    time.tzset()


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


def test_csv_is_a_header_and_all_rows_from_stdin(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(QUERY))
    printed = ask("--format", "csv", "-").stdout
    rows = list(csv.reader(io.StringIO(printed, newline="")))
    assert rows[0] == ["id", "quarter", "price", "at", "_key", "text", "many"]
    assert rows[2] == ["1", "0.25", "1.00", "2013-01-01T05:15:00Z", "TjE0MjI4", "", "[1, null]"]
    assert len(rows) == 2001


def test_a_table_shows_the_first_rows_and_keys_as_text(ask: Ask) -> None:
    printed = ask(QUERY).stdout
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
def test_a_mistake_is_one_line_and_no_answer(ask: Ask, query: str, says: str) -> None:
    assert says in the_only_error(ask("--format", "json", query))


def test_a_lost_file_of_a_table_is_one_line_with_the_repair(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / ".fluvial" / "warehouse" / "state" / "things"
    assert ask(f"create table delta.`{path}` using delta as select 1 as id").status == 0
    [file] = path.glob("*.parquet")
    file.unlink()
    line = the_only_error(ask("--format", "json", "select * from state.things"))
    assert f"the data file {file} of state.things is missing" in line
    assert "`fluvial run --rebuild state.things`" in line


def the_only_error(answer: Answer) -> str:
    """The one line of a command that failed without an answer."""
    assert answer.status == 1
    assert answer.stdout == ""
    assert "Traceback" not in answer.stderr
    [line] = [line for line in answer.stderr.splitlines() if line.startswith("error: ")]
    return line
