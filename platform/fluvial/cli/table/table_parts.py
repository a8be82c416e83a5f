"""`fluvial table replay` of tables: a range of time or of offsets made again."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from fluvial.cli import terminal
from fluvial.cli.run.run import require_declared
from fluvial.cli.spark import spark_of
from fluvial.cli.topic.partitions import start_of
from fluvial.config import Settings
from fluvial.errors import FluvialError

if TYPE_CHECKING:
    from fluvial.tables import Declaration
    from fluvial.tables.plan.result import RunResult
    from fluvial.tables.replay.stretch import Stretch

_OFFSETS = re.compile(
    r"(?P<topic>[a-zA-Z0-9._-]{1,249}):(?P<partition>[0-9]{1,9})=(?P<first>[0-9]{1,18})(?:-(?P<last>[0-9]{1,18}))?"
)


def stretch_of(since: str | None, until: str | None, offsets: Sequence[str]) -> "Stretch | None":
    """Read the options; None where none of them is there. Raises BadParameter."""
    from fluvial.spark.offset_times import Window
    from fluvial.tables.replay.stretch import Stretch

    if since is None and until is None:
        return _of_offsets(offsets) if offsets else None
    if offsets:
        raise typer.BadParameter("--offsets and --from, --until: give a range of offsets or of time")
    if since is None or until is None:
        raise typer.BadParameter("--from and --until: give both ends of the range, the second is not part of it")
    first, last = (
        round(start_of(flag, text).timestamp() * 1000) for flag, text in (("--from", since), ("--until", until))
    )
    if first >= last:
        raise typer.BadParameter(f"--from {since} is not before --until {until}")
    return Stretch(window=Window(start_ms=first, end_ms=last))


def _of_offsets(texts: Sequence[str]) -> "Stretch":
    from fluvial.tables.replay.stretch import Stretch

    found: dict[str, dict[int, tuple[int, int]]] = {}
    for text in texts:
        match = _OFFSETS.fullmatch(text)
        if match is None:
            raise typer.BadParameter(
                f"--offsets {text}: write topic, partition, first and last offset as in orders:3=1200-1299"
            )
        first, last = int(match["first"]), int(match["last"] or match["first"])
        if last < first:
            raise typer.BadParameter(f"--offsets {text}: the last offset is before the first")
        of = found.setdefault(match["topic"], {})
        if int(match["partition"]) in of:
            raise typer.BadParameter(f"--offsets {text}: one range for each partition, and there is another before it")
        of[int(match["partition"])] = (first, last + 1)
    return Stretch(offsets=found)


def replay_parts(settings: Settings, names: Sequence[str], stretch: "Stretch") -> None:
    """Make the part of each table again, inputs before what reads them. Raises FluvialError."""
    from fluvial.tables.declare.project import load_project
    from fluvial.tables.replay.replay import check_parts, replay

    declared = load_project(settings.project)
    require_declared(names, list(declared), settings.project)
    chosen = [declaration for name, declaration in declared.items() if name in names]
    for each in chosen:
        check_parts(each)
    _check_topics(stretch, chosen, list(declared.values()))
    with settings.registry.client() as schemas, spark_of(settings) as (spark, say):
        for each in chosen:
            say(f"{each.table} …")
            done = replay(each, settings, spark, stretch, declared=declared.values(), schemas=schemas, progress=say)
            terminal.answer(_said(done))


def _check_topics(stretch: "Stretch", chosen: "Sequence[Declaration]", declared: "Sequence[Declaration]") -> None:
    """Raise FluvialError for a topic that none of the tables has records of, which may be misspelt."""
    topics = {each.table: getattr(each, "topic", None) for each in declared}
    read = {topics[each.table] for each in chosen}
    read |= {topics.get(table) for each in chosen for table in getattr(each, "inputs", ())}
    for topic in stretch.offsets:
        if topic not in read:
            known = ", ".join(sorted(filter(None, read))) or "none"
            raise FluvialError(f"--offsets {topic}: none of the named tables reads it; they read {known}")


def _said(result: "RunResult") -> str:
    if result.skipped:
        return f"{result.table}: nothing of that range is in it; version {result.version_after}"
    return f"{result.table}: version {result.version_after}, {result.rows:,} rows, {result.seconds:.1f} s"
