"""Building the package as pip does."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EPOCH = "1700000000"


def build(source: Path, kind: str, into: Path) -> Path:
    """Build `wheel` or `sdist` as pip does, with the packages that are installed here; return its file."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(into)],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH},
        check=True,
        capture_output=True,
        timeout=120,
    )
    (built,) = into.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built
