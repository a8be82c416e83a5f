"""`fluvial sql`: statements about the tables, their answers alone on stdout."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from fluvial.cli import terminal
from fluvial.cli.options import DataDir, SparkConf, SparkMaster, Warehouse, pairs, settings_of
from fluvial.cli.run.engines import EngineName
from fluvial.config import Settings
from fluvial.errors import FluvialError
from fluvial.query.answers import Format, write
from fluvial.query.served import Server, found

if TYPE_CHECKING:
    from fluvial.query.engine import Door

SPOOL_BYTES = 16 << 20
"""An answer up to this size waits in memory until it is whole, a larger one in a file."""


class QueryError(FluvialError):
    """The answer of a statement could not be handed over."""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog='Example:  fluvial sql --format csv "select * from state.aircraft" > aircraft.csv')(sql)


def sql(
    *,
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="QUERY",
            help="Statements, separated by ; or - to read them from stdin. On a terminal without one: a prompt.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the statements from a file.")
    ] = None,
    fmt: Annotated[
        Format,
        typer.Option(
            "--format",
            help="table shortens; json is one array of objects, ndjson an object a line, csv a header and all rows; "
            "arrow is a file of Arrow's IPC format, arrow-stream a stream.",
        ),
    ] = Format.TABLE,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            metavar="NAME[:TYPE]=VALUE",
            help="Value of :NAME in the statements, a string or of the type named; repeatable.",
            show_default=False,
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--at",
            metavar="TOPIC:PARTITION=OFFSET[,…]",
            help="Read each table as of this offset of its topic: all records up to it and none behind; repeatable.",
            show_default=False,
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Read each table with the records that its topic's log holds behind it."),
    ] = False,
    fresh_at_least: Annotated[
        list[str] | None,
        typer.Option(
            "--fresh-at-least",
            metavar="TOPIC:PARTITION=OFFSET[,…]",
            help="As --fresh, once the log holds these offsets; repeatable.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        EngineName, typer.Option("--engine", help="auto asks Sail, and Spark for what Sail does not take.")
    ] = EngineName.AUTO,
    data_dir: DataDir = None,
    warehouse: Warehouse = None,
    spark_master: SparkMaster = None,
    conf: SparkConf = None,
) -> None:
    """
    Query the tables in Spark SQL: history.*, compacted.*, state.*, marts.*, late.*, quarantine.*.

    In json and csv, timestamps are ISO 8601 in UTC, decimals keep their digits, binary is base64; in a table binary is
    shown as text where it is text. Everything but the answer goes to stderr, last which engine it was, how long it
    took, and which version of each table was read.
    """
    from fluvial.query.words import parameters_of

    prompts = query is None and file is None
    if prompts and not sys.stdin.isatty():
        raise typer.BadParameter("Missing argument 'QUERY'")
    statements = [] if prompts else _statements(query, file, fmt)
    parameters = parameters_of(pairs("--param", param))
    is_fresh = fresh or bool(fresh_at_least)
    if at and is_fresh:
        raise typer.BadParameter("--at and --fresh: a table is read as of an offset or up to the newest, not both")
    settings = settings_of(data_dir, warehouse=warehouse, spark_master=spark_master, conf=conf)
    terminal.read_times_in_utc()
    engine = engine if spark_master is None else EngineName.SPARK
    opened = partial(_door, settings, engine, at or (), fresh=is_fresh, at_least=fresh_at_least or ())
    if prompts:
        from fluvial.cli.run.sql_prompt import prompt

        with opened() as door:
            prompt(door, fmt, parameters, settings)
        return
    with terminal.keep_stdout_for_the_answer() as stdout, ExitStack() as stack:
        answers = _Answers(
            server=None if conf or engine is not EngineName.AUTO else _server(settings, is_fresh=is_fresh),
            door=lambda: stack.enter_context(opened()),
            how={"at": at or (), "fresh": is_fresh, "at_least": fresh_at_least or ()},
        )
        _answer_all(answers, _bound(statements, parameters), fmt, stdout)


def _statements(query: str | None, file: Path | None, fmt: Format) -> list[str]:
    from fluvial.query.words import StatementError, statements_of

    if file is not None and query is not None:
        raise typer.BadParameter("give QUERY or --file, not both")
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise StatementError(f"{file} is not text in UTF-8") from error
    else:
        text = sys.stdin.read() if query == "-" else query or ""
    if not text.strip():
        raise typer.BadParameter('QUERY is empty; write for example "show tables in history"')
    statements = statements_of(text)
    if not statements:
        raise typer.BadParameter("QUERY holds nothing but comments")
    if len(statements) > 1 and not fmt.is_text:
        raise typer.BadParameter(f"--format {fmt} is of one statement, and there are {len(statements)}")
    return statements


def _bound(statements: Sequence[str], parameters: dict[str, str]) -> list[str]:
    """The statements with their parameters. Raises StatementError for one without a value, and for one not used."""
    from fluvial.query.words import StatementError, bound, used_parameters

    if parameters:
        used = set().union(*map(used_parameters, statements))
        unused = next((name for name in parameters if name not in used), None)
        if unused is not None:
            raise StatementError(f"no statement has a parameter :{unused}")
    return [bound(statement, parameters) for statement in statements]


def _server(settings: Settings, *, is_fresh: bool) -> Server | None:
    """The server that is asked; for what the log holds one that reads the log of the same cluster."""
    server = found(settings)
    if server is None or (is_fresh and server.bootstrap_servers != settings.cluster.bootstrap_servers):
        return None
    return server


class _Answers:
    """Answers by a server that runs, and by engines of this process for what it does not answer."""

    def __init__(self, *, server: Server | None, door: "Callable[[], Door]", how: dict[str, Any]) -> None:
        self._server = server
        self._make = door
        self._door: Door | None = None
        self._how = how

    def into(self, spool: Any, statement: str, fmt: Format, width: int) -> str:
        """Write the answer to one statement behind what the spool holds; return what is said below it."""
        # What changes a session of Spark's is followed by what depends on it.
        if self._server is not None and self._door is None:
            answer = self._server.ask(statement, **self._how, fmt=fmt, width=width)
            if answer is not None:
                spool.write(answer[0])
                return answer[1]
        if self._door is None:
            self._door = self._make()
        return answer_into(spool, self._door, statement, fmt, width)


def _answer_all(answers: _Answers, statements: Sequence[str], fmt: Format, stdout: BinaryIO) -> None:
    if not fmt.is_text and stdout.isatty():
        raise typer.BadParameter(f"--format {fmt} is not for a terminal: write it to a file, with > FILE")
    width = shutil.get_terminal_size((160, 50)).columns if stdout.isatty() else terminal.WIDTH_MAX
    with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as spool:
        for number, statement in enumerate(statements):
            if number and fmt in (Format.CSV, Format.MARKDOWN):
                spool.write(b"\n")
            terminal.say(answers.into(spool, statement, fmt, width))
        spool.seek(0)
        _hand_over(spool, stdout)


def answer_into(spool: Any, door: "Door", statement: str, fmt: Format, width: int) -> str:
    """Write the answer to one statement behind what the spool holds; return what is said below it."""
    from fluvial.delta.failures import explain_failures

    start = spool.tell()

    def again() -> None:
        spool.seek(start)
        spool.truncate()

    with explain_failures("the query"):
        told = door.answer(
            statement, lambda answer: write(answer, fmt, spool, width), again=again, rows_max=fmt.rows_max
        )
    return str(told)


@contextmanager
def _door(
    settings: Settings, engine: EngineName, places: Sequence[str], *, fresh: bool, at_least: Sequence[str]
) -> "Iterator[Door]":
    """What answers statements; Sail and Spark end with it."""
    from fluvial.query.engine import Door, Engine
    from fluvial.query.versions import At, Version

    started: list[Any] = []

    def as_of(table: str, places: Sequence[At]) -> Version:
        from fluvial.fresh.freshness import made_as_of

        return made_as_of(settings, table, places)

    def ask_spark(statement: str) -> Any:
        from fluvial.spark.session import build_session, register_tables, run_sql

        if started:
            register_tables(started[0], settings)
        else:
            started.append(build_session(settings, "fluvial sql", say=terminal.say, borrow=True))
        return run_sql(started[0], settings, statement)

    door = Door(
        settings=settings,
        ask_spark=ask_spark,
        say=terminal.say,
        engine=Engine(engine),
        places=At.of(places),
        as_of=as_of,
    )
    with closing(door), ExitStack() as stack:
        if fresh:
            from fluvial.fresh.freshness import opened

            door.warm_up()
            door.fresh = stack.enter_context(opened(settings, At.of(at_least, "--fresh-at-least")))
        try:
            yield door
        finally:
            for spark in started:
                spark.stop()


def _hand_over(spool: Any, stdout: BinaryIO) -> None:
    try:
        shutil.copyfileobj(spool, stdout)
        stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise QueryError(f"the answer cannot be written: {error.strerror}") from error
