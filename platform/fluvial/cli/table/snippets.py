"""`fluvial table snippets`: one line each by which other programs read the tables."""

import json
from collections.abc import Sequence
from typing import Annotated

import typer

from fluvial.cli import terminal
from fluvial.cli.options import AnswerFormat, Form, with_warehouse
from fluvial.cli.table.places import names_of, path_of
from fluvial.config import Settings

TRINO_CATALOG = "delta"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial table snippets state.customers")(snippets)


@with_warehouse
def snippets(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE…]", help="Only these tables (default: all).", show_default=False),
    ] = None,
    answer_format: AnswerFormat = Form.TABLE,
    *,
    settings: Settings,
) -> None:
    """
    Print where the tables lie, and a line each for Polars, pandas, DuckDB, Trino and Spark.

    They leave out internal columns. Trino is told of a table once, in a catalog of its Delta Lake connector that may
    register tables; the line says so for one that is called delta.
    """
    from fluvial.delta.snapshot import read_snapshot
    from fluvial.query.references import INTERNAL_COLUMNS

    found = []
    for table in tables or names_of(settings):
        path = path_of(settings, table)
        snapshot = read_snapshot(path)
        columns = [] if snapshot is None else [each.name for each in snapshot.columns]
        hidden = [name for name in INTERNAL_COLUMNS if name in columns]
        found.append({"table": table, "path": path, **lines_for(table, path, hidden)})
    if answer_format is Form.JSON:
        terminal.answer(json.dumps(found, indent=2))
        return
    for each in found:
        terminal.answer(f"{each.pop('table')}")
        for name, line in each.items():
            terminal.answer(f"  {name:<7} {line}")


def lines_for(table: str, path: str, hidden: Sequence[str]) -> dict[str, str]:
    """The line of each program that reads a table without its hidden columns."""
    place, text = json.dumps(path, ensure_ascii=False), path.replace("'", "''")
    database, _, name = table.partition(".")
    drop = f".drop({', '.join(map(json.dumps, hidden))})" if hidden else ""
    exclude = f" EXCLUDE ({', '.join(hidden)})" if hidden else ""
    polars = f"polars.scan_delta({place}){drop}"
    of = f"schema_name => '{database}', table_name => '{name}', table_location => 'file://{text}'"
    return {
        "polars": polars,
        "pandas": f"{polars}.collect().to_pandas()",
        "duckdb": f"SELECT *{exclude} FROM delta_scan('{text}')",
        "trino": f"CALL {TRINO_CATALOG}.system.register_table({of})",
        "spark": f'spark.read.format("delta").load({place}){drop}',
    }
