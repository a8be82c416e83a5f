"""What a browser and a careful HTTP client see: methods, content types, other origins, newer fields."""

import httpx
import pytest

from fluvial.registry.app import create_app
from fluvial.registry.cors import CrossOrigin
from fluvial.registry.replies import media_type

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
