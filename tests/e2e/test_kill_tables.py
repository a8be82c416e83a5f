"""One kill of a driver of tables, and one of marts; `make kill-tables` and `kill-marts` do fifty, of others too."""

from pathlib import Path

import pytest
from kill_marts_run import MARTS
from kill_tables import DRIVER, run_kills, session
from local_platform import LocalPlatform

from tests.by_changes import refreshed_by_changes


@pytest.mark.rota
def test_a_killed_driver_leaves_tables_and_topic_exact(platform: LocalPlatform, tmp_path: Path) -> None:
    report = run_kills(platform, session(tmp_path / "beside"), 1, 1, others_max=0, with_commands=False)
    assert not report.problems, report.problems
    assert report.kills == {DRIVER: 1}
    assert report.changes


@pytest.mark.rota
def test_a_killed_driver_leaves_ten_marts_exact(platform: LocalPlatform, tmp_path: Path) -> None:
    beside = session(tmp_path / "beside")
    with refreshed_by_changes():
        report = run_kills(platform, beside, 1, 1, graph=MARTS, others_max=0, with_commands=False)
    assert not report.problems, report.problems
    assert report.kills == {DRIVER: 1}
    assert {"keys", "parts", "rows"} <= report.roads.keys()
