"""What the demo prints and draws, without a platform."""

from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import Console

from fluvial.config import Settings
from fluvial_demo import chart, demo
from pipelines.flights.transforms import BANDS


class Row(NamedTuple):
    hour: int
    visibility: str
    departures: int
    mean_dep_delay: float


def printed(*things: object) -> str:
    console = Console(file=StringIO(), width=120, color_system=None)
    for thing in things:
        console.print(thing)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_answers_are_readable() -> None:
    text = printed(
        demo.answer_table(
            "Which?",
            ["aircraft", "built", "miles", "delay (min)", "seen"],
            [("N1", 1999, 1_234_567, 12.345, datetime(2013, 5, 6, 7, 8)), ("N2", None, 5, None, None)],
        )
    )
    assert "1,234,567" in text
    assert " 1999 " in text
    assert " 12.3 " in text
    assert "2013-05-06 07:08" in text


def test_a_table_without_rows_is_drawn(recwarn: pytest.WarningsRecorder) -> None:
    assert "aircraft" in printed(demo.answer_table("Which?", ["aircraft"], []))
    assert not recwarn.list


def test_the_next_commands_name_the_data_directory(tmp_path: Path) -> None:
    console = Console(file=StringIO(), width=200, color_system=None)
    demo.say_how_to_go_on(Settings(data_dir=tmp_path), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for command in ("sql", "ui", "down"):
        assert f" {command} --data-dir {tmp_path}" in text


def test_the_next_commands_of_the_default_platform_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(demo.__file__).parents[2])
    console = Console(file=StringIO(), width=200, color_system=None)
    demo.say_how_to_go_on(Settings(), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "make ui" in text
    assert "--data-dir" not in text


def test_steps_are_timed_even_when_they_fail() -> None:
    clock = demo.Stopwatch()
    with pytest.raises(OSError, match="full"), clock.step("tables"):
        raise OSError("full")
    assert list(clock.steps) == ["tables"]
    assert "tables" in str(clock)


@pytest.mark.parametrize("hours", [range(5, 24), []], ids=["a day", "nothing"])
def test_the_chart_is_a_picture(tmp_path: Path, hours: range) -> None:
    rows = [Row(hour, band, 100 - hour, float(hour - at)) for hour in hours for at, (_, band) in enumerate(BANDS)]
    path = tmp_path / "deep" / "chart.png"
    chart.draw(rows, path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
