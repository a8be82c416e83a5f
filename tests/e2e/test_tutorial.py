"""
README and tutorial, command by command as the pages have them, from the installed wheel in an empty folder.

The commands get free ports; nothing else of them is changed, unless FLUVIAL_TEST_SECURED is set: then three brokers are
started, and `--secure` is said where the platform or the project is made. The clicks of the tutorial are made in a
browser. With FLUVIAL_INSTALL=machine all else happens on a machine that has Python and Java only.
"""

import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import psutil
import pyarrow.parquet as pq
import pytest
from clean_machine import CleanMachine, why_none
from dagster_page import PATIENCE, STEP_SECONDS_MAX, browser_at, chromium, served_by, wait_for_runs
from local_platform import BROKERS, ROOT, SECURED

from tests.free_ports import free_port, free_ports_in_a_row

TUTORIAL, README = ROOT / "docs" / "tutorial.md", ROOT / "README.md"
TUTORIAL_COMMANDS_MAX = 9
README_COMMANDS_MIN = 10


class Machine(Protocol):
    """Where the commands are run."""

    def workspace(self, name: str) -> Path: ...

    def started(self, *words: str, cwd: Path, more: Mapping[str, str] = {}) -> dict[str, Any]: ...


@pytest.fixture(scope="module")
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """This one with the wheel in an environment of its own; FLUVIAL_INSTALL=machine makes one that has nothing else."""
    if os.environ.get("FLUVIAL_INSTALL") != "machine":
        yield request.getfixturevalue("installed")
        return
    if reason := why_none():
        pytest.fail(reason)
    made = CleanMachine(tmp_path_factory.mktemp("machine"))
    try:
        made.make()
        yield made
    finally:
        shutil.rmtree(made.root, ignore_errors=True)  # three gigabytes


def commands(page: Path) -> list[str]:
    """The commands of a page's shell blocks; one with its text below is one command."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    found = []
    for block in blocks:
        found += re.findall(r"^[^\n]*<<'END'\n.*?^END$|^[^\n]+$", block, re.MULTILINE | re.DOTALL)
    return found


@pytest.fixture
def folder(machine: Machine) -> Iterator[Path]:
    folder = machine.workspace(f"work-{uuid.uuid4().hex[:8]}")
    yield folder
    # Whatever a failed command left: the platform, the page, a run of it.
    for process in psutil.process_iter():
        try:
            if folder.name in " ".join([*process.cmdline(), process.cwd()]) and process.pid != os.getpid():
                process.kill()
        except psutil.Error:
            continue


def as_run(lines: list[str]) -> Iterator[str]:
    """The lines with free ports, and with what makes the platform a secured one."""
    first = free_ports_in_a_row(2 * BROKERS)
    for line in lines:
        if line == "fluvial up --detach":
            secured = f" --brokers {BROKERS}" if SECURED else ""
            # A project is secured when it is made; what it starts needs no word more.
            secured += " --secure" if SECURED and not lines[0].startswith("fluvial init") else ""
            yield f"{line} --port {first} --registry-port {first + BROKERS}{secured}"
        else:
            yield f"{line} --secure" if SECURED and line.startswith("fluvial init") else line


def walk(lines: list[str], folder: Path, machine: Machine, more: Mapping[str, str] = {}) -> str:
    """Run the lines in one shell, which ends with the first that fails; return what they printed."""
    script = "\n".join(as_run(lines))
    walked = subprocess.run(
        **machine.started("bash", "-euo", "pipefail", "-c", script, cwd=folder, more=more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=STEP_SECONDS_MAX * len(lines),
        check=False,
    )
    assert walked.returncode == 0, walked.stdout
    return walked.stdout


def test_the_readme_runs_as_it_is_written(folder: Path, machine: Machine) -> None:
    told = commands(README)
    # What follows adds nodes to the same cluster, which tests of clusters do.
    told = told[: next(place for place, line in enumerate(told) if "--brokers" in line)]
    assert told[0] == "fluvial up --detach"
    assert told[-1].startswith("fluvial sql ")
    assert len(told) >= README_COMMANDS_MIN
    # As it says of records that violate the contract.
    (rubbish,) = re.findall(r"`(echo rubbish [^`]+)`", README.read_text(encoding="utf-8"))
    refused = f"if {rubbish}; then echo it was taken; exit 1; fi"
    said = walk([*told, refused, "fluvial status", "fluvial down"], folder, machine)
    rows = re.findall(r"(ada|bob)\W+(\d+)\W+([\d.]+)\W+(\w\d)\b", said)
    assert rows == [("ada", "2", "42.5", "a2"), ("bob", "1", "7.25", "b1")], said
    assert {path.name for path in folder.iterdir()} == {".fluvial", "pipelines", "schemas"}


@pytest.mark.rota  # five starts of Spark, Dagster's page and a browser
def test_the_tutorial_runs_as_it_is_written(folder: Path, machine: Machine) -> None:
    chromium()
    told = commands(TUTORIAL)
    assert told[0] == "fluvial init my_platform"
    assert told[-1] == "dg dev"
    assert len(told) <= TUTORIAL_COMMANDS_MAX
    # What the text has told to try.
    (section,) = re.findall(r"^## Ask it$(.*?)^## ", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    asked = re.findall(r"`((?:fluvial (?:sql|table)|python) [^`]+)`", section.replace("\n", " "))
    told[told.index("fluvial run") + 1 : 0] = asked
    project = folder / "my_platform"
    home = {"DAGSTER_HOME": str(project / ".fluvial" / "dagster")}
    said = walk(told[:-1], folder, machine, home)
    assert said.count("200 orders sent to orders") == 3
    assert "400" in said
    assert "newer offsets" in said
    assert "state.customers" in said

    port = free_port()
    page = machine.started(*told[-1].split(), "--port", str(port), cwd=project, more=home | PATIENCE)
    with served_by(page.pop("args"), f"http://127.0.0.1:{port}", **page) as url:
        look_at_the_page(url, folder)

    warehouse = project / ".fluvial" / "warehouse" / "state"
    habits = pq.read_table(warehouse / "habits", columns=["customer", "web_orders", "shop_orders", "last_channel"])
    rows = habits.to_pylist()
    assert {row["customer"] for row in rows} == {"ada", "bob", "cleo", "dan", "eve"}
    # Of every three orders that the new contract made, one is of each channel.
    assert sum(row["web_orders"] for row in rows) == 67
    assert sum(row["shop_orders"] for row in rows) == 66


def look_at_the_page(url: str, folder: Path) -> None:
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
