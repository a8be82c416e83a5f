"""Coordinators as leadership comes and goes: who waits is told, what is loaded is whole, nothing is written late."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from node_client import NodeClient, client_of
from several_nodes import eventually

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.controller import CreateTopic
from log_broker.core.cluster.image import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from log_broker.core.cluster.records import PartitionChanged
from log_broker.core.partition.replication import Leadership
from log_broker.errors import ErrorCode
from log_broker.records import build_batch
from log_broker.records.batch import read_header
from log_broker.server.coordinators import shards as coordinator_shards
from log_broker.server.coordinators.internal_topics import (
    ensure_offsets_topic,
    ensure_transactions_topic,
    group_partition,
)
from log_broker.server.coordinators.shards import Shard, Shards
from log_broker.server.node import Node
from log_broker.wire.apis import ApiKey

NONE = ErrorCode.NONE
ELSEWHERE = 9


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    settings = {"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "3"}
    started = Node(BrokerConfig(data_dir=tmp_path, port=0).with_settings(settings))
    await started.start()
    try:
        await started.ensure_topic(CreateTopic(name="t", topic_id="ab" * 16, partitions=1))
        await ensure_offsets_topic(started)
        await ensure_transactions_topic(started)
        yield started
    finally:
        await started.stop()


def lead(node: Node, topic: str, leader: int) -> None:
    """Let the cluster decide who leads every partition of a topic."""
    image = node.cluster.topics[topic]
    for partition in range(len(image.partitions)):
        node.cluster.replay(PartitionChanged(topic_id=image.topic_id, partition=partition, leader=leader))
    node.apply_image()


def join(member_id: str = "") -> dict[str, Any]:
    return {
        "group_id": "g",
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }


async def commit(client: NodeClient, offset: int, member_id: str = "", generation: int = -1) -> ErrorCode:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    values = {
        "group_id": "g",
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "topics": [{"name": "t", "partitions": [partition]}],
    }
    answer = await client.ask(ApiKey.OFFSET_COMMIT, values, version=8)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def committed(client: NodeClient) -> tuple[ErrorCode, int]:
    values = {"groups": [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]}]}
    group = (await client.ask(ApiKey.OFFSET_FETCH, {**values, "require_stable": False}, version=8)).groups[0]
    return ErrorCode(group.error_code), group.topics[0].partitions[0].committed_offset if group.topics else -1


async def stable_member(client: NodeClient) -> tuple[str, int]:
    """Let one member join and sync; return its id and generation."""
    member_id = (await client.ask(ApiKey.JOIN_GROUP, join(), version=5)).member_id
    joined = await client.ask(ApiKey.JOIN_GROUP, join(member_id), version=5)
    values = {
        "group_id": "g",
        "generation_id": joined.generation_id,
        "member_id": member_id,
        "assignments": [{"member_id": member_id, "assignment": b"all"}],
    }
    assert (await client.ask(ApiKey.SYNC_GROUP, values, version=3)).error_code == NONE
    return member_id, joined.generation_id


async def heartbeat(client: NodeClient, member_id: str, generation: int) -> ErrorCode:
    values = {"group_id": "g", "generation_id": generation, "member_id": member_id}
    return ErrorCode((await client.ask(ApiKey.HEARTBEAT, values, version=3)).error_code)


async def test_members_and_offsets_are_there_when_leadership_returns(node: Node) -> None:
    async with client_of(node) as client:
        member = await stable_member(client)
        assert await commit(client, 7, *member) is NONE
        lead(node, OFFSETS_TOPIC, ELSEWHERE)
        assert not list(node.groups.all())
        assert await heartbeat(client, *member) is ErrorCode.NOT_COORDINATOR
        assert await commit(client, 8, *member) is ErrorCode.NOT_COORDINATOR
        assert await committed(client) == (ErrorCode.NOT_COORDINATOR, -1)
        lead(node, OFFSETS_TOPIC, node.config.node_id)
        await eventually(lambda: node.groups.check("g") is NONE)
        assert await heartbeat(client, *member) is NONE, "the member goes on without a rebalance"
        assert await committed(client) == (NONE, 7)
        assert await commit(client, 8, *member) is NONE


@pytest.mark.parametrize("letter", ["a", "€"])
async def test_a_member_gets_an_id_whatever_its_client_is_called(node: Node, letter: str) -> None:
    name = letter * (32_767 // len(letter.encode()))
    async with client_of(node) as client:
        told = await client.ask(ApiKey.JOIN_GROUP, join(), version=5, name=name)
        assert ErrorCode(told.error_code) is ErrorCode.MEMBER_ID_REQUIRED
        assert name.startswith(told.member_id[:1_000])
        joined = await client.ask(ApiKey.JOIN_GROUP, join(told.member_id), version=5, name=name)
        assert (ErrorCode(joined.error_code), joined.member_id) == (NONE, told.member_id)


async def test_who_waits_is_told_when_leadership_goes(node: Node) -> None:
    async with client_of(node) as client, client_of(node) as other:
        first, generation = await stable_member(client)
        second = (await other.ask(ApiKey.JOIN_GROUP, join(), version=5)).member_id
        waiting = asyncio.create_task(other.ask(ApiKey.JOIN_GROUP, join(second), version=5))
        await eventually(lambda: len(node.groups.find("g").classic.members) == 2)
        assert await heartbeat(client, first, generation) is ErrorCode.REBALANCE_IN_PROGRESS
        assert not waiting.done()
        timers = node.groups._runtime._deadlines._timers
        assert set(timers) == {"g"}
        lead(node, OFFSETS_TOPIC, ELSEWHERE)
        assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR
        assert not timers


async def test_nothing_decided_in_an_old_epoch_is_written_in_a_new_one(node: Node) -> None:
    async with client_of(node) as client:
        assert await commit(client, 7) is NONE
    partition = group_partition(node.cluster, "g")
    (shard,) = [shard for shard in node.groups._runtime.shards.loaded() if shard.partition == partition]
    end = shard.runtime.log_end_offset
    # The partition leads in a new epoch, and the coordinator has not been told yet.
    me = (node.config.node_id,)
    shard.runtime.role.become_leader(Leadership(leader_epoch=shard.epoch + 1, partition_epoch=1, replicas=me, isr=me))
    async with client_of(node) as client:
        assert await commit(client, 8) is ErrorCode.NOT_COORDINATOR
    assert shard.runtime.log_end_offset == end
    lead(node, OFFSETS_TOPIC, node.config.node_id)
    await eventually(lambda: node.groups.check("g") is NONE)
    async with client_of(node) as client:
        assert await committed(client) == (NONE, 7)


async def test_a_transaction_goes_on_where_leadership_returns(node: Node) -> None:
    answer = await node.transactions.init_producer("x", 60_000, None)
    producer = (answer.producer_id, answer.producer_epoch)
    assert await node.transactions.add_partitions("x", producer, [("t", 0)]) is NONE
    lead(node, TRANSACTIONS_TOPIC, ELSEWHERE)
    assert node.transactions.check("x") is ErrorCode.NOT_COORDINATOR
    ended = await node.transactions.end("x", producer, committed=True, client_version=0)
    assert ended.error is ErrorCode.NOT_COORDINATOR
    assert not node.transactions._runtime._deadlines._timers
    lead(node, TRANSACTIONS_TOPIC, node.config.node_id)
    await eventually(lambda: node.transactions.check("x") is NONE)
    assert node.transactions.verify("x", producer, ("t", 0)) is NONE
    ended = await node.transactions.end("x", producer, committed=True, client_version=0)
    assert ended.error is NONE
    runtime = node.logs.get("t", 0)
    assert runtime is not None
    await eventually(lambda: runtime.log_end_offset == 1)
    batch = memoryview(b"".join(runtime.read(0, 1 << 20).chunks))
    assert read_header(batch).is_control
    epoch = node.cluster.topics[TRANSACTIONS_TOPIC].partitions[0].leader_epoch
    assert runtime.producers[producer[0]].coordinator_epoch == epoch == 2


async def test_whoever_waits_for_the_last_transaction_is_told_when_leadership_goes(node: Node) -> None:
    answer = await node.transactions.init_producer("x", 60_000, None)
    producer = (answer.producer_id, answer.producer_epoch)
    assert await node.transactions.add_partitions("x", producer, [("t", 0)]) is NONE
    lead(node, "t", ELSEWHERE)  # its marker cannot be written
    assert (await node.transactions.end("x", producer, committed=True, client_version=0)).error is NONE
    waiting = asyncio.create_task(node.transactions.init_producer("x", 60_000, None))
    await asyncio.sleep(0)
    lead(node, TRANSACTIONS_TOPIC, ELSEWHERE)
    assert (await waiting).error is ErrorCode.NOT_COORDINATOR


# Loading, from a log that is not committed yet, and in slices.


class Replica:
    """A partition whose high watermark is moved by hand, and that counts how often it was read."""

    topic, partition, leader_epoch, log_start_offset, is_closed = "o", 0, 3, 0, False

    def __init__(self, records: int, high_watermark: int) -> None:
        self.batches = [bytearray(build_batch([(1, b"%d" % number, b"v", ())])) for number in range(records)]
        for number, batch in enumerate(self.batches):
            batch[:8] = number.to_bytes(8, "big")
        self.high_watermark = high_watermark
        self.log_end_offset = records
        self.error = NONE
        self.has_followers = False
        self.waiting: list[Callable[[], None]] = []

    def read(self, offset: int, max_bytes: int) -> Any:
        chunks = [bytes(batch) for batch in self.batches[offset : self.high_watermark]]
        return SimpleNamespace(error=self.error, size=sum(map(len, chunks)), chunks=chunks)

    def on_readable(self, offset: int, callback: Callable[[], None]) -> Callable[[], None]:
        assert offset == self.high_watermark
        self.waiting.append(callback)
        return lambda: self.waiting.remove(callback)

    def commit(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        for callback in self.waiting[:]:
            self.waiting.remove(callback)
            callback()


class Keys:
    """A coordinator of nothing but the keys in its log."""

    def __init__(self) -> None:
        self.ended: list[Shard[int]] = []

    def replay(self, shard: Shard[int], _header: Any, content: Any) -> None:
        shard.items[content.key.decode()] = content.offset

    def replayed(self, shard: Shard[int]) -> Iterator[None]:
        yield from (None for _ in shard.items)

    def loaded(self, shard: Shard[int]) -> None:
        pass

    def resigned(self, shard: Shard[int]) -> None:
        self.ended.append(shard)


def cluster_led_by(leaders: Iterable[int]) -> Any:
    partitions = [SimpleNamespace(leader=leader, leader_epoch=3) for leader in leaders]
    return SimpleNamespace(
        topics={"o": SimpleNamespace(partitions=partitions)}, leader_of=lambda *_: SimpleNamespace(node_id=ELSEWHERE)
    )


def shards_of(*replicas: Replica) -> tuple[Shards[int], Keys, Any]:
    for number, replica in enumerate(replicas):
        replica.partition = number
    node = SimpleNamespace(
        loop=asyncio.get_running_loop(),
        config=SimpleNamespace(node_id=1),
        cluster=cluster_led_by([1] * len(replicas)),
        lease=SimpleNamespace(valid=False),
        logs=SimpleNamespace(get=lambda _, partition: replicas[partition]),
    )
    keys = Keys()
    return Shards(node, "o", keys), keys, node


async def test_what_an_earlier_leader_may_have_answered_is_committed_before_reads() -> None:
    replica = Replica(records=10, high_watermark=4)
    shards, _, _ = shards_of(replica)
    shards.follow()
    assert shards.error_of(0) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    replica.commit(9)
    await asyncio.sleep(0.01)
    assert shards.error_of(0) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert shards.get(0) is None
    replica.commit(10)
    await eventually(lambda: shards.error_of(0) is NONE)
    assert len(shards.get(0).items) == 10
    assert shards.error_of(None) is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_leadership_that_goes_while_it_loads_leaves_nothing_behind() -> None:
    replica = Replica(records=10, high_watermark=4)
    shards, keys, node = shards_of(replica)
    shards.follow()
    node.cluster = cluster_led_by([ELSEWHERE])
    shards.follow()
    assert len(keys.ended) == 1
    assert not replica.waiting
    assert shards.error_of(0) is ErrorCode.NOT_COORDINATOR


async def test_a_large_load_leaves_the_event_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_shards, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(coordinator_shards, "ENTRIES_PER_LOOK", 1)
    first, second = Replica(records=300, high_watermark=300), Replica(records=20, high_watermark=20)
    shards, _, _ = shards_of(first, second)
    shards.follow()
    turns = 0
    while shards.error_of(0) or shards.error_of(1):
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 300
    assert [len(shard.items) for shard in shards.loaded()] == [300, 20]


async def test_a_log_that_cannot_be_read_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_shards, "RETRY_SECONDS", 0.01)
    replica = Replica(records=5, high_watermark=5)
    replica.error = ErrorCode.KAFKA_STORAGE_ERROR
    shards, _, _ = shards_of(replica)
    shards.follow()
    await asyncio.sleep(0.03)
    assert shards.error_of(0) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    replica.error = NONE
    await eventually(lambda: shards.error_of(0) is NONE)
    assert len(shards.get(0).items) == 5


async def test_closing_stops_what_loads() -> None:
    waits, fails = Replica(records=5, high_watermark=2), Replica(records=5, high_watermark=5)
    fails.error = ErrorCode.KAFKA_STORAGE_ERROR
    shards, _, _ = shards_of(waits, fails)
    shards.follow()
    shards.close()
    assert not waits.waiting
    shards.follow()
    assert not shards.loaded()
