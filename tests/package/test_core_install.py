"""`pip install fluvial` in a fresh environment: what comes with it, how much that is, and what works."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

BYTES_MAX = 130 * 1000 * 1000
# What only extras bring.
BEYOND = {"pyspark", "delta", "dagster", "pandas", "numpy", "matplotlib", "pyarrow", "great_expectations"}
PROGRAM = """
    import json, sys
    import fluvial.cli.main, fluvial.node, fluvial.registry
    from fluvial.testing import embedded_platform
    from log_broker.server.embedded import EmbeddedBroker
    from importlib.metadata import distributions
    found = sorted({module.partition(".")[0] for module in sys.modules})
    names = [each.metadata["Name"].lower() for each in distributions()]
    print(json.dumps({"imported": found, "installed": names}))
"""

pytestmark = pytest.mark.rota  # installs a hundred megabytes


def test_the_core_is_small_and_brings_nothing_of_the_extras(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FLUVIAL_"))}

    def run(*words: str | Path, cwd: Path = tmp_path) -> str:
        done = subprocess.run(words, cwd=cwd, env=plain, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", wheel)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    print(f"{size / 1e6:.0f} MB")
    assert size <= BYTES_MAX
    said = json.loads(run(python, "-c", textwrap.dedent(PROGRAM)))
    assert BEYOND.isdisjoint(said["imported"])
    assert BEYOND.isdisjoint(name.replace("-", "_") for name in said["installed"])
    assert "fluvial" in run(folder / "bin" / "fluvial", "version")
