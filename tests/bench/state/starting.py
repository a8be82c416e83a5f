"""
From the start of the process to the first commit: `fluvial run` beside a hand-written job, each in a fresh process.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from rich.progress import Progress

from fluvial.spark.jars import require_jars
from tests.bench.main_path import FLUVIAL, ROOT
from tests.bench.state.events import TOPIC, Contract, Source
from tests.free_ports import free_port

OURS, BY_HAND = "fluvial run", "by hand"
ROUNDS = 5
EVENTS = 10_000
SECONDS_MAX = 180.0
_PROJECT = f"from fluvial.tables import compacted\n\nreadings = compacted({TOPIC!r})\n"


def measure(progress: Progress) -> dict[str, float]:
    """Median seconds until the first commit lies in the table's log."""
    seconds: dict[str, list[float]] = {OURS: [], BY_HAND: []}
    task = progress.add_task("start to first commit", total=ROUNDS + 1)
    with tempfile.TemporaryDirectory(prefix="bench-state-") as temporary:
        folder = Path(temporary)
        (folder / "declared.py").write_text(_PROJECT)
        port, registry_port = free_port(), free_port()
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "platform"), str(ROOT)]),
            "FLUVIAL_BOOTSTRAP_SERVERS": f"127.0.0.1:{port}",
            "FLUVIAL_REGISTRY_URL": f"http://127.0.0.1:{registry_port}",
            "FLUVIAL_PROJECT": "declared",
        }
        node = subprocess.Popen(
            _node(folder / "log", port, registry_port),
            env=environ,
        )
        try:
            _register(registry_port)
            source = Source(f"127.0.0.1:{port}", EVENTS)
            source.write_all_keys()
            for number in range(ROUNDS + 1):
                for name, words in _commands(folder / str(number)).items():
                    taken = _until_first_commit(words, environ, folder / str(number))
                    if number:  # the first round fills the disk's cache
                        seconds[name].append(taken)
                progress.advance(task)
        finally:
            node.terminate()
            node.wait()
    return {name: median(each) for name, each in seconds.items()}


def _node(data_dir: Path, port: int, registry_port: int) -> list[str]:
    ports = ["--port", str(port), "--registry-port", str(registry_port)]
    return [sys.executable, "-m", "fluvial.node", "--data-dir", str(data_dir), *ports]


def _register(port: int) -> None:
    import httpx

    url = f"http://127.0.0.1:{port}/subjects/{TOPIC}-value/versions"
    deadline = time.monotonic() + 30
    while True:
        try:
            httpx.post(url, json={"schema": Contract.schema}).raise_for_status()
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def _commands(folder: Path) -> Mapping[str, list[str]]:
    jars = ",".join(str(jar) for jar in require_jars())
    return {
        OURS: [FLUVIAL, "run", f"compacted.{TOPIC}", "--warehouse", str(folder), "--data-dir", str(folder / "data")],
        BY_HAND: [sys.executable, "-m", "tests.bench.state.job_by_hand", str(folder), jars],
    }


def _until_first_commit(words: list[str], environ: Mapping[str, str], folder: Path) -> float:
    """Run a command to its end; the seconds from its start until a table's first commit is there."""
    known = set(_commits(folder))
    began = time.monotonic()
    with subprocess.Popen(
        words, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=folder.parent
    ) as process:
        taken = 0.0
        while not taken and process.poll() is None and time.monotonic() - began < SECONDS_MAX:
            if known.symmetric_difference(_commits(folder)):
                taken = time.monotonic() - began
            time.sleep(0.01)
        _, errors = process.communicate(timeout=SECONDS_MAX)
    if not taken or process.returncode:
        raise SystemExit(f"{' '.join(words)} made no commit:\n{errors.decode()[-4000:]}")
    return taken


def _commits(folder: Path) -> list[Path]:
    return list(folder.glob(f"**/_delta_log/{0:020d}.json"))
