"""What a bigger machine brings (S-002): brokers pinned to 1, 2, 4, 8 and 16 cores, one partition and many."""

import os
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.bench.clients.measure import Nodes, nodes
from tests.bench.scale.driving import Load, Sample, measure, rounds
from tests.bench.scale.ramp import Setup

CORES = (1, 2, 4, 8, 16)
PARTITIONS_A_BROKER = 4
CLIENTS = 32


class Cell(NamedTuple):
    """A set-up on so many cores."""

    setup: Setup
    cores: int

    def __str__(self) -> str:
        return f"{self.setup}, on {_cores(self.cores)}"


def bigger_machine(console: Console, *, count: int, seconds: float) -> None:
    """Brokers pinned to more and more cores: what that brings one partition, and more partitions on more brokers."""
    machine = sorted(os.sched_getaffinity(0))
    sizes = [cores for cores in CORES if cores <= len(machine)]
    setups = [Setup(1, 1), *(Setup(brokers, PARTITIONS_A_BROKER * brokers) for brokers in sizes)]
    with ExitStack() as stack:
        running = {brokers: stack.enter_context(nodes(brokers)) for brokers in sizes}

        def pinned(cell: Cell) -> Sample:
            nodes_of_it = running[cell.setup.brokers]
            pin(nodes_of_it, machine[: cell.cores])
            return measure(nodes_of_it, Load(cell.setup.partitions, CLIENTS, seconds))

        cells = [Cell(setup, cores) for setup in setups for cores in sizes]
        found = rounds(count, {cell: partial(pinned, cell) for cell in cells})
    least = found[cells[0]].rate
    table = Table("records/s of", *map(_cores, sizes), f"busy of {sizes[-1]}: brokers", "clients")
    for setup in setups:
        row = [found[Cell(setup, cores)] for cores in sizes]
        rates = [f"{sample.records_rate:,.0f} ({sample.rate / least:.2f})" for sample in row]
        table.add_row(str(setup), *rates, f"{row[-1].broker_cores:.2f}", f"{row[-1].client_cores:.2f}")
    console.print(table)
    largest = sizes[-1]
    flat, lifted = (found[Cell(setup, largest)].rate / least for setup in (setups[0], setups[-1]))
    console.print(
        f"{largest} cores in place of one: {flat:.2f} times the rate with one partition, {lifted:.2f} times with "
        f"{setups[-1]}"
    )


def pin(running: Nodes, cores: list[int]) -> None:
    """Keep every thread of the nodes, and those that they will start, to these cores."""
    for member in running.members:
        for thread in os.listdir(f"/proc/{member.process.pid}/task"):
            os.sched_setaffinity(int(thread), cores)


def _cores(count: int) -> str:
    return f"{count} core{'s' * (count > 1)}"
