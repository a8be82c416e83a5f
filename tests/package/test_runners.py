"""What indexes and runners of packages make of a build: its description renders, `uvx` and `pipx run` start it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.rota  # installs the core three times

SECONDS_MAX = 500


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `twine`, `uvx` and `pipx`, in an environment of their own."""
    folder = tmp_path_factory.mktemp("runners") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet")
    subprocess.run([*pip, "twine", "uv", "pipx"], check=True, timeout=SECONDS_MAX)
    return folder / "bin"


def run(*words: str | Path, cwd: Path) -> str:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FLUVIAL_"))}
    plain |= {"PIPX_HOME": str(cwd / "pipx"), "UV_CACHE_DIR": str(cwd / "uv")}
    done = subprocess.run(words, cwd=cwd, env=plain, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_index_renders_the_description(programs: Path, wheel: Path, sdist: Path, tmp_path: Path) -> None:
    assert run(programs / "twine", "check", "--strict", wheel, sdist, cwd=tmp_path).count("PASSED") == 2


def test_it_runs_without_being_installed(programs: Path, wheel: Path, tmp_path: Path) -> None:
    for words in (
        (programs / "uvx", "--from", wheel, "--python", sys.executable),
        (programs / "pipx", "run", "--python", sys.executable, "--spec", wheel),
    ):
        said = run(*words, "fluvial", "version", cwd=tmp_path)
        assert said.startswith("fluvial 0."), said
        assert 'pyspark is not installed: pip install "fluvial[spark]"' in said
