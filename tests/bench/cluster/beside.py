"""
Three nodes of this checkout beside three of another commit, both under the same load at the same time.

    python -m tests.bench.cluster.beside f2ad49db                      single records, 5 rounds
    python -m tests.bench.cluster.beside f2ad49db --only 1x1 --rounds 9

RF 3, acks=all, `fsync-quorum`; clients and loads are this checkout's. What else the machine does falls on both, so the
ratio within a round says more than rounds that alternate: medians of it, with the least and the most.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.table import Table

from tests.bench.broker.arena import Scale, fresh
from tests.bench.broker.beside import checked_out
from tests.bench.broker.measuring import drive, stored, topic
from tests.bench.broker.servers import ROOT
from tests.bench.cluster.arena import SAFE
from tests.bench.cluster.loads import SHAPES
from tests.bench.cluster.servers import Cluster, Member, OurCluster, OurMember

FIGURES = ("messages/s", "server CPU µs/message", "p50 ms", "voluntary switches/message")
Round = Mapping[str, float]


class RootedMember(OurMember):
    """A node of the checkout at `root`."""

    root = ROOT

    def spawn(self, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-m", "log_broker", "--data-dir", str(self.data_dir), "--port", str(self.port)]
        words += ["--node-id", str(self.node_id), "--controller-quorum-voters", self._voters]
        environment = {**os.environ, "PYTHONPATH": str(self.root)}
        return subprocess.Popen(words, cwd=self.root, env=environment, stdout=log, stderr=log)

    def of_threads(self, name: str) -> Iterator[str]:
        """What the kernel says of each thread in this file."""
        assert self._process is not None
        for thread in Path(f"/proc/{self._process.pid}/task").iterdir():
            yield (thread / name).read_text()

    def cpu_seconds(self) -> float:
        # By the scheduler's clock: short loads are few of the ticks that `stat` counts.
        return sum(int(text.split()[0]) for text in self.of_threads("schedstat")) / 1e9

    def switches(self) -> int:
        """How often its threads have waited for something."""
        lines = (line for text in self.of_threads("status") for line in text.splitlines())
        return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def cluster_of(root: Path, called: str) -> type[OurCluster]:
    """Three nodes of a checkout."""
    member: type[RootedMember] = type("Rooted", (RootedMember,), {"root": root})

    class Rooted(OurCluster):
        name = called

        def plan(self) -> tuple[Member, ...]:
            nodes = super().plan()
            assert all(isinstance(node, OurMember) for node in nodes)
            return tuple(member(node.folder, node.node_id, node.port, node._voters) for node in nodes)  # type: ignore[attr-defined]

    return Rooted


def loaded(cluster: Any, name: str, load: Mapping[str, Any]) -> Round:
    """Load one cluster and hold it to every acknowledged record."""
    before = sum(member.switches() for member in cluster.members)
    leaders = [member.address for member in cluster.leaders(name)]
    sample = drive(cluster, "raw_requests", {"topic": name, "leaders": leaders, **load})
    switches = sum(member.switches() for member in cluster.members) - before
    found = stored(cluster, name, range(load["partitions"]))
    if found != sample.acknowledged:
        raise RuntimeError(f"{cluster.name} acknowledged {sample.acknowledged} records and holds {found}")
    figures = sample.rate, sample.cpu_micros, sample.p50_ms, switches / sample.messages
    return dict(zip(FIGURES, figures, strict=True))


def rounds(clusters: Sequence[Cluster], shape: tuple[int, int, int], scale: Scale) -> Iterator[tuple[Round, Round]]:
    """Yield what each round gave on the two clusters; one before them is to warm up."""
    connections, in_flight, partitions = shape
    load = {"connections": connections, "in_flight": in_flight, "partitions": partitions, "acks": -1}
    load |= {"value_bytes": 100, "seconds": scale.seconds(3)}
    for at in range(scale.rounds + 1):
        name = f"bench-{connections}-{in_flight}-{at:03d}"
        with ExitStack() as topics, ThreadPoolExecutor() as pool:
            for cluster in clusters:
                topics.enter_context(topic(cluster, name, partitions, SAFE))  # type: ignore[arg-type]
                cluster.await_in_sync(name)
            here, there = pool.map(partial(loaded, name=name, load=load), clusters)
        if at:
            yield here, there


def add_rows(table: Table, what: str, found: Sequence[tuple[Round, Round]]) -> None:
    for figure in FIGURES:
        here, there = ([each[at][figure] for each in found] for at in (0, 1))
        ratios = sorted(mine / other for mine, other in zip(here, there, strict=True))
        spread = f"{statistics.median(ratios):.3f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        table.add_row(what, figure, f"{statistics.median(here):,.2f}", f"{statistics.median(there):,.2f}", spread)


def main() -> int:
    shapes = {f"{connections}x{in_flight}": (connections, in_flight, at) for connections, in_flight, at in SHAPES}
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.cluster.beside",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("commit", help="what is beside this checkout")
    parser.add_argument("--only", nargs="+", metavar="SHAPE", choices=list(shapes), help=f"of {', '.join(shapes)}")
    parser.add_argument("--rounds", type=int, default=5, help="how often each load runs (default 5)")
    parser.add_argument("--size", type=float, default=1.0, help="factor for the length of each load (default 1)")
    options = parser.parse_args()
    table = Table("load", "figure", "here", options.commit, "ratio")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-beside-")))
        there = stack.enter_context(checked_out(options.commit, folder))
        kinds = cluster_of(ROOT, "this checkout"), cluster_of(there, options.commit)
        clusters: list[Any] = [stack.enter_context(fresh(kind, None)) for kind in kinds]  # type: ignore[arg-type]
        for cluster in clusters:
            cluster.start()
        for name in options.only or shapes:
            add_rows(table, name, list(rounds(clusters, shapes[name], Scale(options.rounds, options.size))))
    Console(width=110).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
