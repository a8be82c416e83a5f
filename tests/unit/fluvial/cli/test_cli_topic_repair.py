"""`fluvial topic repair` on the folder of a broker that stored what no consumer can read."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

import log_broker
from fluvial.cli.main import execute
from log_broker.records import build_batch, read_header
from log_broker.records.batch import HEADER_BYTES, place, seal

GOOD = build_batch([(1, None, b"good", ())])


def poisoned(log: Path) -> None:
    """Write three batches behind each other, of which the second has a right checksum and no record."""
    garbage = bytearray(GOOD)
    garbage[HEADER_BYTES:] = b"\xff" * (len(GOOD) - HEADER_BYTES)
    seal(garbage)
    content = b""
    for offset, batch in enumerate((GOOD, garbage, GOOD)):
        copy = bytearray(batch)
        place(copy, base_offset=offset, leader_epoch=0)
        content += copy
    log.write_bytes(content)


def consumed(servers: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition("orders", 0, 0)])
    found = consumer.consume(count + 1, 30)
    consumer.close()
    return [each.offset() for each in found if each.error() is None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "node"
    with log_broker.embedded(data_dir=folder, topics=["orders"]):
        pass
    poisoned(folder / "orders-0" / f"{0:020d}.log")
    (folder / ".kafka_cleanshutdown").unlink()  # so that the next start looks at what is there
    return folder


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*words: str) -> tuple[int, str, str]:
        status = execute(["topic", "repair", *words])
        return status, *capfd.readouterr()

    return run


def test_readers_pass_what_nobody_can_read(folder: Path, run) -> None:
    status, out, said = run("orders", "--log-dir", str(folder), "--format", "json")
    assert (status, "add --execute" in said) == (0, True)
    (batch,) = json.loads(out)["batches"]
    assert (batch["partition"], batch["first_offset"], batch["last_offset"]) == (0, 1, 1)
    assert batch["reason"]
    before = (folder / "orders-0" / f"{0:020d}.log").read_bytes()

    assert run("orders", "--log-dir", str(folder), "--execute")[0] == 0

    after = (folder / "orders-0" / f"{0:020d}.log").read_bytes()
    assert len(after) == len(before) - len(GOOD) + HEADER_BYTES
    assert read_header(after, len(GOOD)).record_count == 0
    assert "can be read" in run("orders", "--log-dir", str(folder))[2]
    with log_broker.embedded(data_dir=folder) as broker:
        assert consumed(broker.bootstrap_servers, 2) == [0, 2]


def test_a_node_that_runs_is_left_alone(tmp_path: Path, run) -> None:
    with log_broker.embedded(data_dir=tmp_path / "node", topics=["orders"]):
        status, _, said = run("orders", "--log-dir", str(tmp_path / "node"), "--execute")
    assert (status, "stop that node first" in said) == (1, True)


def test_a_topic_that_is_not_there_is_said(tmp_path: Path, run) -> None:
    status, _, said = run("orders", "--log-dir", str(tmp_path))
    assert status == 1
    assert "there is no partition of topic 'orders'" in said
