"""What a browser and a careful HTTP client see: methods, content types, other origins, newer fields."""

from pathlib import Path

import httpx
import pytest
from starlette.responses import Response

from fluvial.http_guard import OwnSiteOnly, hosts_for
from fluvial.registry.model.registry import Registry
from fluvial.registry.service.app import create_app
from fluvial.registry.service.cors import CrossOrigin
from fluvial.registry.service.replies import media_type
from log_broker.config.broker import BrokerConfig

V1 = "application/vnd.schemaregistry.v1+json"
JSON = "application/json"
NEWER = {"Confluent-Accept-Unknown-Properties": "true"}
A = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'


@pytest.fixture
def http(registry_server):
    return registry_server.http


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("*/*", V1),
        ("", None),
        (JSON, JSON),
        ("application/*", V1),
        (f"{V1}, application/vnd.schemaregistry+json, {JSON}", V1),
        (f"{JSON};q=0.9, */*;q=0.1", JSON),
        (f"{V1};q=0.1, {JSON};q=0.5", JSON),
        (f"{V1};q=0, {JSON};q=0", None),
        ("Application/JSON; charset=utf-8", JSON),
        ("text/html,application/xhtml+xml,*/*;q=0.8", V1),
        ("text/html", None),
        (f"{JSON};q=much", None),
        (",".join(["text/html"] * 10_000), None),
    ],
)
def test_the_content_type_is_chosen_by_what_the_client_takes(accept, expected) -> None:
    assert media_type(accept) == expected


def test_content_types_of_answers(http) -> None:
    assert http.get("/subjects", headers={"Accept": JSON}).headers["content-type"] == JSON
    assert http.get("/subjects", headers={"Accept": "text/html"}).json() == {
        "error_code": 406,
        "message": "HTTP 406 Not Acceptable",
    }
    answer = http.post("/subjects/s/versions", content=b"{}", headers={"Content-Type": "text/plain"})
    assert (answer.status_code, answer.json()) == (
        415,
        {"error_code": 415, "message": "HTTP 415 Unsupported Media Type"},
    )
    assert http.get("/subjects", headers={"Content-Type": "text/plain"}).status_code == 200


def test_options_say_what_may_be_done(http) -> None:
    answer = http.options("/subjects/s/versions")
    assert (answer.status_code, answer.content) == (200, b"")
    assert set(answer.headers["allow"].split(",")) == {"GET", "HEAD", "POST", "OPTIONS"}
    assert "access-control-allow-origin" not in answer.headers
    assert http.options("/nothing").status_code == 404
    refused = http.put("/subjects/s/versions", json={})
    assert (refused.status_code, refused.json()["message"]) == (405, "HTTP 405 Method Not Allowed")
    assert "POST" in refused.headers["allow"]


@pytest.mark.parametrize("path", ["/", "/subjects", "/schemas", "/config", "/mode", "/contexts", "/v1/metadata/id"])
def test_head_is_get_without_a_body(http, path) -> None:
    head, get = http.head(path), http.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-length"] == get.headers["content-length"] == str(len(get.content))


def page(registry, **settings: str) -> httpx.AsyncClient:
    rules = CrossOrigin.from_settings(
        *(
            frozenset(settings.get(name, "").replace(" ", "").split(",")) - {""}
            for name in ("origin", "methods", "headers")
        )
    )
    transport = httpx.ASGITransport(create_app(registry, cross_origin=lambda: rules))
    return httpx.AsyncClient(transport=transport, base_url="http://registry")


async def test_pages_of_named_origins_may_use_it(registry) -> None:
    origins = "https://a.example, https://b.example"
    async with page(registry, origin=origins, methods="GET,PUT", headers="X-Own") as http:
        asked = {"Origin": "https://b.example", "Access-Control-Request-Method": "PUT"}
        preflight = await http.options("/config", headers=asked)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://b.example"
        assert preflight.headers["access-control-allow-methods"] == "GET,PUT"
        assert preflight.headers["access-control-allow-headers"] == "X-Own"
        answer = await http.get("/subjects", headers={"Origin": "https://a.example"})
        assert (answer.json(), answer.headers["access-control-allow-origin"]) == ([], "https://a.example")
        assert answer.headers["vary"] == "Origin"
        refused = await http.get("/subjects/x/versions", headers={"Origin": "https://a.example"})
        assert (refused.status_code, "access-control-allow-origin" in refused.headers) == (404, True)
        for headers in ({"Origin": "https://c.example"}, {}):
            answer = await http.get("/subjects", headers=headers)
            assert "access-control-allow-origin" not in answer.headers


async def test_any_page_may_use_an_open_one_but_never_with_remembered_credentials(registry) -> None:
    async with page(registry, origin="*") as http:
        answer = await http.get("/subjects", headers={"Origin": "https://c.example"})
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers


def test_newer_clients_get_newer_fields_and_others_do_not(http) -> None:
    answer = http.post("/subjects/s/versions", json={"schema": A}, headers=NEWER)
    guid = answer.json()["guid"]
    assert answer.json() == {"id": 1, "version": 1, "guid": guid, "schemaType": "AVRO", "schema": A}
    assert http.post("/subjects/s/versions", json={"schema": A}).json() == {"id": 1}
    version = http.get("/subjects/s/versions/1", headers=NEWER).json()
    assert list(version) == ["subject", "version", "id", "guid", "schemaType", "schema", "ts", "deleted"]
    assert list(http.get("/subjects/s/versions/1").json()) == ["subject", "version", "id", "schema"]
    assert http.get("/schemas/ids/1?subject=s", headers=NEWER).json() == {
        "ts": version["ts"],
        "subject": "s",
        "version": 1,
        "id": 1,
        "guid": guid,
        "schemaType": "AVRO",
        "schema": A,
        "deleted": False,
    }
    assert http.get("/schemas/ids/1?subject=s&fetchMaxId=true").json() == {"schema": A, "maxId": 1}


def test_a_schema_has_the_same_guid_in_every_context(http) -> None:
    guid = http.post("/subjects/s/versions", json={"schema": '"string"'}, headers=NEWER).json()["guid"]
    assert guid == "095d71cf-1255-6b9d-5e33-0ad575b3df5d"
    assert http.get(f"/schemas/guids/{guid}").json() == {"schema": '"string"'}
    assert http.post("/subjects/:.east:x/versions", json={"schema": A}).json() == {"id": 1}
    assert http.post("/subjects/:.east:t/versions", json={"schema": '"string"'}, headers=NEWER).json()["guid"] == guid
    assert http.get(f"/schemas/guids/{guid}/ids").json() == [{"context": ".", "id": 1}, {"context": ".east", "id": 2}]
    missing = http.get("/schemas/guids/00000000-0000-0000-0000-000000000000")
    assert (missing.status_code, missing.json()["error_code"]) == (404, 40403)
    assert http.get("/schemas/guids/nonsense").json()["error_code"] == 40403


def test_what_only_the_paid_registry_has_is_not_there(http) -> None:
    for path in ("/exporters", "/clusters", "/dek-registry/v1/keks", "/catalog/v1/types/tagdefs"):
        assert http.get(path).json() == {"error_code": 404, "message": "HTTP 404 Not Found"}


def test_the_server_says_which_it_is(http) -> None:
    scope = http.get("/v1/metadata/id").json()["scope"]
    assert (scope["path"], scope["clusters"]["schema-registry-cluster"]) == ([], "schema-registry")
    assert http.get("/v1/metadata/version").json().keys() == {"version", "commitId"}
    assert http.post("/", json={"a": "b"}).json() == {}


SCHEMA = b'{"schema": "\\"int\\""}'


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://evil.example", "Host": "evil.example"},
        {"Host": "evil.example"},
        {"Host": "evil.example:8081"},
        {"Host": "127.0.0.1.evil.example"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
    ],
    ids=str,
)
def test_pages_of_other_sites_are_turned_down(shared_server, headers) -> None:
    http = shared_server.http
    before = http.get("/subjects").json()
    for call in (
        lambda: http.post("/subjects/other-site/versions", content=SCHEMA, headers={"Content-Type": JSON, **headers}),
        lambda: http.put("/config", content=b'{"compatibility": "NONE"}', headers={"Content-Type": JSON, **headers}),
        lambda: http.delete("/subjects/other-site", headers=headers),
        lambda: http.get("/subjects", headers=headers),
    ):
        answer = call()
        assert answer.status_code == 403
        assert answer.json()["error_code"] == 403
    assert http.get("/subjects").json() == before


def test_a_body_of_no_type_is_not_taken(shared_server) -> None:
    """A page of any site may send one without asking first; a form's types were never taken."""
    http = shared_server.http
    for kind in ({}, {"Content-Type": ""}, {"Content-Type": "text/plain"}, {"Content-Type": "multipart/form-data"}):
        request = http.build_request("POST", "/subjects/untyped/versions", content=SCHEMA, headers=kind)
        if not kind:
            assert "content-type" not in request.headers
        assert http.send(request).status_code == 415
    assert "untyped" not in http.get("/subjects").json()


def test_those_who_may_ask_are_answered(shared_server) -> None:
    http, port = shared_server.http, shared_server.url.rpartition(":")[2]
    for headers in (
        {},
        {"Origin": shared_server.url, "Sec-Fetch-Site": "same-origin"},
        {"Host": "localhost"},
        {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"},
        {"Host": "[::1]:8081"},
        {"Host": "host.docker.internal:8081"},
        {"Host": "registry:8081"},
        {"Host": "10.1.2.3:8081"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
        {"Sec-Fetch-Site": "none"},
    ):
        assert http.get("/subjects", headers=headers).status_code == 200, headers


@pytest.mark.parametrize(
    ("listens_on", "allowed", "asked", "status"),
    [
        ("127.0.0.1", ["Registry.Example"], "registry.example:8081", 200),
        ("127.0.0.1", ["registry.example"], "evil.example", 403),
        ("0.0.0.0", [], "registry.example", 200),
        ("0.0.0.0", ["registry.example"], "registry.example", 200),
        ("0.0.0.0", ["registry.example"], "evil.example", 403),
        ("registry.example", [], "evil.example", 200),
    ],
)
async def test_the_names_that_a_server_answers_to(listens_on, allowed, asked, status) -> None:
    guarded = OwnSiteOnly(answers, hosts=lambda: hosts_for(listens_on, allowed))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://test") as http:
        assert (await http.get("/", headers={"Host": asked})).status_code == status


async def answers(scope, receive, send) -> None:
    await Response("here")(scope, receive, send)


async def test_origins_that_are_allowed_pass() -> None:
    guarded = OwnSiteOnly(answers, origins=lambda: {"https://a.example"})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://127.0.0.1") as http:
        assert (await http.post("/", headers={"Origin": "https://a.example"})).status_code == 200
        assert (await http.post("/", headers={"Origin": "https://b.example"})).status_code == 403
    every = OwnSiteOnly(answers, origins=lambda: {"*"})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(every), base_url="http://127.0.0.1") as http:
        assert (await http.post("/", headers={"Origin": "https://b.example"})).status_code == 200


async def test_the_others_of_a_node_ask_it_as_before(tmp_path: Path) -> None:
    """The settings of the node reach its servers; see `tests/unit/fluvial/test_fluvial_node.py` for the process."""
    config = BrokerConfig(data_dir=tmp_path).with_settings({"fluvial.http.allowed.hosts": "a.example,b.example"})
    assert config.fluvial_http_allowed_hosts == {"a.example", "b.example"}


async def test_an_error_of_ours_blames_nothing_else(memory_log, monkeypatch) -> None:
    registry = Registry(memory_log)
    await registry.open()

    def broken(*given: object) -> None:
        raise KeyError("a1.Place")

    monkeypatch.setattr("fluvial.registry.model.registry.decide", broken)
    transport = httpx.ASGITransport(create_app(registry), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.post("/subjects/s/versions", json={"schema": '"int"'})
        assert (answer.status_code, answer.json()["error_code"]) == (500, 500)
        assert "_schemas" not in answer.json()["message"]
        monkeypatch.undo()
        memory_log.fail_next = "before writing"
        answer = await http.post("/subjects/s/versions", json={"schema": '"int"'})
        assert (answer.status_code, answer.json()["error_code"]) == (500, 50001)
        assert answer.json()["message"] == "Error while writing to the _schemas topic: disk full"
        assert (await http.post("/subjects/s/versions", json={"schema": '"int"'})).status_code == 200
