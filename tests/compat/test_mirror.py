"""A topic mirrored from one cluster to another by the example, which is killed again and again."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import log_broker
from examples.mirror import Mirror

TOPIC = "orders"
PARTITIONS = 3


@pytest.fixture
def target(tmp_path: Path) -> Any:
    with log_broker.embedded(data_dir=tmp_path / "target") as broker:
        yield broker


def content(servers: str, group: str) -> dict[int, list[tuple[Any, ...]]]:
    """What a reader of committed records gets of each partition."""
    client = Consumer({"bootstrap.servers": servers, "group.id": group, "isolation.level": "read_committed"})
    found: dict[int, list[tuple[Any, ...]]] = {partition: [] for partition in range(PARTITIONS)}
    try:
        for partition, records in found.items():
            place = TopicPartition(TOPIC, partition, 0)
            client.assign([place])
            end = client.get_watermark_offsets(place, 30)[1]
            deadline = time.monotonic() + 60
            while client.position([place])[0].offset < end:
                assert time.monotonic() < deadline
                for message in client.consume(1000, 0.2):
                    assert message.error() is None
                    records.append((message.key(), message.value(), message.headers(), message.timestamp()[1]))
    finally:
        client.close()
    return found


def send(producer: Producer, dice: random.Random, first: int, count: int) -> None:
    for number in range(first, first + count):
        producer.produce(
            TOPIC,
            None if number % 17 == 0 else b"%d" % number,
            b"key-%d" % (number % 5),
            partition=dice.randrange(PARTITIONS),
            headers=[("n", b"%d" % number)],
            timestamp=1_700_000_000_000 + number,
        )


def test_killed_again_and_again_it_copies_each_committed_record_once(tmp_path: Path, target: Any) -> None:
    dice = random.Random(5)
    with log_broker.embedded(data_dir=tmp_path / "source") as source:
        admin = AdminClient({"bootstrap.servers": source.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
        producer = Producer({"bootstrap.servers": source.bootstrap_servers, "transactional.id": "shop"})
        producer.init_transactions(30)
        clusters = ("--from", source.bootstrap_servers, "--to", target.bootstrap_servers)
        written = 0
        for _ in range(6):
            for commits in (True, False):
                producer.begin_transaction()
                send(producer, dice, written, 2000)
                written += 2000
                producer.flush(30)
                (producer.commit_transaction if commits else producer.abort_transaction)(30)
            mirror = subprocess.Popen(
                [sys.executable, "-m", "examples.mirror", *clusters, TOPIC],
                stdout=subprocess.PIPE,
                text=True,
            )
            assert mirror.stdout is not None
            try:
                # It has begun to copy, and is somewhere.
                assert "behind" in mirror.stdout.readline()
                time.sleep(dice.random() / 10)
            finally:
                mirror.send_signal(signal.SIGKILL)
                mirror.communicate()
        with Mirror(source.bootstrap_servers, target.bootstrap_servers, TOPIC) as last:
            while last.step(5):
                pass
        expected = content(source.bootstrap_servers, "look")
        assert sum(map(len, expected.values())) == written // 2
        assert content(target.bootstrap_servers, "look") == expected


def test_a_cluster_is_no_mirror_of_itself_and_an_unknown_topic_is_said(target: Any, tmp_path: Path) -> None:
    servers = target.bootstrap_servers
    with pytest.raises(ValueError, match="are one cluster"):
        Mirror(servers, servers, TOPIC)
    with (
        log_broker.embedded(data_dir=tmp_path / "source") as source,
        pytest.raises(KafkaException, match="Unknown topic"),
    ):
        Mirror(source.bootstrap_servers, servers, TOPIC)
