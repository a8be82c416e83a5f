"""Transactions whose coordinator, partitions and group are on different nodes, with a stock client."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from node_client import client_of
from several_nodes import cluster, coordinated_by, eventually, topic_of

from log_broker.core.cluster.controller import PRODUCER_ID_BLOCK
from log_broker.core.transactions.records import TransactionState
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.control import EndMarker
from log_broker.server.coordinators.markers import Ending, MarkerSender
from log_broker.server.coordinators.partitions import join_transaction
from log_broker.server.handlers.transactions.write_txn_markers import coordinator_epoch_max
from log_broker.server.node import Node
from log_broker.wire.apis import ApiKey

NONE = ErrorCode.NONE
WAIT_SECONDS = 30.0


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    async with cluster(tmp_path) as started:
        yield started


def servers(nodes: list[Node]) -> str:
    return ",".join(f"127.0.0.1:{node.port}" for node in nodes)


def read_committed(nodes: list[Node], topic: str, partitions: int, count: int) -> list[bytes]:
    """Read so many committed records, or all that come within some seconds."""
    reader = Consumer(
        {
            "bootstrap.servers": servers(nodes),
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    reader.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: list[bytes] = []
    ended: set[int] = set()
    for _ in range(300):
        for message in reader.consume(100, 0.1):
            if message.error() is not None:
                ended.add(message.partition())
            else:
                found.append(message.value())
        if len(ended) == partitions and len(found) >= count:
            break
    reader.close()
    return found


def hanging(nodes: list[Node], topic: str, partitions: int) -> list[int]:
    """List the partitions in which a transaction is not decided."""
    runtimes = (node.logs.get(topic, partition) for node in nodes for partition in range(partitions))
    return [
        runtime.partition
        for runtime in runtimes
        if runtime is not None and runtime.last_stable_offset != runtime.high_watermark
    ]


@pytest.mark.parametrize("coordinator", [0, 1, 2])
async def test_a_transaction_ends_on_every_node_that_it_wrote_to(nodes: list[Node], coordinator: int) -> None:
    await topic_of(nodes, "t", [0, 1, 2])
    name = await coordinated_by(nodes, coordinator)

    def work() -> None:
        producer = Producer({"bootstrap.servers": servers(nodes), "transactional.id": name, "log_level": 0})
        producer.init_transactions(30)
        for number in range(4):
            producer.begin_transaction()
            for partition in range(3):
                producer.produce("t", value=b"%d/%d" % (number, partition), partition=partition)
            if number % 2:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)

    await asyncio.to_thread(work)
    await eventually(lambda: not hanging(nodes, "t", 3))
    found = await asyncio.to_thread(read_committed, nodes, "t", 3, 6)
    assert sorted(found) == sorted(b"%d/%d" % (number, partition) for number in (0, 2) for partition in range(3))
    assert [node.transactions.find(name) is not None for node in nodes] == [at == coordinator for at in range(3)]


async def test_consume_transform_produce_with_the_group_on_another_node(nodes: list[Node]) -> None:
    await topic_of(nodes, "in", [0, 1, 2])
    await topic_of(nodes, "out", [2, 0, 1])
    name = await coordinated_by(nodes, 0)
    group = await coordinated_by(nodes, 1, group=True)

    def work() -> None:
        source = Producer({"bootstrap.servers": servers(nodes), "log_level": 0})
        for number in range(90):
            source.produce("in", value=b"%d" % number, partition=number % 3)
        assert source.flush(30) == 0
        reader = Consumer(
            {
                "bootstrap.servers": servers(nodes),
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        reader.subscribe(["in"])
        producer = Producer({"bootstrap.servers": servers(nodes), "transactional.id": name, "log_level": 0})
        producer.init_transactions(30)
        done = turn = 0
        while done < 90:
            messages = reader.consume(20, 1.0)
            if not messages:
                continue
            positions = reader.position(reader.assignment())
            producer.begin_transaction()
            for message in messages:
                producer.produce("out", value=message.value(), partition=message.partition())
            producer.send_offsets_to_transaction(positions, reader.consumer_group_metadata(), 30)
            turn += 1
            if turn % 3 == 2:
                producer.abort_transaction(30)
                committed = reader.committed(reader.assignment(), 30)
                for place in committed:
                    place.offset = max(place.offset, 0)
                    reader.seek(place)
            else:
                producer.commit_transaction(30)
                done += len(messages)
        assert sum(place.offset for place in reader.committed(reader.assignment(), 30)) == 90
        reader.close()

    await asyncio.to_thread(work)
    found = await asyncio.to_thread(read_committed, nodes, "out", 3, 90)
    assert sorted(int(value) for value in found) == list(range(90))
    assert nodes[1].groups.find(group) is not None
    await eventually(lambda: not hanging(nodes, "__consumer_offsets", 50))


async def test_a_partition_outside_the_transaction_is_refused_by_another_node(nodes: list[Node]) -> None:
    await topic_of(nodes, "t", [1, 2])
    name = await coordinated_by(nodes, 0)
    answer = await nodes[0].transactions.init_producer(name, 60_000, None)
    producer = (answer.producer_id, answer.producer_epoch)
    assert await nodes[0].transactions.add_partitions(name, producer, [("t", 0)]) is NONE
    for node in nodes:
        asked = await join_transaction(node, name, producer, [("t", 0), ("t", 1)], add=False)
        assert asked == {("t", 0): NONE, ("t", 1): ErrorCode.TRANSACTION_ABORTABLE}
    fenced = await join_transaction(nodes[2], name, (producer[0], -1), [("t", 1)], add=True)
    assert fenced == {("t", 1): ErrorCode.PRODUCER_FENCED}
    assert await join_transaction(nodes[2], name, producer, [("t", 1)], add=True) == {("t", 1): NONE}
    transaction = nodes[0].transactions.find(name)
    assert transaction is not None
    assert transaction.current.partitions == {("t", 0), ("t", 1)}


async def producer_id(node: Node) -> int:
    """Take a producer id, asking again while the controller cannot give any, as a client does."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                return await node.producer_ids.take()
            except BrokerError as error:
                if error.code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    raise
                await asyncio.sleep(0.05)


async def a_coordinator_epoch(nodes: list[Node]) -> int:
    """Return an epoch that a coordinator has, once all nodes know of it, and of the first producer ids."""
    await coordinated_by(nodes, 0)
    await producer_id(nodes[0])
    epoch = max(each.leader_epoch for each in nodes[0].cluster.topics["__transaction_state"].partitions)
    await eventually(lambda: all(coordinator_epoch_max(node) >= epoch for node in nodes))
    await eventually(lambda: all(node.cluster.next_producer_id > 50 for node in nodes))
    return epoch


@pytest.mark.parametrize(
    ("producer", "ahead"),
    [((-1, 0), 0), ((3, -1), 0), ((2**63 - 1, 0), 0), ((3, 0), 1), ((3, 0), 2**31 - 2), ((3, 0), -(2**31))],
)
async def test_a_marker_of_a_producer_or_a_coordinator_that_cannot_be_is_refused(
    nodes: list[Node], producer: tuple[int, int], ahead: int
) -> None:
    """One that names an epoch from the future would fence every coordinator to come."""
    await topic_of(nodes, "t", [1])
    epoch = await a_coordinator_epoch(nodes)
    named = max(-(2**31), min(epoch + ahead, 2**31 - 1))
    sender = MarkerSender(nodes[0])
    assert await sender.write(("t", 0), Ending(producer, EndMarker(True, named))) is ErrorCode.INVALID_REQUEST
    assert await sender.write(("t", 0), Ending((3, 0), EndMarker(True, epoch))) is NONE


async def test_markers_for_one_node_travel_together_and_an_old_coordinator_is_fenced(nodes: list[Node]) -> None:
    await topic_of(nodes, "t", [1, 1, 1, 2])
    sender = MarkerSender(nodes[0])
    epoch = await a_coordinator_epoch(nodes)
    new = [Ending((number, 0), EndMarker(True, epoch)) for number in range(50)]
    answers = [sender.write(("t", partition), ending) for ending in new for partition in range(4)]
    assert {await answer for answer in answers} == {NONE}
    requests = [node.counters.requests[ApiKey.WRITE_TXN_MARKERS].count for node in nodes]
    assert requests[0] == 0
    assert max(requests) <= 2
    old = Ending((3, 0), EndMarker(True, epoch - 1))
    assert await sender.write(("t", 0), old) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert await sender.write(("gone", 0), old) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_marker_waits_for_a_node_that_is_away(tmp_path: Path, nodes: list[Node]) -> None:
    await topic_of(nodes, "t", [1, 2])
    name = await coordinated_by(nodes, 0)
    answer = await nodes[0].transactions.init_producer(name, 60_000, None)
    producer = (answer.producer_id, answer.producer_epoch)
    assert await nodes[0].transactions.add_partitions(name, producer, [("t", 0), ("t", 1)]) is NONE
    lost = nodes[2]
    config = lost.static_config.with_settings({})
    await lost.stop()
    ended = await nodes[0].transactions.end(name, producer, committed=True, client_version=0)
    assert ended.error is NONE, "what is decided is answered before the markers are written"
    transaction = nodes[0].transactions.find(name)
    assert transaction is not None
    runtime = nodes[1].logs.get("t", 0)
    assert runtime is not None
    await eventually(lambda: runtime.log_end_offset == 1)
    assert transaction.state is TransactionState.PREPARE_COMMIT
    again = Node(config)
    await again.start()
    try:
        await eventually(lambda: transaction.state is TransactionState.COMPLETE_COMMIT)
        other = again.logs.get("t", 1)
        assert other is not None
        assert other.log_end_offset == 1
    finally:
        await again.stop()


async def producer_id_of(node: Node) -> int:
    """Take one, as clients do it: again where the controller has changed meanwhile."""
    while True:
        try:
            return await node.producer_ids.take()
        except BrokerError:
            await asyncio.sleep(0.01)


async def test_each_node_has_producer_ids_of_its_own(nodes: list[Node]) -> None:
    taken: list[int] = []
    for _ in range(3):
        for node in nodes:
            taken += await asyncio.gather(*(node.producer_ids.take() for _ in range(PRODUCER_ID_BLOCK // 2)))
    assert len(set(taken)) == len(taken)
    for node in nodes:
        async with client_of(node) as client:
            values = {"transactional_id": None, "transaction_timeout": 1000}
            answer = await client.ask(ApiKey.INIT_PRODUCER_ID, values, version=2)
            assert answer.error_code == NONE
            assert answer.producer_id not in taken
    # What was asked for ahead is there while the controller is not.
    await eventually(lambda: not any(node.producer_ids.is_asking for node in nodes))
    await nodes[0].stop()
    left = [await nodes[1].producer_ids.take() for _ in range(PRODUCER_ID_BLOCK // 10)]
    assert not set(left) & set(taken)
    # The next controller knows what the one before it has given away.
    more = await asyncio.gather(*(producer_id_of(nodes[1]) for _ in range(2 * PRODUCER_ID_BLOCK)))
    assert not set(more) & {*taken, *left}
