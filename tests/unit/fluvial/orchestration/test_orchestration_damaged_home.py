"""A Dagster home that is damaged is one clear line, not a stack of the database's."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from fluvial.orchestration.run.instance import HomeError, home_of, open_instance


@pytest.mark.parametrize(
    "damage",
    [
        lambda home: (home / "dagster.yaml").write_text("telemetry:\n  enabled: [fal"),
        lambda home: (home / "dagster.yaml").write_text("telemetrie:\n  enabled: false\n"),
        lambda home: (home / "dagster.yaml").write_text("- 1\n"),
        lambda home: (home / "history" / "runs.db").write_bytes(b"x" * 5000),
        lambda home: (home / "schedules" / "schedules.db").write_bytes(
            (home / "schedules" / "schedules.db").read_bytes()[:6000]
        ),
    ],
    ids=["torn yaml", "unknown setting", "a list", "no database", "torn database"],
)
def test_a_damaged_home_is_named_with_the_repair(tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    home = home_of(tmp_path)
    with open_instance(home):
        pass
    damage(home)
    with pytest.raises(HomeError) as told, open_instance(home_of(tmp_path)) as instance:
        instance.get_runs()
    assert str(home) in str(told.value)
    assert "move the folder away" in str(told.value)
    assert "\n" not in str(told.value)
    home.rename(tmp_path / "kept")
    with open_instance(home_of(tmp_path)) as instance:
        assert instance.get_runs() == []


def test_first_runs_that_begin_at_once_all_open_a_new_home(tmp_path: Path) -> None:
    together = Barrier(4)

    def opened(home: Path) -> int:
        together.wait()
        with open_instance(home) as instance:
            return len(instance.get_runs(limit=1)) + len(instance.all_instigator_state())

    with ThreadPoolExecutor(4) as drivers:
        assert list(drivers.map(opened, [home_of(tmp_path)] * 4)) == [0] * 4
