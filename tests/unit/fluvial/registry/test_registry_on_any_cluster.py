"""`fluvial schema serve`: several registries over one topic of a cluster that knows nothing of them."""

import asyncio
import os
import signal
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import pytest
from certificates import Authority
from confluent_kafka.admin import AdminClient, NewTopic
from test_registry_state import picture, record_schema, register
from typer.testing import CliRunner

import log_broker
from fluvial.cli.tree import whole
from fluvial.registry import errors
from fluvial.registry.logs.kafka_log import KafkaLog
from fluvial.registry.model.commands import DeleteSubject
from fluvial.registry.model.registry import Registry
from log_broker.errors import BrokerError
from log_broker.server.embedded import EmbeddedBroker
from tests.free_ports import free_port

Open = Callable[[], Awaitable[tuple[Registry, KafkaLog]]]


@pytest.fixture
def kafka_broker() -> Iterator[EmbeddedBroker]:
    with log_broker.embedded() as broker:
        yield broker


@pytest.fixture
async def opened(kafka_broker: EmbeddedBroker) -> AsyncIterator[Open]:
    """Open as many registries over one topic as a test wants."""
    logs: list[KafkaLog] = []

    async def open_one() -> tuple[Registry, KafkaLog]:
        schemas = KafkaLog({"bootstrap.servers": kafka_broker.bootstrap_servers}, "_schemas")
        logs.append(schemas)
        await schemas.open()
        registry = Registry(schemas)
        await registry.open()
        return registry, schemas

    yield open_one
    for each in logs:
        await each.close()


async def until_written(registry: Registry, subject: str, schema: str) -> int:
    """Register as the HTTP side does: what was not written, or may have been, is said again."""
    while True:
        try:
            return (await register(registry, subject, schema)).id
        except errors.RefusedError as error:
            if error.code not in {errors.UNKNOWN_PRIMARY, errors.STORE_FAILED}:
                raise


async def test_what_is_acknowledged_is_there_for_who_opens_later(opened: Open) -> None:
    first, _ = await opened()
    for number in range(4):
        await register(first, f"s{number % 2}", record_schema(*"abcd"[:number]))
    await first.apply(DeleteSubject(subject="s1", permanent=False), action="delete")
    second, _ = await opened()
    assert picture(second) == picture(first)


async def test_registries_that_write_at_once_give_no_id_twice(opened: Open) -> None:
    registries = [(await opened())[0] for _ in range(3)]
    ids: dict[str, set[int]] = {}

    async def write(registry: Registry, names: str) -> None:
        for name in names:
            ids.setdefault(name, set()).add(await until_written(registry, f"s-{name}", record_schema(name)))

    await asyncio.gather(*(write(each, names) for each, names in zip(registries, ("abc", "cde", "efa"), strict=True)))
    assert Counter(len(each) for each in ids.values()) == {1: 6}, "one schema, one id, whoever was asked"
    assert sorted(next(iter(each)) for each in ids.values()) == [1, 2, 3, 4, 5, 6]
    for each in registries:
        await each.refresh()
    assert picture(registries[0]) == picture(registries[1]) == picture(registries[2])


async def test_who_was_fenced_decides_again_on_what_is_there_now(opened: Open) -> None:
    (first, _), (second, _) = await opened(), await opened()
    assert await until_written(first, "a", record_schema("a")) == 1
    assert await until_written(second, "b", record_schema("b")) == 2
    with pytest.raises(errors.RefusedError) as refused:
        await register(first, "c", record_schema("c"))
    assert refused.value.code == errors.UNKNOWN_PRIMARY
    assert await until_written(first, "c", record_schema("c")) == 3


async def test_news_are_known_once(opened: Open) -> None:
    (first, _), (second, schemas) = await opened(), await opened()
    assert not await schemas.has_new_records()
    await register(first, "a", record_schema("a"))
    assert await schemas.has_new_records()
    await second.refresh()
    assert second.state.subjects() == ["a"]
    assert not await schemas.has_new_records(), "the marker behind the last record is no news"


@pytest.mark.parametrize(
    ("partitions", "config", "reason"),
    [(2, {"cleanup.policy": "compact"}, "has 2 partitions"), (1, {"cleanup.policy": "delete"}, "set it to compact")],
)
async def test_a_topic_that_would_lose_schemas_is_refused(
    kafka_broker: EmbeddedBroker, partitions: int, config: dict[str, str], reason: str
) -> None:
    client = {"bootstrap.servers": kafka_broker.bootstrap_servers}
    new = NewTopic("_schemas", num_partitions=partitions, replication_factor=1, config=config)
    admin = AdminClient(client)
    admin.create_topics([new])["_schemas"].result()
    schemas = KafkaLog(client, "_schemas")
    try:
        with pytest.raises(BrokerError, match=reason):
            await schemas.open()
    finally:
        await schemas.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_command_serves_until_it_is_stopped(kafka_broker: EmbeddedBroker, tmp_path: Path, scheme: str) -> None:
    port = free_port()
    command = [sys.executable, "-m", "fluvial.cli.main", "schema", "serve", "--port", str(port)]
    command += ["--bootstrap-server", kafka_broker.bootstrap_servers]
    verify: ssl.SSLContext | bool = False
    if scheme == "https":
        authority = Authority(tmp_path)
        command += ["--certificate", str(authority.issue("registry")), "--host", "127.0.0.1"]
        verify = ssl.create_default_context(cafile=str(authority.path))
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}) as process:
        assert process.stderr is not None
        url = f"{scheme}://127.0.0.1:{port}"
        assert url in process.stderr.readline()
        content = {"schema": record_schema("a")}
        answer = httpx.post(f"{url}/subjects/a-value/versions", json=content, timeout=30, verify=verify)
        assert answer.json() == {"id": 1}
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_what_others_reach_takes_a_certificate_or_a_word(kafka_broker: EmbeddedBroker) -> None:
    words = ["schema", "serve", "--bootstrap-server", kafka_broker.bootstrap_servers, "--host", "0.0.0.0"]
    refused = CliRunner().invoke(whole(), words)
    assert refused.exit_code == 1
    assert "--certificate, or say that it is meant with --allow-plaintext" in str(refused.exception)
