"""Dagster's own page, served by the command behind `fluvial ui`."""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fluvial.config import Settings
from fluvial.orchestration.ui import ui_command

pytestmark = pytest.mark.e2e

START_TIMEOUT_S = 240
ASSETS = "{ assetNodes { assetKey { path } isMaterializable } }"


def ask(url: str, query: str) -> Any:
    request = urllib.request.Request(
        f"{url}/graphql", json.dumps({"query": query}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)["data"]


def assets_on(url: str, page: "subprocess.Popen[bytes]") -> dict[str, bool]:
    """Wait for the page and its code location; returns each asset and whether it can be materialised there."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert page.poll() is None, "the page ended by itself"
        try:
            nodes = ask(url, ASSETS)["assetNodes"]
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            nodes = []
        if nodes:
            return {"/".join(node["assetKey"]["path"]): node["isMaterializable"] for node in nodes}
        time.sleep(0.5)
    raise AssertionError(f"no assets on {url} after {START_TIMEOUT_S} s")


def test_the_page_shows_topics_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    command = ui_command(Settings(data_dir=tmp_path / "data"))
    with subprocess.Popen(command.argv, env={**os.environ, **command.environment}) as page:
        try:
            shown = assets_on(command.url, page)
        finally:
            page.send_signal(signal.SIGINT)
    assert shown["history/flight_events"]
    assert shown["state/aircraft"]
    assert not shown["topics/flight_events"]
    assert not shown["contracts/flight_events-value"]
