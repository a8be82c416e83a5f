"""`fluvial table`: the tables of the warehouse as their own logs tell of them, without Spark."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluvial.cli import terminal
from fluvial.cli.options import AnswerFormat, Form, with_cluster_and_warehouse
from fluvial.cli.table.places import folder_of, names_of, path_of
from fluvial.config import Settings
from fluvial.errors import FluvialError

if TYPE_CHECKING:
    from fluvial.delta.log import Commit, TableLog
    from fluvial.delta.snapshot import Snapshot
    from fluvial.delta.stamp import Stamp

app = typer.Typer(help="List, show and compare tables.", no_args_is_help=True, rich_markup_mode=None)

Table = Annotated[
    str, typer.Argument(metavar="TABLE", help="Name of the table, such as state.orders.", show_default=False)
]

_WRITTEN = ("numTargetRowsInserted", "numTargetRowsUpdated")
_REMOVED = ("numTargetRowsDeleted", "numDeletedRows")


@app.command("list", epilog="Example:  fluvial table list --format json")
@with_cluster_and_warehouse
def list_tables(answer_format: AnswerFormat = Form.TABLE, *, settings: Settings) -> None:
    """
    List the tables with their rows, files, size, version and lag.

    The lag is the number of offsets in the table's topic that it has not read yet; unknown (-) where the cluster does
    not answer, or where the table is made from other tables.
    """
    names = names_of(settings)
    rows = []
    stamps = {}
    for name in names:
        row, stamps[name] = _row(settings, name)
        rows.append(row)
    for row, lag in zip(rows, _lags(settings, stamps).values(), strict=True):
        row["lag"] = None if lag is None else sum(lag.values())
    if answer_format is Form.JSON:
        terminal.answer(json.dumps(rows, indent=2))
        return
    if not rows:
        terminal.say(f"no table in {settings.warehouse}; `fluvial run` makes those of the project")
    shown = ("table", "kind", "topic", "rows", "files", "bytes", "version", "lag")
    terminal.table(shown, ([_dash(row[name]) for name in shown] for row in rows))


@app.command(epilog="Example:  fluvial table show state.orders")
@with_cluster_and_warehouse
def show(table: Table, answer_format: AnswerFormat = Form.TABLE, *, settings: Settings) -> None:
    """Show a table's columns, its size, and for each partition of its topic the offsets that are in it and the lag."""
    from fluvial.delta.log import TableLog
    from fluvial.delta.snapshot import read_snapshot

    path = path_of(settings, table)
    snapshot = read_snapshot(path)
    assert snapshot is not None, "the warehouse lists tables with a log"
    stamp = _stamp(TableLog(None, path))
    lag = _lags(settings, {table: stamp})[table] or {}
    ends = {} if stamp is None else {number: end for number, (_, end) in sorted(stamp.offsets.items())}
    partitions = [{"partition": number, "end_offset": end, "lag": lag.get(number)} for number, end in ends.items()]
    found = {
        "table": table,
        **_numbers(snapshot),
        "topic": None if stamp is None else stamp.topic,
        "path": path,
        "partitioned_by": list(snapshot.partitioned_by),
        "properties": snapshot.properties,
        "columns": [{"name": each.name, "type": each.type, "nullable": each.nullable} for each in snapshot.columns],
        "partitions": partitions,
    }
    if answer_format is Form.JSON:
        terminal.answer(json.dumps(found, indent=2))
        return
    terminal.answer(
        f"{table}: version {snapshot.version}, {_dash(snapshot.rows)} rows, {snapshot.files} files, "
        f"{snapshot.bytes} bytes, in {path}"
    )
    terminal.table(
        ("column", "type", "null"),
        ((each.name, each.type, "yes" if each.nullable else "no") for each in snapshot.columns),
    )
    if stamp is not None:
        terminal.answer(f"read from topic {stamp.topic}")
    terminal.table(
        ("partition", "end offset", "lag"), ([_dash(value) for value in each.values()] for each in partitions)
    )


@app.command(epilog="Example:  fluvial table history state.orders --limit 5")
@with_cluster_and_warehouse
def history(
    table: Table,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show so many commits at most.")] = 20,
    answer_format: AnswerFormat = Form.TABLE,
    *,
    settings: Settings,
) -> None:
    """Show the commits of a table, newest first: time, operation, rows, and the offsets that each one read."""
    from fluvial.delta.log import TableLog

    log = TableLog(None, path_of(settings, table))
    found = [_commit(each) for each in islice(log.newest_first(), limit)]
    if answer_format is Form.JSON:
        terminal.answer(json.dumps(found, indent=2))
        return
    terminal.table(
        ("version", "time", "operation", "rows written", "rows removed", "offsets"),
        (
            (
                each["version"],
                _dash(each["time"]),
                each["operation"],
                each["rows_written"],
                each["rows_removed"],
                ", ".join(
                    f"{number}: [{start}, {end})" for number, (start, end) in each["offsets"].items() if end > start
                )
                or "-",
            )
            for each in found
        ),
    )


def _row(settings: Settings, table: str) -> "tuple[dict[str, Any], Stamp | None]":
    """Return what `list` prints of a table; one whose log is broken is reported, and does not stop the others."""
    from fluvial.delta.log import TableLog
    from fluvial.delta.snapshot import read_snapshot

    path = folder_of(settings, table)
    snapshot, stamp = None, None
    try:
        snapshot = read_snapshot(path)
        stamp = _stamp(TableLog(None, path))
    except FluvialError as error:
        terminal.say(f"{table}: {error}")
    row = {
        "table": table,
        "kind": table.partition(".")[0],
        "topic": None if stamp is None else stamp.topic,
        **_numbers(snapshot),
        "offsets": None if stamp is None else {str(number): end for number, (_, end) in sorted(stamp.offsets.items())},
    }
    return row, stamp


def _numbers(snapshot: "Snapshot | None") -> dict[str, Any]:
    names = ("version", "rows", "files", "bytes")
    return {name: None if snapshot is None else getattr(snapshot, name) for name in names}


def _stamp(log: "TableLog") -> "Stamp | None":
    """Return the newest stamp: what a run of fluvial last said that the table holds."""
    from fluvial.delta.stamp import Stamp

    return next((stamp for commit in log.newest_first() if (stamp := Stamp.of(commit)) is not None), None)


def _lags(settings: Settings, stamps: "Mapping[str, Stamp | None]") -> "dict[str, dict[int, int] | None]":
    """Return for each table the offsets of each partition that it has not read; None where that is not known."""
    from fluvial.cli.topic.partitions import bounds_of
    from fluvial.kafka.admin import ClusterError, admin_of, describe_cluster

    unknown: dict[str, dict[int, int] | None] = dict.fromkeys(stamps)
    topics = {stamp.topic for stamp in stamps.values() if stamp is not None}
    if not topics:
        return unknown
    try:
        admin = admin_of(settings.cluster)
        known = describe_cluster(settings, admin).topics
        bounds = bounds_of(
            admin, [(topic, number) for topic in topics & known.keys() for number in known[topic].partitions]
        )
    except ClusterError as error:
        terminal.say(f"the lag is not known: {error}")
        return unknown
    lags = unknown
    for table, stamp in stamps.items():
        if stamp is not None and stamp.topic in known:
            read = {number: end for number, (_, end) in stamp.offsets.items()}
            lags[table] = {
                number: max(0, end - max(start, read.get(number, 0)))
                for (topic, number), (start, end) in bounds.items()
                if topic == stamp.topic
            }
    return lags


def _commit(commit: "Commit") -> dict[str, Any]:
    from fluvial.delta.stamp import Stamp

    stamp = Stamp.of(commit)
    written = commit.metric(*_WRITTEN) if commit.operation == "MERGE" else commit.metric("numOutputRows")
    return {
        "version": commit.version,
        "time": None if commit.timestamp_ms is None else _instant(commit.timestamp_ms),
        "operation": commit.operation,
        "rows_written": written,
        "rows_removed": commit.metric(*_REMOVED) + (0 if stamp is None else stamp.removed),
        "batch": None if stamp is None else stamp.batch,
        "offsets": {} if stamp is None else {number: list(span) for number, span in sorted(stamp.read.items())},
    }


def _instant(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _dash(value: Any) -> Any:
    return "-" if value is None else value
