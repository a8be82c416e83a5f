"""The drivers of `make bench-secured`, with loads of a moment."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.broker.arena import Scale
from tests.bench.broker.secured import BENCHES, Line, Secured, table_of

SCALE = Scale(rounds=1, size=0.01)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    running = Secured(Path(tmp_path_factory.mktemp("bench")))
    running.start()
    yield running
    running.stop()


@pytest.mark.parametrize("name", BENCHES)
def test_each_load_gives_figures(broker: Secured, name: str) -> None:
    lines = list(BENCHES[name](broker, SCALE))
    assert lines
    assert all(line.secured >= 0 for line in lines)
    assert table_of(lines).row_count == len(lines)


def test_an_aim_is_of_the_ratio_where_there_is_one() -> None:
    assert Line("l", "µs", 2.0, 3.0, 1.6).mark == "reached"
    assert Line("l", "µs", 2.0, 3.0, 1.4).mark == "short"
    assert Line("l", "µs", 0.0, 3.0, 1.4).mark == "short"
    assert Line("l", "µs", 2.0, 3.0).mark == ""
