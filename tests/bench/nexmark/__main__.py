"""
Nexmark's queries as tables that follow their events, beside Spark's batch queries: `make bench-nexmark`.

Events go to topics of a broker in this process, in batches; after each the histories are brought up to date, and then
the tables of each query, which is measured: in turn as the framework weighs it, and by what changed also where it finds
the full query cheaper. At every tenth batch, and at the last, the batch query in SQL runs over all events so far and
writes its answer to a table, and the answers are compared: a row more or less is an error. The first batch only makes
the tables; `--first` gives it more events than the others. Printed are the seconds of each side and those of the
processor, which other work on the machine disturbs less.
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
from fluvial.tables import Pipeline
from fluvial.tables.inspect.explain import as_lines, explain
from fluvial.testing.embedded import embedded_platform
from tests.bench.nexmark.answers import Answer, Spent, differences, refresh, write_batch
from tests.bench.nexmark.auction_house import AuctionHouse
from tests.bench.nexmark.generator import Generator
from tests.bench.nexmark.queries import QUERIES
from tests.by_changes import refreshed_by_changes

COMPARED_EVERY = 10
WEIGHED, CHANGES, BATCH = "as weighed", "what changed", "batch query"
_OUT, _SAID = Console(width=110), Console(stderr=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How many events there are, of which `first` come before what is measured, and how many come at once."""

    events: int
    batch: int
    first: int
    queries: tuple[str, ...]
    rate: int
    seed: int
    explain: bool

    @property
    def sizes(self) -> list[int]:
        """The events of each batch."""
        first = self.first or self.batch
        return [first, *[self.batch] * ((self.events - first) // self.batch)]


@dataclass(frozen=True, slots=True)
class Taken:
    """What a query took: each refresh by how its road was chosen, and the batch query over all events so far."""

    answers: dict[str, list[Answer]] = field(default_factory=lambda: {WEIGHED: [], CHANGES: []})
    batch: list[Spent] = field(default_factory=list)


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
    parser.add_argument("--first", type=int, default=0, help="events of the first batch, which is not measured")
    parser.add_argument("--queries", nargs="+", default=[*QUERIES], choices=[*QUERIES], metavar="QUERY")
    parser.add_argument("--rate", type=int, default=10_000, help="events in a second of event time")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--explain", action="store_true", help="what `fluvial table explain` says before the last batch"
    )
    options = parser.parse_args()
    work = Work(**(vars(options) | {"queries": tuple(options.queries)}))
    if len(work.sizes) < 3:
        parser.error("at least three batches, of which the first only makes the tables")
    return work


def _measure(
    work: Work, house: AuctionHouse, taken: dict[str, Taken], histories: list[float], progress: Progress
) -> None:
    def explained(mart: Pipeline) -> None:
        for line in as_lines(explain(mart, house.settings, house.spark)):
            _OUT.print(line, soft_wrap=True, highlight=False, markup=False)

    sizes = work.sizes
    task = progress.add_task("batches", total=len(sizes) * len(work.queries))
    for number, size in enumerate(sizes, 1):
        progress.update(task, description=f"batch {number} of {len(sizes)}: {size:,} events")
        house.send(size)
        began = time.monotonic()
        house.refresh()
        histories.append(time.monotonic() - began)
        side, is_last = (WEIGHED, CHANGES)[(len(sizes) - number) % 2], number == len(sizes)
        is_compared = is_last or number % COMPARED_EVERY == 0
        for name in work.queries:
            if is_compared:
                # First, so that it too has to read the new versions of its inputs' logs.
                taken[name].batch.append(write_batch(house, QUERIES[name]))
                _say(progress, f"{name}, batch {number}, {BATCH}: {taken[name].batch[-1]}")
            with nullcontext() if side == WEIGHED else refreshed_by_changes():
                answer = refresh(house, QUERIES[name], explained if work.explain and is_last else lambda _mart: None)
            _say(progress, f"{name}, batch {number}, {side}: {answer}")
            if number > 1:
                taken[name].answers[side].append(answer)
            if is_compared:
                _compare(house, name, number)
            progress.advance(task)


def _say(progress: Progress, line: str) -> None:
    progress.console.print(line, highlight=False)


def _compare(house: AuctionHouse, name: str, number: int) -> None:
    found = differences(house, QUERIES[name])
    if found:
        raise AssertionError(f"{name} differs from the batch query after batch {number}:\n" + "\n".join(found))


def _print(work: Work, taken: dict[str, Taken], histories: Sequence[float], seconds: float) -> None:
    title = f"{work.events:,} events, {work.batch:,} at once after {work.sizes[0]:,}"
    beside = "batch query beside it"
    table = Table("query", "side", "s", beside, "processor s", beside, "roads", title=title)
    reasons = []
    for name, found in taken.items():
        last = found.batch[-1]
        for side, answers in found.answers.items():
            roads = Counter(answer.roads for answer in answers).most_common()
            wall = median(answer.spent.wall for answer in answers)
            processor = median(answer.spent.processor for answer in answers)
            times = f"{last.wall / wall:.1f}", f"{last.processor / processor:.1f}"
            said = ", ".join(f"{road} {count}" for road, count in roads)
            table.add_row(name, side, f"{wall:.2f}", times[0], f"{processor:.2f}", times[1], said)
        table.add_row(name, BATCH, f"{last.wall:.2f}", "", f"{last.processor:.2f}", "", "")
        reasons += _reasons(name, found.answers[WEIGHED])
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
