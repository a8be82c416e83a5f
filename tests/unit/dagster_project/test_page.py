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
from fluvial.orchestration.run.ui import ui_command

pytestmark = pytest.mark.e2e

START_TIMEOUT_S = 240
ASSETS = """
{ assetNodes {
  assetKey { path }
  isMaterializable
  owners { ... on UserAssetOwner { email } ... on TeamAssetOwner { team } }
  kinds
  tags { key value }
  opVersion
  pools
  internalFreshnessPolicy { ... on TimeWindowFreshnessPolicy { failWindowSeconds } }
  metadataEntries {
    label
    ... on UrlMetadataEntry { url }
    ... on TableSchemaMetadataEntry { schema { columns { name type } } }
    ... on TableColumnLineageMetadataEntry { lineage { columnName columnDeps { assetKey { path } columnName } } }
  }
} }
"""


def ask(url: str, query: str) -> Any:
    request = urllib.request.Request(
        f"{url}/graphql", json.dumps({"query": query}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)["data"]


def assets_on(url: str, page: "subprocess.Popen[bytes]") -> dict[str, Any]:
    """Wait for the page and its code location; returns what it shows of each asset."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert page.poll() is None, "the page ended by itself"
        try:
            nodes = ask(url, ASSETS)["assetNodes"]
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            nodes = []
        if nodes:
            return {"/".join(node["assetKey"]["path"]): node for node in nodes}
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
    assert {key: shown[key]["isMaterializable"] for key in shown if key.endswith(("flight_events", "aircraft"))} == {
        "history/flight_events": True,
        "state/aircraft": True,
        "topics/flight_events": False,
    }
    assert not shown["contracts/flight_events-value"]["isMaterializable"]
    for key in ("contracts/flight_events-value", "topics/flight_events", "history/flight_events", "state/aircraft"):
        assert shown[key]["owners"] == [{"email": "operations@airlines.example"}, {"team": "airline_operations"}], key
        tags = {tag["key"]: tag["value"] for tag in shown[key]["tags"]}
        assert {"producer": "airline_operations", "domain": "flights"}.items() <= tags.items(), key
        assert [entry["url"] for entry in shown[key]["metadataEntries"] if entry["label"] == "dataset"], key
    aircraft = shown["state/aircraft"]
    assert set(aircraft["kinds"]) == {"spark", "delta"}
    assert aircraft["pools"] == ["state.aircraft"]
    assert aircraft["opVersion"]
    assert aircraft["internalFreshnessPolicy"] == {"failWindowSeconds": 24 * 3600}
    lineage = next(entry["lineage"] for entry in aircraft["metadataEntries"] if "lineage" in entry)
    made_of = {each["columnName"]: {dep["columnName"] for dep in each["columnDeps"]} for each in lineage}
    assert made_of["miles"] >= {"distance"}
    columns = next(e["schema"]["columns"] for e in shown["history/flight_events"]["metadataEntries"] if "schema" in e)
    assert {"name": "tailnum", "type": "string"} in columns
