"""`fluvial table verify`: compare tables with the log, or with the tables that they are made from."""

import io
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluvial.cli import terminal
from fluvial.cli.options import AnswerFormat, Form, with_tables
from fluvial.cli.run.run import require_declared
from fluvial.cli.spark import spark_of
from fluvial.config import Settings
from fluvial.errors import FluvialError

if TYPE_CHECKING:
    from fluvial.tables.refresh.comparison import Verdict


_COLUMNS = ("table", "version", "records", "rows", "differences", "exact")


class NotExactError(FluvialError):
    """A table differs from what it should be."""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial table verify state.aircraft")(verify)


@with_tables
def verify(
    *,
    settings: Settings,
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE…]", help="Tables such as state.aircraft; none for all.", show_default=False),
    ] = None,
    answer_format: AnswerFormat = Form.TABLE,
) -> None:
    """
    Read the log again up to each table's position, and compare: same rows, same values, no duplicates.

    A pipeline's table is compared with the batch query at the versions of its inputs that it was made from.
    If a table differs or cannot be compared, the status is 1, and the first differences are listed. Without names,
    tables that no run has built yet are left out.
    """
    from fluvial.tables.declare.project import load_project
    from fluvial.tables.inspect.verify import verify as compare
    from fluvial.tables.refresh.comparison import CLOSE, NotBuiltError

    declared = load_project(settings.project)
    require_declared(tables or [], list(declared), settings.project)
    verdicts: list[Verdict] = []
    failed: list[str] = []
    with terminal.keep_stdout_for_the_answer() as stdout:
        with settings.registry.client() as schemas, spark_of(settings) as (spark, say):
            for name in tables or list(declared):
                say(f"{name} …")
                try:
                    verdicts.append(compare(declared[name], settings, spark, schemas=schemas))
                except NotBuiltError as error:
                    if tables:
                        failed.append(str(error))
                    else:
                        terminal.say(f"{name} has not been built yet, and is left out")
                except FluvialError as error:
                    failed.append(str(error))
        for verdict in verdicts:
            if verdict.close:
                terminal.say(f"{verdict.table}: equal within {CLOSE:g} of the value: {', '.join(verdict.close)}")
        stdout.write(_text([_row(each) for each in verdicts], answer_format).encode())
    failed += [_complaint(each) for each in verdicts if not each.is_exact]
    if failed:
        raise NotExactError("; ".join(failed))


def _text(rows: list[dict[str, Any]], form: Form) -> str:
    if form is Form.JSON:
        return json.dumps(rows, indent=2) + "\n"
    from rich.console import Console

    out = io.StringIO()
    terminal.table(
        _COLUMNS,
        ([row[name] for name in _COLUMNS] for row in rows),
        Console(file=out, highlight=False, width=terminal.WIDTH_MAX),
    )
    return out.getvalue()


def _row(verdict: "Verdict") -> dict[str, Any]:
    return {
        "table": verdict.table,
        "version": verdict.version,
        "records": sum(end - start for start, end in verdict.ranges.values()),
        "rows": verdict.rows,
        "differences": verdict.different,
        "exact": verdict.is_exact,
        "inputs": dict(verdict.inputs),
        "close": list(verdict.close),
    }


def _complaint(verdict: "Verdict") -> str:
    shown = ", ".join(f"{each.where} {each.what}" for each in verdict.differences)
    more = " …" if verdict.different > len(verdict.differences) else ""
    return f"{verdict.table} differs from {'the batch query' if verdict.inputs else 'the log'}: {shown}{more}"
