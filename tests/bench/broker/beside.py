"""
The broker of this checkout beside that of another commit, in rounds that alternate between them.

    python -m tests.bench.broker.beside d2b49eb                        every load, 5 rounds
    python -m tests.bench.broker.beside d2b49eb --only small --rounds 9

The other commit is checked out for as long as that takes; the clients and their loads are this checkout's. Both brokers
have their defaults but for `fluvial.durability=memory`, so that the disk has no say; `synced` is without that.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.table import Table

from hatch_build import SOURCES, compiled_name
from tests.bench.broker.arena import Arena, Scale, Side
from tests.bench.broker.measuring import Sample, drive, topic
from tests.bench.broker.servers import ROOT, Broker, Ours
from tests.bench.drivers.openmessaging import FIXED_RATE, LOAD, SECONDS, Shape, set_for_commits

MEMORY = (("fluvial.durability", "memory"),)
FETCH_BYTES = (64 << 10, 1 << 20, 4 << 20)
HERE, THERE = Side("here", "this checkout", MEMORY), Side("there", "the other commit", MEMORY)


def broker_of(root: Path, called: str) -> type[Ours]:
    """The broker of a checkout."""

    class Other(Ours):
        name = called

        def spawn(self, log: IO[bytes]) -> "subprocess.Popen[bytes]":
            words = [sys.executable, "-m", "log_broker", "--data-dir", str(self.data_dir), "--port", str(self.port)]
            environment = {**os.environ, "PYTHONPATH": str(root)}
            return subprocess.Popen(words, cwd=root, env=environment, stdout=log, stderr=log)

    return Other


class Beside(Arena):
    """Both brokers, warmed up alike."""

    @property
    def warm_up_sides(self) -> tuple[Side, ...]:
        return HERE, THERE


def small(arena: Arena, *, is_synced: bool) -> dict[str, dict[Side, Sample]]:
    shapes = ((1, 1, 4), (16, 1, 4), (16, 16, 4), *([(4, 8, 1_000)] if is_synced else ()))
    return {what: found for shape in shapes for what, found in [_small(arena, *shape, is_synced=is_synced)]}


def _small(
    arena: Arena, connections: int, in_flight: int, partitions: int, *, is_synced: bool
) -> tuple[str, dict[Side, Sample]]:
    seconds = arena.scale.seconds(3)
    load = {"connections": connections, "in_flight": in_flight, "acks": 1, "value_bytes": 100, "seconds": seconds}

    def run(broker: Broker, side: Side) -> Sample:
        durability = () if is_synced else side.config
        return arena.produce(broker, side._replace(config=durability), "raw_requests", load, partitions=partitions)

    what = f"small requests, {connections}x{in_flight}, {partitions:,} partitions"
    return what, arena.rounds(what, (HERE, THERE), run)


def bulk(arena: Arena) -> dict[Side, Sample]:
    load = {"mode": "produce", "messages": arena.scale.count(400_000), "value_bytes": 1000}

    def run(broker: Broker, side: Side) -> Sample:
        return arena.produce(broker, side, "bulk", load)

    return arena.rounds("bulk produce", (HERE, THERE), run)


def consume(arena: Arena, fetch_bytes: int) -> dict[Side, Sample]:
    name = arena.topic_name()
    settings = {"max.partition.fetch.bytes": str(fetch_bytes)}
    filling = {"topic": name, "partitions": 1, "messages": arena.scale.count(500_000), "value_bytes": 1000}
    with topic(arena.broker("here"), name, 1, MEMORY), topic(arena.broker("there"), name, 1, MEMORY):
        for at in ("here", "there"):
            drive(arena.broker(at), "bulk", {**filling, "mode": "produce"})

        def run(broker: Broker, side: Side) -> Sample:
            return drive(broker, "bulk", {**filling, "mode": "consume", "client": settings})

        return arena.rounds(f"consume, {fetch_bytes >> 10} KiB a fetch", (HERE, THERE), run)


def commits(arena: Arena) -> dict[str, dict[Side, Sample]]:
    """One partition in each, at the pace of a consumer and as many as go; and of the members of groups."""
    found = {}
    for named, connections, a_second, in_group in (
        (1, 1, 1_000, False),
        (1, 1, 1_000, True),
        (25, 4, 1_000, True),
        (1, 1, 0, False),
        (1, 16, 0, True),
    ):
        pace = f"{a_second:,}/s" if a_second else "without pause"
        readers = "members of groups" if in_group else "readers without a group"
        what = f"commits of {named} by {connections} {readers}, {pace}"
        load = {"connections": connections, "in_group": in_group, "commits_a_second": a_second}
        found[what] = _commits(arena, what, named, {**load, "seconds": arena.scale.seconds(3)})
    return found


def _commits(arena: Arena, what: str, partitions: int, load: Mapping[str, Any]) -> dict[Side, Sample]:
    def run(broker: Broker, side: Side) -> Sample:
        set_for_commits(broker, *MEMORY[0])
        with topic(broker, arena.topic_name(), partitions, side.config) as name:
            return drive(broker, "commit_requests", {"topic": name, "partitions": partitions, **load})

    return arena.rounds(what, (HERE, THERE), run)


def fixed_rate(arena: Arena) -> dict[str, dict[Side, Sample]]:
    """The shapes of one partition and of a hundred, with consumers that commit after each poll."""
    return {shape.name: _at_fixed_rate(arena, shape) for shape in (FIXED_RATE[1], FIXED_RATE[3])}


def _at_fixed_rate(arena: Arena, shape: Shape) -> dict[Side, Sample]:
    load = {**shape._asdict(), "seconds": arena.scale.seconds(SECONDS)}

    def run(broker: Broker, side: Side) -> Sample:
        set_for_commits(broker, *MEMORY[0])
        return arena.produce(broker, side, LOAD, load, partitions=shape.partitions)

    return arena.rounds(shape.name, (HERE, THERE), run)


LOADS: Mapping[str, Callable[[Arena], dict[str, dict[Side, Sample]]]] = {
    "small": lambda arena: small(arena, is_synced=False),
    "synced": lambda arena: small(arena, is_synced=True),
    "bulk": lambda arena: {"bulk produce, 1000 B": bulk(arena)},
    "consume": lambda arena: {
        f"consume, 1000 B, {size >> 10:,} KiB a fetch": consume(arena, size) for size in FETCH_BYTES
    },
    "commits": commits,
    "fixed-rate": fixed_rate,
}


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """Yield the files of a commit."""
    there = folder / "there"
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(there), commit], cwd=ROOT, check=True)
    try:
        _share_compiled(there)
        yield there
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(there)], cwd=ROOT, check=True)


def _share_compiled(there: Path) -> None:
    """Give the other commit what this checkout has compiled of sources that are its own as well."""
    for source in SOURCES:
        compiled, theirs = ROOT / compiled_name(source), there / source
        if compiled.is_file() and theirs.is_file() and theirs.read_bytes() == (ROOT / source).read_bytes():
            shutil.copy(compiled, theirs.parent)


def table_of(found: Mapping[str, Mapping[Side, Sample]], commit: str) -> Table:
    table = Table("load", "figure", "here", commit, "ratio")
    for load, samples in found.items():
        here, there = samples[HERE], samples[THERE]
        figures: list[tuple[str, Any, Any]] = [
            ("messages/s", here.rate, there.rate),
            ("server CPU µs/message", here.cpu_micros, there.cpu_micros),
        ]
        if there.p99_ms:
            figures.append(("p99 ms", here.p99_ms, there.p99_ms))
        for what, mine, other in figures:
            table.add_row(load, what, f"{mine:,.2f}", f"{other:,.2f}", f"{mine / other:.3f}" if other else "")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.broker.beside",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("commit", help="what is beside this checkout")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(LOADS), help=f"of {', '.join(LOADS)}")
    parser.add_argument("--rounds", type=int, default=5, help="how often each load runs on each broker (default 5)")
    parser.add_argument("--size", type=float, default=1.0, help="factor for the length of each load (default 1)")
    options = parser.parse_args()
    found: dict[str, dict[Side, Sample]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="bench-beside-") as folder,
        checked_out(options.commit, Path(folder)) as there,
    ):
        brokers = {"here": broker_of(ROOT, "this checkout"), "there": broker_of(there, options.commit)}
        with Beside(None, Scale(rounds=options.rounds, size=options.size), brokers) as arena:
            for name in options.only or LOADS:
                found |= LOADS[name](arena)
    Console(width=110).print(table_of(found, options.commit))
    return 0


if __name__ == "__main__":
    sys.exit(main())
