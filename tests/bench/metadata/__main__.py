"""
The metadata of large clusters: `make bench-metadata`.

    python -m tests.bench.metadata                          10, 100, 300 and 1,000 brokers, about five minutes
    python -m tests.bench.metadata --brokers 100 300        other sizes
    python -m tests.bench.metadata --changes 3 --rest 2     fewer leader changes, a shorter look at rest
    python -m tests.bench.metadata --together 40            as well, forty brokers fenced at the same moment

One real controller and N brokers without logs, which register, send heartbeats and replay the metadata log over the
wire as real ones do. Each broker leads ten partitions of three copies; then one after the other is fenced, so that
its ten get other leaders, and the time runs from that request until every broker has replayed the change. All brokers
are one process on one core, so what they take together is an upper bound of what each would take on a machine of its
own: the controller's own CPU time stands beside it, and what registering takes of one broker, which N machines would
spend at the same time.
"""

import argparse
import asyncio
import logging
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator

from rich.console import Console

from log_broker.server.process.event_loop import loop_factory
from tests.bench.broker.arena import PROGRESS
from tests.bench.clients.__main__ import table_of
from tests.bench.clients.measure import Figure, quantile
from tests.bench.metadata.crowd import Controller, Crowd, controller, crowd

SIZES = (10, 100, 300, 1_000)
PARTITIONS_A_BROKER = 10
SHARES = (0.5, 0.99, 1.0)


async def measure(
    count: int, *, changes: int, rest_seconds: float, together: int = 1, partitions: int = PARTITIONS_A_BROKER
) -> list[Figure]:
    """Return every figure of a cluster with `count` brokers."""
    with controller() as node:
        async with crowd(count, node) as brokers:
            found = []
            async for what, value in _all(node, brokers, changes, rest_seconds, together, partitions):
                PROGRESS.print(f"{count:,} brokers: {what} {value:,.2f}", style="dim", highlight=False)
                found.append(Figure(group="metadata", choice=f"{count:,} brokers", what=what, value=value))
    return found


async def _all(
    node: Controller, brokers: Crowd, changes: int, rest_seconds: float, together: int, partitions: int
) -> AsyncIterator[tuple[str, float]]:
    async for figure in _measured(node, brokers, changes=changes, rest_seconds=rest_seconds, partitions=partitions):
        yield figure
    if together > 1:
        watch = _Watch(node)
        _, arrived = await brokers.fence(*brokers.brokers[:together])
        yield f"CPU ms a change, {together} at once", 1000 * watch.controller_seconds / together
        yield "ms to 100% of all", 1000 * max(arrived)


async def _measured(
    node: Controller, brokers: Crowd, *, changes: int, rest_seconds: float, partitions: int
) -> AsyncIterator[tuple[str, float]]:
    watch = _Watch(node)
    await brokers.join()
    yield "s to register", watch.seconds
    yield "CPU s", watch.controller_seconds
    yield "CPU ms of a broker", 1000 * watch.own_seconds / len(brokers.brokers)
    await brokers.settle()

    watch = _Watch(node)
    await brokers.create_topics(partitions * len(brokers.brokers))
    yield "s to place", watch.seconds
    await brokers.settle()

    watch = _Watch(node)
    await asyncio.sleep(rest_seconds)
    yield "% CPU at rest", 100 * watch.controller_seconds / watch.seconds
    yield "% of the brokers", 100 * watch.own_seconds / watch.seconds

    answers: list[float] = []
    spent: list[float] = []
    arrivals: list[list[float]] = []
    for victim in brokers.brokers[:changes]:
        watch = _Watch(node)
        answered, arrived = await brokers.fence(victim)
        spent.append(watch.controller_seconds)
        answers.append(answered)
        arrivals.append(arrived)
        await brokers.settle()
    yield "CPU ms a change", 1000 * statistics.mean(spent)
    yield "ms to commit", 1000 * statistics.median(answers)
    for share in SHARES:
        yield f"ms to {share:.0%}", 1000 * statistics.median(quantile(arrived, share) for arrived in arrivals)


class _Watch:
    """Time since it was made: by the clock, of the controller's CPU and of ours."""

    def __init__(self, node: Controller) -> None:
        self._node = node
        self._began = time.perf_counter()
        self._controller_began = node.cpu_seconds()
        self._own_began = time.process_time()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    @property
    def controller_seconds(self) -> float:
        return self._node.cpu_seconds() - self._controller_began

    @property
    def own_seconds(self) -> float:
        return time.process_time() - self._own_began


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.metadata", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--brokers", nargs="+", type=int, metavar="N", default=SIZES, help="sizes of the cluster")
    parser.add_argument("--changes", type=int, default=9, help="brokers to fence; medians are shown (default 9)")
    parser.add_argument("--rest", type=float, default=10.0, metavar="SECONDS", help="how long to look at rest")
    parser.add_argument(
        "--partitions",
        type=int,
        default=PARTITIONS_A_BROKER,
        metavar="N",
        help=f"that each broker leads (default {PARTITIONS_A_BROKER})",
    )
    parser.add_argument("--together", type=int, default=1, metavar="N", help="fence so many at once as well")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)  # that the brokers lose their sessions is part of it
    found: list[Figure] = []
    for count in options.brokers:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            found += runner.run(
                measure(
                    count,
                    changes=options.changes,
                    rest_seconds=options.rest,
                    together=options.together,
                    partitions=options.partitions,
                )
            )
    console = Console(width=160)
    console.print(f"\nmetadata of N brokers, {options.partitions} partitions each  [{os.cpu_count()} cores]")
    console.print(table_of(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
