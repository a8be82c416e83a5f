"""`fluvial table erase`: a key taken out of the log, the tables of its topic and all that is made of them."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from fluvial.cli import terminal
from fluvial.cli.options import AnswerFormat, Form, with_tables
from fluvial.cli.spark import spark_of
from fluvial.config import Settings

if TYPE_CHECKING:
    from fluvial.tables.erasure.erase import ErasureReport


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial table erase state.customers ada --dry-run")(erase)


@with_tables
def erase(
    *,
    settings: Settings,
    source: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC|TABLE",
            help="Topic, or a table that is made from it, such as state.customers.",
            show_default=False,
        ),
    ],
    key: Annotated[str, typer.Argument(metavar="KEY", help="Record key, as text.", show_default=False)],
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Also remove old versions of the tables; they cannot be read any more.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show where the key is.")] = False,
    answer_format: AnswerFormat = Form.TABLE,
) -> None:
    """
    Erase a record key of a topic: its rows leave every table made from the topic, and all that is made of these.

    A compacted topic gets a tombstone; whatever the log still holds comes into no table again. It ends with
    what can still be read, and until when. If it is interrupted, run it again: it goes on where it was.
    """
    from fluvial.kafka.admin import admin_of, describe_cluster, require_topic
    from fluvial.tables.declare.project import load_project
    from fluvial.tables.erasure.erase import erase as erase_key
    from fluvial.tables.erasure.survey import topic_of

    declared = load_project(settings.project)
    topic = topic_of(source, declared)
    # Before Spark starts, which takes half a minute.
    require_topic(describe_cluster(settings, admin_of(settings.cluster)), topic)
    with terminal.keep_stdout_for_the_answer() as stdout:
        with settings.registry.client() as schemas, spark_of(settings) as (spark, say):
            report = erase_key(
                topic,
                key.encode(),
                declared,
                settings,
                spark,
                schemas=schemas,
                with_vacuum=vacuum,
                dry_run=dry_run,
                say=lambda line: say(f"{line} …"),
            )
        text = json.dumps(as_json(report), indent=2) if answer_format is Form.JSON else "\n".join(as_lines(report))
        stdout.write(f"{text}\n".encode())


def as_json(report: "ErasureReport") -> dict[str, object]:
    """For programs."""
    return {
        "topic": report.topic,
        "records": report.records,
        "tombstones": {str(partition): offset for partition, offset in sorted(report.tombstones.items())},
        "erasure": report.number,
        "tables": [{"table": each.table, "rows": each.rows, "version": each.version} for each in report.gone],
        "remains": [{"where": each.where, "until": each.until} for each in report.remains],
    }


def as_lines(report: "ErasureReport") -> list[str]:
    """For people: what was taken out of each table, and what is left."""
    if report.records == 0 and not any(each.rows for each in report.gone):
        found = [f"{report.topic} and the tables made from it hold nothing of the key"]
    else:
        found = [f"{report.topic}: {report.records:,} records of the key in the log"]
    found += [
        f"{report.topic}: tombstone at partition {partition}, offset {offset}"
        for partition, offset in sorted(report.tombstones.items())
    ]
    for each in report.gone:
        at = "" if each.version is None else f", version {each.version}"
        rows = "follows its inputs" if each.rows is None else f"{each.rows:,} rows"
        found.append(f"{each.table}: {rows}{at}")
    return [*found, *(f"still readable: {each.where}: until {each.until}" for each in report.remains)]
