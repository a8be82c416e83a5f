"""
`fluvial table replay`: records of a quarantine table, repaired and put back into their topic; or a range of other
tables, made again.
"""

import re
from typing import TYPE_CHECKING, Annotated

import typer

from fluvial.cli import terminal
from fluvial.cli.options import with_tables
from fluvial.cli.spark import spark_of
from fluvial.cli.topic.quarantines import Assignments, Call, File, complained, repair_of, said
from fluvial.config import Settings
from fluvial.errors import FluvialError

if TYPE_CHECKING:
    from fluvial.quarantine.repair import Repair

_RECORD = re.compile(r"(\d{1,9}):(\d{1,18})")


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial table replay state.customers marts.spend --offsets orders:0=1200-1299")(
        replay
    )


@with_tables
def replay(
    *,
    settings: Settings,
    tables: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE…",
            help="A quarantine table such as quarantine.orders; or others, with a range.",
            show_default=False,
        ),
    ],
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Make tables again from this time on: ISO 8601, or how long ago, as 90m.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Up to this time, which is not part of it.", show_default=False),
    ] = None,
    offsets: Annotated[
        list[str] | None,
        typer.Option(
            "--offsets",
            metavar="TOPIC:PARTITION=FIRST-LAST",
            help="Make tables again by these records, first and last included; may be given again.",
            show_default=False,
        ),
    ] = None,
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
    Append repaired records of a quarantine table to their topic; or make a range of other tables again.

    A record of a quarantine table goes back once, however often this is run, and the next run of every table of the
    topic reads it. Key, timestamp and partition are preserved, headers are not; `fluvial.replayed.from` has the
    original position. The table's column `_replayed` says when.

    With a range of time or of offsets: the rows of a history are written again from their records; of a compacted table
    or a state the keys that have a record in the range are folded again; of a mart with a key the windows or keys that
    the range touches are computed again. In any order and as often as you like, with the same rows in the end.
    """
    from fluvial.cli.table.table_parts import replay_parts, stretch_of

    stretch = stretch_of(since, until, offsets or [])
    if stretch is not None:
        if record or assignments or file or call or leave_out or dry_run:
            raise typer.BadParameter("--from, --until and --offsets are of tables, the other options of quarantines")
        if any(each.startswith("quarantine.") for each in tables):
            raise typer.BadParameter("a quarantine table has no range: name its records with --record")
        replay_parts(settings, tables, stretch)
        return
    table, *others = tables
    if others:
        raise typer.BadParameter("several tables: name their range, by --offsets, or by --from and --until")
    _replay_records(
        settings, table, _places(record or []), repair_of(assignments, file, call), leave_out=leave_out, dry_run=dry_run
    )


def _replay_records(
    settings: Settings,
    table: str,
    only: set[tuple[int, int]],
    repair: "Repair | None",
    *,
    leave_out: bool,
    dry_run: bool,
) -> None:
    """Append what waits in a quarantine table."""
    from fluvial.kafka.admin import admin_of, cluster_errors, describe_cluster
    from fluvial.quarantine.repair import Repairing
    from fluvial.quarantine.table import TableReplay

    if not table.startswith("quarantine.") or table.startswith("quarantine.failed_"):
        raise FluvialError(
            f"{table} keeps no records of a topic: name a quarantine table such as quarantine.orders (`fluvial table "
            "list`), or a range of the table, by --offsets, or by --from and --until"
        )
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
