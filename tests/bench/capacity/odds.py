"""How likely copies are lost that no simulation of some years would see lost: sums of probabilities."""

from math import exp, perm

from tests.bench.capacity.layout import Layout


def losses_a_year(copies: int, disk: float, years_to_rebuild: float) -> float:
    """
    Return how often a year one set of brokers loses all copies, by disks that fail each for itself, `disk` a year.

    The first is one of so many; the others must follow while all before are still being rebuilt.
    """
    return copies * disk**copies * years_to_rebuild ** (copies - 1)


def chance_in_power_cut(layout: Layout, share: float) -> float:
    """Return how likely a power cut of all brokers takes all copies of something, if a share of them stays away."""
    brokers, copies = layout.shape.brokers, layout.shape.copies
    gone = round(share * brokers)
    return 1 - exp(-layout.copysets() * perm(gone, copies) / perm(brokers, copies))
