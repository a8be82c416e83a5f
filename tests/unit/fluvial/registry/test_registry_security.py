"""A registry whose users are the cluster's: by password and by certificate over TLS, with the rights that ACLs give."""

import asyncio
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import Authority
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from typer.testing import CliRunner

from fluvial.cli.tree import whole
from fluvial.registry.client import RegistryClient
from fluvial.registry.errors import RegistryError
from fluvial.registry.model.ownership import Producer as RegistryProducer
from fluvial.registry.model.records import encode
from fluvial.registry.model.registry import SCHEMAS_TOPIC
from fluvial.registry.service.auth import hash_password
from fluvial.testing import EmbeddedPlatform, embedded_platform
from log_broker.errors import ErrorCode

PASSWORDS = {
    "admin": "the admin's own",
    "shop": "the shop's pass:word",
    "reader": "one that reads",
    "other": "another",
    "guest": "a guest of the kitchen",
}
GIVEN = "admin"
SCHEMA = '{"type":"record","name":"Order","fields":[{"name":"id","type":"string"}]}'
WIDER = (
    '{"type":"record","name":"Order","fields":[{"name":"id","type":"string"},{"name":"n","type":"int","default":0}]}'
)
FORMER, FORMER_PASSWORD = "former", "correct horse battery"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def platform(authority: Authority) -> Iterator[EmbeddedPlatform]:
    settings = {
        "security.inter.broker.protocol": "SASL_SSL",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "sasl.jaas.config": f'x required username="node" password="between" user_admin="{PASSWORDS["admin"]}";',
        "authorizer.class.name": "fluvial",
        "super.users": "User:node;User:admin;User:ghost",
        "ssl.keystore.location": str(authority.issue("node")),
        "ssl.truststore.location": str(authority.path),
        "listener.name.registry.ssl.client.auth": "requested",
        "listener.name.registry.ssl.principal.mapping.rules": "RULE:^CN=([a-z]+),C=DE$/$1/",
        "connection.failed.authentication.delay.ms": "10",
    }
    with embedded_platform(topics={"orders": 1}, config=settings) as running:
        admin = AdminClient(client_settings(running, authority, "admin"))
        users = [
            UserScramCredentialUpsertion(
                name, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), password.encode(), name.encode()
            )
            for name, password in PASSWORDS.items()
            if name != GIVEN
        ]
        for future in admin.alter_user_scram_credentials(users).values():
            future.result(20)
        allow(admin, "shop", "orders", AclOperation.WRITE)
        allow(admin, "reader", "orders", AclOperation.READ)
        allow(admin, "other", "visits", AclOperation.ALL)
        with httpx.Client(base_url=running.registry_url, verify=trusting(authority), auth=auth("admin")) as client:
            registered = client.post("/subjects/orders-value/versions", json={"schema": SCHEMA})
            assert registered.json() == {"id": 1}
        yield running


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.path))


def auth(user: str) -> tuple[str, str]:
    return user, PASSWORDS[user]


def allow(admin: AdminClient, user: str, topic: str, operation: AclOperation) -> None:
    binding = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )
    for future in admin.create_acls([binding]).values():
        future.result(20)


def client_settings(platform: EmbeddedPlatform, authority: Authority, user: str, password: str = "") -> dict[str, Any]:
    return {
        "bootstrap.servers": platform.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password or PASSWORDS[user],
        "ssl.ca.location": str(authority.path),
        "log_level": 0,
    }


@pytest.fixture
def clients(platform: EmbeddedPlatform, authority: Authority) -> Iterator[Callable[..., SchemaRegistryClient]]:
    """Confluent's own client as a user, known by password or by certificate."""
    with ExitStack() as stack:

        def made(user: str, *, by_certificate: bool = False) -> SchemaRegistryClient:
            settings = {"url": platform.registry_url, "ssl.ca.location": str(authority.path)}
            if by_certificate:
                path = str(authority.issue(user))
                settings |= {"ssl.certificate.location": path, "ssl.key.location": path}
            else:
                settings["basic.auth.user.info"] = f"{user}:{PASSWORDS[user]}"
            return stack.enter_context(SchemaRegistryClient(settings))

        yield made


@pytest.fixture
def asked(platform: EmbeddedPlatform, authority: Authority) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=platform.registry_url, verify=trusting(authority)) as client:
        yield client


def test_confluents_client_registers_and_reads_by_password(platform: EmbeddedPlatform, clients) -> None:
    assert platform.registry_url.startswith("https://")
    shop, reader = clients("shop"), clients("reader")
    schema_id = shop.register_schema("orders-value", Schema(SCHEMA, "AVRO"))
    assert reader.get_schema(schema_id).schema_str is not None
    assert reader.get_latest_version("orders-value").version == 1
    assert "orders-value" in reader.get_subjects()
    assert reader.register_schema("orders-value", Schema(SCHEMA, "AVRO")) == schema_id, "what is there already is read"


def test_confluents_client_is_known_by_its_certificate(clients) -> None:
    schema_id = clients("shop", by_certificate=True).register_schema("orders-value", Schema(SCHEMA, "AVRO"))
    assert clients("reader", by_certificate=True).get_schema(schema_id)
    with pytest.raises(SchemaRegistryError) as refused:
        clients("other", by_certificate=True).get_schema(schema_id)
    assert (refused.value.http_status_code, refused.value.error_code) == (403, 40301)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "Basic ???",
        "Bearer abc",
        "Basic bm9jb2xvbg==",
        ("nobody", "at all"),
        ("shop", "wrong"),
        ("ANONYMOUS", "x"),
    ],
)
def test_who_is_not_let_in_is_answered_as_confluent_does(asked: httpx.Client, header: Any) -> None:
    given = {"auth": header} if isinstance(header, tuple) else {"headers": {"authorization": header} if header else {}}
    for method, path in (("GET", "/subjects"), ("GET", "/no/such/path"), ("PUT", "/config")):
        answer = asked.request(method, path, **given)
        assert (answer.status_code, answer.content) == (401, b'{"error_code":401,"message":"Unauthorized"}')
        assert answer.headers["www-authenticate"] == 'basic realm="SchemaRegistry-Props"'
        assert answer.headers["content-type"] == "application/vnd.schemaregistry.v1+json"


def test_without_tls_nothing_is_answered(platform: EmbeddedPlatform) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(platform.registry_url.replace("https:", "http:") + "/subjects")


CALLS = [
    ("GET", "/subjects/orders-value/versions", None, "Read"),
    ("GET", "/subjects/orders-value/versions/1", None, "Read"),
    ("GET", "/subjects/orders-value/versions/1/schema", None, "Read"),
    ("GET", "/subjects/orders-value/versions/1/referencedby", None, "Read"),
    ("GET", "/subjects/orders-value/metadata", None, "Read"),
    ("POST", "/subjects/orders-value", {"schema": SCHEMA}, "Read"),
    ("POST", "/compatibility/subjects/orders-value/versions", {"schema": SCHEMA}, "Read"),
    ("POST", "/compatibility/subjects/orders-value/versions/1", {"schema": SCHEMA}, "Read"),
    ("GET", "/schemas/ids/1", None, "Read"),
    ("GET", "/schemas/ids/1/schema", None, "Read"),
    ("GET", "/schemas/ids/1/subjects", None, "Read"),
    ("GET", "/config/orders-value", None, "ReadCompatibility"),
    ("GET", "/mode/orders-value", None, "ReadCompatibility"),
    ("GET", "/fluvial/owners/orders-value", None, "Read"),
    ("GET", "/fluvial/registrations/orders-value", None, "Read"),
    ("POST", "/subjects/orders-value/versions", {"schema": WIDER}, "Write"),
    ("PUT", "/fluvial/owners/orders-value", {"owner": "other"}, "Write"),
    ("DELETE", "/subjects/orders-value", None, "Delete"),
    ("DELETE", "/subjects/orders-value/versions/1", None, "Delete"),
    ("PUT", "/config/orders-value", {"compatibility": "NONE"}, "WriteCompatibility"),
    ("DELETE", "/config/orders-value", None, "WriteCompatibility"),
    ("PUT", "/mode/orders-value", {"mode": "IMPORT"}, "WriteCompatibility"),
    ("DELETE", "/mode/orders-value", None, "WriteCompatibility"),
]


@pytest.mark.parametrize(("method", "path", "content", "word"), CALLS, ids=[f"{c[0]} {c[1]}" for c in CALLS])
def test_each_call_is_denied_without_the_right(
    asked: httpx.Client, method: str, path: str, content: Any, word: str
) -> None:
    denied = f"User is denied operation {word} on Subject: orders-value"
    answer = asked.request(method, path, json=content, auth=auth("other"))
    assert (answer.status_code, answer.json()) == (403, {"error_code": 40301, "message": denied})
    if word in {"Write", "Delete", "WriteCompatibility"}:
        answer = asked.request(method, path, json=content, auth=auth("reader"))
        assert (answer.status_code, answer.json()["message"]) == (403, denied)
    assert asked.get("/subjects/orders-value/versions", auth=auth("reader")).json() == [1]


def test_what_may_not_be_read_is_not_mentioned(asked: httpx.Client, clients) -> None:
    clients("other").register_schema("visits-value", Schema('"string"', "AVRO"))
    assert asked.get("/subjects", auth=auth("other")).json() == ["visits-value"]
    assert [each["subject"] for each in asked.get("/schemas", auth=auth("other")).json()] == ["visits-value"]
    assert {"orders-value", "visits-value"} <= set(asked.get("/subjects", auth=auth("admin")).json())
    # One text under two subjects is read by whoever may read one of them, and is placed there.
    shared = clients("other").register_schema("visits-key", Schema(SCHEMA, "AVRO"))
    headers = {"confluent-client-version": "python/2"}
    found = asked.get(f"/schemas/ids/{shared}?subject=orders-value", auth=auth("other"), headers=headers)
    assert found.json()["subject"] == "visits-key"
    assert asked.get(f"/schemas/ids/{shared}/subjects", auth=auth("other")).json() == ["visits-key"]
    assert asked.delete("/subjects/visits-key", auth=auth("other")).status_code == 200
    assert asked.delete("/subjects/visits-key?permanent=true", auth=auth("other")).status_code == 200


def test_a_reference_shows_nothing_that_may_not_be_read(asked: httpx.Client) -> None:
    content = {
        "schema": '{"type":"record","name":"Visit","fields":[{"name":"order","type":"Order"}]}',
        "references": [{"name": "Order", "subject": "orders-value", "version": 1}],
    }
    for path in ("/subjects/visits-value/versions", "/subjects/visits-value"):
        answer = asked.post(path, json=content, auth=auth("other"))
        assert answer.json() == {
            "error_code": 40301,
            "message": "User is denied operation Read on Subject: orders-value",
        }


def test_an_alias_opens_nothing(asked: httpx.Client) -> None:
    assert asked.put("/config/visits-value", json={"alias": "orders-value"}, auth=auth("other")).status_code == 200
    try:
        answer = asked.get("/subjects/visits-value/versions/1", auth=auth("other"))
        assert answer.json()["message"] == "User is denied operation Read on Subject: orders-value"
    finally:
        assert asked.delete("/config/visits-value", auth=auth("other")).status_code == 200


def test_what_holds_for_all_takes_alter_on_the_cluster(asked: httpx.Client) -> None:
    for user in ("shop", "other", "reader"):
        assert asked.get("/config", auth=auth(user)).status_code == 200
        for path, content in (("/config", {"compatibility": "FULL"}), ("/mode", {"mode": "READONLY"})):
            answer = asked.put(path, json=content, auth=auth(user))
            assert (answer.status_code, answer.json()["error_code"]) == (403, 40301)
        assert asked.put("/config/:.staging:", json={"compatibility": "NONE"}, auth=auth(user)).status_code == 403
        assert asked.delete("/contexts/.staging", auth=auth(user)).status_code == 403
    assert asked.put("/config", json={"compatibility": "BACKWARD"}, auth=auth("admin")).status_code == 200


def test_an_owner_is_a_user_and_needs_no_more_than_write(asked: httpx.Client) -> None:
    subject = "/fluvial/owners/orders-key"
    put = asked.put("/fluvial/producers/shop", json={"contact": "orders@shop.example"}, auth=auth("shop"))
    assert put.json()["producer"] == "shop"
    assert asked.put(subject, json={"owner": "shop"}, auth=auth("other")).status_code == 403
    assert asked.put(subject, json={"owner": "shop"}, auth=auth("shop")).json()["owner"] == "shop"
    assert asked.put("/config/orders-key", json={"compatibility": "FULL"}, auth=auth("shop")).status_code == 200
    assert asked.post("/subjects/orders-key/versions", json={"schema": '"int"'}, auth=auth("shop")).status_code == 200
    assert asked.delete("/subjects/orders-key", auth=auth("shop")).status_code == 200
    assert asked.post("/subjects/orders-key/versions", json={"schema": '"int"'}, auth=auth("admin")).status_code == 200
    history = asked.get(subject, auth=auth("shop")).json()["history"]
    assert [(each["by"], each["to"]) for each in history] == [("shop", "shop")]
    for content in ({"contact": "mine@now.example"}, {"contact": "orders@shop.example", "password": "x" * 20}):
        answer = asked.put("/fluvial/producers/shop", json=content, auth=auth("other"))
        assert answer.status_code in {400, 403}
    answer = asked.put("/fluvial/producers/stranger", json={"contact": "a@b.example"}, auth=auth("other"))
    assert answer.status_code == 403, "nobody makes others known"


def test_nobody_but_a_node_acts_for_another(asked: httpx.Client) -> None:
    headers = {"x-fluvial-principal": "User%3Aadmin", "x-forward": "true"}
    answer = asked.put("/config", json={"compatibility": "NONE"}, auth=auth("other"), headers=headers)
    assert (answer.status_code, answer.json()["error_code"]) == (403, 40301)
    assert "only nodes act for others" in answer.json()["message"]
    for_other = {"x-fluvial-principal": "User%3Aother"}
    for_node = asked.get("/subjects/orders-value/versions", auth=("node", "between"), headers=for_other)
    assert for_node.status_code == 403, "a node has the rights of whom it acts for"
    mangled = asked.get("/subjects", auth=("node", "between"), headers={"x-fluvial-principal": "nobody"})
    assert mangled.status_code == 400


def test_a_former_producer_becomes_a_user_once(platform: EmbeddedPlatform, authority: Authority, asked) -> None:
    produce_producer(platform, FORMER, FORMER_PASSWORD)
    with pytest.raises(KafkaException):
        describe(platform, authority, FORMER, FORMER_PASSWORD)
    assert asked.get("/subjects", auth=(FORMER, "another password")).status_code == 401
    assert asked.get("/fluvial/principal", auth=(FORMER, FORMER_PASSWORD)).json() == {"principal": "User:former"}
    describe(platform, authority, FORMER, FORMER_PASSWORD)
    admin = AdminClient(client_settings(platform, authority, "admin"))
    changed = UserScramCredentialUpsertion(
        FORMER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), b"a new password", b"salt"
    )
    for future in admin.alter_user_scram_credentials([changed]).values():
        future.result(20)
    assert asked.get("/subjects", auth=(FORMER, "a new password")).status_code == 200
    assert asked.get("/subjects", auth=(FORMER, FORMER_PASSWORD)).status_code == 401


def test_a_name_that_may_do_everything_is_not_taken_over_from_a_producer(platform, authority, asked) -> None:
    for name in ("node", "ghost"):
        produce_producer(platform, name, "a stranger's password")
        assert asked.get("/subjects", auth=(name, "a stranger's password")).status_code == 401


def produce_producer(platform: EmbeddedPlatform, name: str, password: str) -> None:
    """Write a producer as it was kept before the registry had the cluster's users."""
    record = RegistryProducer(name=name, contact="former@producer.example", password=hash_password(password))
    registry = asyncio.run_coroutine_threadsafe(written(platform, encode(record)), platform.broker.node.loop)
    registry.result(20)


async def written(platform: EmbeddedPlatform, record: tuple[bytes, bytes | None]) -> None:
    from log_broker.server.partitions.internal_log import TopicLog

    log = TopicLog(platform.broker.node, SCHEMAS_TOPIC)
    await log.append([record], await log.lead())
    await platform.registry.refresh()


def describe(platform: EmbeddedPlatform, authority: Authority, user: str, password: str) -> None:
    admin = AdminClient({**client_settings(platform, authority, user, password), "socket.timeout.ms": 3000})
    admin.list_topics(timeout=3)


def test_a_certificate_that_is_replaced_is_shown_to_the_next_client(platform, authority, asked) -> None:
    assert asked.get("/schemas/types", auth=auth("reader")).status_code == 200
    before = shown(platform)
    authority.issue("node")
    deadline = time.monotonic() + 30
    while shown(platform) == before:
        assert time.monotonic() < deadline, "the former certificate is shown still"
        time.sleep(0.1)
    assert asked.get("/schemas/types", auth=auth("reader")).status_code == 200


def shown(platform: EmbeddedPlatform) -> str:
    host, _, port = platform.registry_url.removeprefix("https://").partition(":")
    return ssl.get_server_certificate((host, int(port)))


def test_our_own_client_says_what_is_wrong(platform: EmbeddedPlatform, authority: Authority) -> None:
    with RegistryClient(platform.registry_url) as stranger, pytest.raises(RegistryError, match=r"ssl\.ca\.location"):
        stranger.subjects()


CONTRACT = """
producer = "kitchen"
contact = "kitchen@shop.example"
subjects = ["meals-value"]
{more}
[topics.meals]
partitions = 2
retention.ms = 3600000
"""


def test_contract_topic_and_validation_are_one_act(
    platform: EmbeddedPlatform, authority: Authority, asked: httpx.Client, tmp_path: Path
) -> None:
    folder = tmp_path / "schemas/kitchen"
    folder.mkdir(parents=True)
    (folder / "meals.avsc").write_text(SCHEMA.replace("Order", "Meal"))
    (folder / "owner.toml").write_text(CONTRACT.format(more='principal = "User:shop"'))
    registered = schema_register(platform, authority, "admin", tmp_path)
    assert registered.exit_code == 0, registered.output
    assert registered.output.splitlines()[-1] == "topic meals created"
    topic = platform.broker.node.cluster.topics["meals"]
    assert len(topic.partitions) == 2
    assert topic.overrides == {"retention.ms": "3600000", "fluvial.value.schema.validation": "payload"}
    assert asked.get("/fluvial/owners/meals-value", auth=auth("admin")).json()["owner"] == "shop"

    # What its owner says is the owner's to say, and what it does not say stays.
    text = CONTRACT.format(more='principal = "User:shop"').replace("3600000", "7200000").replace("= 2", "= 4")
    (folder / "owner.toml").write_text(text)
    again = schema_register(platform, authority, "admin", tmp_path)
    assert "topic meals keeps its 2 partitions" in again.output
    assert again.output.splitlines()[-1] == "topic meals set: retention.ms=7200000"
    refused = schema_register(platform, authority, "other", tmp_path)
    assert refused.exit_code == 1
    assert "is changed by itself or an administrator" in str(refused.exception)

    # ACLs let both write; the owner alone may.
    admin = AdminClient(client_settings(platform, authority, "admin"))
    schema_id = asked.get("/subjects/meals-value/versions/1", auth=auth("admin")).json()["id"]
    record = b"\0" + schema_id.to_bytes(4, "big") + b"\x02a"
    for user in ("shop", "guest"):
        allow(admin, user, "meals", AclOperation.WRITE)
    assert produced(platform, authority, "shop", record) is None
    assert produced(platform, authority, "shop", b"rubbish") == ErrorCode.INVALID_RECORD
    assert produced(platform, authority, "guest", record) == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def schema_register(platform: EmbeddedPlatform, authority: Authority, user: str, folder: Path) -> Any:
    settings = folder / f"{user}.properties"
    lines = {name: value for name, value in client_settings(platform, authority, user).items() if name != "log_level"}
    lines |= {
        "basic.auth.user.info": f"{user}:{PASSWORDS[user]}",
        "schema.registry.ssl.ca.location": str(authority.path),
        "schema.registry.url": platform.registry_url,
    }
    settings.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    words = ["schema", "register", str(folder / "schemas"), "--command-config", str(settings)]
    return CliRunner().invoke(whole(), words)


def produced(platform: EmbeddedPlatform, authority: Authority, user: str, record: bytes) -> int | None:
    errors: list[int | None] = []
    producer = Producer({**client_settings(platform, authority, user), "message.timeout.ms": 10_000})
    producer.produce(
        "meals", record, key=b"a", on_delivery=lambda error, _: errors.append(None if error is None else error.code())
    )
    assert producer.flush(20) == 0
    return errors[0]


def test_the_platform_of_a_projects_tests_reaches_itself(platform: EmbeddedPlatform, tmp_path: Path) -> None:
    folder = tmp_path / "schemas/shop"
    folder.mkdir(parents=True)
    (folder / "visitors.avsc").write_text(SCHEMA.replace("Order", "Visitor"))
    owner = CONTRACT.format(more="").replace("kitchen", "shop").replace("meals", "visitors")
    (folder / "owner.toml").write_text(owner)
    platform.register(tmp_path / "schemas")
    platform.send("visitors", [{"id": "a"}, {"id": "b"}], key="id")
    with platform.settings().registry.client() as client:
        assert client.principal() == "User:node"
        assert client.owner("visitors-value")["owner"] == "shop"
    assert platform.broker.node.cluster.topics["visitors"].overrides["fluvial.value.schema.validation"] == "payload"
