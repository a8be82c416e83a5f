"""Dagster's page of a secured platform: `fluvial ui` asks a browser for a user, and shows that one what there is."""

import signal
import subprocess
from pathlib import Path

import httpx
import pytest
from dagster_page import STEP_SECONDS_MAX, browser_at, chromium
from local_platform import FLUVIAL, wait_until

from fluvial.local.state import SECURITY
from tests.free_ports import free_port, free_ports_in_a_row


@pytest.mark.rota  # Dagster's page and a browser
def test_a_browser_signs_in_to_the_page_and_its_web_sockets(tmp_path: Path) -> None:
    chromium()
    run(tmp_path, "init", "shop", "--secure")
    project = tmp_path / "shop"
    first = free_ports_in_a_row(2)
    run(project, "up", "--detach", "--port", str(first), "--registry-port", str(first + 1))
    try:
        security = project / ".fluvial" / SECURITY
        lines = (security / "client.properties").read_text().splitlines()
        user, _, password = dict(each.split("=", 1) for each in lines if "=" in each)["basic.auth.user.info"].partition(
            ":"
        )
        page = ("ui", "--no-browser", "--port", str(port := free_port()), "--certificate", str(security / "node.pem"))
        url = f"https://127.0.0.1:{port}"
        with subprocess.Popen([str(FLUVIAL), *page], cwd=project, start_new_session=True) as served:
            try:
                wait_until(lambda: answers(url, served), STEP_SECONDS_MAX)
                assert httpx.get(url, verify=False).status_code == 401
                with browser_at(url, tmp_path, user=(user, password)) as browser:
                    received: list[str] = []
                    browser.window.on(
                        "websocket",
                        lambda opened: opened.on("framereceived", lambda frame: received.append(str(frame))),
                    )
                    browser.open("/asset-groups?expanded=global@global:state")
                    browser.see("customers")
                    deadline = STEP_SECONDS_MAX * 10
                    while not any("connection_ack" in each for each in received) and (deadline := deadline - 1):
                        browser.window.wait_for_timeout(100)
                    assert any("connection_ack" in each for each in received), received
            finally:
                served.send_signal(signal.SIGINT)
                served.wait(STEP_SECONDS_MAX)
    finally:
        run(project, "down")


def run(folder: Path, *words: str) -> None:
    done = subprocess.run(
        [str(FLUVIAL), *words], cwd=folder, capture_output=True, text=True, timeout=STEP_SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stderr


def answers(url: str, served: "subprocess.Popen[bytes]") -> bool:
    assert served.poll() is None, "the page ended by itself"
    try:
        httpx.get(f"{url}/server_info", verify=False, timeout=10)
    except httpx.HTTPError:
        return False
    return True
