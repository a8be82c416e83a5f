"""`fluvial demo` from the files of the wheel alone, in a folder that holds nothing."""

import json
import os
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

TIMEOUT_S = 600


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Installed:
    """The command as the wheel has it, run in a folder outside the checkout."""

    def __init__(self, wheel: Path, site: Path, folder: Path) -> None:
        zipfile.ZipFile(wheel).extractall(site)
        self.site, self.folder = site, folder

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        # The folder stands before what the environment has of fluvial, and `-P` keeps out where pytest was started.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FLUVIAL_")}
        done = subprocess.run(
            [sys.executable, "-P", "-m", "fluvial.cli.main", *words],
            cwd=self.folder,
            env={**inherited, "PYTHONPATH": str(self.site), "COLUMNS": "160", "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stdout[-4000:] + done.stderr[-8000:]
        return done


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    found = Installed(wheel, tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("flights"))
    yield found
    found.run("down", check=False)


@pytest.mark.e2e
@pytest.mark.spark
@pytest.mark.timeout(1_500)
def test_the_demo_runs_outside_a_checkout_and_leaves_a_project_that_goes_on(installed: Installed) -> None:
    demo = installed.run(
        *("demo", "--until", "2013-01-02", "--port", str(free_port()), "--registry-port", str(free_port()))
    )
    assert "The project of the demo is in this folder now" in demo.stderr
    assert "10 of 10 tables changed" in demo.stdout
    here = {path.name for path in installed.folder.iterdir()}
    assert here == {".fluvial", "dagster_project", "pipelines", "pyproject.toml", "schemas"}

    declarations = installed.folder / "pipelines" / "flights" / "declarations.py"
    added = 'places = state("places", topic="airports", key="faa", fields={"zone": latest("tzone")})'
    declarations.write_text(f"{declarations.read_text()}\n{added}\n")
    installed.run("run")
    (row,) = json.loads(installed.run("table", "get", "state.places", "LGA", "--format", "json").stdout)
    assert row["zone"] == "America/New_York"
