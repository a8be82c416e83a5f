"""
The demo with the newest versions that `pyproject.toml` allows: what a user's `pip install` brings tomorrow.

    python tests/newest_versions.py                  what differs from the lock, then the demo's first month
    python tests/newest_versions.py --keep FOLDER    in a folder that stays

Tests run with the lock; this finds what a range allows and the code does not.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
UNTIL = "2013-02-01"
STEP_SECONDS_MAX = 3600


def main() -> int:
    """Install, compare, run; return the status of the first command that failed."""
    parser = argparse.ArgumentParser(description="The demo with the newest versions that pyproject.toml allows.")
    parser.add_argument("--keep", type=Path, help="the folder for the environment and the demo's data")
    parser.add_argument("--until", default=UNTIL, help=f"the demo's last day (default: {UNTIL})")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fluvial-newest-") as temporary:
        return _run(options.keep or Path(temporary), options.until)


def _run(folder: Path, until: str) -> int:
    python = folder / "venv" / "bin" / "python"
    pip = (str(python), "-m", "pip", "--disable-pip-version-check")
    for words in (
        (sys.executable, "-m", "venv", str(folder / "venv")),
        (*pip, "install", "--quiet", f"{ROOT}[all]"),
        (*pip, "check"),
    ):
        if status := _call(*words):
            return status
    listed = subprocess.run((*pip, "list", "--format", "json"), capture_output=True, check=True, env=_environment())
    found = {_name(each["name"]): each["version"] for each in json.loads(listed.stdout)}
    locked = locked_versions(LOCK.read_text(encoding="utf-8"))
    print("\n".join(differences(locked, found)) or "nothing differs from the lock", flush=True)
    fluvial, data = str(python.with_name("fluvial")), ("--data-dir", str(folder / "data"))
    port, registry_port = _free_ports()
    try:
        return _call(
            *(fluvial, "demo", "--until", until, *data),
            *("--port", str(port), "--registry-port", str(registry_port)),
        )
    finally:
        _call(fluvial, "down", *data)


def locked_versions(lock: str) -> dict[str, list[str]]:
    """The versions of each package in the text of a lock: one, or one for each of some Pythons."""
    versions: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", lock, re.MULTILINE):
        versions.setdefault(_name(name), []).append(version)
    return versions


def differences(locked: Mapping[str, Sequence[str]], found: Mapping[str, str]) -> list[str]:
    """A line for each package that is there in another version than the lock's, or not in the lock."""
    return [
        f"{name}: {version} (locked: {', '.join(locked.get(name, ['no']))})"
        for name, version in sorted(found.items())
        if name not in {"fluvial", "pip", "setuptools"} and version not in locked.get(name, ())
    ]


def _name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _environment() -> dict[str, str]:
    ours = ("FLUVIAL_", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def _call(*words: str) -> int:
    print("$", *words, flush=True)
    # The demo is in the checkout, its framework in the environment.
    return subprocess.run(words, cwd=ROOT, env=_environment(), timeout=STEP_SECONDS_MAX, check=False).returncode


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
