"""One registry on three nodes: asked anywhere it says the same, and what it gives out is given once."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import Authority
from test_registry_state import record_schema

from fluvial.http_doors import registry_security, rules_of
from fluvial.http_server import serve
from fluvial.registry import errors
from fluvial.registry.logs.schemas_log import SchemasLog, follow
from fluvial.registry.model.registry import SCHEMAS_TOPIC, Registry
from fluvial.registry.service.app import create_app
from fluvial.registry.service.forwarding import Forwarder
from fluvial.registry.validator import RegistryValidator
from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.controller import CreateTopic
from log_broker.core.partition.protocol import AppendResult
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records import build_batch
from log_broker.server.node import Node
from tests.free_ports import free_ports

NODES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A node with its registry, as `fluvial.node` puts them together."""

    node: Node
    registry: Registry
    schemas: SchemasLog
    http: httpx.AsyncClient

    async def ask(self, method: str, path: str, **content: Any) -> tuple[int, Any]:
        answer = await self.http.request(method, path, json=content or None)
        return answer.status_code, answer.json()

    async def register(self, subject: str, *fields: str) -> int:
        status, content = await self.ask("POST", f"/subjects/{subject}/versions", schema=record_schema(*fields))
        assert status == 200, content
        found: int = content["id"]
        return found


async def begin(stack: AsyncExitStack, config: BrokerConfig, **asking: Any) -> Member:
    schemas = SchemasLog()
    registry = Registry(schemas, rules=lambda: rules_of(node.config, node.authorizer))
    node = Node(config, validator=RegistryValidator(registry))
    schemas.attach(node)
    await node.start()
    stack.push_async_callback(node.stop)
    security = registry_security(node)
    if security is not None:
        stack.callback(security.close)
    forwarder = Forwarder(registry, schemas, security)
    stack.push_async_callback(forwarder.close)
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    app = create_app(registry, forwarder, security=security)
    tls = None if security is None else security.server_tls
    tasks = [
        asyncio.create_task(serve(app, "127.0.0.1", 0, tls=tls, started=listening.set_result)),
        asyncio.create_task(follow(registry, schemas)),
    ]

    async def end() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    stack.push_async_callback(end)
    node.registry_url = f"{'http' if tls is None else 'https'}://127.0.0.1:{await listening}"
    http = await stack.enter_async_context(httpx.AsyncClient(base_url=node.registry_url, timeout=30, **asking))
    return Member(node=node, registry=registry, schemas=schemas, http=http)


def configs(data_dir: Path, **more: str) -> list[BrokerConfig]:
    ports = free_ports(NODES)
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(ports))
    settings = {
        "controller.quorum.voters": voters,
        "controller.quorum.election.timeout.ms": "300",
        "controller.quorum.fetch.timeout.ms": "600",
        "broker.heartbeat.interval.ms": "100",
        "broker.session.timeout.ms": "3000",
        **more,
    }
    return [
        BrokerConfig(data_dir=data_dir / f"n{number}", port=port, node_id=number).with_settings(settings)
        for number, port in enumerate(ports)
    ]


@pytest.fixture
async def members(tmp_path: Path) -> AsyncIterator[list[Member]]:
    async with AsyncExitStack() as stack:
        begun = await asyncio.gather(*(begin(stack, config) for config in configs(tmp_path)))
        await eventually(lambda: all(len(member.node.cluster.alive_brokers()) == NODES for member in begun))
        yield list(begun)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.005)


async def test_the_same_schema_has_one_id_wherever_it_is_registered_at_once(members: list[Member]) -> None:
    fields = [tuple(f"f{at}" for at in range(count)) for count in range(1, 13)]
    asked = [(member, name) for name in fields for member in members for _ in range(2)]
    ids = await asyncio.gather(*(member.register(f"s{len(name)}", *name) for member, name in asked))
    given: dict[tuple[str, ...], set[int]] = {}
    for (_, name), schema_id in zip(asked, ids, strict=True):
        given.setdefault(name, set()).add(schema_id)
    assert all(len(found) == 1 for found in given.values())
    assert sorted(found.pop() for found in given.values()) == list(range(1, 13))
    assert sum(member.schemas.is_led_here for member in members) == 1


async def test_what_was_answered_anywhere_can_be_read_everywhere(members: list[Member]) -> None:
    for turn in range(6):
        writer = members[turn % NODES]
        schema_id = await writer.register(f"s{turn}", f"f{turn}")
        for member in members:
            status, found = await member.ask("GET", f"/schemas/ids/{schema_id}")
            assert status == 200
            assert json.loads(found["schema"]) == json.loads(record_schema(f"f{turn}"))
            assert (await member.ask("GET", f"/subjects/s{turn}/versions/1"))[1]["id"] == schema_id
    status, refused = await members[1].ask("GET", "/schemas/ids/77")
    assert (status, refused["error_code"]) == (404, 40403)


async def test_every_write_works_on_every_node(members: list[Member]) -> None:
    for member in members:
        name = f"s{member.node.config.node_id}"
        await member.register(name, "a")
        assert await member.ask("PUT", f"/config/{name}", compatibility="FULL") == (200, {"compatibility": "FULL"})
        assert await member.ask("PUT", f"/mode/{name}", mode="READONLY") == (200, {"mode": "READONLY"})
        status, refused = await member.ask("DELETE", f"/subjects/{name}")
        assert (status, refused["error_code"]) == (422, 42205), "a refusal comes back as it is"
        assert await member.ask("DELETE", f"/mode/{name}") == (200, {"mode": "READONLY"})
        assert await member.ask("DELETE", f"/config/{name}") == (200, {"compatibilityLevel": "FULL"})
        assert await member.ask("DELETE", f"/subjects/{name}/versions/1") == (200, 1)
        assert await member.ask("DELETE", f"/subjects/{name}?permanent=true") == (200, [1])
        assert (await member.ask("GET", f"/subjects/{name}/versions"))[0] == 404
    # A subject with an escaped slash travels as it came.
    for member in members:
        status, _ = await member.ask("POST", "/subjects/a%2Fb%20c/versions", schema=record_schema("x"))
        assert status == 200
    assert (await members[0].ask("GET", "/subjects"))[1] == ["a/b c"]


async def test_a_record_of_a_schema_that_is_news_here_is_let_in(members: list[Member]) -> None:
    validated = {"fluvial.value.schema.validation": "payload"}
    for member in members:
        number = member.node.config.node_id
        topic = CreateTopic(
            name=f"t{number}", topic_id=f"{number}" * 32, assignments={0: (number,)}, overrides=validated
        )
        await members[0].node.ensure_topic(topic)
        await eventually(lambda logs=member.node.logs, name=f"t{number}": logs.get(name, 0) is not None)

    async def append(member: Member, schema_id: int) -> AppendResult:
        runtime = member.node.logs.get(f"t{member.node.config.node_id}", 0)
        assert runtime is not None
        answer: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        value = b"\0" + schema_id.to_bytes(4, "big") + b"\x02a"
        runtime.append(build_batch([(1, b"k", value, ())]), acks=-1, done=answer.set_result)
        return await answer

    for turn, member in enumerate(members * 3):
        # Its own registry did not hear of it: it is on its way.
        writer = members[(turn + 1) % NODES]
        schema_id = await writer.register(
            f"t{member.node.config.node_id}-value", *(f"f{n}" for n in range(turn // 3 + 1))
        )
        assert (await append(member, schema_id)).error in {ErrorCode.NONE, ErrorCode.INVALID_RECORD}
        if turn < NODES:
            assert (await append(member, schema_id)).error is ErrorCode.NONE
    for member in members:
        unknown = await append(member, 99)
        assert unknown.error is ErrorCode.INVALID_RECORD
        assert "schema id 99 of the value is not registered" in (unknown.message or "")


async def test_readers_go_on_without_the_node_that_writes(tmp_path: Path, members: list[Member]) -> None:
    schema_id = await members[0].register("s", "a")
    for member in members:
        assert (await member.ask("GET", f"/schemas/ids/{schema_id}"))[0] == 200
    (writer,) = [member for member in members if member.schemas.is_led_here]
    await writer.node.stop()
    for member in members:
        if member is not writer:
            assert (await member.ask("GET", f"/schemas/ids/{schema_id}"))[0] == 200
            assert await member.register("s", "a") == schema_id, "a producer that registers at its start starts"


async def test_who_was_asked_in_place_of_the_writer_does_not_pass_it_on(members: list[Member]) -> None:
    await members[0].register("s", "a")
    for member in members:
        answer = await member.http.put("/config/s", json={"compatibility": "NONE"}, headers={"X-Forward": "true"})
        if member.schemas.is_led_here:
            assert answer.status_code == 200
        else:
            assert answer.json()["error_code"] == errors.UNKNOWN_PRIMARY


async def test_what_was_decided_in_one_term_is_not_written_in_another(members: list[Member]) -> None:
    await members[0].register("s", "a")
    (writer,) = [member for member in members if member.schemas.is_led_here]
    term = await writer.schemas.lead()
    with pytest.raises(BrokerError) as refusal:
        await writer.schemas.append([(b"k", b"v")], term - 1)
    assert refusal.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    (other, _) = [member for member in members if member is not writer]
    with pytest.raises(BrokerError) as refusal:
        await other.schemas.lead()
    assert refusal.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    runtime = writer.node.logs.get(SCHEMAS_TOPIC, 0)
    assert runtime is not None
    assert runtime.log_end_offset == writer.registry.next_offset


SECURED = {
    # Handshakes of all nodes share one event loop with everything else here.
    "controller.quorum.election.timeout.ms": "1500",
    "controller.quorum.fetch.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "9000",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "security.inter.broker.protocol": "SASL_SSL",
    "authorizer.class.name": "fluvial",
    "super.users": "User:node;User:admin",
    "connection.failed.authentication.delay.ms": "10",
    "listener.name.registry.ssl.client.auth": "requested",
    "listener.name.registry.ssl.principal.mapping.rules": "RULE:^CN=([a-z]+),C=DE$/$1/",
    "sasl.jaas.config": 'x required username="node" password="between" user_admin="all of it" user_ada="ada\'s";',
}


async def test_a_write_is_passed_on_in_the_name_of_who_asked(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = {"ssl.keystore.location": str(authority.issue("server")), "ssl.truststore.location": str(authority.path)}
    context = ssl.create_default_context(cafile=str(authority.path))
    by_certificate = ssl.create_default_context(cafile=str(authority.path))
    by_certificate.load_cert_chain(authority.issue("admin"))
    async with AsyncExitStack() as stack:
        settings = configs(tmp_path, **SECURED, **files)
        members = await asyncio.gather(*(begin(stack, each, verify=context) for each in settings))
        await eventually(lambda: all(len(member.node.cluster.alive_brokers()) == NODES for member in members))
        for number, member in enumerate(members):
            path = f"/subjects/s{number}-value/versions"
            content = {"schema": record_schema(f"f{number}")}
            denied = await member.http.post(path, json=content, auth=("ada", "ada's"))
            assert denied.json()["message"] == f"User is denied operation Write on Subject: s{number}-value"
            done = await member.http.post(path, json=content, auth=("admin", "all of it"))
            assert done.status_code == 200, done.text
            async with httpx.AsyncClient(base_url=member.http.base_url, verify=by_certificate, timeout=30) as shown:
                done = await shown.put(f"/config/s{number}-value", json={"compatibility": "NONE"})
                assert done.json() == {"compatibility": "NONE"}
            for other in members:
                await other.registry.refresh()
                told = await other.http.get(f"/fluvial/registrations/s{number}-value", auth=("admin", "all of it"))
                assert [each["by"] for each in told.json()] == ["admin"]
        assert sum(member.schemas.is_led_here for member in members) == 1
        # What a node would say of a user that it does not act for is not believed of the user.
        (writer,) = (member for member in members if member.schemas.is_led_here)
        forged = {"x-forward": "true", "x-fluvial-principal": "User%3Aadmin"}
        answer = await writer.http.delete("/subjects/s0-value", auth=("ada", "ada's"), headers=forged)
        assert answer.status_code == 403
