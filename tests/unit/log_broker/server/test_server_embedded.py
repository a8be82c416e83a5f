"""The broker inside someone else's process."""

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import log_broker
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.embedded import EmbeddedBroker
from log_broker.server.net.connection import Connection
from log_broker.server.process.machine import BindError


def send_and_count(broker: EmbeddedBroker, topic: str, count: int = 10) -> int:
    """Produce through librdkafka and return how many partitions the topic has."""
    from confluent_kafka import Producer

    # Its log lines about a broker that went away are of no interest.
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0, "log_level": 0})
    for number in range(count):
        producer.produce(topic, value=str(number))
    assert producer.flush(30) == 0
    return len(producer.list_topics(topic, 30).topics[topic].partitions)


def test_it_serves_a_stock_client_and_goes_with_its_directory() -> None:
    with log_broker.embedded(num_partitions="3") as broker:
        assert send_and_count(broker, "t") == 3
        assert broker.data_dir.exists()
    assert not broker.data_dir.exists()


def test_topics_and_settings_are_given_at_the_start_or_later() -> None:
    with log_broker.embedded(
        topics={"orders": 4, "payments": 1}, config={"auto.create.topics.enable": False}, num_partitions=2
    ) as broker:
        assert send_and_count(broker, "orders") == 4
        assert broker.create_topic("later") == "later"
        assert broker.create_topic("compacted", partitions=5, config={"cleanup.policy": "compact"}) == "compacted"
        topics = broker.node.cluster.topics
        assert {name: len(topic.partitions) for name, topic in topics.items()} == {
            "orders": 4,
            "payments": 1,
            "later": 2,
            "compacted": 5,
        }
        assert topics["compacted"].config.is_compacted
        assert not broker.node.config.auto_create_topics_enable
        with pytest.raises(BrokerError) as refused:
            broker.create_topic("later")
        assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    with log_broker.embedded(topics=["one", "two"]) as broker:
        assert sorted(broker.node.cluster.topics) == ["one", "two"]


def test_what_keeps_it_from_starting_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=r"no\.such\.setting"), log_broker.embedded(no_such_setting="1"):
        pass
    with pytest.raises(BrokerError, match="invalid"), log_broker.embedded(topics=["a b"], data_dir=tmp_path / "t"):
        pass
    with (
        log_broker.embedded(data_dir=tmp_path / "one") as first,
        pytest.raises(BindError),
        log_broker.embedded(data_dir=tmp_path / "two", port=first.port),
    ):
        pass
    assert (tmp_path / "one").exists()


def test_a_directory_that_is_given_keeps_its_records(tmp_path: Path) -> None:
    with log_broker.embedded(data_dir=tmp_path / "kept", topics=["t"]) as broker:
        send_and_count(broker, "t", 7)
    with log_broker.embedded(data_dir=tmp_path / "kept") as broker:
        runtime = broker.node.logs.get("t", 0)
        assert runtime is not None
        assert runtime.high_watermark == 7


# Run in a process that has no other broker, whose threads and files would be counted too.
_STARTED_AND_STOPPED = """
import gc, os, sys, threading
import log_broker
from test_server_embedded import send_and_count

class Failed(Exception):
    pass

def once():
    try:
        with log_broker.embedded(topics=["t"], offsets_topic_num_partitions=2) as broker:
            send_and_count(broker, "t")
            if "fails" in sys.argv:
                raise Failed
    except Failed:
        pass
    assert not broker.data_dir.exists()
    gc.collect()

once()  # what the process keeps from its first broker on is there now
files = len(os.listdir("/proc/self/fd"))
for _ in range(3):
    once()
assert [thread.name for thread in threading.enumerate() if thread.name.startswith("log-")] == []
assert len(os.listdir("/proc/self/fd")) == files
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted in /proc")
@pytest.mark.parametrize("outcome", ["ends", "fails"])
def test_nothing_is_left_of_it(outcome: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _STARTED_AND_STOPPED, outcome],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_many_at_once_know_nothing_of_each_other() -> None:
    def one(number: int) -> tuple[str, list[str]]:
        topic = f"of-{number}"
        with log_broker.embedded(topics={topic: number + 1}) as broker:
            assert send_and_count(broker, topic) == number + 1
            return broker.node.cluster_id, sorted(broker.node.cluster.topics)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(one, range(8)))
    assert [topics for _, topics in found] == [[f"of-{number}"] for number in range(8)]
    assert len({cluster_id for cluster_id, _ in found}) == 8


def test_brokers_in_several_threads_never_read_into_each_others_memory() -> None:
    with log_broker.embedded() as one, log_broker.embedded() as other:
        buffers = [Connection(broker.node).get_buffer(-1) for broker in (one, other, one)]
        assert buffers[0].obj is buffers[2].obj
        assert buffers[0].obj is not buffers[1].obj


async def test_it_serves_clients_of_the_loop_that_it_is_started_from() -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    with log_broker.embedded(topics=["t"], offsets_topic_num_partitions=1) as broker:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        consumer = AIOKafkaConsumer(
            "t", bootstrap_servers=broker.bootstrap_servers, group_id="g", auto_offset_reset="earliest"
        )
        await producer.start()
        await consumer.start()
        try:
            await producer.send_and_wait("t", b"hello")
            assert (await asyncio.wait_for(consumer.getone(), 30)).value == b"hello"
        finally:
            await consumer.stop()
            await producer.stop()


def in_a_child(work: Any) -> int:
    """Fork, run `work` in the child, and return the status that it ended with."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_leaves_the_broker_of_its_parent_alone(tmp_path: Path) -> None:
    context = log_broker.embedded(data_dir=tmp_path / "data", topics=["t"])
    temporary = log_broker.embedded(topics=["t"])
    with context as broker, temporary as other:

        def leave() -> None:
            temporary.__exit__(None, None, None)
            context.__exit__(None, None, None)

        assert in_a_child(leave) == 0
        assert other.data_dir.exists()
        assert send_and_count(broker, "t") == 1
        assert send_and_count(other, "t") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_does_not_keep_the_directory_locked(tmp_path: Path) -> None:
    hold, release = os.pipe()
    with log_broker.embedded(data_dir=tmp_path / "data"):
        child = os.fork()
        if child == 0:
            os.read(hold, 1)
            os._exit(0)
    try:
        with log_broker.embedded(data_dir=tmp_path / "data", topics=["again"]) as broker:
            assert "again" in broker.node.cluster.topics
    finally:
        os.write(release, b"x")
        os.waitpid(child, 0)
        os.close(hold)
        os.close(release)
