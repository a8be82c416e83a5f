"""How many partitions a broker carries (S-265): the same load on more and more of them, until its tail bends."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.bench.clients.measure import Nodes, nodes
from tests.bench.scale.driving import TOPIC, Load, Sample, measure, rounds

PARTITIONS = (100, 1_000, 2_500, 5_000, 10_000)
CLIENTS = 16
THINK_SECONDS = 0.04
P99_TIMES_MAX = 3.0
KIB = 1024
DURABILITIES: Mapping[str, Mapping[str, str]] = {
    "synced": {**TOPIC, "fluvial.durability": "fsync-quorum"},
    "in memory": TOPIC,
}


class Cell(NamedTuple):
    """So many partitions on a broker of their own, and what its records wait for."""

    partitions: int
    durability: str

    def __str__(self) -> str:
        return f"{self.partitions:,} partitions, {self.durability}"


def density(console: Console, *, count: int, seconds: float, sizes: Sequence[int] = PARTITIONS) -> None:
    """One broker with more and more partitions, written to in turn at one rate: where does its p99 bend?"""
    with ExitStack() as stack:
        running = {size: stack.enter_context(nodes(1)) for size in sizes}
        cells = [Cell(size, durability) for durability in DURABILITIES for size in sizes]
        found = rounds(count, {cell: partial(_measured, running[cell.partitions], cell, seconds) for cell in cells})
        memory = {size: running[size].members[0].memory().rss for size in sizes}
    for durability in DURABILITIES:
        samples = [(size, found[Cell(size, durability)]) for size in sizes]
        console.print(_table(durability, samples, memory))
        console.print(_said(durability, bend([(size, sample.p99_ms) for size, sample in samples])))
    console.print(f"{kib_a_partition(memory):.1f} KiB of memory a partition that was written to")


def bend(curve: Sequence[tuple[int, float]]) -> int | None:
    """Return the first count of partitions with a p99 of more than three times that of the first; None without one."""
    bound = P99_TIMES_MAX * curve[0][1]
    return next((size for size, p99 in curve if p99 > bound), None)


def kib_a_partition(memory: Mapping[int, float]) -> float:
    """Return what a partition takes, from the MiB of the least and of the largest count."""
    least, most = min(memory), max(memory)
    return (memory[most] - memory[least]) * KIB / (most - least)


def _measured(broker: Nodes, cell: Cell, seconds: float) -> Sample:
    load = Load(cell.partitions, CLIENTS, seconds, think_seconds=THINK_SECONDS, records=1)
    return measure(broker, load, DURABILITIES[cell.durability])


def _table(durability: str, samples: Sequence[tuple[int, Sample]], memory: Mapping[int, float]) -> Table:
    table = Table(title=durability, title_justify="left")
    for column in ("partitions", "requests/s", "p50 ms", "p99 ms", "times", "busy cores: broker", "clients", "MiB"):
        table.add_column(column, justify="right")
    first = samples[0][1].p99_ms
    for size, sample in samples:
        figures = (sample.p50_ms, sample.p99_ms, sample.p99_ms / first, sample.broker_cores, sample.client_cores)
        shown = [f"{figure:.2f}" for figure in figures]
        table.add_row(f"{size:,}", f"{sample.rate:,.0f}", *shown, f"{memory[size]:,.0f}")
    return table


def _said(durability: str, size: int | None) -> str:
    where = "on none of these counts" if size is None else f"at {size:,} partitions"
    return f"{durability}: p99 passes {P99_TIMES_MAX:.0f} times that of the fewest {where}"
