"""
Nexmark's queries as tables that follow their events, beside Spark's batch queries: `make bench-nexmark`.

Events go to topics of a broker in this process, in batches; after each the histories are brought up to date, and then
the tables of each query, which is measured. At every tenth batch, and at the last, the batch query in SQL runs over all
events so far and writes its answer to a table, and the answers are compared: a row more or less is an error. With
`--first` so many events are there before the batches are measured. `--whatever-it-costs` has tables take the road of what
changed where the full query would be weighed to be cheaper.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fluvial.spark.session import build_session
from fluvial.tables.drive.explain import as_lines, explain
from fluvial.testing.embedded import embedded_platform
from tests.bench.nexmark.answers import Answer, differences, refresh, whatever_it_costs, write_batch
from tests.bench.nexmark.auction_house import AuctionHouse
from tests.bench.nexmark.generator import Generator
from tests.bench.nexmark.queries import QUERIES

COMPARED_EVERY = 10
_OUT, _SAID = Console(), Console(stderr=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How many events there are, of which `first` come before what is measured, and how many come at once."""

    events: int
    batch: int
    first: int
    queries: tuple[str, ...]
    rate: int
    seed: int
    whatever_it_costs: bool
    explain: bool

    @property
    def batches(self) -> int:
        """How many are measured."""
        return (self.events - self.first) // self.batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a query took: each refresh, and each batch query, whose last one was over all events."""

    answers: list[Answer] = field(default_factory=list)
    batch: list[float] = field(default_factory=list)


def main() -> int:
    """Measure and print."""
    work = _work()
    taken = {name: Taken() for name in work.queries}
    histories: list[float] = []
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="bench-nexmark-") as temporary,
        embedded_platform() as platform,
        Progress(console=_SAID) as progress,
        whatever_it_costs() if work.whatever_it_costs else nullcontext(),
    ):
        settings = platform.settings(Path(temporary, "warehouse"))
        spark = build_session(settings, "fluvial bench")
        house = AuctionHouse(
            platform=platform,
            spark=spark,
            settings=settings,
            generator=Generator(seed=work.seed, rate=work.rate),
        )
        try:
            house.open()
            _measure(work, house, taken, histories, progress)
        finally:
            spark.stop()
    _print(work, taken, histories, time.monotonic() - began)
    return 0


def _work() -> Work:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.nexmark", description=(__doc__ or "").split("\n")[1])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=10_000, help="events that come at once")
    parser.add_argument("--first", type=int, default=0, help="of the events, those that come before the batches")
    parser.add_argument("--queries", nargs="+", default=[*QUERIES], choices=[*QUERIES], metavar="QUERY")
    parser.add_argument("--rate", type=int, default=10_000, help="events in a second of event time")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--whatever-it-costs", action="store_true", help="never the full query because it is cheaper")
    parser.add_argument("--explain", action="store_true", help="what `fluvial table explain` says before the last batch")
    options = parser.parse_args()
    work = Work(**(vars(options) | {"queries": tuple(options.queries)}))
    if work.batches < 2:
        parser.error("at least two batches, of which the first warms")
    return work


def _measure(
    work: Work, house: AuctionHouse, taken: dict[str, Taken], histories: list[float], progress: Progress
) -> None:
    # The first batch only makes the tables, and warms.
    sizes = [work.first or work.batch, *[work.batch] * (work.batches if work.first else work.batches - 1)]
    task = progress.add_task("batches", total=len(sizes) * len(work.queries))
    for number, size in enumerate(sizes, 1):
        progress.update(task, description=f"batch {number} of {len(sizes)}: {size:,} events")
        house.send(size)
        began = time.monotonic()
        house.refresh()
        histories.append(time.monotonic() - began)
        is_last = number == len(sizes)
        for name in work.queries:
            if work.explain and is_last:
                _explain(house, name)
            answer = refresh(house, QUERIES[name])
            if number > 1:
                taken[name].answers.append(answer)
            if is_last or number % COMPARED_EVERY == 0:
                taken[name].batch.append(write_batch(house, QUERIES[name]))
                _compare(house, name, number)
            progress.advance(task)


def _compare(house: AuctionHouse, name: str, number: int) -> None:
    found = differences(house, QUERIES[name])
    if found:
        raise AssertionError(f"{name} differs from the batch query after batch {number}:\n" + "\n".join(found))


def _explain(house: AuctionHouse, name: str) -> None:
    for mart in QUERIES[name].marts:
        for line in as_lines(explain(mart, house.settings, house.spark)):
            _OUT.print(line, soft_wrap=True, highlight=False, markup=False)


def _print(work: Work, taken: dict[str, Taken], histories: Sequence[float], seconds: float) -> None:
    title = f"{work.events:,} events, {work.batch:,} at once, the first {work.first or work.batch:,} before the others"
    table = Table("query", "median s", "last s", "batch query s", "times", "roads", title=title)
    reasons = []
    for name, found in taken.items():
        each = [answer.seconds for answer in found.answers]
        roads = Counter(answer.roads for answer in found.answers)
        last = found.batch[-1]
        table.add_row(
            name,
            f"{median(each):.2f}",
            f"{each[-1]:.2f}",
            f"{last:.2f}",
            f"{last / median(each):.1f}",
            ", ".join(f"{road} {count}" for road, count in roads.most_common()),
        )
        reasons += _reasons(name, found.answers)
    _OUT.print(table)
    for reason in reasons:
        _OUT.print(reason, soft_wrap=True, highlight=False)
    _OUT.print(f"the three histories: median {median(histories[1:]):.2f} s; all of it {seconds:.0f} s")


def _reasons(name: str, answers: Sequence[Answer]) -> list[str]:
    """The last reason for a full query of each of its tables."""
    last = {
        mart.table: refresh.reason
        for answer in answers
        for mart, refresh in zip(QUERIES[name].marts, answer.refreshes, strict=True)
        if refresh.road == "full" and refresh.reason is not None
    }
    return [f"{table} by the full query: {reason}" for table, reason in last.items()]


if __name__ == "__main__":
    sys.exit(main())
