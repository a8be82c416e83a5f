"""Replicas on several nodes that fetch from each other over sockets, with stock clients beside them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from node_client import client_of
from node_cluster import cluster_of, eventually
from several_nodes import cluster

from log_broker.config.broker import RACK_AWARE_SELECTOR
from log_broker.core.cluster.controller import CreateTopic
from log_broker.core.cluster.image import EVENTS_TOPIC, OFFSETS_TOPIC, ClusterImage
from log_broker.core.cluster.isr_changes import IsrMember, IsrWish, alter_partition
from log_broker.core.cluster.records import PartitionChanged
from log_broker.core.fetch.quota import UNLIMITED
from log_broker.core.fetch.replica_messages import ReplicaFetchRequest
from log_broker.core.partition.protocol import AppendResult
from log_broker.errors import ErrorCode
from log_broker.records import batches_in, build_batch
from log_broker.server.handlers.data.fetch import WAIT_MS_MAX
from log_broker.server.net.peers import PeerLink
from log_broker.server.net.slots import Slot
from log_broker.server.node import Node
from log_broker.server.ops.exposition import NodeCollector
from log_broker.server.replication import manager as replica_manager
from log_broker.server.replication.manager import ReplicaManager
from log_broker.wire.apis import ApiKey
from log_broker.wire.framing import RequestHeader

TOPIC = "t"


# However slow the machine is, no node asks for another leader, which would be a new image.
NO_ELECTIONS = {"controller.quorum.fetch.timeout.ms": "60000", "controller.quorum.request.timeout.ms": "60000"}


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    async with cluster(tmp_path) as started:
        yield started


def servers(nodes: list[Node]) -> str:
    return ",".join(f"127.0.0.1:{node.port}" for node in nodes)


async def make_topic(nodes: list[Node], *replicas: tuple[int, ...], **overrides: str) -> None:
    """Make a topic whose partitions have these replicas, their leaders first, and wait until all are there."""
    await nodes[0].ensure_topic(
        CreateTopic(
            name=TOPIC,
            topic_id=uuid4().hex,
            assignments=dict(enumerate(replicas)),
            overrides={name.replace("_", "."): value for name, value in overrides.items()},
        )
    )
    for index, holders in enumerate(replicas):
        for holder in holders:
            await eventually(lambda n=nodes[holder], p=index: n.logs.get(TOPIC, p) is not None)
        await eventually(lambda n=nodes[holders[0]], p=index: n.logs.led(TOPIC, p) is not None)


async def produce(node: Node, count: int, *, first: int = 0, acks: int = -1, index: int = 0) -> None:
    """Append numbered records at the leader, one batch each."""
    runtime = node.logs.led(TOPIC, index)
    assert runtime is not None
    if acks == -1:
        await asyncio.gather(*(runtime.own_appends.records([(None, b"%d" % at)]) for at in range(first, first + count)))
        return
    answers = [asyncio.get_running_loop().create_future() for _ in range(count)]
    for at, answer in enumerate(answers):
        batch = build_batch([(node.clock_ms(), None, b"%d" % (first + at), ())])
        runtime.append(batch, acks=acks, done=answer.set_result)
    assert {(await answer).error for answer in answers} == {ErrorCode.NONE}


def ends(nodes: list[Node], index: int = 0) -> set[tuple[int, int]]:
    """The (log end, high watermark) of each replica."""
    found = (node.logs.get(TOPIC, index) for node in nodes)
    return {(runtime.log_end_offset, runtime.high_watermark) for runtime in found if runtime is not None}


def log_bytes(tmp_path: Path, index: int = 0) -> list[bytes]:
    files = sorted(tmp_path.glob(f"n*/{TOPIC}-{index}/*.log"))
    return [file.read_bytes() for file in files]


def flip_one_bit(node_dir: Path) -> None:
    """Change a record of the log's tenth batch on the disk."""
    (file,) = node_dir.glob(f"{TOPIC}-0/*.log")
    content = bytearray(file.read_bytes())
    position, header = list(batches_in(content))[9]
    content[position + header.size - 2] ^= 4
    file.write_bytes(content)


def read_all(bootstrap: str, count: int, **settings: str) -> list[bytes]:
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "log_level": 0, "enable.partition.eof": True, **settings}
    )
    reader.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[bytes] = []
    for _ in range(300):
        messages = reader.consume(100, 0.1)
        found += [message.value() for message in messages if message.error() is None]
        if len(found) >= count and any(message.error() is not None for message in messages):
            break
    reader.close()
    return found


async def test_followers_copy_byte_for_byte_and_describe_shows_them(nodes: list[Node], tmp_path: Path) -> None:
    await make_topic(nodes, (1, 2, 0), (2, 0, 1))
    await asyncio.gather(produce(nodes[1], 200), produce(nodes[2], 100, index=1))
    await eventually(lambda: ends(nodes) == {(200, 200)} and ends(nodes, 1) == {(100, 100)})
    for index in (0, 1):
        copies = log_bytes(tmp_path, index)
        assert len(copies) == 3
        assert len(set(copies)) == 1
    admin = AdminClient({"bootstrap.servers": servers(nodes), "log_level": 0})
    described = (await asyncio.to_thread(admin.list_topics, TOPIC, 10)).topics[TOPIC].partitions
    assert {at: (found.leader, sorted(found.isrs), found.replicas) for at, found in described.items()} == {
        0: (1, [0, 1, 2], [1, 2, 0]),
        1: (2, [0, 1, 2], [2, 0, 1]),
    }


async def test_another_replica_leads_when_the_leader_stops_and_the_returned_one_catches_up(
    nodes: list[Node], tmp_path: Path
) -> None:
    await make_topic(nodes, (1, 2, 0))
    await produce(nodes[1], 20)
    old = nodes[1]
    await old.stop()
    await eventually(lambda: nodes[2].logs.led(TOPIC, 0) is not None)
    await produce(nodes[2], 30, first=20)
    back = Node(old.static_config)
    await back.start()
    try:
        survivors = [nodes[0], nodes[2], back]
        await eventually(lambda: ends(survivors) == {(50, 50)})
        leader = nodes[2].logs.led(TOPIC, 0)
        assert leader is not None
        await eventually(lambda: set(leader.leading.isr) == {0, 1, 2})
        assert len(set(log_bytes(tmp_path))) == 1
        found = await asyncio.to_thread(read_all, servers([nodes[0], nodes[2]]), 50)
        assert sorted(map(int, found)) == list(range(50))
    finally:
        await back.stop()


async def test_a_divergent_tail_is_cut_and_told_of(
    nodes: list[Node], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await make_topic(nodes, (1, 2, 0), fluvial_durability="memory")
    await produce(nodes[1], 10)
    await eventually(lambda: ends(nodes) == {(10, 10)})
    for follower in (nodes[0], nodes[2]):
        follower.replicas.stop()
    await produce(nodes[1], 5, first=100, acks=1)
    await nodes[1].stop()
    for follower in (nodes[0], nodes[2]):
        follower.replicas = ReplicaManager(follower)
        follower.replicas.apply()
    await eventually(lambda: nodes[2].logs.led(TOPIC, 0) is not None)
    await produce(nodes[2], 7, first=10)
    back = Node(nodes[1].static_config)
    await back.start()
    try:
        await eventually(lambda: ends([nodes[0], nodes[2], back]) == {(17, 17)})
        assert len(set(log_bytes(tmp_path))) == 1
        assert f"{TOPIC}-0: offsets 10 to 14 on node 1 are not in the log of its leader, node 2" in caplog.text
    finally:
        await back.stop()


async def test_a_replica_that_is_moved_away_tells_what_it_alone_had_acknowledged(
    nodes: list[Node], caplog: pytest.LogCaptureFixture
) -> None:
    await make_topic(nodes, (1, 2, 0))
    await produce(nodes[1], 10)
    await eventually(lambda: ends(nodes) == {(10, 10)})
    for follower in (nodes[0], nodes[2]):
        follower.replicas.stop()
    await produce(nodes[1], 5, first=100, acks=1)
    for node in nodes:
        node.replicas._drop_partition(TOPIC, 0)
    told = [record.getMessage() for record in caplog.records if "gives up its log" in record.getMessage()]
    assert len(told) == 1, "followers have nothing that their leader had not"
    assert told[0].startswith(f"{TOPIC}-0: node 1 is no replica of it any more")
    assert "its offsets 10 to 14" in told[0]


async def test_what_a_leader_writes_while_it_is_moved_away_is_not_acknowledged(nodes: list[Node]) -> None:
    """It is not among what the replica says it leaves behind."""
    await make_topic(nodes, (1, 2, 0), min_insync_replicas="1")
    leader = nodes[1]
    await produce(leader, 1)
    runtime = leader.logs.led(TOPIC, 0)
    assert runtime is not None
    answer: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
    runtime.append(build_batch([(leader.clock_ms(), None, b"1", ())]), acks=1, done=answer.set_result)
    await asyncio.sleep(0)
    assert runtime.replica.core.writes.is_writing
    topic = leader.cluster.topics[TOPIC]
    (now,) = topic.partitions
    moved = replace(now, replicas=(2, 0), isr=(2, 0), leader=2, leader_epoch=now.leader_epoch + 1)
    leader.replicas._apply_topic(replace(topic, partitions=(moved,)), topic)
    assert (await answer).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leader.logs.get(TOPIC, 0) is None


async def test_a_producer_that_comes_to_a_follower_is_told_who_leads(nodes: list[Node]) -> None:
    await make_topic(nodes, (1, 2, 0))
    producer = Producer({"bootstrap.servers": servers([nodes[2]]), "enable.idempotence": True, "log_level": 0})
    for at in range(20):
        producer.produce(TOPIC, b"%d" % at, partition=0)
    assert await asyncio.to_thread(producer.flush, 20) == 0
    await eventually(lambda: ends(nodes) == {(20, 20)})
    assert await asyncio.to_thread(read_all, servers([nodes[0]]), 20) == [b"%d" % at for at in range(20)]


async def test_a_deleted_topic_goes_from_every_node_and_one_of_its_name_is_another(
    nodes: list[Node], tmp_path: Path
) -> None:
    await make_topic(nodes, (1, 2, 0))
    await produce(nodes[1], 3)
    admin = AdminClient({"bootstrap.servers": servers(nodes), "log_level": 0})
    await asyncio.to_thread(lambda: admin.delete_topics([TOPIC])[TOPIC].result(10))
    await eventually(lambda: all(node.logs.get(TOPIC, 0) is None for node in nodes))
    await make_topic(nodes, (2, 0, 1))
    await produce(nodes[2], 2)
    await eventually(lambda: ends(nodes) == {(2, 2)})


async def test_a_partition_that_failed_on_disk_is_made_later_without_a_new_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replica_manager, "RETRY_SECONDS", 0.05)
    in_the_way = tmp_path / "n1" / f"{OFFSETS_TOPIC}-0"
    async with cluster_of(tmp_path, 3, NO_ELECTIONS) as running:
        node = running.nodes[1]
        await eventually(lambda: EVENTS_TOPIC in node.cluster.topics)  # which a controller makes when it likes
        in_the_way.write_bytes(b"")
        command = CreateTopic(name=OFFSETS_TOPIC, topic_id=uuid4().hex, assignments={0: (1,)})
        await running.nodes[0].ensure_topic(command)
        await eventually(lambda: node.absence_of(OFFSETS_TOPIC, 0) is ErrorCode.KAFKA_STORAGE_ERROR)
        await asyncio.sleep(0.2)
        assert node.logs.get(OFFSETS_TOPIC, 0) is None
        assert caplog.text.count("could not be made") == 1, "told once, however often it is tried"
        version = node.cluster.version
        in_the_way.unlink()
        await eventually(lambda: node.logs.led(OFFSETS_TOPIC, 0) is not None, 5.0)
        await eventually(lambda: node.groups._runtime.shards.get(0) is not None, 5.0)
        assert node.cluster.version == version


async def test_a_wiped_replica_is_filled_again_from_where_the_leader_begins(nodes: list[Node], tmp_path: Path) -> None:
    await make_topic(nodes, (1, 2, 0))
    await produce(nodes[1], 10)
    await eventually(lambda: ends(nodes) == {(10, 10)})
    leader = nodes[1].logs.led(TOPIC, 0)
    assert leader is not None
    leader.keeping.delete_records(4)
    for node in (nodes[0], nodes[2]):
        follower = node.logs.get(TOPIC, 0)
        assert follower is not None
        await eventually(lambda f=follower: f.log_start_offset == 4)


async def test_every_replica_tells_who_writes_and_others_do_not(nodes: list[Node]) -> None:
    await make_topic(nodes, (1, 2))
    leader = nodes[1].logs.led(TOPIC, 0)
    assert leader is not None
    told: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
    batch = bytes(build_batch([(1, None, b"v", ())], producer_id=7, producer_epoch=3, base_sequence=0))
    leader.append(batch, acks=-1, done=told.set_result)
    await told
    found = {}
    for number, node in enumerate(nodes):
        async with client_of(node) as client:
            wanted = {"topics": ({"name": TOPIC, "partition_indexes": (0,)},)}
            answer = await client.ask(ApiKey.DESCRIBE_PRODUCERS, wanted, version=0)
        (partition,) = answer.topics[0].partitions
        writers = [(each.producer_id, each.producer_epoch) for each in partition.active_producers]
        found[number] = (partition.error_code, writers)
    absent = (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])
    assert found == {0: absent, 1: (ErrorCode.NONE, [(7, 3)]), 2: (ErrorCode.NONE, [(7, 3)])}


async def test_replication_is_counted(nodes: list[Node]) -> None:
    await make_topic(nodes, (1, 2, 0), (2, 0, 1))
    await produce(nodes[1], 5)
    await eventually(lambda: ends(nodes) == {(5, 5)})

    def samples(node: Node) -> dict[str, float]:
        families = NodeCollector(node).collect()
        return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}

    leader, follower = samples(nodes[1]), samples(nodes[0])
    assert leader["log_broker_leaders"] >= 1
    assert leader["log_broker_under_replicated_partitions"] == leader["log_broker_under_min_isr_partitions"] == 0
    assert leader["log_broker_replication_sent_bytes_total"] > 5 * 61
    assert follower["log_broker_replication_received_bytes_total"] > 5 * 61
    assert follower["log_broker_replica_lag_max"] == 0
    await nodes[2].stop()
    await eventually(lambda: nodes[1].cluster.topics[TOPIC].partitions[0].isr == (1, 0))
    assert samples(nodes[1])["log_broker_under_replicated_partitions"] >= 1


async def throttle(leader: Node, rate: str) -> None:
    """Set how many bytes a second a node gives to replicas that are throttled."""
    change = {"name": "leader.replication.throttled.rate", "config_operation": 0, "value": rate}
    wanted = {"resource_type": 4, "resource_name": str(leader.config.node_id), "configs": (change,)}
    async with client_of(leader) as client:
        answer = await client.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": (wanted,), "validate_only": False}, version=1
        )
    assert answer.responses[0].error_code == ErrorCode.NONE
    await eventually(lambda: leader.replica_fetches.quota.rate == int(rate))


async def test_a_throttled_replica_fills_slowly_and_delays_no_other(
    tmp_path: Path,
) -> None:
    settings = {"replica.fetch.max.bytes": "2000", "replica.fetch.response.max.bytes": "4000"}
    async with cluster_of(tmp_path, 3, settings=settings) as running:
        nodes = [running.nodes[node_id] for node_id in range(3)]
        await make_topic(nodes, (1, 2, 0), leader_replication_throttled_replicas="*")
        await running.stop(2)
        await eventually(lambda: nodes[1].cluster.topics[TOPIC].partitions[0].isr == (1, 0))
        await produce(nodes[1], 500)
        await throttle(nodes[1], "1")  # byte a second: the first answer uses up hours
        await running.start(2)
        late = running.nodes[2]
        await eventually(lambda: (found := late.logs.get(TOPIC, 0)) is not None and found.log_end_offset > 0)
        await produce(nodes[1], 20, first=500)
        held_back = late.logs.get(TOPIC, 0)
        assert held_back is not None
        assert held_back.log_end_offset < 500, "the throttle holds while those in sync go on"
        assert nodes[1].cluster.topics[TOPIC].partitions[0].isr == (1, 0)
        await throttle(nodes[1], str(UNLIMITED))
        await eventually(lambda: ends([nodes[0], nodes[1], late]) == {(520, 520)})
        await eventually(lambda: set(nodes[1].cluster.topics[TOPIC].partitions[0].isr) == {0, 1, 2})


async def test_a_follower_that_is_cut_off_leaves_the_isr_and_comes_back_with_an_equal_log(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3, settings={"replica.lag.time.max.ms": "1500"}) as running:
        nodes = [running.nodes[node_id] for node_id in range(3)]
        await make_topic(nodes, (1, 2, 0))
        await produce(nodes[1], 10)
        await eventually(lambda: ends(nodes) == {(10, 10)})
        nodes[2].replicas.stop()
        await produce(nodes[1], 1, first=10)  # answered once the ISR is without node 2
        # The leader knows it by the controller's answer, and sees it in the image a moment later.
        await eventually(lambda: nodes[1].cluster.topics[TOPIC].partitions[0].isr == (1, 0))
        cut_off = nodes[2].logs.get(TOPIC, 0)
        assert cut_off is not None
        assert cut_off.log_end_offset == 10
        nodes[2].replicas = ReplicaManager(nodes[2])
        nodes[2].replicas.apply()
        await eventually(lambda: set(nodes[1].cluster.topics[TOPIC].partitions[0].isr) == {0, 1, 2})
        await eventually(lambda: ends(nodes) == {(11, 11)})
        assert len(set(log_bytes(tmp_path))) == 1


async def test_a_replica_of_an_idle_partition_rejoins_while_another_is_busy(
    tmp_path: Path,
) -> None:
    def put_out(image: ClusterImage) -> list[PartitionChanged]:
        topic = image.topics[TOPIC]
        now = topic.partitions[0]
        wish = IsrWish(topic.topic_id, 0, now.leader_epoch, now.partition_epoch, (IsrMember(1),))
        changed = alter_partition(image, 1, wish)
        assert changed is not None
        return [changed]

    async def bring_changes(leader: Node) -> None:
        while True:
            await produce(leader, 1, index=1)
            await asyncio.sleep(0.02)

    # No request of the replica waits until its time is up.
    settings = {"replica.fetch.wait.max.ms": "60000", "replica.lag.time.max.ms": "60000"}
    async with cluster_of(tmp_path, 3, settings) as running:
        nodes = [running.nodes[node_id] for node_id in range(3)]
        await make_topic(nodes, (1, 2), (1, 2))
        await produce(nodes[1], 10)
        await eventually(lambda: ends(nodes[1:]) == {(10, 10)})
        bringing = asyncio.create_task(bring_changes(nodes[1]))
        await running.controller.authority.submit(put_out)
        assert running.controller.cluster.topics[TOPIC].partitions[0].isr == (1,)
        await eventually(lambda: set(nodes[1].cluster.topics[TOPIC].partitions[0].isr) == {1, 2})
        assert not bringing.done()
        bringing.cancel()


class Muffle:
    """Stands on 127.0.0.2 before a node on 127.0.0.1, and while it is `silent` takes all bytes and passes none on."""

    def __init__(self) -> None:
        self.silent = False
        self.connections = 0

    async def accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        port = writer.get_extra_info("sockname")[1]
        onward_reader, onward = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(self._pump(reader, onward), self._pump(onward_reader, writer))
        finally:
            onward.close()
            writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if not self.silent:
                    writer.write(data)
            writer.close()


async def test_a_follower_of_a_leader_that_was_silent_fetches_over_another_connection(tmp_path: Path) -> None:
    muffle = Muffle()
    settings = {"replica.socket.timeout.ms": "300", "replica.fetch.wait.max.ms": "100"}
    async with cluster_of(tmp_path, 1, settings) as running:
        for node_id, host in ((1, "127.0.0.2"), (2, "127.0.0.1")):
            words = {"controller_quorum_voters": "", "controller_quorum_bootstrap_servers": running.voters[2:]}
            config = running.node(node_id, process_roles="broker", **words).static_config
            node = running.nodes[node_id] = Node(replace(config, advertised_host=host))
            await node.start()
        nodes = [running.nodes[node_id] for node_id in range(3)]
        # Not `async with`, which from Python 3.12 on waits for those that are connected: the followers stay so.
        with contextlib.closing(await asyncio.start_server(muffle.accepted, "127.0.0.2", nodes[1].port)):
            await make_topic(nodes, (1, 2))
            await produce(nodes[1], 10)
            await eventually(lambda: ends(nodes[1:]) == {(10, 10)})
            muffle.silent, before = True, muffle.connections
            # The first has had answers, and is found silent by how many; those behind it have had none.
            await eventually(lambda: muffle.connections > before + 3)
            muffle.silent = False
            await produce(nodes[1], 1, first=10)
            await eventually(lambda: ends(nodes[1:]) == {(11, 11)})


async def test_a_client_reads_and_waits_at_the_replica_in_its_rack(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3, settings={"replica.selector.class": RACK_AWARE_SELECTOR}) as running:
        for node_id in range(3):
            await running.stop(node_id)
            running.nodes[node_id] = node = running.node(node_id, broker_rack=f"r{node_id}")
            await node.start()
        nodes = [running.nodes[node_id] for node_id in range(3)]
        await eventually(lambda: {broker.rack for broker in nodes[1].cluster.brokers.values()} == {"r0", "r1", "r2"})
        await make_topic(nodes, (1, 2, 0))
        await produce(nodes[1], 30)
        await eventually(lambda: ends(nodes) == {(30, 30)})
        before = nodes[2].counters.requests[ApiKey.FETCH].count
        found = await asyncio.to_thread(read_all, servers(nodes), 30, **{"client.rack": "r2"})
        assert found == [b"%d" % at for at in range(30)]
        assert nodes[2].counters.requests[ApiKey.FETCH].count > before

        # Written and not copied yet: a follower has nothing to say of it, and calls no offset of the leader's wrong.
        for follower in (nodes[0], nodes[2]):
            follower.replicas.stop()
        leader, follower = nodes[1].logs.led(TOPIC, 0), nodes[2].logs.get(TOPIC, 0)
        assert leader is not None
        assert follower is not None
        ahead = asyncio.ensure_future(leader.own_appends.records([(None, b"late")]))
        await eventually(lambda: leader.log_end_offset == 31)
        assert follower.read(30, 1000).chunks == ()
        link = PeerLink(f"127.0.0.1:{nodes[2].port}")
        for offset, expected in ((30, ErrorCode.NONE), (31, ErrorCode.OFFSET_NOT_AVAILABLE)):
            partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1000}
            values = {
                "max_wait": 0,
                "min_bytes": 1,
                "topics": ({"topic": TOPIC, "partitions": (partition,)},),
                "forgotten_topics_data": (),
            }
            answer = (await link.ask(ApiKey.FETCH, 12, values)).responses[0].partitions[0]
            assert (answer.error_code, answer.records or b"") == (expected, b"")
        link.close()
        for behind in (nodes[0], nodes[2]):
            behind.replicas = ReplicaManager(behind)
            behind.replicas.apply()
        await ahead
        await eventually(lambda: bool(follower.read(30, 1000).chunks))


async def test_a_client_is_not_sent_to_a_replica_in_its_rack_that_is_out_of_sync(tmp_path: Path) -> None:
    settings = {"replica.selector.class": RACK_AWARE_SELECTOR, "replica.lag.time.max.ms": "1500"}
    async with cluster_of(tmp_path, 3, settings=settings) as running:
        await running.stop(2)
        running.nodes[2] = running.node(2, broker_rack="near")
        await running.nodes[2].start()
        nodes = [running.nodes[node_id] for node_id in range(3)]
        await eventually(
            lambda: nodes[1].cluster.brokers[2].rack == "near" and not nodes[1].cluster.brokers[2].is_fenced
        )
        await make_topic(nodes, (1, 2, 0))
        await produce(nodes[1], 10)
        await eventually(lambda: ends(nodes) == {(10, 10)})
        link = PeerLink(f"127.0.0.1:{nodes[1].port}")

        async def fetch() -> Any:
            values = {
                "max_wait": 0,
                "min_bytes": 1,
                "topics": (
                    {
                        "topic": TOPIC,
                        "partitions": ({"partition": 0, "fetch_offset": 5, "partition_max_bytes": 1000},),
                    },
                ),
                "forgotten_topics_data": (),
                "rack_id": "near",
            }
            return (await link.ask(ApiKey.FETCH, 12, values)).responses[0].partitions[0]

        async with asyncio.timeout(30):
            # On a busy machine it may be out of sync for a moment: the limit is 300 ms.
            while (sent_away := await fetch()).preferred_read_replica == -1:
                pass
        assert (sent_away.preferred_read_replica, sent_away.records or b"") == (2, b"")
        nodes[2].replicas.stop()
        await produce(nodes[1], 1, first=10)  # answered once the ISR is without node 2
        served = await fetch()
        assert (served.error_code, served.preferred_read_replica) == (ErrorCode.NONE, -1)
        assert served.records
        link.close()


@pytest.mark.parametrize("damaged", [1, 2], ids=["leader", "follower"])
async def test_a_batch_damaged_on_disk_is_never_read_and_repaired_from_another_replica(
    tmp_path: Path, damaged: int
) -> None:
    async with cluster_of(tmp_path, 3) as running:
        nodes = [running.nodes[node_id] for node_id in range(3)]
        await make_topic(nodes, (1, 2, 0))
        await produce(nodes[1], 20)
        await eventually(lambda: ends(nodes) == {(20, 20)})
        healthy = log_bytes(tmp_path)
        await running.stop(damaged)
        flip_one_bit(tmp_path / f"n{damaged}")
        await running.start(damaged)
        nodes = [running.nodes[node_id] for node_id in range(3)]
        await eventually(lambda: ends(nodes) == {(20, 20)})
        await eventually(lambda: set(nodes[0].cluster.topics[TOPIC].partitions[0].isr) == {0, 1, 2})
        replica = nodes[damaged].logs.get(TOPIC, 0)
        assert replica is not None
        read, offset = b"", 0
        while offset < 20:
            found = replica.read(offset, 1 << 20)
            for chunk in found.chunks:
                for _, header in batches_in(chunk):
                    offset = header.last_offset + 1
                read += chunk
            await asyncio.sleep(0.001)
        assert read == healthy[0], "what was damaged came only when it was repaired"
        assert log_bytes(tmp_path) == healthy
        await eventually(lambda: nodes[damaged].replicas.repair.repaired == 1)


async def test_metadata_that_have_gone_back_delete_nothing(nodes: list[Node], tmp_path: Path) -> None:
    await make_topic(nodes, (1, 2, 0))
    await produce(nodes[1], 3)
    node = nodes[2]
    before, node.cluster = node.cluster, ClusterImage(defaults=node.static_config)
    node.replicas.apply()
    node.cluster = before
    assert node.logs.get(TOPIC, 0) is None
    assert len(await asyncio.to_thread(lambda: list(tmp_path.glob(f"n2/{TOPIC}-0.*-stray/*.log")))) == 1


async def test_followers_ask_and_the_leader_opens_no_connection_to_them(nodes: list[Node]) -> None:
    await make_topic(nodes, (1, 2, 0))
    asked: dict[int, set[int]] = {node.config.node_id: set() for node in nodes}
    for node in nodes:
        handle = node.replica_fetches.handle

        def traced(
            header: RequestHeader,
            request: ReplicaFetchRequest,
            slot: Slot,
            handle: Callable[..., None] = handle,
            node: Node = node,
        ) -> None:
            asked[node.config.node_id].add(request.replica_id)
            handle(header, request, slot)

        node.replica_fetches.handle = traced  # type: ignore[method-assign]
    await produce(nodes[1], 10)
    await eventually(lambda: ends(nodes) == {(10, 10)})
    assert asked[1] == {0, 2}, "both followers send Fetch with their replica ids"
    followed = [runtime for runtime, _, _ in nodes[1].replicas.fetchers.lags() if runtime.topic == TOPIC]
    assert followed == [], "the leader fetches this topic from nobody"


async def test_a_client_that_waits_at_a_replica_which_is_moved_away_is_told_at_once(nodes: list[Node]) -> None:
    """Also within a session, and again each time that it asks there."""
    await make_topic(nodes, (1, 2))
    await produce(nodes[1], 5)
    await eventually(lambda: ends(nodes) == {(5, 5)})
    link, operator = PeerLink(f"127.0.0.1:{nodes[2].port}"), PeerLink(f"127.0.0.1:{nodes[0].port}")

    async def fetch(session_id: int, epoch: int, *, wait_ms: int = 0) -> Any:
        partition = {"partition": 0, "fetch_offset": 5, "partition_max_bytes": 1000}
        values = {
            "max_wait": wait_ms,
            "min_bytes": 1,
            "session_id": session_id,
            "session_epoch": epoch,
            "topics": () if session_id else ({"topic": TOPIC, "partitions": (partition,)},),
            "forgotten_topics_data": (),
        }
        return await link.ask(ApiKey.FETCH, 12, values)

    def told(answer: Any) -> list[int]:
        return [partition.error_code for topic in answer.responses for partition in topic.partitions]

    opened = await fetch(0, 0)
    assert told(opened) == [ErrorCode.NONE]
    assert told(await fetch(opened.session_id, 1)) == []
    waiting = asyncio.ensure_future(fetch(opened.session_id, 2, wait_ms=WAIT_MS_MAX))
    move = {
        "timeout": 10_000,
        "topics": ({"name": TOPIC, "partitions": ({"partition_index": 0, "replicas": (1, 0)},)},),
    }
    moved = await operator.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, move)
    assert (moved.error_code, moved.responses[0].partitions[0].error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    assert told(await waiting) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert told(await fetch(opened.session_id, 3)) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    link.close()
    operator.close()
