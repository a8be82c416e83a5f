"""Requests made to hurt: each is answered with a clear refusal, and the registry goes on serving."""

import json
import socket

import pytest

VALID = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'


@pytest.fixture
def http(shared_server):
    yield shared_server.http
    assert shared_server.http.post("/subjects/after/versions", json={"schema": VALID}).status_code == 200


def nested(opening: str, middle: str, closing: str, levels: int) -> str:
    return opening * levels + middle + closing * levels


def flat_chain(length: int) -> str:
    """Records that each hold the one before: flat as text, deep as a type."""
    records = ['{"type":"record","name":"R0","fields":[]}']
    records += [
        f'{{"type":"record","name":"R{n}","fields":[{{"name":"a","type":"R{n - 1}"}}]}}' for n in range(1, length)
    ]
    return f"[{','.join(records)}]"


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "{",
        "nonsense",
        '{"type":"record"}',
        '{"type":["null"]}',
        '{"type":"record","name":"R","fields":{}}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"R","default":1}]}',
        '{"type":"fixed","name":"F","size":99999999999999999999}',
        '{"type":"enum","name":"E","symbols":[1]}',
        '{"type":"int","x":NaN}',
        '"\\ud800"',
        '{"type":"string","note":"\\udfff"}',
        nested('{"type":"array","items":', '"int"', "}", 10_000),
        nested('{"type":"array","items":', '"int"', "}", 101),
        nested('{"type":"map","values":', '"int"', "}", 20_000),
        nested("[", '"int"', "]", 100_000),
        '{"type":"string","x":' + nested("[", "1", "]", 5_000) + "}",
        '{"type":"string","x":' + nested('{"a":', "1", "}", 50_000) + "}",
        '{"type":"string","x":' + "9" * 10_000 + "}",
        json.dumps(["null"] * 100_000),
    ],
    ids=lambda schema: schema[:40],
)
@pytest.mark.parametrize("call", ["/subjects/s/versions", "/subjects/s", "/compatibility/subjects/s/versions/latest"])
def test_what_is_not_a_schema(http, call, schema) -> None:
    assert http.post("/subjects/s/versions", json={"schema": VALID}).status_code == 200
    answer = http.post(call, json={"schema": schema})
    if schema == "" and call == "/subjects/s/versions":
        assert answer.status_code == 200, "an empty schema stands for the latest one"
        return
    if schema == "" and call == "/subjects/s":
        assert answer.json()["error_code"] == 40403
        return
    assert (answer.status_code, answer.json()["error_code"]) == (422, 42201)
    assert len(answer.json()["message"]) < 2_000


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff\xfe{}", 400),
        (b'{"schema": "\xc3\x28"}', 400),
        (b"[]", 400),
        (b'"x"', 400),
        (b"null", 422),
        (b"[" * 500_000, 400),
        (b'{"schema":' * 90_000, 400),
        (b'{"schema": 5}', 400),
        (b'{"schema": {"type":"string"}}', 400),
        (b'{"schema": "\\ud800"}', 400),
        (b'{"schema": "\\"string\\"", "schemaType": 5}', 400),
        (b'{"schema": "\\"string\\"", "references": {}}', 400),
        (b'{"schema": "\\"string\\"", "references": [5]}', 400),
        (b'{"schema": "\\"string\\"", "references": [{}]}', 422),
        (b'{"schema": "\\"string\\"", "metadata": []}', 400),
        (b'{"schema": "\\"string\\"", "metadata": {"properties": {"a": "\\ud800"}}}', 400),
        (b'{"schema": "\\"string\\"", "metadata": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}", 200),
        (b'{"schema": "\\"string\\"", "version": "1"}', 400),
        (b'{"schema": "\\"string\\"", "id": 99999999999999}', 400),
        (b'{"schema": "\\"string\\"", "id": true}', 400),
        (b" " * (1024 * 1024 + 1), 413),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_not_a_request(http, body, status) -> None:
    answer = http.post("/subjects/request/versions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    if answer.status_code != 200:
        assert answer.json().keys() == {"error_code", "message"}
        assert len(answer.json()["message"]) < 2_000


def test_a_body_that_is_too_large_though_it_does_not_say_so(http) -> None:
    chunks = (b" " * 65_536 for _ in range(40))
    answer = http.post("/subjects/request/versions", content=chunks, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error_code"]) == (413, 413)


@pytest.mark.parametrize(
    "subject", ["%00", "%0a", "a%7fb", "%20", "x" * 2_000, "__EMPTY", ":.__GLOBAL:s", ":.a:", "%ed%a0%80"]
)
def test_what_is_not_a_subject(http, subject) -> None:
    answer = http.post(f"/subjects/{subject}/versions", json={"schema": VALID})
    assert (answer.status_code, answer.json()["error_code"]) == (422, 42208)


def test_schemas_that_are_slow_or_deep_to_compare(http) -> None:
    fields = ",".join(f'{{"name":"f{n}","type":"int"}}' for n in range(5))
    wide = [f'{{"type":"record","name":"N{n}","fields":[{fields}]}}' for n in range(3_000)]
    for subject, schema in {"deep": flat_chain(2_000), "wide": f"[{','.join(wide)}]"}.items():
        first = http.post(f"/subjects/{subject}/versions", json={"schema": schema}, timeout=60)
        assert first.status_code in {200, 422}
        changed = schema.replace('"fields":[]', '"fields":[{"name":"x","type":"int","default":0}]')
        answer = http.post(f"/subjects/{subject}/versions", json={"schema": changed + " "}, timeout=60)
        assert answer.status_code in {200, 409, 422}


def test_a_type_defined_again_and_again(http) -> None:
    big = ",".join(f'{{"name":"f{n}","type":"int"}}' for n in range(5_000))
    again = ",".join(
        '{"type":"map","values":{"type":"record","name":"K","fields":[{"name":"h","type":"H"}]}}' for _ in "ab"
    )
    schema = f'{{"type":"record","name":"H","fields":[{big},{{"name":"k","type":[{again}]}}]}}'
    assert http.post("/subjects/again/versions", json={"schema": schema}).status_code == 422


def test_references_to_themselves_and_in_rings_cannot_be_made(http) -> None:
    own = {"schema": VALID, "references": [{"name": "R", "subject": "own", "version": 1}]}
    assert http.post("/subjects/own/versions", json=own).status_code == 422
    many = {"schema": VALID, "references": [{"name": "R", "subject": "own", "version": 1}] * 1_001}
    assert http.post("/subjects/own/versions", json=many).status_code == 422


def test_a_client_that_goes_away_in_the_middle(http, shared_server) -> None:
    port = int(shared_server.url.rpartition(":")[2])
    for text in (
        b"POST /subjects/s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
    ):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(text)
