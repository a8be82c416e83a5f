"""`fluvial run` where a process is kept that has imported what a run does: what is handed over to it, and what not."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fluvial_command import Cli

KEEPER = """
import sys
from pathlib import Path
from fluvial.config import Settings
from fluvial.serve.doors.forks import start_forks
from fluvial.spark import kept

start_forks(Path(sys.argv[1]) / kept.COMMANDS, "fluvial.cli.main")
with kept.noted(Settings(data_dir=Path(sys.argv[2])), Path(sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.read()
"""
# Where the project is read there is Dagster only if it was imported before.
PROJECT = """
import sys

raise RuntimeError("read in the kept process" if "dagster" in sys.modules else "read here")
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """A folder with a project, for whose data directory such a process is kept."""
    cli = Cli(tmp_path_factory.mktemp("project"))
    (cli.cwd / "pipelines.py").write_text(PROJECT)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", KEEPER, folder, str(cli.data_dir)]
        keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=cli.environment)
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == b"ready\n"
        yield cli
        keeper.communicate()


def run(
    cli: Cli, *words: str, cwd: Path | None = None, python: tuple[str, ...] = (), before: tuple[str, ...] = ()
) -> tuple[int, str]:
    """The exit status of `fluvial BEFORE… run WORDS…` as a process of its own, and what it says on stderr."""
    command = [sys.executable, *python, "-m", "fluvial", *before, "run", *words]
    done = subprocess.run(command, cwd=cwd or cli.cwd, env=cli.environment, capture_output=True, text=True, check=False)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_a_run_is_handed_over_before_its_words_are_read(kept: Cli) -> None:
    status, said = run(kept, "state.orders", python=("-X", "importtime"))
    assert status == 1
    assert "read in the kept process" in said
    assert "fluvial.cli.run.handed_over" in said
    assert "typer" not in said


def test_what_runs_on_or_only_shows_is_read_here(kept: Cli) -> None:
    assert "read here" in run(kept, "--dry-run")[1]
    assert "read here" in run(kept, "--continuous")[1]


@pytest.mark.parametrize("word", ["--data-dir={}", "--data-dir {}"])
def test_it_is_the_process_of_the_data_directory(kept: Cli, tmp_path: Path, word: str) -> None:
    (tmp_path / "pipelines.py").write_text(PROJECT)
    assert "read here" in run(kept, cwd=tmp_path)[1]
    assert "read in the kept process" in run(kept, *word.format(kept.data_dir).split(), cwd=tmp_path)[1]


def test_a_profile_may_name_the_data_directory(kept: Cli, tmp_path: Path) -> None:
    (tmp_path / "pipelines.py").write_text(PROJECT)
    (tmp_path / "fluvial.toml").write_text(f'[profiles.other]\ndata_dir = "{kept.data_dir}"\n')
    assert "read here" in run(kept, cwd=tmp_path)[1]
    assert "read in the kept process" in run(kept, "--profile", "other", cwd=tmp_path)[1]
    assert "read in the kept process" in run(kept, cwd=tmp_path, before=("--profile", "other"))[1]


def test_words_that_are_wrong_are_told_as_ever(kept: Cli) -> None:
    status, said = run(kept, "--no-such-option")
    assert (status, said.count("\n")) == (2, 1)
    assert "--no-such-option" in said
