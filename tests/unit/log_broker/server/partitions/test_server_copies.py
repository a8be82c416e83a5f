"""What copies and shares are for: clients do not notice how many there are, losses are survived, load is even."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from node_client import client_of
from node_cluster import NodeCluster, cluster_of, eventually

from log_broker.core.cluster.controller import CreateTopic
from log_broker.server.node import Node
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.wire.apis import ApiKey
from tests.free_ports import free_ports


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[NodeCluster]:
    async with cluster_of(tmp_path, 3) as running:
        yield running


def servers(cluster: NodeCluster) -> str:
    return ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes.values())


async def make(cluster: NodeCluster, name: str, *replicas: tuple[int, ...], **overrides: str) -> None:
    """Make a topic whose partitions have these replicas, and wait until their leaders lead."""
    command = CreateTopic(
        name=name,
        topic_id=uuid4().hex,
        assignments=dict(enumerate(replicas)),
        overrides={key.replace("_", "."): value for key, value in overrides.items()},
    )
    await cluster.nodes[replicas[0][0]].authority.create_topic(command)
    for index, (leader, *_) in enumerate(replicas):
        await eventually(lambda i=index, n=cluster.nodes[leader]: n.logs.led(name, i) is not None)


def led(node: Node, topic: str, index: int = 0) -> PartitionRuntime:
    runtime = node.logs.led(topic, index)
    assert runtime is not None
    return runtime


async def write(node: Node, topic: str, *values: bytes) -> None:
    """Append at the leader as acks=all does, one batch each."""
    await asyncio.gather(*(led(node, topic).own_appends.records([(None, value)]) for value in values))


def write_and_read(bootstrap: str, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """What any application does; nothing in it knows of replicas."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    for number in range(50):
        producer.produce(topic, key=b"%d" % (number % 5), value=b"%d" % number)
    assert producer.flush(30) == 0
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "log_level": 0})
    reader.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[int, bytes | None, bytes | None]] = []
    while len(found) < 50:
        for message in reader.consume(50, 10):
            assert message.error() is None
            found.append((message.offset() or 0, message.key(), message.value()))
    reader.close()
    return found


async def test_clients_do_the_same_at_every_number_of_replicas_which_only_describing_shows(
    cluster: NodeCluster,
) -> None:
    seen = {}
    for factor in (1, 2, 3):
        await make(cluster, f"t{factor}", tuple(range(factor)))
        seen[factor] = await asyncio.to_thread(write_and_read, servers(cluster), f"t{factor}")
    assert seen[1] == seen[2] == seen[3]
    admin = AdminClient({"bootstrap.servers": servers(cluster), "log_level": 0})
    topics = (await asyncio.to_thread(admin.list_topics, timeout=10)).topics
    assert {factor: topics[f"t{factor}"].partitions[0].replicas for factor in seen} == {1: [0], 2: [0, 1], 3: [0, 1, 2]}


async def test_all_replicas_but_one_may_go_the_promoted_one_right_after_its_promotion(tmp_path: Path) -> None:
    """The voters are nodes of their own, so that the metadata keep their majority."""
    async with cluster_of(tmp_path, 3, {"process.roles": "controller"}, brokers=0) as cluster:
        voters = ",".join(f"127.0.0.1:{port}" for port in cluster.ports)
        for node_id in (3, 4, 5):
            cluster.nodes[node_id] = cluster.node(
                node_id,
                process_roles="broker",
                controller_quorum_voters="",
                controller_quorum_bootstrap_servers=voters,
            )
            await cluster.nodes[node_id].start()
        await make(cluster, "t", (3, 4, 5), min_insync_replicas="1")
        values = [b"%d" % number for number in range(50)]
        await write(cluster.nodes[3], "t", *values)
        last = cluster.nodes[5]

        def partition() -> tuple[int, int]:
            now = last.cluster.topics["t"].partitions[0]
            return now.leader, now.leader_epoch

        epochs = [partition()[1]]
        for dies, leads in ((3, 4), (4, 5)):
            await cluster.kill(dies)
            await eventually(lambda leads=leads: partition()[0] == leads)
            epochs.append(partition()[1])
        assert epochs == sorted(set(epochs)), "each leader in an epoch of its own, later than the one before"
        await eventually(lambda: last.logs.led("t", 0) is not None)
        await write(last, "t", b"alone")
        found = await asyncio.to_thread(read_values, f"127.0.0.1:{last.port}", "t", 51)
        assert (sorted(found[:50]), found[50]) == (sorted(values), b"alone")


def read_values(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "log_level": 0})
    reader.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes | None] = []
    while len(found) < count:
        found += [message.value() for message in reader.consume(count - len(found), 10)]
    reader.close()
    return found


async def test_a_broker_that_listens_elsewhere_after_a_restart_is_found_by_the_others(cluster: NodeCluster) -> None:
    await make(cluster, "t", (1, 2, 0))
    await write(cluster.nodes[1], "t", b"before")
    await cluster.stop(1)
    cluster.ports[1] = free_ports(1)[0]
    await cluster.start(1)
    leader = next(node for node in cluster.nodes.values() if node.logs.led("t", 0) is not None)
    await write(leader, "t", b"after")
    await eventually(lambda: set(leader.cluster.topics["t"].partitions[0].isr) == {0, 1, 2})
    assert all(node.cluster.brokers[1].port == cluster.ports[1] for node in cluster.nodes.values())


async def test_the_controller_is_named_and_holds_records_as_any_other(cluster: NodeCluster) -> None:
    controller = await cluster.has_controller()
    number = controller.config.node_id
    async with client_of(cluster.nodes[(number + 1) % 3]) as client:
        answer = await client.ask(ApiKey.DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": False})
        assert answer.controller_id == number
    await make(cluster, "t", (number,))
    await write(controller, "t", b"here")
    assert await asyncio.to_thread(read_values, f"127.0.0.1:{controller.port}", "t", 1) == [b"here"]


async def test_a_topic_takes_more_than_any_broker_of_it_holds(cluster: NodeCluster) -> None:
    """Each has room for a half of it: six partitions need no more than a third anywhere."""
    await make(cluster, "large", *((index % 3,) for index in range(6)))

    def fill() -> None:
        producer = Producer({"bootstrap.servers": servers(cluster), "log_level": 0})
        for number in range(600):
            producer.produce("large", value=bytes(5_000), partition=number % 6)
            producer.poll(0)
        assert producer.flush(30) == 0

    await asyncio.to_thread(fill)
    sizes = []
    for node in cluster.nodes.values():
        async with client_of(node) as client:
            described = await client.ask(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None}, version=4)
        topics = {topic.name: topic for topic in described.results[0].topics}
        sizes.append(sum(partition.partition_size for partition in topics["large"].partitions))
    assert sum(sizes) > 600 * 5_000
    assert max(sizes) < sum(sizes) / 2


async def test_records_without_keys_load_all_brokers_alike(cluster: NodeCluster) -> None:
    await make(cluster, "even", *((index % 3,) for index in range(12)))

    def fill() -> None:
        producer = Producer(
            {
                "bootstrap.servers": servers(cluster),
                "partitioner": "murmur2_random",
                "enable.idempotence": True,  # a batch sent again on a busy machine counts once
                "sticky.partitioning.linger.ms": 0,
                "queue.buffering.max.messages": 200_000,
                "log_level": 0,
            }
        )
        # The client chooses none of a broker to which it is not connected yet.
        for index in range(12):
            producer.produce("even", value=b"x" * 50, partition=index)
        assert producer.flush(60) == 0
        for _ in range(60_000):
            producer.produce("even", value=b"x" * 50)
        assert producer.flush(60) == 0

    await asyncio.to_thread(fill)
    taken = Counter(
        {
            node_id: sum(led(node, "even", index).log_end_offset for index in range(12) if index % 3 == node_id)
            for node_id, node in cluster.nodes.items()
        }
    )
    assert taken.total() == 60_012
    assert max(taken.values()) - min(taken.values()) < 0.05 * taken.total() / 3


def stored_bytes(folder: Path, partition: str) -> list[bytes]:
    return [file.read_bytes() for file in folder.glob(f"n*/{partition}/*.log")]


async def test_a_key_that_was_erased_stays_so_after_its_leader_is_lost(tmp_path: Path) -> None:
    """Also in the copy of the one that comes back: no replica brings the value back."""
    settings = {"log.cleaner.enable": "false"}  # compaction is asked for here
    async with cluster_of(tmp_path, 3, settings) as cluster:
        rules = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0", "delete_retention_ms": "0"}
        await make(cluster, "people", (0, 1, 2), segment_bytes="1048576", **rules)
        people = led(cluster.nodes[0], "people")
        await people.own_appends.records([(b"ada", b"secret"), (b"bob", b"kept")])
        await people.own_appends.records([(b"ada", None)])
        await cluster.kill(0)
        others = list(cluster.nodes.values())
        await eventually(lambda: any(node.logs.led("people", 0) is not None for node in others))
        (heir,) = (node for node in others if node.logs.led("people", 0) is not None)
        filling = [(b"filler", bytes(200_000))]
        for _ in range(7):  # what is to be compacted is in a closed segment
            await led(heir, "people").own_appends.records(filling)
        await cluster.start(0)
        await eventually(lambda: set(heir.cluster.topics["people"].partitions[0].isr) == {0, 1, 2})
        for node in cluster.nodes.values():
            await eventually(lambda n=node: n.logs.get("people", 0).high_watermark == 10)  # type: ignore[union-attr]
            await node.logs.compact()
        stored = stored_bytes(tmp_path, "people-0")
        assert len(stored) >= 3
        assert not any(b"secret" in content for content in stored)
        assert sum(b"kept" in content for content in stored) == 3
