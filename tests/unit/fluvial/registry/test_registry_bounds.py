"""What one client can cost the others: requests that do not come, schemas too large, subjects of many versions."""

import asyncio
import json
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from registry_oversize import at_most

from fluvial import http_protocol
from fluvial.registry.errors import RefusedError
from fluvial.registry.model.commands import DeleteSubject, DeleteVersion, Draft, Register, SetConfig, SetMode
from fluvial.registry.model.registry import SCHEMAS_TOPIC, Registry
from log_broker.config.broker import BrokerConfig
from log_broker.server.node import Node
from log_broker.server.partitions.internal_log import TopicLog

A = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS_MAX", 0.3)
    return request.getfixturevalue("registry_server")


def connect(server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=30)


@pytest.mark.parametrize("sent", [b"", b"GET /subjects HTTP/1.1\r\nHost: x\r\n", b"G"])
def test_a_request_that_does_not_come_is_not_waited_for(impatient, sent: bytes) -> None:
    with connect(impatient) as connection:
        connection.sendall(sent)
        assert ended(connection)


def test_a_request_that_trickles_in_is_not_waited_for(impatient) -> None:
    with connect(impatient) as connection:
        assert is_cut_off(connection, b"X-Slow: 1\r\n", pause=0.05)


def test_a_second_request_on_a_kept_connection_is_bounded_as_well(impatient) -> None:
    with connect(impatient) as connection:
        connection.sendall(b"GET /subjects HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(1024).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /subjects HTTP/1.1\r\n")
        assert ended(connection)


def test_a_body_may_take_longer_than_a_head(impatient) -> None:
    body = json.dumps({"schema": A}).encode()
    with connect(impatient) as connection:
        head = (
            b"POST /subjects/s/versions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
        )
        connection.sendall(head % len(body) + b"\r\n" + body[:10])
        time.sleep(1)
        connection.sendall(body[10:])
        assert connection.recv(1024).startswith(b"HTTP/1.1 200")


def test_a_head_without_end_is_cut_off(registry_server) -> None:
    with connect(registry_server) as connection:
        assert is_cut_off(connection, b"X-Long: " + b"x" * 8_000 + b"\r\n", pause=0)


def test_others_are_served_while_hundreds_wait(registry_server) -> None:
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(connect(registry_server)).sendall(b"GET /subjects HT")
        assert registry_server.http.get("/subjects").status_code == 200


def is_cut_off(connection: socket.socket, header: bytes, *, pause: float) -> bool:
    """Whether a request that goes on and on is ended by the other side before it is a thousand headers long."""
    try:
        connection.sendall(b"GET /subjects HTTP/1.1\r\n")
        for _ in range(1_000):
            connection.sendall(header)
            time.sleep(pause)
    except ConnectionError:
        return True
    return False


def ended(connection: socket.socket) -> bool:
    """Whether the other end closes it, whatever it may still say."""
    try:
        while connection.recv(1024):
            pass
        return True
    except ConnectionResetError:
        return True


def test_reads_go_on_beside_enormous_schemas(registry_server) -> None:
    """A record of as many fields as a request holds, and one more, at once from several clients."""
    http = registry_server.http
    assert http.post("/subjects/small/versions", json={"schema": A}).status_code == 200
    large = at_most(900_000)
    larger = large.replace('"fields":[', '"fields":[{"name":"added","type":"int","default":0},', 1)
    answers: list[int] = []

    def send(number: int) -> None:
        with httpx.Client(base_url=registry_server.url, timeout=120) as client:
            for schema in (large, larger):
                answers.append(client.post(f"/subjects/large-{number}/versions", json={"schema": schema}).status_code)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(2)]
    for each in threads:
        each.start()
    reads = 0
    while any(each.is_alive() for each in threads):
        assert http.get("/subjects/small/versions/latest").status_code == 200
        reads += 1
    assert reads > 1
    assert answers == [200] * 4
    assert http.get("/subjects/large-0/versions").json() == [1, 2]


@pytest.mark.parametrize("fields", [1_000_000])
def test_a_record_of_a_million_fields_is_too_large_a_request(registry_server, fields: int) -> None:
    schema = '{"type":"record","name":"R","fields":[' + ",".join(
        f'{{"name":"f{n}","type":"int"}}' for n in range(fields)
    )
    answer = registry_server.http.post("/subjects/s/versions", json={"schema": schema + "]}"})
    assert (answer.status_code, answer.json()["error_code"]) == (413, 413)
    assert "fluvial.registry.request.max.bytes" in answer.json()["message"]


def test_the_same_key_twice_means_the_last(registry_server) -> None:
    body = b'{"schema": "\\"int\\"", "schema": "\\"string\\""}'
    headers = {"Content-Type": "application/json"}
    assert registry_server.http.post("/subjects/s/versions", content=body, headers=headers).status_code == 200
    assert registry_server.http.get("/schemas/ids/1/schema").text == '"string"'


async def test_the_log_takes_what_is_large_in_parts_and_refuses_what_is_too_large(tmp_path: Path) -> None:
    node = Node(BrokerConfig(data_dir=tmp_path, port=0))
    await node.start()
    try:
        registry = Registry(TopicLog(node, SCHEMAS_TOPIC))
        await registry.open()
        await registry.apply(SetConfig(subject=None, settings={"compatibilityLevel": "NONE"}), action="configure")
        with pytest.raises(RefusedError) as refused:
            await register(registry, "s", json.dumps({"type": "string", "note": '"' * 400_000}))
        assert (refused.value.status, refused.value.code) == (422, 42209)
        for number in range(12):
            assert (
                await register(registry, "s", json.dumps({"type": "string", "note": f"{number}" * 100_000}))
                == number + 1
            )
        assert await registry.apply(DeleteVersion(subject="s", version=3), action="delete") == 3
        assert len(await registry.apply(DeleteSubject(subject="s"), action="delete")) == 11
        await registry.apply(SetMode(subject=None, mode="IMPORT"), action="set_mode")
        assert registry.state.subjects(prefix=":*:", deleted=True) == []
        await registry.apply(SetMode(subject=None, mode="READWRITE"), action="set_mode")
        again = Registry(TopicLog(node, SCHEMAS_TOPIC))
        await again.open()
        assert again.state.subjects(prefix=":*:", deleted=True) == []
        assert await register(again, "s", A) == 13
    finally:
        await node.stop()


async def register(registry: Registry, subject: str, schema: str) -> int:
    found = await registry.apply(Register(subject=subject, draft=Draft(schema=schema)), action="register")
    number: int = found.id
    return number


async def test_references_that_lead_back_to_where_they_came_from_end(memory_log) -> None:
    """No request can make such a ring; a log that somebody else wrote can hold one."""
    a = {"name": "B", "subject": "b", "version": 1}
    b = {"name": "A", "subject": "a", "version": 1}
    for subject, number, reference in (("a", 1, a), ("b", 2, b)):
        key = {"keytype": "SCHEMA", "subject": subject, "version": 1, "magic": 1}
        value = {"subject": subject, "version": 1, "id": number, "schema": '"string"', "references": [reference]}
        await memory_log.append([(json.dumps(key).encode(), json.dumps(value).encode())])
    registry = Registry(memory_log)
    await registry.open()
    async with asyncio.timeout(30):
        body = registry.state.body(1)
        assert body is not None
        assert await registry.formatted(body, ".", "resolved") == '"string"'
