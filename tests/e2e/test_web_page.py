"""
The page as a user sees it, in a real browser: the graph of the demo's project, a run started there, a check that fails.

Screenshots go to the folder that FLUVIAL_SCREENSHOTS names.
"""

import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from dagster_page import Browser, browser_at, chromium, served, stop_sensors

from fluvial.testing import EmbeddedPlatform, embedded_platform, events

ROOT = Path(__file__).parents[2]
GROUPS = ("flights", "aircraft", "weather", "marts")
EVERY_GROUP_OPEN = ",".join(f"global@global:{group}" for group in GROUPS)
TAILS = [f"N{number}AA" for number in range(100, 107)]


@pytest.fixture(scope="module")
def platform() -> Iterator[EmbeddedPlatform]:
    chromium()
    with embedded_platform() as running:
        running.register(ROOT / "schemas")
        yield running


def send_flights(platform: EmbeddedPlatform) -> None:
    """Send a few flights from New York, and one from Boston, which no check lets pass."""
    flights = ROOT / "schemas" / "airline_operations" / "flight_events.avsc"
    known = {"tailnum": itertools.cycle(TAILS), "origin": itertools.cycle(["EWR", "JFK", "LGA"])}
    platform.send("flight_events", events(flights, 60, **known), key="tailnum")
    platform.send("flight_events", events(flights, 1, tailnum="N999ZZ", origin="BOS"), key="tailnum")


@pytest.fixture(scope="module")
def url(platform: EmbeddedPlatform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("page")
    settings = replace(platform.settings(folder / "warehouse"), data_dir=folder, spark_master="local[2]")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        with served(settings) as served_at:
            # The run of these tests is the one that is started by hand.
            stop_sensors(served_at, "dagster_project.definitions")
            send_flights(platform)
            yield served_at


@pytest.fixture
def browser(url: str, tmp_path: Path) -> Iterator[Browser]:
    """A window on the page, which asks nobody but the page's own server for anything."""
    with browser_at(url, Path(os.environ.get("FLUVIAL_SCREENSHOTS") or tmp_path)) as opened:
        yield opened
    assert opened.hosts == {opened.url.removeprefix("http://")}


def test_the_graph_shows_contracts_topics_tables_and_checks(browser: Browser) -> None:
    browser.window.set_viewport_size({"width": 1700, "height": 1500})
    browser.open(f"/asset-groups?expanded={EVERY_GROUP_OPEN}")
    browser.see("delay_by_hour_and_visibility")
    browser.see(re.compile(r"\d / 2 Passed"))
    browser.window.get_by_text("Loading...").first.wait_for(state="hidden")
    shown = browser.text().splitlines()
    assert shown.count("flight_events-value") == 1
    # A topic, and the table of its history.
    assert shown.count("flight_events") == 2
    assert {"aircraft", "avro", "Kafka", "Spark", "delta"} <= set(shown)
    browser.shoot("graph")


@pytest.mark.rota
def test_a_run_is_started_on_the_page_and_its_failing_check_is_shown(browser: Browser) -> None:
    browser.open("/assets/history/flight_events")
    browser.see("Never materialized")
    browser.launch("Materialize")
    browser.open("/assets/history/flight_events?view=checks&checkDetail=known_events")
    browser.see("Every event is of a known type")
    browser.window.get_by_text("Failed", exact=True).first.wait_for()
    browser.see("partition 0 offset 60")
    assert "{'origin': 'BOS'}" in browser.text()
    browser.shoot("failing-check")

    browser.open("/assets/history/flight_events")
    browser.see("quarantined")
    shown = browser.text()
    assert "61" in shown.splitlines()
    assert "Never materialized" not in shown
    browser.shoot("table")
