"""
What is measured: the rows of the benchmark's table, and what a run of one of them gave.
"""

from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Batches of so many events into a table of so many keys; `folds` instead of the latest event a key."""

    keys: int
    events: int
    batches: int
    folds: bool = False

    def __str__(self) -> str:
        work = "folds" if self.folds else "latest a key"
        return f"{work}, {self.events:,} events into {self.keys:,} keys"


DEFAULT = (
    Row(keys=200_000, events=10_000, batches=100),
    Row(keys=2_000_000, events=10_000, batches=100),
    Row(keys=2_000_000, events=1_000, batches=15),
    Row(keys=2_000_000, events=100_000, batches=15),
    Row(keys=2_000_000, events=10_000, batches=15, folds=True),
)
FULL = (
    *(
        Row(keys=keys, events=events, batches=100)
        for keys in (200_000, 2_000_000)
        for events in (1_000, 10_000, 100_000)
    ),
    *(Row(keys=10_000_000, events=events, batches=100) for events in (1_000, 10_000, 100_000)),
    *(Row(keys=2_000_000, events=events, batches=100, folds=True) for events in (1_000, 10_000, 100_000)),
)
# Spark's first batches compile and warm; they are of no side's making.
WARM_UP = 3


@dataclass(slots=True)
class Side:
    """What one side took: seconds of each batch, bytes that it wrote."""

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
