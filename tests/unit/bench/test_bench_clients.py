"""Each load of `make bench-clients`, as small as it can be: it runs to its end and tells what it says."""

import pytest

from tests.bench.clients.__main__ import GROUPS, medians
from tests.bench.clients.measure import Figure

QUICK = ("batching", "calls")


@pytest.mark.parametrize("group", QUICK)
def test_a_load_gives_every_figure_of_every_choice(group: str) -> None:
    found = list(GROUPS[group](0.01))
    choices = {figure.choice for figure in found}
    figures = {figure.what for figure in found}
    assert len(found) == len(choices) * len(figures) > 1
    assert all(figure.value > 0 for figure in found)


def test_every_load_says_what_it_is() -> None:
    assert all(load.__doc__ for load in GROUPS.values())


def test_rounds_come_to_their_medians() -> None:
    def of(value: float) -> list[Figure]:
        return [Figure(group="g", choice="c", what="w", value=value)]

    assert medians([of(3), of(1), of(2)]) == of(2)
