"""kaskade, a terminal's window on a cluster, in a virtual environment of its own in the user's cache."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path

from secured import librdkafka

FOLDER = Path(__file__).with_name("kaskade")
_REQUIREMENTS = FOLDER / "requirements.txt"
VERSION = next(
    line.removeprefix("kaskade==") for line in _REQUIREMENTS.read_text().splitlines() if line.startswith("kaskade==")
)
SECONDS_MAX = 120


class KaskadeError(RuntimeError):
    """kaskade cannot be installed here; the message says why."""


def environment() -> Path:
    """Where its virtual environment lies, for this very list of packages and this Python."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    digest = hashlib.sha256(_REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    return Path(base) / "fluvial" / f"kaskade-{VERSION}-{digest[:8]}"


def require_program(say: Callable[[str], None] = lambda _line: None) -> Path:
    """Return the environment's Python, installed first when it is not there (about 60 MB); raises KaskadeError."""
    python = environment() / "bin/python"
    ready = environment() / "READY"
    if not ready.exists():
        say(f"installing kaskade {VERSION} (once, about 60 MB) …")
        venv.create(environment(), clear=True, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(_REQUIREMENTS)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise KaskadeError(f"kaskade cannot be installed: {done.stderr.strip()[-400:]}")
        ready.touch()
    return python


def table_of(servers: str, rows: int, mode: str, *words: str) -> list[list[str]]:
    """What its table shows in a mode (`admin`, `consumer`) once it has that many rows."""
    settings = {name: text for name, text in librdkafka(servers).items() if name != "bootstrap.servers"}
    security = [word for name, text in settings.items() for word in ("--kafka", f"{name}={text}")]
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [str(require_program()), str(FOLDER / "pilot.py"), str(rows), mode, "-b", servers, *security, *words],
            env={**os.environ, "HOME": home},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[list[str]] = json.loads(done.stdout)
    return found
