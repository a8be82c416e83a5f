"""What works where only the core of fluvial is installed, and what is said of the rest."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def run_with_the_core_alone(tests: Path, folder: Path) -> None:
    paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    plugins = ("core_alone", "log_broker.pytest_plugin", "fluvial.pytest_plugin")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(folder)),
            *("--noconftest", "-p", "no:cacheprovider", *(word for plugin in plugins for word in ("-p", plugin))),
            str(tests),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_the_core_does_without_the_packages_of_extras(tmp_path: Path) -> None:
    run_with_the_core_alone(HERE / "core_commands.py", tmp_path)


@pytest.mark.parametrize("page", ["docs/kafka-for-pytest.md", "README.md"])
def test_the_python_of_pages_does_too(page: str, tmp_path: Path) -> None:
    """A page's blocks of Python are one module of tests, as they stand there."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "test_page.py").write_text("\n\n".join(blocks), encoding="utf-8")
    run_with_the_core_alone(tmp_path / "test_page.py", tmp_path)
