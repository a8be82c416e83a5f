"""Where a curve of latency against clients bends."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

P99_TIMES_MAX = 4.0
RISE_LEAST = 1.1


class Step(NamedTuple):
    """What so many clients found."""

    clients: int
    rate: float  # requests a second
    p99_ms: float


def bound_of(steps: Sequence[Step]) -> float:
    """Return the p99 in ms that bounds low latency: four times that of the fewest clients of a curve."""
    return P99_TIMES_MAX * steps[0].p99_ms


def knee(steps: Sequence[Step], bound_ms: float) -> Step | None:
    """
    Return the first step past the bend, None if the curve has none.

    Past it is a p99 over the bound, or a rate that is less than 10 % above that of the step before: more clients wait
    longer then, or get nothing more done. Curves that are compared have one bound, or the one whose latency is lower
    to begin with would seem to bend sooner. Steps come by growing count of clients, each count at least a fifth above
    the one before, or the second rule would find steps that are too small.
    """
    if steps and steps[0].p99_ms > bound_ms:
        return steps[0]
    for before, step in pairwise(steps):
        if step.p99_ms > bound_ms or step.rate < RISE_LEAST * before.rate:
            return step
    return None


def moved(one: Step | None, three: Step | None) -> str:
    """Say in a sentence how the knee of one broker lies beside that of three."""
    if one is None:
        return "one broker has no knee on this ramp"
    if three is None:
        return f"one broker bends at {one.clients} clients, three do not bend on this ramp"
    both = f"one broker bends at {one.clients} clients, three at {three.clients}"
    if three.clients <= one.clients:
        return f"{both}: the knee did not move right on this machine"
    return f"{both}: the knee is {three.clients / one.clients:.1f} times as far right"
