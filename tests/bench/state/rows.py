"""
What is measured: the rows of the benchmark's tables, and what a run of one of them gave.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from statistics import median

OURS, COMMON, TUNED = "fluvial", "by hand", "by hand, tuned"
VECTORS, ICEBERG = "by hand, deletion vectors", "by hand, Iceberg"
BLOCK = 5
"""Batches of one side before the other side has its turn."""


class Work(StrEnum):
    """What a table keeps of a key's events."""

    LATEST = "latest a key"
    FOLDS = "folds"
    REDUCER = "a Python reducer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """
    Batches of so many events into a table of so many keys.

    Ours does every batch. The hand-written sides cost about the same each time and take hours: of them `theirs` batches
    are measured, spread over the run to its end, and what came in between they take in one batch that is not.
    """

    keys: int
    events: int
    batches: int
    theirs: int = field(compare=False)
    work: Work = Work.LATEST
    sides: tuple[str, ...] = field(default=(COMMON, TUNED), compare=False)
    is_scanned: bool = False
    """Whether each side's table is read whole, twice, after each block that is measured."""

    def __str__(self) -> str:
        return f"{self.work}, {self.events:,} events into {self.keys:,} keys"

    @property
    def blocks(self) -> list[bool]:
        """Each block of batches in turn: whether the hand-written sides are measured in it."""
        count, wanted = self.batches // BLOCK, self.theirs // BLOCK
        chosen = {at * count // wanted - 1 for at in range(1, wanted + 1)}
        return [at in chosen for at in range(count)]


DEFAULT = (
    Row(keys=200_000, events=10_000, batches=50, theirs=5),
    Row(keys=2_000_000, events=10_000, batches=100, theirs=5),
    Row(keys=2_000_000, events=1_000, batches=15, theirs=5),
    Row(keys=2_000_000, events=100_000, batches=15, theirs=5),
)
FOLDS = (
    Row(keys=2_000_000, events=10_000, batches=50, theirs=5, work=Work.FOLDS),
    # What a reducer folds by hand no MERGE can do: the table is held against that of the folds.
    Row(keys=2_000_000, events=10_000, batches=50, theirs=5, work=Work.REDUCER, sides=(TUNED,)),
)
# Sides that mark rows as gone leave something behind with each batch: all of their batches are done, and measured.
MARKING = (
    Row(keys=50_000, events=2_000, batches=50, theirs=50, sides=(VECTORS, ICEBERG), is_scanned=True),
    Row(keys=2_000_000, events=10_000, batches=50, theirs=50, sides=(VECTORS, ICEBERG), is_scanned=True),
)
FULL = (
    *(
        Row(keys=keys, events=events, batches=100, theirs=20)
        for keys in (200_000, 2_000_000, 10_000_000)
        for events in (1_000, 10_000, 100_000)
    ),
    *(
        Row(keys=2_000_000, events=events, batches=100, theirs=20, work=Work.FOLDS)
        for events in (1_000, 10_000, 100_000)
    ),
)
# Spark's first batches compile and warm; they are of no side's making.
WARM_UP = 2


def by_table(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows that go into the same tables one after the other, so that these are filled once."""
    for _, group in groupby(rows, key=lambda row: (row.keys, row.work, row.sides)):
        yield list(group)


@dataclass(slots=True)
class Side:
    """
    What one side took: seconds of each batch, bytes that those batches wrote.

    Of each scan of its table: seconds of the first since it was changed, and of the same again.
    """

    seconds: list[float] = field(default_factory=list)
    written: int = 0
    scans: list[tuple[float, float]] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """With upkeep, which comes now and then and so is in no median."""
        warm = self.seconds[WARM_UP:]
        return sum(warm) / len(warm)

    @property
    def median(self) -> float:
        return median(self.seconds[WARM_UP:])

    @property
    def first_scan(self) -> float:
        """The median, of a table at all distances from its last upkeep; the table's files are found first."""
        return median(first for first, _ in self._warm_scans)

    @property
    def scan(self) -> float:
        """The same of a table whose files are known."""
        return median(again for _, again in self._warm_scans)

    @property
    def _warm_scans(self) -> list[tuple[float, float]]:
        # A short trial has none of these.
        return self.scans[WARM_UP:] or self.scans

    @property
    def megabytes_a_batch(self) -> float:
        return self.written / len(self.seconds) / 1e6
