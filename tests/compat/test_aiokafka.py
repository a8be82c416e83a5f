"""aiokafka: its own encoders, group protocol and admin client."""

import asyncio
import uuid
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from compat_cluster import COPIES
from secured import aiokafka


def name(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:8]}"


async def send(bootstrap_servers: str, topic: str, count: int, **settings: Any) -> None:
    producer = AIOKafkaProducer(**aiokafka(bootstrap_servers), **settings)
    await producer.start()
    try:
        for number in range(count):
            await producer.send(topic, key=str(number).encode(), value=f"value {number}".encode())
        await producer.flush()
    finally:
        await producer.stop()


async def read(consumer: AIOKafkaConsumer, count: int) -> list[str]:
    values: list[str] = []
    for _ in range(120):
        batches = await consumer.getmany(timeout_ms=500)
        values += [record.value.decode() for records in batches.values() for record in records]
        if len(values) >= count:
            break
    return values


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_idempotent_producer_and_group_consumer(broker: Any, codec: str | None) -> None:
    topic, group = name("aiokafka"), name("group")
    await send(broker.bootstrap_servers, topic, 300, enable_idempotence=True, compression_type=codec)
    settings = {**aiokafka(broker.bootstrap_servers), "group_id": group, "auto_offset_reset": "earliest"}
    consumer = AIOKafkaConsumer(topic, enable_auto_commit=False, **settings)
    await consumer.start()
    try:
        assert await read(consumer, 300) == [f"value {number}" for number in range(300)]
        await consumer.commit({TopicPartition(topic, 0): 250})
    finally:
        await consumer.stop()
    again = AIOKafkaConsumer(topic, enable_auto_commit=False, **settings)
    await again.start()
    try:
        assert (await read(again, 50))[0] == "value 250"
    finally:
        await again.stop()


@pytest.mark.parametrize("strategy", [RangePartitionAssignor, StickyPartitionAssignor])
async def test_members_share_and_take_over(broker: Any, strategy: Any) -> None:
    topic, group = name("aiokafka"), name("group")
    admin = AIOKafkaAdminClient(**aiokafka(broker.bootstrap_servers))
    await admin.start()
    await admin.create_topics([NewTopic(topic, 4, COPIES)])
    await admin.close()

    def member() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            topic,
            **aiokafka(broker.bootstrap_servers),
            group_id=group,
            heartbeat_interval_ms=200,
            partition_assignment_strategy=(strategy,),
        )

    async def until(sizes: list[int], *members: AIOKafkaConsumer) -> None:
        for _ in range(300):
            if [len(one.assignment()) for one in members] == sizes:
                break
            await asyncio.sleep(0.1)
        assert [len(one.assignment()) for one in members] == sizes

    one, two = member(), member()
    await one.start()
    try:
        await until([4], one)
        await two.start()
        try:
            await until([2, 2], one, two)
            assert not one.assignment() & two.assignment()
        finally:
            await two.stop()
        await until([4], one)
    finally:
        await one.stop()


async def test_admin_makes_and_removes_a_topic(broker: Any) -> None:
    topic = name("admin")
    admin = AIOKafkaAdminClient(**aiokafka(broker.bootstrap_servers))
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 3, COPIES)])
        (described,) = await admin.describe_topics([topic])
        assert len(described["partitions"]) == 3
        await admin.delete_topics([topic])
        async with asyncio.timeout(10):  # the broker that is asked may hear of it after the one that was told
            while topic in await admin.list_topics():  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(0.05)
    finally:
        await admin.close()
