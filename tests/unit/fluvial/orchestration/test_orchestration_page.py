"""The web server that `fluvial ui` starts, asked as its own page asks it and as another site's page would."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import httpx
import pytest

from fluvial.config import Settings
from fluvial.orchestration.run.page import _guarded
from fluvial.orchestration.run.ui import ui_command

ASK = {"query": "{ version }"}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "pyproject.toml").write_text('[tool.dagster]\nmodule_name = "plain_defs"\n')
    (folder / "plain_defs.py").write_text("import dagster as dg\n\ndefs = dg.Definitions()\n")
    before = os.getcwd()
    os.chdir(folder)
    try:
        command = ui_command(Settings(data_dir=folder / "data"))
    finally:
        os.chdir(before)
    environment = {**os.environ, **command.environment}
    with subprocess.Popen(command.argv, cwd=folder, env=environment, start_new_session=True) as server:
        try:
            wait_for(command.url, server)
            yield command.url
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)


def wait_for(url: str, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 300
    while True:
        assert server.poll() is None, "the page ended by itself"
        try:
            httpx.get(f"{url}/server_info", timeout=10)
        except httpx.HTTPError:
            assert time.monotonic() < deadline, f"nothing answered at {url}"
            time.sleep(0.2)
        else:
            return


def test_its_own_page_and_programs_are_answered(page: str) -> None:
    for headers in ({}, {"Origin": page, "Sec-Fetch-Site": "same-origin"}, {"Host": "localhost:3000"}):
        answer = httpx.post(f"{page}/graphql", json=ASK, headers=headers)
        assert answer.json()["data"]["version"]
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Accept": "text/html"}
    assert httpx.get(f"{page}/", headers=link).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Host": "evil.example"},
        {"Host": "evil.example:3000", "Origin": "http://evil.example:3000"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    ],
    ids=str,
)
def test_pages_of_other_sites_are_not(page: str, headers: dict[str, str]) -> None:
    assert httpx.post(f"{page}/graphql", json=ASK, headers=headers).status_code == 403
    asked = httpx.get(f"{page}/graphql", params=ASK, headers=headers)
    assert asked.status_code == 403


def test_a_link_of_another_site_asks_nothing(page: str) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert httpx.get(f"{page}/graphql", params=ASK, headers=link).status_code == 403


def test_subscriptions_are_turned_down_as_well(page: str) -> None:
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Protocol": "graphql-ws",
    }
    assert httpx.get(f"{page}/graphql", headers={**upgrade, "Origin": "http://evil.example"}).status_code == 403


def test_a_web_server_that_is_started_in_another_way_is_not_started_at_all() -> None:
    with pytest.raises(RuntimeError, match="without our check"):
        _guarded(["dagster-webserver", "--path=/x/dagster_webserver"])
    assert _guarded(["python", "-m", "dagster._daemon", "run"]) == ["python", "-m", "dagster._daemon", "run"]
