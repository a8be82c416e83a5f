"""
Our tables beside the pipelines that one writes by hand: `make bench-state`, or `python -m tests.bench.state`.

Keyed tables: all sides read the same topic, in turn, block of batches after block, in one Spark session; the
hand-written side is the usual `foreachBatch` and MERGE, once as commonly written, once tuned. `--only vectors` has
those that mark rows as gone instead: the tuned MERGE with deletion vectors, and Iceberg's, whose jar Maven fetches.
Tables are compared, and a difference is an error. Printed are means over the batches after the first two, upkeep
included (medians in brackets), and their ratios. FULL=1 measures every row; what a stopped run measured is kept in
`--results` and not measured again. `--only` chooses parts.
"""

import argparse
import json
import os
import sys
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.bench.state import appending, idle, restarts, starting, visible
from tests.bench.state.merges import MARKING_SIDES
from tests.bench.state.reading import Reads
from tests.bench.state.rows import (
    COMMON,
    DEFAULT,
    FOLDS,
    FULL,
    ICEBERG,
    MARKING,
    OURS,
    TUNED,
    VECTORS,
    Row,
    Side,
    Work,
    by_table,
)
from tests.bench.state.tables import measure, session_conf

# After this row the table is read as it lies.
READ = DEFAULT[1]
_FILE_COLUMNS = 180
PARTS = ("tables", "folds", "vectors", "history", "visible", "mart", "start", "restart", "idle")


class Kept:
    """What has been measured, in a file; a run that was stopped goes on where it was."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def __contains__(self, title: str) -> bool:
        return title in self.results

    def keep(self, title: str, found: Any) -> None:
        self.results[title] = found
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self.results))


def _title(row: Row) -> str:
    return f"{row}, {row.batches} batches{', scanned' if row.is_scanned else ''}"


def _measure_tables(rows: tuple[Row, ...], kept: Kept, progress: Progress) -> None:
    rows = tuple(row for row in rows if _title(row) not in kept)
    conf = session_conf(rows)
    for group in by_table(rows):
        for row, found, reads in measure(group, conf, progress, READ):
            kept.keep(_title(row), {name: list(astuple(side)) for name, side in found.items()})
            if reads is not None:
                kept.keep("reads", astuple(reads))


def _report_tables(kept: Kept, rows: tuple[Row, ...]) -> Table:
    table = Table("work", "fluvial s", "by hand s", "ratio", "tuned s", "ratio", "MB a batch", "by hand MB", "ratio")
    for row in rows:
        if row.is_scanned or _title(row) not in kept:
            continue
        sides = {name: Side(*each) for name, each in kept.results[_title(row)].items()}
        ours, common, tuned = (sides.get(name) for name in (OURS, COMMON, TUNED))
        if ours is None:
            continue
        table.add_row(
            str(row),
            f"{ours.mean:.2f} ({ours.median:.2f})",
            *_beside(ours, common),
            *_beside(ours, tuned),
            f"{ours.megabytes_a_batch:.2f}",
            *(
                ("", "")
                if common is None
                else (
                    f"{common.megabytes_a_batch:.1f}",
                    f"1/{common.written / len(common.seconds) / ours.written * len(ours.seconds):.0f}",
                )
            ),
        )
    return table


def _beside(ours: Side, other: Side | None) -> tuple[str, str]:
    return ("", "") if other is None else (f"{other.mean:.2f} ({other.median:.2f})", f"{other.mean / ours.mean:.1f}")


def _report_vectors(kept: Kept, rows: tuple[Row, ...]) -> Table:
    columns = ("fluvial s", "theirs s", "MB a batch", "theirs MB", "first scan s", "theirs s", "scan s", "theirs s")
    table = Table("work", "beside", *(each for at in range(0, 8, 2) for each in (*columns[at : at + 2], "ratio")))
    for row in rows:
        if not row.is_scanned or _title(row) not in kept:
            continue
        sides = {name: Side(*each) for name, each in kept.results[_title(row)].items()}
        ours = sides.pop(OURS)
        for name, theirs in sides.items():
            table.add_row(
                str(row),
                name,
                f"{ours.mean:.2f} ({ours.median:.2f})",
                *_beside(ours, theirs),
                *_figures(ours.megabytes_a_batch, theirs.megabytes_a_batch),
                *_figures(ours.first_scan, theirs.first_scan),
                *_figures(ours.scan, theirs.scan),
            )
    return table


def _figures(ours: float, theirs: float) -> tuple[str, str, str]:
    return f"{ours:.2f}", f"{theirs:.2f}", f"{theirs / ours:.2f}"


def _report_rest(kept: Kept) -> Table:
    table = Table("figure", "measured")
    found = kept.results
    if "reads" in found:
        reads = Reads(*found["reads"])
        for name, (lies, after, fresh) in (("full scan", reads.scan), ("key look-up", reads.lookup)):
            table.add_row(
                f"{name} after the {READ.batches}th batch ({reads.files} files), after upkeep, fresh",
                f"{lies:.2f} s, {after:.2f} s, {fresh:.2f} s: {lies / fresh:.2f}, {after / fresh:.2f}",
            )
    if "history" in found:
        ours, jvm, python = (found["history"][name] for name in (appending.OURS, appending.JVM, appending.PYTHON))
        table.add_row(
            f"history, {appending.EVENTS:,} events of two versions, events/s",
            f"{appending.EVENTS / ours:,.0f}; by hand {appending.EVENTS / jvm:,.0f}: {jvm / ours:.2f}; "
            f"in Python {appending.EVENTS / python:,.0f}: {python / ours:.2f}",
        )
    for part, where in (("visible", ""), ("mart", " in a mart by key behind the table")):
        if part in found:
            half, most, query = found[part]
            table.add_row(
                f"produced to visible{where} at {visible.EVENTS_A_SECOND:,} events/s, p50, p99; a query",
                f"{half:.2f} s, {most:.2f} s; {query:.2f} s",
            )
    if "start" in found:
        ours, theirs = (found["start"][name] for name in (starting.OURS, starting.BY_HAND))
        table.add_row("start to first commit", f"{ours:.1f} s; by hand {theirs:.1f} s: {ours / theirs:.2f}")
    if "restart" in found:
        saved, read, after = (found["restart"][name] for name in (restarts.SAVED, restarts.READ, restarts.NEXT))
        table.add_row(
            f"first batch of a driver, {restarts.KEYS:,} keys: index saved, not saved; the next batch",
            f"{saved:.1f} s, {read:.1f} s; {after:.1f} s",
        )
    if "idle" in found:
        asked, passed = found["idle"]
        table.add_row(f"idle round of {idle.TOPICS} topics: continuous, once", f"{asked:.3f} s, {passed:.2f} s")
    return table


def _rows(words: argparse.Namespace, parts: list[str], *, is_full: bool) -> tuple[Row, ...]:
    """The rows that are asked for; of their sides those that are."""
    if words.keys:
        sides = (COMMON, TUNED) if words.sides is None else tuple(words.sides)
        return (
            Row(
                keys=words.keys,
                events=words.events,
                batches=words.batches,
                theirs=words.batches,
                work=words.work,
                sides=sides,
                is_scanned=bool(MARKING_SIDES.intersection(sides)),
            ),
        )
    if is_full:
        rows = FULL if {"tables", "folds"}.intersection(parts) else ()
    else:
        rows = (*(DEFAULT if "tables" in parts else ()), *(FOLDS if "folds" in parts else ()))
    rows = (*rows, *(MARKING if "vectors" in parts else ()))
    if words.sides is None:
        return rows
    return tuple(replace(row, sides=tuple(side for side in row.sides if side in words.sides)) for row in rows)


def main() -> int:
    """Measure, print, and keep what was measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.state", description=(__doc__ or "").split("\n")[1])
    parser.add_argument("--only", default="", help=f"parts: {', '.join(PARTS)} (default: tables; with FULL=1 all)")
    parser.add_argument("--keys", type=int, help="measure one row: keys of the table")
    parser.add_argument("--events", type=int, default=10_000, help="events of a batch (with --keys)")
    parser.add_argument("--batches", type=int, default=20, help="batches (with --keys)")
    parser.add_argument(
        "--work", type=Work, choices=list(Work), default=Work.LATEST, help="what the table keeps (with --keys)"
    )
    parser.add_argument(
        "--sides", nargs="*", choices=[COMMON, TUNED, VECTORS, ICEBERG], help="whom to measure beside ours"
    )
    parser.add_argument("--results", type=Path, default=Path(".fluvial/bench-state.json"), help="what is kept")
    words = parser.parse_args()
    full = bool(os.environ.get("FULL"))
    parts = [part for part in words.only.split(",") if part] or (list(PARTS) if full else ["tables"])
    unknown = set(parts).difference(PARTS)
    if unknown:
        parser.error(f"--only {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    if words.keys:
        parts = ["tables"]
    rows = _rows(words, parts, is_full=full)
    kept = Kept(words.results)
    with Progress(console=Console(stderr=True)) as progress:
        _measure_tables(rows, kept, progress)
        if "history" in parts and "history" not in kept:
            kept.keep("history", appending.measure(progress))
        for part, table in (("visible", visible.TopicTable()), ("mart", visible.MartTable())):
            if part in parts and part not in kept:
                seen = visible.measure(progress, table)
                half, most = (seen.events[len(seen.events) * of // 100] for of in (50, 99))
                kept.keep(part, [half, most, seen.queries[len(seen.queries) // 2]])
        if "start" in parts and "start" not in kept:
            kept.keep("start", starting.measure(progress))
        if "restart" in parts and "restart" not in kept:
            kept.keep("restart", restarts.measure(progress))
        if "idle" in parts and "idle" not in kept:
            kept.keep("idle", idle.measure(progress))
    console = Console()
    if not console.is_terminal:
        console = Console(width=_FILE_COLUMNS)
    console.print(_report_tables(kept, tuple(dict.fromkeys((*DEFAULT, *FOLDS, *FULL, *rows)))))
    console.print(_report_vectors(kept, tuple(dict.fromkeys((*MARKING, *rows)))))
    console.print(_report_rest(kept))
    return 0


if __name__ == "__main__":
    sys.exit(main())
