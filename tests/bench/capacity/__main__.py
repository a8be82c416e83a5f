"""
What a cluster for 1, 10 and 100 million records a second takes, and what breaks in large ones: `make bench-capacity`.

    python -m tests.bench.capacity                            all, about two minutes
    python -m tests.bench.capacity --only sizes               of sizes, growth, sources, decisions, failures
    python -m tests.bench.capacity --years 20 --seed 7        other years of failures
    python -m tests.bench.capacity --brokers 300 --partitions 30000

*sizes* and *growth* are calculated from the figures of docs/benchmarks.md; *sources* says which. *decisions* has the
product place the partitions and lose brokers. *failures* simulates years of that cluster, with failures at published
rates (`rates.py`), under the load of 100 million records of 100 B. All tables are Markdown.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from rich import box
from rich.console import Console
from rich.table import Table

from log_broker.core.cluster.image import ClusterImage
from tests.bench.broker.arena import PROGRESS
from tests.bench.capacity.decisions import held_mib, lose, typical
from tests.bench.capacity.layout import Layout, Shape, add_topics, brokers_up, of_image
from tests.bench.capacity.odds import chance_in_power_cut, losses_a_year
from tests.bench.capacity.profile import GB, MB, MEASURED, Demand
from tests.bench.capacity.rates import HOUR, MINUTE, YEAR_SECONDS, Rates
from tests.bench.capacity.simulation import DISK, MACHINE, RACK, Outcome, Setup, Simulation
from tests.bench.capacity.sizing import MIB, Sizing

LOADS = (1e6, 1e7, 1e8)
RECORD_BYTES = (100, 1_000)
SIMULATED = Demand(records=1e8)
GROWING = (100, 300, 1_000, 2_000, 4_000, 8_000)
LED = 100
RACK_BROKERS = 40
SAMPLE = 20
DAY = 24 * HOUR


def sizes(console: Console, options: argparse.Namespace) -> None:
    """What each load takes: records a second, of so many bytes."""
    loads = [Demand(records=load, record_bytes=size) for size in RECORD_BYTES for load in LOADS]
    loads.append(Demand(records=LOADS[0], in_batches=False))
    kept = options.retention_hours * HOUR
    found = [Sizing(demand=replace(load, retention_seconds=kept)) for load in loads]
    table = _table("", *(_load(each.demand) for each in found))
    for limit in found[0].limits:
        table.add_row(f"brokers by {limit}", *(_marked(each, limit) for each in found))
    for what, figure in FIGURES.items():
        table.add_row(what, *map(figure, found))
    console.print(table)


FIGURES: Mapping[str, Callable[[Sizing], str]] = {
    "busy cores in all": lambda it: f"{it.cores:,.1f}",
    "disks written, GB/s in all": lambda it: f"{it.stored_a_second / GB:,.1f}",
    "disk space, TB in all": lambda it: f"{it.stored_bytes / 1e12:,.0f}",
    "network a broker in, out, MB/s": lambda it: (
        f"{it.network_in / it.brokers / MB:,.0f}, {it.network_out / it.brokers / MB:,.0f}"
    ),
    "partitions": lambda it: f"{it.partitions:,}",
    "replicas a broker": lambda it: f"{it.replicas_a_broker:,.0f}",
    "memory a broker, MiB": lambda it: f"{it.memory_bytes / MIB:,.0f}",
    "voters": lambda it: str(it.voters),
    "controller's core at rest": lambda it: f"{it.controller_share:.0%}",
    "controller's core for one lost broker, s": lambda it: f"{it.loss_seconds():,.2f}",
    "clusters, for half a core at most": lambda it: f"{it.clusters:,}",
    "to fail over, s": lambda it: f"{it.failover_seconds:,.1f}",
    "busy core before, and of the heir of a lost broker": lambda it: f"{it.busy:.0%}, {it.busy_of_heir:.0%}",
    "TB a broker": lambda it: f"{it.bytes_a_broker / 1e12:,.1f}",
    "copied a broker, MB/s": lambda it: f"{it.spare_bytes / MB:,.0f}",
    "to copy all to one, h": lambda it: f"{it.rebuild_alone_seconds / HOUR:,.1f}",
    "to copy all from its partners, h": lambda it: f"{it.rebuild_shared_seconds / HOUR:,.1f}",
}


def growth(console: Console, _: argparse.Namespace) -> None:
    """What the core of one controller has to do for so many brokers, each of which leads a hundred partitions."""
    demand = Demand(records=SIMULATED.records, partitions_least=LED)
    found = [Sizing(demand=demand, given=brokers) for brokers in GROWING]
    table = _table("brokers", *(f"{brokers:,}" for brokers in GROWING))
    table.add_row("at rest", *(f"{each.controller_share:.0%}" for each in found))
    table.add_row("for one lost broker, s", *(f"{each.loss_seconds():,.2f}" for each in found))
    table.add_row(f"for a rack of {RACK_BROKERS}, s", *(f"{each.loss_seconds(RACK_BROKERS):,.1f}" for each in found))
    console.print(table)


def sources(console: Console, _: argparse.Namespace) -> None:
    """Where each measured figure is from."""
    table = _table("figure", "section of docs/benchmarks.md: row")
    for name, row in MEASURED.rows().items():
        table.add_row(name, row)
    console.print(table)


def decisions(console: Console, options: argparse.Namespace) -> None:
    """What the product decides when it loses a broker, medians of twenty."""
    table = _table(
        *(
            "",
            "heirs",
            "most to one",
            "partners",
            "copysets",
            "changes",
            "ms to decide",
            "ms to replay",
            "kB a broker",
            "MiB held",
        )
    )
    for name, told in (("racks named", True), ("no racks named", False)):
        shape = _shape(options, told=told)
        image, layout = _placed(shape)
        step = max(shape.brokers // SAMPLE, 1)
        found = typical(lose(image, broker) for broker in range(0, shape.brokers, step))
        partners = [layout.partners(broker) for broker in range(shape.brokers)]
        table.add_row(
            name,
            f"{found.heirs:,}",
            f"{found.most:,}",
            f"{min(partners)}-{max(partners)}",
            f"{layout.copysets():,}",
            f"{found.changes:,}",
            f"{found.decide_ms:,.0f}",
            f"{found.replay_ms:,.0f}",
            f"{found.record_bytes / 1000:,.0f}",
            f"{held_mib(image):,.0f}",
        )
    console.print(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Something that is done otherwise, or nothing."""

    name: str
    told: bool = True
    copies: int = 3
    rolls: float = Rates().rolls
    setup: Callable[[Setup], Setup] = lambda setup: setup


SCENARIOS = (
    Scenario(name="racks named"),
    Scenario(name="no racks named", told=False),
    Scenario(name="no rolling restarts", rolls=0),
    Scenario(name="careful restarts", setup=lambda setup: replace(setup, is_careful=True)),
    Scenario(name="disks after a day", setup=lambda setup: replace(setup, operator_seconds=DAY)),
    Scenario(name="machines given up after an hour", setup=lambda setup: replace(setup, given_up_seconds=HOUR)),
    Scenario(
        name="the same, copied by its partners",
        setup=lambda setup: replace(setup, given_up_seconds=HOUR, is_shared=True),
    ),
    Scenario(name="changes one by one", setup=lambda setup: replace(setup, changes_a_round=1)),
    Scenario(name="one copy", copies=1),
)


NAMES = [scenario.name for scenario in SCENARIOS]


def failures(console: Console, options: argparse.Namespace) -> None:
    """Years of failures; each figure is that of a year, unless it is a time or a chance."""
    table = _table("", *YEARLY, "years to a loss by disks alone", "a power cut of all loses something")
    for scenario in (each for each in SCENARIOS if each.name in (options.scenarios or NAMES)):
        rates = Rates(rolls=scenario.rolls)
        setup = scenario.setup(_setup(options))
        _, layout = _placed(_shape(options, told=scenario.told, copies=scenario.copies))
        found = Simulation(layout, rates, setup, options.seed).run(options.years)
        once = losses_a_year(scenario.copies, rates.disk, found.seconds_at(DISK, 0.5) / YEAR_SECONDS)
        table.add_row(
            scenario.name,
            *(figure(found) for figure in YEARLY.values()),
            f"{1 / (layout.copysets() * once):.2g}" if once else "",
            f"{chance_in_power_cut(layout, rates.not_back_share):.2%}",
        )
        PROGRESS.print(f"{scenario.name}: {dict(found.failures)}", style="dim", highlight=False)
    console.print(table)


YEARLY: Mapping[str, Callable[[Outcome], str]] = {
    "disks, machines, racks": lambda it: ", ".join(
        f"{it.failures[kind] / it.years:,.0f}" for kind in (DISK, MACHINE, RACK)
    ),
    "partition-minutes below the minimum": lambda it: f"{it.below_minutes / it.years:,.0f}",
    "until new leaders": lambda it: f"{it.stalled_minutes / it.years:,.0f}",
    "acks=all is answered": lambda it: f"{it.available:.5%}",
    "partitions lost": lambda it: f"{it.lost / it.years:,.0f}",
    "hours until all copies are in sync after a machine: p50, p99": lambda it: _hours(it, MACHINE),
    "after a disk": lambda it: _hours(it, DISK),
    "longest queue of the controller": lambda it: f"{it.queue_most:,}",
    "longest wait, s": lambda it: f"{it.wait_most:,.0f}",
    "of its core, for changes": lambda it: f"{it.controller_share:.2%}",
}


def _hours(outcome: Outcome, kind: str) -> str:
    return ", ".join(f"{outcome.seconds_at(kind, share) / HOUR:,.1f}" for share in (0.5, 0.99))


def _setup(options: argparse.Namespace) -> Setup:
    sizing = Sizing(demand=SIMULATED, given=options.brokers)
    return Setup(
        bytes_a_broker=sizing.bytes_a_broker,
        written_a_broker=sizing.stored_a_second / options.brokers,
        spare_bytes=sizing.spare_bytes,
        round_seconds=sizing.profile.change_seconds.at(options.brokers),
        partition_seconds=sizing.partition_seconds,
        changes_a_round=options.changes_a_round,
        operator_seconds=options.operator_minutes * MINUTE,
        session_seconds=sizing.demand.session_seconds,
        ended_seconds=sizing.profile.killed_seconds.value,
    )


def _shape(options: argparse.Namespace, *, told: bool = True, copies: int = 3) -> Shape:
    return Shape(brokers=options.brokers, partitions=options.partitions, racks=options.racks, told=told, copies=copies)


@cache
def _placed(shape: Shape) -> tuple[ClusterImage, Layout]:
    image = brokers_up(shape)
    add_topics(image, shape)
    return image, of_image(shape, image)


def _table(*columns: str) -> Table:
    table = Table(columns[0], box=box.MARKDOWN)
    for column in columns[1:]:
        table.add_column(column, justify="right")
    return table


def _load(demand: Demand) -> str:
    how = f"{demand.record_bytes:,} B" if demand.in_batches else f"{demand.record_bytes:,} B, one a request"
    return f"{demand.records / 1e6:,.0f} M/s, {how}"


def _marked(sizing: Sizing, limit: str) -> str:
    shown = f"{sizing.limits[limit]:,}"
    return f"**{shown}**" if limit == sizing.binding else shown


GROUPS: Mapping[str, Callable[[Console, argparse.Namespace], None]] = {
    "sizes": sizes,
    "growth": growth,
    "sources": sources,
    "decisions": decisions,
    "failures": failures,
}


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    words = argparse.ArgumentParser(
        prog="python -m tests.bench.capacity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument("--only", nargs="+", metavar="NAME", choices=list(GROUPS), help=f"of {', '.join(GROUPS)}")
    words.add_argument("--retention-hours", type=float, default=24.0, metavar="N", help="of *sizes* (default 24)")
    words.add_argument("--brokers", type=int, default=1_000, help="of the cluster that loses some (default 1,000)")
    words.add_argument("--partitions", type=int, default=100_000, help="of it (default 100,000)")
    words.add_argument("--racks", type=int, default=25, help="in which its brokers stand (default 25)")
    words.add_argument(
        "--scenarios", nargs="+", metavar="NAME", choices=NAMES, help=f"of *failures*: {', '.join(NAMES)}"
    )
    words.add_argument("--years", type=float, default=5.0, help="of failures (default 5)")
    words.add_argument("--seed", type=int, default=1, help="of the failures (default 1)")
    words.add_argument(
        "--operator-minutes",
        type=float,
        default=60.0,
        metavar="N",
        help="from a lost disk to an empty one (default 60)",
    )
    words.add_argument(
        "--changes-a-round",
        type=int,
        default=int(MEASURED.changes_a_round.value),
        metavar="N",
        help="that the controller sends together (default %(default)s)",
    )
    return words


def main() -> int:
    words = parser()
    options = words.parse_args()
    if min(options.brokers, options.partitions, options.racks, options.changes_a_round) < 1 or options.years <= 0:
        words.error("at least one broker, partition, rack and change, and some time")
    if options.brokers < 3:
        words.error("three copies take three brokers")
    console = Console(width=400)  # a line of Markdown is not wrapped
    for name in options.only or GROUPS:
        console.print(f"\n{name}: {GROUPS[name].__doc__}", markup=False, highlight=False)
        GROUPS[name](console, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
