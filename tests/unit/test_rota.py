"""The rota: what has waited longest goes first, as much as fits, and what fails says how to have it again."""

import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
import rota
from rota import Turn

PASSES, FAILS = ("-c", "pass"), ("-c", "raise SystemExit({seed} % 100)")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    turns = (
        Turn("new", 1, PASSES),
        Turn("long", 30, PASSES),
        Turn("old", 1, PASSES),
        Turn("broken", 1, FAILS, {"A": "1"}),
    )
    monkeypatch.setattr(rota, "TURNS", turns)
    monkeypatch.setattr(rota, "PASSED", tmp_path / "rota.toml")
    lines = [
        f'{name} = {{ passed = 2026-01-0{day}, commit = "abc" }}' for name, day in (("new", 3), ("old", 2), ("long", 1))
    ]
    rota.PASSED.write_text("\n".join(lines))
    return rota.PASSED


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["rota.py", *words])
    return rota.main()


def test_those_that_fit_are_run_the_oldest_first(state: Path, monkeypatch, capfd) -> None:
    assert run(monkeypatch, "--minutes", "10", "--seed", "700") == 0
    passed = rota._passed()
    assert [(name, found["passed"]) for name, found in passed.items()] == [
        ("new", date.today()),
        ("long", date(2026, 1, 1)),
        ("old", date.today()),
        ("broken", date.today()),
    ]
    said = capfd.readouterr().out
    assert said.index("rota: broken") < said.index("rota: old") < said.index("rota: new")


def test_what_fails_is_named_with_its_seed_and_not_noted_as_passed(state: Path, monkeypatch, capfd) -> None:
    assert run(monkeypatch, "--seed", "701", "broken") == 1
    assert "broken" not in rota._passed()
    assert "rota: broken failed with seed 701; again: A=1 -c raise SystemExit(701 % 100)" in capfd.readouterr().out


def test_the_end_of_what_failed_is_the_last_that_is_printed(state: Path, monkeypatch, capfd) -> None:
    says = "[print('line', number) for number in range(100)]; raise SystemExit('what was wrong')"
    monkeypatch.setattr(rota, "TURNS", (Turn("broken", 1, ("-c", says)), Turn("good", 1, PASSES)))
    assert run(monkeypatch, "--seed", "701") == 1
    *lines, last = capfd.readouterr().out.splitlines()
    assert last.startswith("rota: broken failed")
    assert lines[-rota.LAST_LINES :] == [f"line {number}" for number in range(61, 100)] + ["what was wrong"]
    assert lines.count("line 60") == 1


def test_a_list_runs_nothing(state: Path, monkeypatch, capfd) -> None:
    before = state.read_text()
    assert run(monkeypatch, "--list") == 0
    assert (state.read_text(), "2026-01-03" in capfd.readouterr().out) == (before, True)


def test_a_name_that_is_not_there_is_refused(state: Path, monkeypatch, capfd) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "nobody")
    assert "the rota has no nobody" in capfd.readouterr().err


def test_what_the_machine_lacks_something_for_has_neither_passed_nor_failed(state: Path, monkeypatch, capfd) -> None:
    turns = (Turn("bare", 1, FAILS, {}, ("no-such-program",)), Turn("skipped", 1, ("-c", "raise SystemExit(77)")))
    monkeypatch.setattr(rota, "TURNS", turns)
    assert run(monkeypatch, "--seed", "701") == 0
    assert rota._passed().keys().isdisjoint({"bare", "skipped"})
    assert "rota: bare is left out: no-such-program is not installed" in capfd.readouterr().out


def test_a_turn_in_which_every_test_is_skipped_has_not_passed() -> None:
    root = Path(__file__).resolve().parents[2]
    words = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/e2e/test_existing_clusters.py")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FLUVIAL_", "PYTEST_"))}
    done = subprocess.run(words, cwd=root, env=environment | {"FLUVIAL_ROTA": "1"}, capture_output=True, check=False)
    assert done.returncode == rota.LEFT_OUT, done.stdout.decode()
