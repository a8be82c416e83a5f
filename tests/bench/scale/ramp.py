"""Tail latency against the number of clients (S-001): one broker with one partition, three with twelve."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from tests.bench.clients.measure import nodes
from tests.bench.scale.driving import Load, Sample, measure, rounds
from tests.bench.scale.knee import Step, bound_of, knee, moved

RAMP = (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256)
THINK_SECONDS = 0.02
BAR_COLUMNS = 30


class Setup(NamedTuple):
    """So many brokers, and the topic on them."""

    brokers: int
    partitions: int

    def __str__(self) -> str:
        return f"{_count(self.brokers, 'broker')}, {_count(self.partitions, 'partition')}"


class Point(NamedTuple):
    """So many clients of a set-up."""

    setup: Setup
    clients: int

    def __str__(self) -> str:
        return f"{self.setup}, {_count(self.clients, 'client')}"


SETUPS = (Setup(1, 1), Setup(3, 12))
Found = Mapping[Point, Sample]


def ramp(console: Console, *, count: int, seconds: float) -> None:
    """Clients that think for 20 ms between requests: at how many does one broker bend, and at how many three?"""
    with nodes(SETUPS[0].brokers) as one, nodes(SETUPS[1].brokers) as three:
        sides = {
            Point(setup, clients): partial(
                measure, running, Load(setup.partitions, clients, seconds, think_seconds=THINK_SECONDS)
            )
            for clients in RAMP
            for setup, running in zip(SETUPS, (one, three), strict=True)
        }
        found = rounds(count, sides)
    curves = [curve(found, setup) for setup in SETUPS]
    bound_ms = bound_of(curves[0])
    knees = [knee(steps, bound_ms) for steps in curves]
    for setup, bend in zip(SETUPS, knees, strict=True):
        console.print(_plot(found, setup, bend))
    console.print(f"{moved(*knees)} (a p99 over {bound_ms:.2f} ms, four times that of one broker at the least load)")


def curve(found: Found, setup: Setup) -> list[Step]:
    """The steps of one set-up by growing count of clients."""
    samples = [(clients, found[Point(setup, clients)]) for clients in RAMP]
    return [Step(clients, sample.rate, sample.p99_ms) for clients, sample in samples]


def _plot(found: Found, setup: Setup, bend: Step | None) -> Table:
    """A line and a bar a step; the bars of all set-ups have one scale."""
    most = max(sample.p99_ms for sample in found.values())
    table = Table(title=str(setup), title_justify="left")
    for column in ("clients", "records/s", "p50 ms", "p99 ms", "busy cores: brokers", "clients"):
        table.add_column(column, justify="right")
    table.add_column(f"p99, the whole line is {most:.1f} ms")
    table.add_column("")
    for clients in RAMP:
        sample = found[Point(setup, clients)]
        table.add_row(
            str(clients),
            f"{sample.records_rate:,.0f}",
            f"{sample.p50_ms:.2f}",
            f"{sample.p99_ms:.2f}",
            f"{sample.broker_cores:.2f}",
            f"{sample.client_cores:.2f}",
            Bar(most, 0, sample.p99_ms, width=BAR_COLUMNS),
            "knee" if bend is not None and bend.clients == clients else "",
        )
    return table


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"
