"""
What the choices of clients and of whoever sets up a cluster cost, on our brokers: `make bench-clients`.

    python -m tests.bench.clients                     everything, about ten minutes
    python -m tests.bench.clients --only acks linger  some of it
    python -m tests.bench.clients --size 0.1          shorter loads

A rate is counted where records arrive: the records of a load, divided by the time from its first send until a reader
has the last. Latencies are from the call of send. Clients and brokers share the machine; durability is the default, so
each acknowledged record is on the disk of every replica that is in sync.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from tests.bench.clients import acknowledging, mirroring, paths, producing, reading, sizes
from tests.bench.clients.measure import Figure

GROUPS: Mapping[str, Callable[[float], Iterator[Figure]]] = {
    "acks": producing.acks,
    "linger": producing.linger,
    "batching": producing.batching,
    "awaiting": producing.awaiting,
    "exactly-once": producing.exactly_once,
    "fan-out": reading.fan_out,
    "members": reading.members,
    "sight": reading.sight,
    "silence": reading.silence,
    "locks": reading.locks,
    "acknowledging": acknowledging.acknowledging,
    "mirroring": mirroring.mirroring,
    "distance": paths.distance,
    "order": paths.order,
    "calls": paths.calls,
    "traced": paths.traced,
    "garbage": paths.garbage,
    "disturbed": paths.disturbed,
    "brokers": sizes.brokers,
    "clients": sizes.many_clients,
    "cores": sizes.cores,
    "partitions": sizes.partitions,
}


def table_of(figures: list[Figure]) -> Table:
    """One line a choice, one column a figure."""
    columns = list(dict.fromkeys(figure.what for figure in figures))
    table = Table("choice", *columns)
    for choice in dict.fromkeys(figure.choice for figure in figures):
        found = {figure.what: figure.value for figure in figures if figure.choice == choice}
        table.add_row(choice, *(_shown(found[what]) if what in found else "" for what in columns))
    return table


def medians(rounds: list[list[Figure]]) -> list[Figure]:
    """The median of each figure over the rounds."""
    return [
        replace(figures[0], value=statistics.median(figure.value for figure in figures))
        for figures in zip(*rounds, strict=True)
    ]


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.clients", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(GROUPS), help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--rounds", type=int, default=1, help="how often each load runs; medians are shown (default 1)")
    parser.add_argument("--size", type=float, default=1.0, help="factor for the length of each load (default 1)")
    options = parser.parse_args()
    console = Console(width=120)
    failed = False
    for name in options.only or GROUPS:
        try:
            figures = medians([list(GROUPS[name](options.size)) for _ in range(options.rounds)])
        except (RuntimeError, OSError) as error:
            failed = True
            print(f"{name} could not be measured: {error}", file=sys.stderr)
            continue
        console.print(f"\n{name}: {(GROUPS[name].__doc__ or '').strip()}  [{os.cpu_count()} cores]", markup=False)
        console.print(table_of(figures))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
