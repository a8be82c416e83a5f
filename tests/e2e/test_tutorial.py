"""
The tutorial, command by command as the page has them, on a real platform in an empty folder.

The commands get free ports; nothing else of them is changed. The clicks that the page asks for are made in a browser.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from dagster_page import STEP_SECONDS_MAX, browser_at, chromium, wait_for_page, wait_for_runs
from local_platform import free_port

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
COMMANDS_MAX = 9
BIN = Path(sys.executable).parent


def commands(page: str) -> list[str]:
    """The commands of a page's shell blocks; one with its text below is one command."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    found = []
    for block in blocks:
        found += re.findall(r"^[^\n]*<<'END'\n.*?^END$|^[^\n]+$", block, re.MULTILINE | re.DOTALL)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    # Whatever a failed command left: the platform, the page, a run of it.
    for process in psutil.process_iter():
        try:
            if str(tmp_path) in " ".join([*process.cmdline(), process.cwd()]) and process.pid != os.getpid():
                process.kill()
        except psutil.Error:
            continue


def test_the_tutorial_runs_as_it_is_written(folder: Path) -> None:
    chromium()
    told = commands(PAGE.read_text(encoding="utf-8"))
    assert told[0] == "fluvial init my_platform"
    assert told[-1] == "dg dev"
    assert len(told) <= COMMANDS_MAX
    project = folder / "my_platform"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FLUVIAL_", "DAGSTER_"))}
    environment["PATH"] = f"{BIN}{os.pathsep}{environment['PATH']}"
    environment["DAGSTER_HOME"] = str(project / ".fluvial" / "dagster")
    ports = {
        "fluvial up --detach": f" --port {free_port()} --registry-port {free_port()}",
        "dg dev": f" --port {(page_port := free_port())}",
    }
    lines = [f"{command}{ports[command]}" if command in ports else command for command in told]
    walked = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(lines[:-1])],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=STEP_SECONDS_MAX,
        check=False,
    )
    assert walked.returncode == 0, walked.stdout
    assert walked.stdout.count("200 orders sent to orders") == 2
    assert "state.customers" in walked.stdout

    with subprocess.Popen(lines[-1].split(), cwd=project, env=environment, start_new_session=True) as dg:
        try:
            look_at_the_page(f"http://127.0.0.1:{page_port}", dg, folder)
        finally:
            dg.send_signal(signal.SIGINT)
            dg.wait(60)

    warehouse = project / ".fluvial" / "warehouse" / "state"
    habits = pq.read_table(warehouse / "habits", columns=["customer", "web_orders", "shop_orders", "last_channel"])
    rows = habits.to_pylist()
    assert {row["customer"] for row in rows} == {"ada", "bob", "cleo", "dan", "eve"}
    # Of every three orders that the new contract made, one is of each channel.
    assert sum(row["web_orders"] for row in rows) == 67
    assert sum(row["shop_orders"] for row in rows) == 66


def look_at_the_page(url: str, server: "subprocess.Popen[bytes]", folder: Path) -> None:
    wait_for_page(url, server)
    screenshots = Path(os.environ.get("FLUVIAL_SCREENSHOTS") or folder)
    with browser_at(url, screenshots) as browser:
        groups = ",".join(f"global@global:{group}" for group in ("contracts", "topics", "state"))
        browser.open(f"/asset-groups?expanded={groups}")
        browser.see("habits")
        browser.see("orders-value")
        browser.launch("Materialize all")
        wait_for_runs(url)
        browser.window.get_by_text("Never materialized").first.wait_for(state="hidden")
        browser.see("1 / 1 Passed")
        browser.shoot("tutorial")
        assert browser.hosts == {url.removeprefix("http://")}
