"""Records that break their contract are put aside, once, and the good ones of their batch enter in their order."""

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from node_client import NodeClient, client_of
from quarantine_node import NoBad, batch_of, stored, told
from several_nodes import cluster, coordinated_by, eventually, topic_of

from log_broker.config.broker import BrokerConfig
from log_broker.errors import ErrorCode
from log_broker.records import Codec, Record
from log_broker.records.batch import TRANSACTIONAL
from log_broker.server.coordinators.internal_topics import ensure_transactions_topic
from log_broker.server.node import Node
from log_broker.server.ops.quarantine import REASON_FORGOTTEN
from log_broker.wire.apis import ApiKey

NONE = ErrorCode.NONE
QUARANTINES = {"fluvial_value_schema_validation": "payload", "fluvial_schema_violation": "quarantine"}


@asynccontextmanager
async def running(data_dir: Path, registry: NoBad | None = None) -> Any:
    node = Node(BrokerConfig(data_dir=data_dir, port=0), validator=registry or NoBad())
    await node.start()
    try:
        async with client_of(node) as client:
            yield node, client
    finally:
        await node.stop()


def at(records: Sequence[Record]) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in records]


@pytest.mark.parametrize("codec", Codec)
async def test_the_bad_ones_of_a_batch_are_put_aside(tmp_path: Path, codec: Codec) -> None:
    async with running(tmp_path) as (node, client):
        await client.create("t", partitions=2, retention_ms="77", **QUARANTINES)
        first = await client.produce("t", batch_of(b"a", b"b", codec=codec), partition=1)
        answer = await client.produce("t", batch_of(b"c", b"bad1", b"d", None, codec=codec), partition=1)
        assert (first.error_code, answer.error_code, answer.base_offset) == (NONE, NONE, 2)
        assert answer.record_errors == ()
        after = await client.produce("t", batch_of(b"e", codec=codec), partition=1)
        assert after.base_offset == 6
        assert at(stored(node, "t", partition=1)) == [(0, b"a"), (1, b"b"), (2, b"c"), (4, b"d"), (6, b"e")]
        aside = stored(node, "t.quarantine", partition=1)
        assert [(each.key, each.value, each.timestamp) for each in aside] == [
            (b"k1", b"bad1", 1001),
            (b"k3", None, 1003),
        ]
        assert aside[0].headers[0] == ("own", b"1")
        assert told(aside[0]) == {
            "reason": "this one is bad",
            "part": "value",
            "field": "flight.tail",
            "topic": "t",
            "partition": "1",
            "offset": "3",
            "timestamp": "1001",
        }
        assert told(aside[1])["offset"] == "5"
        image = node.cluster.topics["t.quarantine"]
        assert len(image.partitions) == 2
        assert image.overrides["retention.ms"] == "77"
        assert node.quarantine.records == 2


async def test_a_batch_of_bad_ones_alone_takes_its_offsets(tmp_path: Path) -> None:
    producer = (7, 0, 0)
    async with running(tmp_path) as (node, client):
        await client.create("t", **QUARANTINES)
        answer = await client.produce("t", batch_of(b"bad", b"bad", producer=producer, codec=Codec.ZSTD))
        assert (answer.error_code, answer.base_offset) == (NONE, 0)
        answer = await client.produce("t", batch_of(b"good", producer=(7, 0, 2)))
        assert (answer.error_code, answer.base_offset) == (NONE, 2)
    async with running(tmp_path) as (node, client):
        assert at(stored(node, "t")) == [(2, b"good")]
        assert at(stored(node, "t.quarantine")) == [(0, b"bad"), (1, b"bad")]
        assert (await client.produce("t", batch_of(b"next", producer=(7, 0, 3)))).base_offset == 3


async def test_without_quarantine_the_producer_is_told_of_each(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, client):
        await client.create("t", partitions=2, fluvial_value_schema_validation="payload")
        data = [
            {"index": 0, "records": batch_of(b"a", b"bad", b"b", b"bad")},
            {"index": 1, "records": batch_of(b"fine")},
        ]
        request = {
            "transactional_id": None,
            "acks": -1,
            "timeout": 1000,
            "topic_data": ({"name": "t", "partition_data": data},),
        }
        refused, taken = (await client.ask(ApiKey.PRODUCE, request, version=9)).responses[0].partition_responses
        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert [(each.batch_index, each.batch_index_error_message) for each in refused.record_errors] == [
            (1, "this one is bad"),
            (3, "this one is bad"),
        ]
        assert "record 1: this one is bad" in refused.error_message
        assert taken.error_code == NONE
        assert stored(node, "t") == []
        assert "t.quarantine" not in node.cluster.topics


async def test_clients_do_not_write_to_a_quarantine(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create("t", **QUARANTINES)
        await client.produce("t", batch_of(b"bad"))
        for name in ("t", "__admin_client"):
            answer = await client.produce("t.quarantine", batch_of(b"forged"), name=name)
            assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_a_repeated_batch_is_put_aside_once(tmp_path: Path) -> None:
    batches = [batch_of(b"bad%d" % each, b"good", producer=(7, 0, 2 * each)) for each in range(5)]
    async with running(tmp_path) as (node, client):
        await client.create("t", **QUARANTINES)
        for each in [*batches, *batches]:
            assert (await client.produce("t", each)).error_code == NONE
    async with running(tmp_path) as (node, client):
        for number, each in enumerate(batches):
            answer = await client.produce("t", each)
            assert (answer.error_code, answer.base_offset) == (NONE, 2 * number)
        assert [record.value for record in stored(node, "t.quarantine")] == [b"bad%d" % each for each in range(5)]
        assert [told(record)["producer.sequence"] for record in stored(node, "t.quarantine")] == [
            "0",
            "2",
            "4",
            "6",
            "8",
        ]
        assert at(stored(node, "t")) == [(2 * each + 1, b"good") for each in range(5)]


@pytest.mark.parametrize("strict", [True, False], ids=["the same registry", "another registry by then"])
async def test_what_a_crash_has_kept_from_the_quarantine_comes_with_the_repetition(
    tmp_path: Path, strict: bool
) -> None:
    repeated = batch_of(b"good", b"bad", producer=(7, 0, 0))
    registry = NoBad()
    async with running(tmp_path, registry) as (node, client):
        await client.create("t", **QUARANTINES)
        runtime = node.logs.get("t", 0)
        answer = asyncio.get_running_loop().create_future()
        runtime.append(repeated, acks=-1, done=answer.set_result)  # as if it died behind this
        assert [fault.at for fault in (await answer).left_out] == [1]
        assert "t.quarantine" not in node.cluster.topics
    registry.strict = strict
    async with running(tmp_path, registry) as (node, client):
        for _ in range(2):
            assert (await client.produce("t", repeated)).error_code == NONE
        assert at(stored(node, "t")) == [(0, b"good")]
        (aside,) = stored(node, "t.quarantine")
        assert (aside.value, told(aside)["offset"]) == (b"bad", "1")
        assert told(aside)["reason"] == ("this one is bad" if strict else REASON_FORGOTTEN)


async def test_acks_0_does_not_wait(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, client):
        await client.create("t", **QUARANTINES)
        answer = asyncio.get_running_loop().create_future()
        node.quarantine.append(
            node.logs.get("t", 0), memoryview(bytearray(batch_of(b"bad", b"a"))), acks=0, done=answer.set_result
        )
        assert answer.done()
        await eventually(lambda: len(stored(node, "t.quarantine")) == 1)
        await eventually(lambda: at(stored(node, "t")) == [(1, b"a")])


async def test_a_quarantine_grows_with_its_topic(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, client):
        await client.create("t", **QUARANTINES)
        assert (await client.produce("t", batch_of(b"bad"))).error_code == NONE
        await node.authority.add_partitions("t", 3)
        assert (await client.produce("t", batch_of(b"bad", b"a"), partition=2)).error_code == NONE
        assert [told(each)["partition"] for each in stored(node, "t.quarantine", partition=2)] == ["2"]


class TransactionalProducer:
    """One that speaks frames, by which it can leave out or repeat what it likes."""

    def __init__(self, client: NodeClient, version: int) -> None:
        self.client = client
        self.version = version
        self.producer = (-1, -1)
        self.sequence = 0

    async def init(self) -> None:
        fields = {"transactional_id": "x", "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        answer = await self.client.ask(ApiKey.INIT_PRODUCER_ID, fields, version=4)
        assert answer.error_code == NONE
        self.producer = (answer.producer_id, answer.producer_epoch)

    def batch(self, *values: bytes, **fields: Any) -> bytes:
        made = batch_of(*values, producer=(*self.producer, self.sequence), attributes=TRANSACTIONAL, **fields)
        self.sequence += len(values)
        return made

    async def add(self) -> None:
        if self.version < 12:
            values = {
                "v3_and_below_transactional_id": "x",
                "v3_and_below_producer_id": self.producer[0],
                "v3_and_below_producer_epoch": self.producer[1],
                "v3_and_below_topics": [{"name": "t", "partitions": [0]}],
            }
            answer = await self.client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, values, version=3)
            assert answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == NONE

    async def produce(self, batch: bytes) -> ErrorCode:
        data = {"name": "t", "partition_data": ({"index": 0, "records": batch},)}
        request = {"transactional_id": "x", "acks": -1, "timeout": 30_000, "topic_data": (data,)}
        answer = await self.client.ask(ApiKey.PRODUCE, request, version=self.version)
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    async def end(self, committed: bool) -> None:
        fields = {
            "transactional_id": "x",
            "producer_id": self.producer[0],
            "producer_epoch": self.producer[1],
            "committed": committed,
        }
        answer = await self.client.ask(ApiKey.END_TXN, fields, version=5 if self.version >= 12 else 3)
        assert answer.error_code == NONE
        if self.version >= 12:
            self.producer, self.sequence = (answer.producer_id, answer.producer_epoch), 0


@pytest.mark.parametrize("version", [11, 12], ids=["client adds partitions", "KIP-890"])
@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
async def test_the_quarantine_follows_the_transaction(tmp_path: Path, version: int, committed: bool) -> None:
    async with running(tmp_path) as (node, client):
        await ensure_transactions_topic(node)
        await client.create("t", **QUARANTINES)
        producer = TransactionalProducer(client, version)
        await producer.init()
        for values in ((b"bad1", b"bad2"), (b"good", b"bad3")):
            await producer.add()
            batch = producer.batch(*values, codec=Codec.LZ4)
            assert await producer.produce(batch) is NONE
            assert await producer.produce(batch) is NONE, "repeated"
        assert stored(node, "t.quarantine", committed=True) == []
        await producer.end(committed)
        await eventually(lambda: not any(_open(node, name) for name in ("t", "t.quarantine")))
        expected = [b"bad1", b"bad2", b"bad3"] if committed else []
        assert [each.value for each in stored(node, "t.quarantine", committed=True)] == expected
        assert [each.value for each in stored(node, "t", committed=True)] == ([b"good"] if committed else [])
        await producer.add()
        assert await producer.produce(producer.batch(b"bad4", b"later")) is NONE
        await producer.end(True)
        await eventually(lambda: len(stored(node, "t.quarantine", committed=True)) == len(expected) + 1)
        await eventually(lambda: b"later" in [each.value for each in stored(node, "t", committed=True)])


def _open(node: Node, topic: str) -> bool:
    runtime = node.logs.get(topic, 0)
    return runtime.last_stable_offset != runtime.high_watermark


async def test_a_node_that_dies_within_a_transaction_loses_none_and_doubles_none(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, client):
        await ensure_transactions_topic(node)
        await client.create("t", **QUARANTINES)
        producer = TransactionalProducer(client, 12)
        await producer.init()
        first, second = producer.batch(b"bad1", b"good1"), producer.batch(b"bad2", b"good2")
        assert await producer.produce(first) is NONE
        answer = asyncio.get_running_loop().create_future()
        node.logs.get("t", 0).append(second, acks=-1, done=answer.set_result)  # as if it died behind this
        assert (await answer).error is NONE
    async with running(tmp_path) as (node, client):
        producer.client = client
        for batch in (first, second):
            assert await producer.produce(batch) is NONE
        await producer.end(True)
        await eventually(lambda: not any(_open(node, name) for name in ("t", "t.quarantine")))
        assert [each.value for each in stored(node, "t.quarantine", committed=True)] == [b"bad1", b"bad2"]
        assert [each.value for each in stored(node, "t", committed=True)] == [b"good1", b"good2"]


async def test_a_quarantine_may_be_led_by_another_node(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        for node in nodes:
            node.logs._opening._validator = NoBad()  # of partitions that are made from here on
        await topic_of(nodes, "t.quarantine", [1])
        async with client_of(nodes[0]) as client:
            await topic_of(nodes, "t", [0])
            overrides = {name.replace("_", "."): text for name, text in QUARANTINES.items()}
            await _configure(client, "t", overrides)
            await eventually(lambda: nodes[0].logs.get("t", 0).quarantines)
            repeated = batch_of(b"bad", b"good", producer=(7, 0, 0))
            for _ in range(2):
                assert (await client.produce("t", repeated)).error_code == NONE
            await coordinated_by(nodes, 2)
            servers = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
            await asyncio.to_thread(_two_transactions, servers)
        await eventually(lambda: len(stored(nodes[1], "t.quarantine", committed=True)) == 2)
        await eventually(lambda: len(stored(nodes[0], "t", committed=True)) == 2)
        assert [each.value for each in stored(nodes[1], "t.quarantine", committed=True)] == [b"bad", b"bad, committed"]
        assert [each.value for each in stored(nodes[0], "t", committed=True)] == [b"good", b"committed"]


def _two_transactions(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "x0", "log_level": 0})
    producer.init_transactions(30)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        which = b"committed" if end == producer.commit_transaction else b"aborted"
        for value in (b"bad, " + which, which):
            producer.produce("t", value, b"k", partition=0)
        producer.flush(30)
        end(30)


async def _configure(client: NodeClient, topic: str, overrides: dict[str, str]) -> None:
    configs = tuple({"name": name, "config_operation": 0, "value": text} for name, text in overrides.items())
    resource = {"resource_type": 2, "resource_name": topic, "configs": configs}
    answer = await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": (resource,), "validate_only": False})
    assert answer.responses[0].error_code == NONE
