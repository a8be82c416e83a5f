"""What works where only the core of fluvial is installed, and what is said of the rest."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_the_core_does_without_the_packages_of_extras(tmp_path: Path) -> None:
    paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    plugins = ("core_alone", "log_broker.pytest_plugin", "fluvial.pytest_plugin")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(tmp_path)),
            *("--noconftest", "-p", "no:cacheprovider", *(word for plugin in plugins for word in ("-p", plugin))),
            str(HERE / "core_commands.py"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
