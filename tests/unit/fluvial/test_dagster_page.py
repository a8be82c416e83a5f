"""
The web server that `fluvial ui` starts, asked as its own page asks it and as another site's page would; and by users.
"""

import json
import os
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from certificates import Authority
from secured_broker import PASSWORDS, secured_broker
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from fluvial.config import Settings
from fluvial.dagster_page import _guarded
from fluvial.http_exposure import Exposure
from fluvial.orchestration.run.ui import ui_command

ASK = {"query": "{ version }"}
# Of a run that there is not, so that the answer comes at once.
SUBSCRIPTION = """subscription { pipelineRunLogs(runId: "none") {
    ... on PipelineRunLogsSubscriptionFailure { missingRunId } } }"""
RELOAD = "mutation { reloadWorkspace { __typename } }"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("page")
    with served(Settings(data_dir=folder / "data"), folder, Exposure()) as url:
        yield url


@contextmanager
def served(
    settings: Settings, folder: Path, exposure: Exposure, *, trusting: ssl.SSLContext | None = None
) -> Iterator[str]:
    (folder / "pyproject.toml").write_text('[tool.dagster]\nmodule_name = "plain_defs"\n')
    (folder / "plain_defs.py").write_text("import dagster as dg\n\ndefs = dg.Definitions()\n")
    before = os.getcwd()
    os.chdir(folder)
    try:
        command = ui_command(settings, exposure=exposure)
    finally:
        os.chdir(before)
    environment = {**os.environ, **command.environment}
    # The web server alone where that will do: the daemon beside it takes as long to start, and is asked nothing here.
    argv = command.argv if exposure == Exposure() else ["serve" if each == "dev" else each for each in command.argv]
    with subprocess.Popen(argv, cwd=folder, env=environment, start_new_session=True) as server:
        try:
            wait_for(command.url, server, trusting)
            yield command.url
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)


def wait_for(url: str, server: "subprocess.Popen[bytes]", trusting: ssl.SSLContext | None) -> None:
    deadline = time.monotonic() + 300
    while True:
        assert server.poll() is None, "the page ended by itself"
        try:
            httpx.get(f"{url}/server_info", timeout=10, verify=True if trusting is None else trusting)
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


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    """What trusts a certificate, and the file of that with its key."""
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    return ssl.create_default_context(cafile=str(authority.path)), authority.issue("page")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, trusting: tuple[ssl.SSLContext, Path]) -> Iterator[str]:
    """A page with a certificate, of a cluster with users; gives its URL."""
    folder = tmp_path_factory.mktemp("secured")
    context, certificate = trusting
    with secured_broker() as (broker, cluster):
        settings = Settings(
            data_dir=folder / "data",
            bootstrap_servers=broker.bootstrap_servers,
            kafka_properties=cluster.properties,
            local=False,
        )
        exposure = Exposure.of(
            settings, does="it starts runs", host="127.0.0.1", certificate=certificate, allow_plaintext=False
        )
        with served(settings, folder, exposure, trusting=context) as url:
            yield url


@pytest.fixture
def http(trusting: tuple[ssl.SSLContext, Path]) -> Iterator[httpx.Client]:
    with httpx.Client(verify=trusting[0], timeout=60) as client:
        yield client


@pytest.mark.parametrize(
    "auth", [None, ("ada", "bob's"), ("nobody", "x")], ids=["no user", "wrong password", "unknown"]
)
@pytest.mark.parametrize("path", ["/", "/server_info", "/graphql", "/runs", "/favicon.png"])
def test_nothing_of_a_secured_page_is_shown_to_strangers(
    secured: str, http: httpx.Client, path: str, auth: tuple[str, str] | None
) -> None:
    answer = http.get(f"{secured}{path}", auth=auth)
    assert (answer.status_code, answer.json()["message"]) == (401, "Unauthorized")
    assert answer.headers["www-authenticate"] == 'basic realm="fluvial"', "a browser asks for the password then"


def test_a_secured_page_is_not_served_in_plain_text(secured: str) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.get(secured.replace("https", "http"), auth=("ada", PASSWORDS["ada"]))


def test_a_user_who_may_not_describe_the_cluster_is_refused(secured: str, http: httpx.Client) -> None:
    answer = http.get(f"{secured}/server_info", auth=("bob", PASSWORDS["bob"]))
    assert answer.status_code == 403
    assert "User:bob may not DESCRIBE the cluster" in answer.json()["message"]


def test_users_see_the_page_and_ask_it(secured: str, http: httpx.Client) -> None:
    for name in ("ada", "eye"):
        auth = (name, PASSWORDS[name])
        assert "<!doctype html>" in http.get(f"{secured}/", auth=auth).text.lower()
        assert http.post(f"{secured}/graphql", json=ASK, auth=auth).json()["data"]["version"]
        other_site = http.post(f"{secured}/graphql", json=ASK, auth=auth, headers={"Origin": "https://evil.example"})
        assert other_site.status_code == 403


def test_who_may_not_alter_the_cluster_changes_nothing(secured: str, http: httpx.Client) -> None:
    done = {}
    for name in ("ada", "eye"):
        auth = (name, PASSWORDS[name])
        asked = http.post(f"{secured}/graphql", json={"query": RELOAD}, auth=auth)
        reported = http.post(f"{secured}/report_asset_materialization/of_{name}", auth=auth)
        permissions = http.post(
            f"{secured}/graphql", json={"query": "{ permissions { permission value } }"}, auth=auth
        ).json()["data"]["permissions"]
        allowed = {each["permission"] for each in permissions if each["value"]}
        done[name] = (asked.json()["data"]["reloadWorkspace"]["__typename"], reported.status_code, bool(allowed))
    assert done == {"ada": ("Workspace", 200, True), "eye": ("UnauthorizedError", 401, False)}


@pytest.mark.parametrize("name", ["ada", "eye"])
def test_users_subscribe_over_a_web_socket(secured: str, trusting: tuple[ssl.SSLContext, Path], name: str) -> None:
    authorization = httpx.BasicAuth(name, PASSWORDS[name])._auth_header
    address = f"{secured.replace('https', 'wss')}/graphql"
    headers = {"Authorization": authorization}
    with connect(address, ssl=trusting[0], additional_headers=headers, subprotocols=["graphql-ws"]) as socket:
        socket.send(json.dumps({"type": "connection_init"}))
        assert json.loads(socket.recv(60)) == {"type": "connection_ack"}
        socket.send(json.dumps({"id": "1", "type": "start", "payload": {"query": SUBSCRIPTION}}))
        answer = json.loads(socket.recv(60))
    assert answer["payload"]["data"] == {"pipelineRunLogs": {"missingRunId": "none"}}


@pytest.mark.parametrize(("auth", "status"), [(None, 401), (("ada", "x"), 401), (("bob", PASSWORDS["bob"]), 403)])
def test_a_web_socket_of_a_stranger_is_turned_down(
    secured: str, trusting: tuple[ssl.SSLContext, Path], auth: tuple[str, str] | None, status: int
) -> None:
    headers = {} if auth is None else {"Authorization": httpx.BasicAuth(*auth)._auth_header}
    address = f"{secured.replace('https', 'wss')}/graphql"
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(address, ssl=trusting[0], additional_headers=headers, subprotocols=["graphql-ws"]),
    ):
        pass
    assert refused.value.response.status_code == status
