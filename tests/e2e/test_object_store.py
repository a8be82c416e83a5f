"""
A warehouse on an object store: commands and tables as elsewhere, and two drivers that lose nothing of each other.

The store is S3 as moto serves it; one that ignores conditions is refused.
"""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from local_platform import FLUVIAL, ROOT, STEP_TIMEOUT_S

from tests.free_ports import free_port
from tests.peers.python_programs import python_of

ROWS = 12
WAREHOUSE = "s3a://lake/warehouse"
SETTINGS = f"""
warehouse = "{WAREHOUSE}"

[spark]
"hadoop.fs.s3a.endpoint" = "{{url}}"
"hadoop.fs.s3a.endpoint.region" = "us-east-1"
"hadoop.fs.s3a.path.style.access" = "true"
"hadoop.fs.s3a.access.key" = "any"
"hadoop.fs.s3a.secret.key" = "any"
"""

pytestmark = pytest.mark.rota  # seven starts of Spark


@contextmanager
def store(*words: str) -> Iterator[str]:
    """Serve S3 with an empty bucket `lake`; gives its URL."""
    program = ROOT / "tests" / "peers" / "moto_server.py"
    with subprocess.Popen(
        [python_of("moto"), program, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{int(server.stdout.readline())}"
            with urllib.request.urlopen(urllib.request.Request(f"{url}/lake", method="PUT"), timeout=60):
                pass
            yield url
        finally:
            server.kill()


class Project:
    """A project of `fluvial init` whose tables lie in the store."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder / "shop"
        self.run("init", "shop", cwd=folder)
        with (self.folder / "fluvial.toml").open("a") as settings:
            settings.write(SETTINGS.format(url=url))

    @property
    def environment(self) -> dict[str, str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("FLUVIAL_", "DAGSTER_"))}
        return plain | {"COLUMNS": "160", "NO_COLOR": "1"}

    def start(self, *words: str | Path) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            words,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, cwd: Path | None = None, check: bool = True) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [str(FLUVIAL), *words],
            cwd=cwd or self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=STEP_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0 or not check, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        return done


def ended(*drivers: "subprocess.Popen[str]") -> list[str]:
    said = [driver.communicate(timeout=STEP_TIMEOUT_S) for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0] * len(drivers), said
    return [out for out, _ in said]


def test_two_drivers_on_one_store_lose_nothing(tmp_path: Path) -> None:
    with store() as url:
        project = Project(tmp_path, url)
        port, registry = str(free_port()), str(free_port())
        project.run("up", "--detach", "--port", port, "--registry-port", registry)
        # A second driver as from another machine: with runs and names of its own, and the same clusters.
        there = ("--bootstrap-server", f"127.0.0.1:{port}", "--registry-url", f"http://127.0.0.1:{registry}")
        elsewhere = (*there, "--data-dir", str(tmp_path / "elsewhere"), "--warehouse", WAREHOUSE)
        try:
            ended(project.start(sys.executable, "produce.py"))
            project.run("run")
            ended(project.start(sys.executable, "produce.py"))
            # Both bring the same table up to date: one of the two commits the batch.
            ended(project.start(FLUVIAL, "run"), project.start(FLUVIAL, "run", *elsewhere))
            project.run("table", "verify")
            counted = project.run("sql", "--format", "json", "select sum(orders) as orders from state.customers")
            assert json.loads(counted.stdout) == [{"orders": 400}]
        finally:
            project.run("down", check=False)
        program = str(Path(__file__).with_name("two_writers.py"))
        print(*ended(*(project.start(sys.executable, program, name, str(ROWS)) for name in ("one", "other"))))
        counted = project.run(
            *("sql", "--format", "json"),
            "select writer, count(distinct row) as rows, count(*) as written from marts.rows group by 1 order by 1",
        )
        assert json.loads(counted.stdout) == [
            {"writer": name, "rows": ROWS, "written": ROWS} for name in ("one", "other")
        ]


def test_a_store_without_conditional_writes_is_refused(tmp_path: Path) -> None:
    with store("--unconditional") as url:
        project = Project(tmp_path, url)
        project.run("up", "--detach", "--port", str(free_port()), "--registry-port", str(free_port()))
        try:
            ended(project.start(sys.executable, "produce.py"))
            refused = project.run("run", check=False)
        finally:
            project.run("down", check=False)
        assert refused.returncode != 0
        assert "the object store of lake ignores If-None-Match" in refused.stderr
        with urllib.request.urlopen(f"{url}/lake?list-type=2", timeout=60) as listed:
            assert b"_delta_log/0000" not in listed.read()
