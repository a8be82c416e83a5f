"""Where the bytes of a log are: in the page cache, not in the broker; what that saves after a restart."""

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

RECORD = bytes(range(256)) * 400  # 100 KiB
RECORDS = 2000
MIB = 1 << 20


def figures(pid: int, file: str) -> dict[str, int]:
    """Numbers of a process from /proc: of `status` in KiB, of `io` in bytes."""
    found = {}
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        name, _, value = line.partition(":")
        if value.split() and value.split()[0].isdigit():
            found[name] = int(value.split()[0])
    return found


def consume(bootstrap_servers: str, offset: int, count: int) -> None:
    client = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "none", "queued.max.messages.kbytes": 16_384}
    )
    client.assign([TopicPartition("t", 0, offset)])
    deadline = time.monotonic() + 60
    while count > 0:
        assert time.monotonic() < deadline
        messages = client.consume(50, 0.5)
        assert all(message.error() is None and len(message.value() or b"") == len(RECORD) for message in messages)
        count -= len(messages)
    client.close()


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the kernel tells of memory and reads by /proc")
def test_the_broker_holds_no_copy_and_its_restart_leaves_the_cache_warm(own_broker: Any) -> None:
    own_broker.words = (*own_broker.words, "--set", "fluvial.durability=memory", "--set", "log.segment.bytes=50000000")
    own_broker.stop()
    own_broker.start()
    settings = {"bootstrap.servers": own_broker.bootstrap_servers, "linger.ms": 5, "queue.buffering.max.kbytes": 32_768}
    producer = Producer(settings)
    resting = peak = figures(own_broker.process.pid, "status")["VmRSS"]
    for number in range(RECORDS):
        while True:
            try:
                producer.produce("t", RECORD)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 50 == 0:
            peak = max(peak, figures(own_broker.process.pid, "status")["VmRSS"])
    assert producer.flush(60) == 0
    read_before = figures(own_broker.process.pid, "io").get("read_bytes", 0)
    consume(own_broker.bootstrap_servers, 0, RECORDS)
    peak = max(peak, figures(own_broker.process.pid, "status")["VmHWM"])
    passed = RECORDS * len(RECORD)
    assert (peak - resting) * 1024 < passed / 3, f"{passed // MIB} MiB went in and out"
    assert figures(own_broker.process.pid, "io").get("read_bytes", 0) - read_before < passed / 20
    own_broker.stop()
    own_broker.start()
    tail = RECORDS // 4
    consume(own_broker.bootstrap_servers, 0, tail)  # the programs of the broker may be read from the disk
    read_before = figures(own_broker.process.pid, "io").get("read_bytes", 0)
    consume(own_broker.bootstrap_servers, RECORDS - tail, tail)
    assert figures(own_broker.process.pid, "io").get("read_bytes", 0) - read_before < tail * len(RECORD) / 20
