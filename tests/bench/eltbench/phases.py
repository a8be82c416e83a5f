"""
What is run and what is found: the engines, LakeBench's phases, and what each phase took.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

FLUVIAL, SPARK, TUNED, SAIL = "fluvial", "spark", "tuned", "sail"
ENGINES = {
    FLUVIAL: "its session, the fact table an aggregate that follows a history, the query by Sail",
    SPARK: "Spark and Delta with their own defaults",
    TUNED: "the same with fluvial's settings of Spark",
    SAIL: "Sail, its MERGE, OPTIMIZE and VACUUM by delta-rs",
}
TOTAL = "all phases"
TABLES = ("store_sales", "date_dim", "store", "item", "customer")
FACT = "total_sales_fact"
# Of the three merges. LakeBench throws dice for them, and then no two tables are alike.
SEEDS = (101, 402, 703)
MODULO = 1000


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds on the clock, and those of the processor."""

    wall: float
    processor: float

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.wall + other.wall, self.processor + other.processor)


Run = Mapping[str, Spent]
"""What one engine took in one round, by phase."""


def summed(found: Sequence[tuple[str, float, float]]) -> dict[str, Spent]:
    """What each phase took, in the order in which they began, and all together."""
    run: dict[str, Spent] = {}
    for phase, wall, processor in found:
        for name in (phase, TOTAL):
            run[name] = run.get(name, Spent(0.0, 0.0)) + Spent(wall, processor)
    return {name: run[name] for name in sorted(run, key=lambda name: name == TOTAL)}


def medians(runs: Sequence[Run]) -> dict[str, Spent]:
    """The medians of several rounds."""
    return {
        phase: Spent(median(run[phase].wall for run in runs), median(run[phase].processor for run in runs))
        for phase in runs[0]
    }


def in_turn(engines: Sequence[str], number: int) -> list[str]:
    """The engines in the order of a round: each begins one."""
    first = number % len(engines)
    return [*engines[first:], *engines[:first]]


def rows(found: Mapping[str, Run]) -> list[list[str]]:
    """A row for each phase: seconds of each engine, and how many times the first one's the others took."""
    first, *others = found
    lines = []
    for phase in found[first]:
        ours = found[first][phase]
        line = [phase, f"{ours.wall:.2f} ({ours.processor:.2f})"]
        for other in others:
            theirs = found[other][phase]
            line += [f"{theirs.wall:.2f} ({theirs.processor:.2f})", _times(theirs.wall, ours.wall)]
        lines.append(line)
    return lines


def _times(theirs: float, ours: float) -> str:
    return f"{theirs / ours:.1f}" if ours > 0 else ""
