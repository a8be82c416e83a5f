"""Dagster's page of a project, served as `fluvial ui` serves it, and a real browser before it."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from fluvial.config import Settings
from fluvial.orchestration.run.ui import ui_command

# A run starts a process and Spark in it; a loaded machine takes its time.
STEP_SECONDS_MAX = 400
# And so do Dagster's services: by their own 60 s a run was given up whose process had just been begun.
PATIENCE = {"DAGSTER_GRPC_TIMEOUT_SECONDS": str(STEP_SECONDS_MAX)}
# What failed runs have said: messages of the run and of its steps, with the causes of errors.
FAILED = """
{ runsOrError(filter: {statuses: [FAILURE, CANCELED]}) { ... on Runs { results {
    runId
    eventConnection(limit: 1000) { events {
        ... on MessageEvent { message }
        ... on ErrorEvent { error { message causes { message } } }
    } }
} } } }
"""
SIZE = {"width": 1500, "height": 900}


def chromium() -> str:
    """The browser, or a skipped test; continuous integration installs one, and has no excuse."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        reason = "there is no `chromium` on PATH (on Debian: apt-get install chromium)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@contextmanager
def served(settings: Settings) -> Iterator[str]:
    """Serve the page of the project in the working directory; gives its URL once it answers."""
    command = ui_command(settings)
    environment = {**os.environ, **command.environment}
    with served_by(command.argv, command.url, cwd=Path.cwd(), env=environment) as url:
        yield url


@contextmanager
def served_by(argv: Sequence[str], url: str, *, cwd: Path, env: Mapping[str, str]) -> Iterator[str]:
    """Serve the page by a command, until it is interrupted; gives its URL once it answers."""
    with subprocess.Popen(argv, cwd=cwd, env={**PATIENCE, **env}, start_new_session=True) as server:
        try:
            wait_for_page(url, server)
            yield url
        finally:
            server.send_signal(signal.SIGINT)
            try:
                # Its code servers first await the start of a run that has begun.
                server.wait(STEP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)


def wait_for_page(url: str, server: "subprocess.Popen[bytes]") -> None:
    """Return when the page answers; fail when its process ends before."""
    deadline = time.monotonic() + STEP_SECONDS_MAX
    while True:
        assert server.poll() is None, "the page ended by itself"
        try:
            with urllib.request.urlopen(f"{url}/server_info", timeout=10):
                return
        except OSError:
            assert time.monotonic() < deadline, f"nothing answered at {url}"
            time.sleep(0.2)


def ask(url: str, query: str) -> Any:
    """Ask the page's server what the page itself asks it."""
    body = json.dumps({"query": query}).encode()
    request = urllib.request.Request(f"{url}/graphql", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=STEP_SECONDS_MAX) as answer:
        return json.load(answer)["data"]


def stop_sensors(url: str, code_location: str) -> None:
    """Switch off what starts runs by itself."""
    where = f'{{repositoryName: "__repository__", repositoryLocationName: "{code_location}"}}'
    query = f"{{ sensorsOrError(repositorySelector: {where}) {{ ... on Sensors {{ results {{ id }} }} }} }}"
    for sensor in ask(url, query)["sensorsOrError"]["results"]:
        stop = f'mutation {{ stopSensor(id: "{sensor["id"]}") {{ ... on StopSensorMutationResult {{ __typename }} }} }}'
        assert ask(url, stop)["stopSensor"], sensor


def wait_for_runs(url: str, *, newest: int = 1000) -> None:
    """Wait until the newest runs that the page knows have ended; fail where one did not succeed."""
    deadline = time.monotonic() + STEP_SECONDS_MAX
    while True:
        runs = ask(url, f"{{ runsOrError(limit: {newest}) {{ ... on Runs {{ results {{ status }} }} }} }}")[
            "runsOrError"
        ]["results"]
        found = {run["status"] for run in runs}
        if found == {"SUCCESS"}:
            return
        assert not found & {"FAILURE", "CANCELED"}, "\n".join(_told_by_failed_runs(url))
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def _told_by_failed_runs(url: str) -> Iterator[str]:
    for run in ask(url, FAILED)["runsOrError"]["results"]:
        yield f"run {run['runId']} failed:"
        for event in run["eventConnection"]["events"]:
            yield f"  {event.get('message', '')}"
            error = event.get("error")
            if error is not None:
                yield from (each["message"] for each in (error, *error["causes"]))


@dataclass
class Browser:
    """One browser window on the page; remembers every host that it asked for anything."""

    url: str
    window: Any
    screenshots: Path
    hosts: set[str] = field(default_factory=set)

    def open(self, path: str) -> None:
        self.window.goto(self.url + path, wait_until="domcontentloaded")

    def see(self, text: str | re.Pattern[str]) -> None:
        """Wait until the page shows a text."""
        self.window.get_by_text(text).first.wait_for()

    def launch(self, label: str) -> None:
        """Press a button that starts a run, and wait until the server has it."""
        with self.window.expect_response(lambda answer: "mutation Launch" in (answer.request.post_data or "")):
            self.window.locator("button", has_text=label).first.click()

    def text(self) -> str:
        return str(self.window.inner_text("body"))

    def shoot(self, name: str) -> None:
        """Keep a picture of what is shown."""
        self.screenshots.mkdir(parents=True, exist_ok=True)
        self.window.screenshot(path=self.screenshots / f"{name}.png")


@contextmanager
def browser_at(url: str, screenshots: Path, *, user: tuple[str, str] | None = None) -> Iterator[Browser]:
    """
    Open a headless Chromium; a picture of the last state is kept where the test fails.

    With a `user` and its password it says who it is where it is asked, and takes any certificate.
    """
    secured = {} if user is None else {"http_credentials": {"username": user[0], "password": user[1]}}
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Without a sandbox of its own: continuous integration runs as root, and the page is ours.
        chrome = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        window = chrome.new_page(viewport=SIZE, ignore_https_errors=user is not None, **secured)
        window.set_default_timeout(STEP_SECONDS_MAX * 1000)
        browser = Browser(url=url, window=window, screenshots=screenshots)
        # A picture that stands in the page itself (`data:`) names no host.
        window.on("request", lambda request: browser.hosts.update(filter(None, [urlsplit(request.url).netloc])))
        try:
            yield browser
        except BaseException:
            browser.shoot("failed")
            raise
        finally:
            chrome.close()
