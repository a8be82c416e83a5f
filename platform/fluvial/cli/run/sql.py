"""`fluvial sql`: one Spark SQL statement, its answer alone on stdout."""

import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TextIO

import typer

from fluvial.cli import rendering, terminal
from fluvial.cli.options import DataDir, SparkConf, SparkMaster, Warehouse, settings_of
from fluvial.config import Settings
from fluvial.errors import FluvialError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPOOL_BYTES = 16 << 20
"""An answer up to this size waits in memory until it is whole, a larger one in a file."""


class Format(StrEnum):
    """How the answer is written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class QueryError(FluvialError):
    """The answer of a statement could not be handed over."""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog='Example:  fluvial sql --format csv "select * from state.aircraft" > aircraft.csv')(sql)


def sql(
    *,
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="The statement, or - to read it from stdin.", show_default=False)
    ],
    fmt: Annotated[
        Format,
        typer.Option("--format", help="table shortens; json is one array of objects, csv a header and all rows."),
    ] = Format.TABLE,
    data_dir: DataDir = None,
    warehouse: Warehouse = None,
    spark_master: SparkMaster = None,
    conf: SparkConf = None,
) -> None:
    """
    Query the tables with Spark SQL: history.*, compacted.*, state.*, marts.*, quarantine.*.

    In json and csv, timestamps are ISO 8601 in UTC, decimals keep their digits, binary is base64; in a table binary is
    shown as text where it is text. Everything but the answer goes to stderr.
    """
    statement = sys.stdin.read() if query == "-" else query
    if not statement.strip():
        raise typer.BadParameter('QUERY is empty; write for example "show tables in history"')
    settings = settings_of(data_dir, warehouse=warehouse, spark_master=spark_master, conf=conf)
    # Spark gives timestamps in the process's zone; in UTC they are the same on every machine.
    os.environ["TZ"] = "UTC"
    time.tzset()
    with terminal.keep_stdout_for_the_answer() as stdout, tempfile.SpooledTemporaryFile(SPOOL_BYTES) as spool:
        text = io.TextIOWrapper(spool, encoding="utf-8", newline="", write_through=True)
        width = shutil.get_terminal_size((160, 50)).columns if stdout.isatty() else terminal.WIDTH_MAX
        _answer(settings, statement.strip().rstrip(";"), fmt, text, width)
        text.flush()
        spool.seek(0)
        _hand_over(spool, stdout)
        text.detach()


def _answer(settings: Settings, statement: str, fmt: Format, out: TextIO, width: int) -> None:
    from fluvial.delta.failures import explain_failures

    with _session(settings) as frame_of:
        frame = frame_of(statement)
        columns = [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
        with explain_failures("the query"):
            if fmt is Format.TABLE:
                _draw(columns, frame, out, width)
            elif fmt is Format.JSON:
                rendering.write_json(columns, frame.toLocalIterator(), out)
            else:
                rendering.write_csv(columns, frame.toLocalIterator(), out)


def _draw(columns: rendering.Columns, frame: "DataFrame", out: TextIO, width: int) -> None:
    from rich.console import Console

    rows: Sequence[Any] = list(
        islice(frame.limit(rendering.TABLE_ROWS_MAX + 1).collect(), rendering.TABLE_ROWS_MAX + 1)
    )
    console = Console(file=out, width=width, highlight=False, markup=False, no_color=True)
    shown = rows[: rendering.TABLE_ROWS_MAX]
    if columns:
        rendering.draw_table(columns, shown, console, more=len(rows) > len(shown))


@contextmanager
def _session(settings: Settings) -> Iterator[Any]:
    """Give the function that turns a statement into its answer; stop Spark afterwards."""
    from fluvial.spark.session import build_session, run_sql

    spark = build_session(settings, "fluvial sql", say=terminal.say)
    try:
        yield lambda statement: run_sql(spark, settings, statement)
    finally:
        spark.stop()


def _hand_over(spool: Any, stdout: BinaryIO) -> None:
    try:
        shutil.copyfileobj(spool, stdout)
        stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise QueryError(f"the answer cannot be written: {error.strerror}") from error
