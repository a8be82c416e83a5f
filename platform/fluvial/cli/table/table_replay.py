"""`fluvial table replay`: records of a quarantine table, repaired and put back into their topic."""

import re
from typing import Annotated

import typer

from fluvial.cli import terminal
from fluvial.cli.options import with_tables
from fluvial.cli.spark import spark_of
from fluvial.cli.topic.quarantines import Assignments, Call, File, complained, repair_of, said
from fluvial.config import Settings
from fluvial.errors import FluvialError

_RECORD = re.compile(r"(\d{1,9}):(\d{1,18})")


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial table replay quarantine.orders --record 0:17 --set currency=EUR")(replay)


@with_tables
def replay(
    *,
    settings: Settings,
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="Quarantine table, such as quarantine.orders.", show_default=False)
    ],
    record: Annotated[
        list[str] | None,
        typer.Option(
            "--record",
            metavar="PARTITION:OFFSET",
            help="Replay this record only; may be given again (default: all that are not replayed).",
            show_default=False,
        ),
    ] = None,
    assignments: Assignments = None,
    file: File = None,
    call: Call = None,
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="Skip records that cannot be repaired; they can be replayed later.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be appended.")] = False,
) -> None:
    """
    Append repaired records of a quarantine table to their topic, each one once even if this is run repeatedly.

    The next run of every table of the topic reads them there. Key, timestamp and partition are preserved, headers are
    not; `fluvial.replayed.from` has the original position. The table's column `_replayed` says when.
    """
    from fluvial.kafka.admin import admin_of, cluster_errors, describe_cluster
    from fluvial.quarantine.repair import Repairing
    from fluvial.quarantine.table import TableReplay

    if not table.startswith("quarantine.") or table.startswith("quarantine.failed_"):
        raise FluvialError(
            f"{table} keeps no records of a topic: name a quarantine table such as quarantine.orders (`fluvial table "
            "list`)"
        )
    only = _places(record or [])
    repair = repair_of(assignments, file, call)
    # Before Spark starts, which takes half a minute.
    describe_cluster(settings, admin_of(settings.cluster))
    with (
        settings.registry.client() as registry,
        spark_of(settings) as (spark, _),
        cluster_errors(f"replay {table}"),
    ):
        done = TableReplay(
            table=table,
            settings=settings,
            spark=spark,
            repairing=Repairing(registry, repair),
            only=only,
            leave_out=leave_out,
            say=said if dry_run else complained,
        ).run(dry_run=dry_run)
    would = "would be " if dry_run else ""
    terminal.answer(
        f"{done.appended:,} records of {table} {would}appended, {done.dropped:,} dropped, {done.left_out:,} left out"
    )


def _places(texts: list[str]) -> set[tuple[int, int]]:
    found = set()
    for text in texts:
        match = _RECORD.fullmatch(text)
        if match is None:
            raise typer.BadParameter(f"--record {text}: write partition and offset, as in --record 0:17")
        found.add((int(match[1]), int(match[2])))
    return found
