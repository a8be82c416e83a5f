"""
What is measured: the rows of the benchmark's tables, and what a run of one of them gave.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from statistics import median

BLOCK = 5
"""Batches of one side before the other side has its turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """
    Batches of so many events into a table of so many keys; `folds` instead of the latest event a key.

    Ours does every batch. The hand-written sides cost about the same each time and take hours: of them `theirs` batches
    are measured, spread over the run, and what came in between they take in one batch that is not.
    """

    keys: int
    events: int
    batches: int
    theirs: int
    folds: bool = False

    def __str__(self) -> str:
        work = "folds" if self.folds else "latest a key"
        return f"{work}, {self.events:,} events into {self.keys:,} keys"

    @property
    def blocks(self) -> list[bool]:
        """Each block of batches in turn: whether the hand-written sides are measured in it."""
        count, wanted = self.batches // BLOCK, self.theirs // BLOCK
        chosen = {round(at * (count - 1) / max(wanted - 1, 1)) for at in range(wanted)}
        return [at in chosen for at in range(count)]


DEFAULT = (
    Row(keys=200_000, events=10_000, batches=100, theirs=20),
    Row(keys=2_000_000, events=10_000, batches=100, theirs=20),
    Row(keys=2_000_000, events=1_000, batches=15, theirs=10),
    Row(keys=2_000_000, events=100_000, batches=15, theirs=10),
)
FOLDS = (Row(keys=2_000_000, events=10_000, batches=50, theirs=10, folds=True),)
FULL = (
    *(
        Row(keys=keys, events=events, batches=100, theirs=20)
        for keys in (200_000, 2_000_000, 10_000_000)
        for events in (1_000, 10_000, 100_000)
    ),
    *(Row(keys=2_000_000, events=events, batches=100, theirs=20, folds=True) for events in (1_000, 10_000, 100_000)),
)
# Spark's first batches compile and warm; they are of no side's making.
WARM_UP = 3


def by_table(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows that go into the same tables one after the other, so that these are filled once."""
    for _, group in groupby(rows, key=lambda row: (row.keys, row.folds)):
        yield list(group)


@dataclass(slots=True)
class Side:
    """What one side took: seconds of each batch, bytes that those batches wrote."""

    seconds: list[float] = field(default_factory=list)
    written: int = 0

    @property
    def mean(self) -> float:
        """With upkeep, which comes now and then and so is in no median."""
        warm = self.seconds[WARM_UP:]
        return sum(warm) / len(warm)

    @property
    def median(self) -> float:
        return median(self.seconds[WARM_UP:])

    @property
    def megabytes_a_batch(self) -> float:
        return self.written / len(self.seconds) / 1e6
