"""Settings as an admin client sees and changes them: sources, live effect, what is refused, what a restart keeps."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node_client import NodeClient, running

from log_broker.config.broker import BROKER_KEYS
from log_broker.config.topic_keys import TOPIC_KEY_OF_BROKER_NAME, TOPIC_KEYS
from log_broker.errors import ErrorCode
from log_broker.records import build_batch
from log_broker.server.ops.config_reports import ConfigSource
from log_broker.server.partitions.internal_log import stored_records
from log_broker.wire.apis import ApiKey

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def batch(*values: bytes, key: bytes | None = b"k") -> bytes:
    return bytes(build_batch([(time.time_ns() // 1_000_000, key, value, ()) for value in values]))


async def alter(
    client: NodeClient, kind: int, resource: str, *operations: tuple[str, int, str | None], validate_only: bool = False
) -> tuple[ErrorCode, str | None]:
    configs = tuple({"name": name, "config_operation": op, "value": value} for name, op, value in operations)
    wanted = {"resource_type": kind, "resource_name": resource, "configs": configs}
    request = {"resources": (wanted,), "validate_only": validate_only}
    (answer,) = (await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request)).responses
    return ErrorCode(answer.error_code), answer.error_message


async def replace_all(client: NodeClient, kind: int, resource: str, configs: Mapping[str, str | None]) -> ErrorCode:
    """The older way: what is not named goes back to its default."""
    given = tuple({"name": name, "value": value} for name, value in configs.items())
    wanted = {"resource_type": kind, "resource_name": resource, "configs": given}
    request = {"resources": (wanted,), "validate_only": False}
    (answer,) = (await client.ask(ApiKey.ALTER_CONFIGS, request)).responses
    return ErrorCode(answer.error_code)


async def describe(client: NodeClient, kind: int, resource: str, *names: str) -> dict[str, Any]:
    wanted = {"resource_type": kind, "resource_name": resource, "configuration_keys": names or None}
    request = {"resources": (wanted,), "include_synonyms": True, "include_documentation": True}
    (answer,) = (await client.ask(ApiKey.DESCRIBE_CONFIGS, request)).results
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    return {entry.name: entry for entry in answer.configs}


def levels(entry: Any) -> list[tuple[str, str, ConfigSource]]:
    return [(level.name, level.value, ConfigSource(level.source)) for level in entry.synonyms]


async def test_a_value_is_reported_with_every_level_below_it(tmp_path: Path) -> None:
    async with running(tmp_path / "node", {"log.retention.hours": "3"}) as (_, client):
        await client.create("t", retention_ms="5")
        await alter(client, BROKER, "", ("log.retention.ms", SET, "7"))
        await alter(client, BROKER, "0", ("log.retention.ms", SET, "6"))
        entry = (await describe(client, TOPIC, "t", "retention.ms"))["retention.ms"]
        assert levels(entry) == [
            ("retention.ms", "5", ConfigSource.DYNAMIC_TOPIC),
            ("log.retention.ms", "6", ConfigSource.DYNAMIC_BROKER),
            ("log.retention.ms", "7", ConfigSource.DYNAMIC_DEFAULT_BROKER),
            ("log.retention.ms", str(3 * 3_600_000), ConfigSource.STATIC_BROKER),
            ("log.retention.ms", TOPIC_KEYS["retention.ms"].default, ConfigSource.DEFAULT),
        ]
        for kind, resource, name, below in (
            (TOPIC, "t", "retention.ms", "6"),
            (BROKER, "0", "log.retention.ms", "7"),
            (BROKER, "", "log.retention.ms", "10800000"),
        ):
            assert await alter(client, kind, resource, (name, DELETE, None)) == (ErrorCode.NONE, None)
            assert (await describe(client, TOPIC, "t", "retention.ms"))["retention.ms"].value == below
        entry = (await describe(client, TOPIC, "t", "retention.ms"))["retention.ms"]
        assert (entry.value, entry.config_source) == ("10800000", ConfigSource.STATIC_BROKER)


async def test_everything_is_reported_with_its_type_and_what_it_does(tmp_path: Path) -> None:
    async with running(tmp_path / "node") as (_, client):
        await client.create("t")
        topic = await describe(client, TOPIC, "t")
        broker = await describe(client, BROKER, "0")
    assert set(topic) == set(TOPIC_KEYS)
    assert set(broker) >= set(BROKER_KEYS) | set(TOPIC_KEY_OF_BROKER_NAME) | {"node.id", "log.dirs", "listeners"}
    for entries, keys in ((topic, TOPIC_KEYS), (broker, BROKER_KEYS)):
        for name, key in keys.items():
            entry = entries[name]
            assert (entry.config_type, entry.documentation) == (key.type, key.doc)
            # What nobody set is what the number of replicas and of nodes makes of it.
            derived = {"default.replication.factor"} if keys is BROKER_KEYS else {"min.insync.replicas"}
            default = "1" if name in derived else key.default
            assert (entry.value, entry.config_source) == (default, ConfigSource.DEFAULT)
            assert entry.read_only is key.read_only
            assert not entry.is_sensitive
    assert broker["node.id"].read_only
    assert broker["log.dirs"].config_source == ConfigSource.STATIC_BROKER


async def test_a_change_takes_effect_at_once_and_survives_a_restart(tmp_path: Path) -> None:
    large = batch(b"x" * 5000)
    async with running(tmp_path / "node") as (_, client):
        await client.create("t")
        await client.create("own", max_message_bytes="1000000")
        assert (await client.produce("t", large)).error_code == ErrorCode.NONE
        assert await alter(client, BROKER, "", ("message.max.bytes", SET, "1000")) == (ErrorCode.NONE, None)
        assert (await client.produce("t", large)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert (await client.produce("own", large)).error_code == ErrorCode.NONE
        assert await alter(client, TOPIC, "t", ("max.message.bytes", SET, "9000")) == (ErrorCode.NONE, None)
        assert (await client.produce("t", large)).error_code == ErrorCode.NONE
        assert await alter(client, TOPIC, "own", ("max.message.bytes", DELETE, None)) == (ErrorCode.NONE, None)
        assert (await client.produce("own", large)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    async with running(tmp_path / "node") as (node, client):
        assert (await client.produce("t", large)).error_code == ErrorCode.NONE
        assert (await client.produce("own", large)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        entry = (await describe(client, TOPIC, "own", "max.message.bytes"))["max.message.bytes"]
        assert (entry.value, entry.config_source) == ("1000", ConfigSource.DYNAMIC_DEFAULT_BROKER)
        assert node.cluster.topics["t"].overrides == {"max.message.bytes": "9000"}


async def test_lists_are_added_to_and_taken_from(tmp_path: Path) -> None:
    async with running(tmp_path / "node") as (node, client):
        await client.create("t")
        assert await alter(client, TOPIC, "t", ("cleanup.policy", APPEND, "compact")) == (ErrorCode.NONE, None)
        assert node.cluster.topics["t"].config.cleanup_policy == {"delete", "compact"}
        assert await alter(client, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")) == (ErrorCode.NONE, None)
        assert node.cluster.topics["t"].config.cleanup_policy == {"compact"}
        code, message = await alter(client, TOPIC, "t", ("retention.ms", APPEND, "1"))
        assert code == ErrorCode.INVALID_CONFIG
        assert "not a list" in (message or "")


async def test_a_trial_changes_nothing_and_says_the_same(tmp_path: Path) -> None:
    async with running(tmp_path / "node") as (node, client):
        await client.create("t")
        trial = ("retention.ms", SET, "5")
        assert await alter(client, TOPIC, "t", trial, validate_only=True) == (ErrorCode.NONE, None)
        assert node.cluster.topics["t"].overrides == {}
        code, _ = await alter(client, TOPIC, "t", ("retention.ms", SET, "x"), validate_only=True)
        assert code == ErrorCode.INVALID_CONFIG


async def test_the_older_request_replaces_everything(tmp_path: Path) -> None:
    async with running(tmp_path / "node") as (node, client):
        await client.create("t", retention_ms="5", segment_bytes="100000")
        alias = "confluent.value.schema.validation"
        assert await replace_all(client, TOPIC, "t", {"retention.ms": "6", alias: "true"}) == ErrorCode.NONE
        assert node.cluster.topics["t"].overrides == {"retention.ms": "6", "fluvial.value.schema.validation": "id"}
        assert await replace_all(client, TOPIC, "t", {alias: "true"}) == ErrorCode.NONE
        assert node.cluster.topics["t"].overrides == {"fluvial.value.schema.validation": "id"}
        assert await replace_all(client, BROKER, "", {"log.retention.hours": "1"}) == ErrorCode.NONE
        assert await replace_all(client, BROKER, "", {"log.retention.hours": "2"}) == ErrorCode.NONE
        assert node.cluster.broker_overrides[None] == {"log.retention.ms": "7200000"}
        assert node.cluster.topics["t"].config.retention_ms == 7_200_000
        assert await replace_all(client, BROKER, "", {}) == ErrorCode.NONE
        assert node.cluster.broker_overrides[None] == {}


REFUSALS = (
    (TOPIC, "t", ("compression.type", SET, "rar"), ErrorCode.INVALID_CONFIG, "gzip, snappy, lz4, zstd"),
    (TOPIC, "t", ("segment.bytes", SET, "3"), ErrorCode.INVALID_CONFIG, "14 … "),
    (TOPIC, "t", ("message.format.version", SET, "2.0"), ErrorCode.INVALID_CONFIG, "message.format.version"),
    (TOPIC, "t", ("retention.ms", SET, None), ErrorCode.INVALID_REQUEST, "retention.ms"),
    (TOPIC, "t", ("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST, "operation"),
    (TOPIC, "absent", ("retention.ms", SET, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "absent"),
    (BROKER, "0", ("no.such.setting", SET, "1"), ErrorCode.INVALID_CONFIG, "no.such.setting"),
    (BROKER, "0", ("node.id", SET, "1"), ErrorCode.INVALID_REQUEST, "dynamically"),
    (BROKER, "7", ("num.partitions", SET, "1"), ErrorCode.INVALID_REQUEST, "7"),
    (BROKER, "0", ("num.partitions", SET, "0"), ErrorCode.INVALID_CONFIG, "1 … 100000"),
    (99, "0", ("root", SET, "DEBUG"), ErrorCode.INVALID_REQUEST, "99"),
)


async def test_what_cannot_be_set_is_refused_and_said(tmp_path: Path) -> None:
    async with running(tmp_path / "node") as (node, client):
        await client.create("t")
        for kind, resource, operation, code, said in REFUSALS:
            found, message = await alter(client, kind, resource, operation)
            assert (found, said in (message or "")) == (code, True), (operation, message)
        twice, _ = await alter(client, TOPIC, "t", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
        assert twice == ErrorCode.INVALID_REQUEST
        assert node.cluster.topics["t"].overrides == {}
        assert node.cluster.broker_overrides.get(0, {}) == {}


async def test_records_without_a_key_that_were_there_before_compaction_go_with_it(tmp_path: Path) -> None:
    async with running(tmp_path / "node") as (node, client):
        await client.create("t", segment_ms="1", min_cleanable_dirty_ratio="0")
        for value in (b"1", b"2"):
            assert (await client.produce("t", batch(value, key=None))).error_code == ErrorCode.NONE
        assert (await client.produce("t", batch(b"3"))).error_code == ErrorCode.NONE
        assert await alter(client, TOPIC, "t", ("cleanup.policy", SET, "compact")) == (ErrorCode.NONE, None)
        refused = await client.produce("t", batch(b"4", b"5", key=None))
        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert [error.batch_index for error in refused.record_errors] == [0, 1]
        assert "without a key" in refused.record_errors[0].batch_index_error_message
        runtime = node.logs.get("t", 0)
        assert runtime is not None
        before = runtime.size_bytes()
        time.sleep(0.01)  # noqa: ASYNC251 - lets segment.ms pass
        assert await node.logs.compact() == 1
        assert runtime.size_bytes() < before
        assert runtime.log_start_offset == 0, "offsets stay what they were"
        assert runtime.log_end_offset == 3
        assert [(record.offset, record.value) for record in stored_records(runtime)] == [(2, b"3")]
