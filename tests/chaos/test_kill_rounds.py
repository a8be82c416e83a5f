"""A few rounds of SIGKILL under load; `make kill` does fifty."""

from pathlib import Path

import pytest
from kill_rounds import ACKED_LEAST, run_rounds

ROUNDS = 3


@pytest.mark.e2e
def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path) -> None:
    report = run_rounds(tmp_path, ROUNDS, seed=3)

    assert not report.problems, "\n".join(report.problems)
    assert report.acked >= ROUNDS * ACKED_LEAST
    assert all(report.acked_by_load.values()), report
