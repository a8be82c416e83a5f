"""KafkaJS on Node: its locked packages in the user's cache, and the scripts of `kafkajs/` run with them."""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import secured

FOLDER = Path(__file__).with_name("kafkajs")
VERSION: str = json.loads((FOLDER / "package.json").read_text())["dependencies"]["kafkajs"]
NODE_MAJOR_MIN = 18
LOG_CHARACTERS_MAX = 8000


class KafkaJSError(RuntimeError):
    """KafkaJS cannot be had here; the message says what to install or check."""


def packages_folder() -> Path:
    """The folder of the user's cache for the packages of this very lock."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    digest = hashlib.sha256((FOLDER / "package-lock.json").read_bytes()).hexdigest()
    return Path(base) / "fluvial" / f"kafkajs-{VERSION}-{digest[:8]}"


def lacking() -> str | None:
    """What this machine lacks to run KafkaJS, as a reason to skip; None when it can be run."""
    if shutil.which("node") is None:
        return "KafkaJS needs Node, and there is no `node` on PATH: apt-get install nodejs npm"
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < NODE_MAJOR_MIN:
        return f"KafkaJS's scripts need Node {NODE_MAJOR_MIN} or newer, and `node` is {version}"
    if not packages_folder().exists() and shutil.which("npm") is None:
        return "KafkaJS is fetched by npm, and there is no `npm` on PATH: apt-get install npm"
    return None


def require_packages(say: Callable[[str], None] = lambda _line: None) -> Path:
    """Return the folder with `node_modules`, installed first from the lock when it is not there (about 5 MB)."""
    if (lack := lacking()) is not None:
        raise KafkaJSError(lack)
    folder = packages_folder()
    if folder.exists():
        return folder
    say(f"fetching KafkaJS {VERSION} and its codecs with npm (once, about 5 MB) …")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        ready = Path(scratch) / "ready"
        ready.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(FOLDER / name, ready)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=ready, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise KafkaJSError(f"`npm ci` failed: {done.stderr.strip()[-400:]}")
        try:
            ready.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    return folder


def run_script(bootstrap_servers: str, name: str, *, timeout: float = 120.0, **arguments: Any) -> Any:
    """
    Run one script of `kafkajs/scripts.js` and return its outcome.

    An error of the client fails the test, and so does one that comes to no end, with what the client logged last.
    """
    try:
        done = start_script(secured.kafkajs(bootstrap_servers), name, timeout=timeout, logs=True, **arguments)
    except subprocess.TimeoutExpired as error:
        log = (error.stderr or b"").decode(errors="replace")
        raise AssertionError(f"{name} came to no end in {timeout:.0f} s:\n{log[-LOG_CHARACTERS_MAX:]}") from None
    assert done.returncode == 0, done.stderr[-LOG_CHARACTERS_MAX:]
    return json.loads(done.stdout)


def start_script(
    client: Mapping[str, Any], name: str, *, timeout: float = 120.0, **arguments: Any
) -> "subprocess.CompletedProcess[str]":
    """Run one script to its end with a client of these settings; the caller judges the exit code."""
    words = json.dumps({"client": client, **arguments})
    return subprocess.run(
        ["node", str(FOLDER / "scripts.js"), name, words],
        env={
            **os.environ,
            "NODE_PATH": str(require_packages() / "node_modules"),
            "KAFKAJS_NO_PARTITIONER_WARNING": "1",
        },
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
