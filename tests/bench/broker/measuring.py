"""
One measurement: a driver in a process of its own, the broker's CPU and the driver's answer from `go` to the end.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.bench.broker.servers import ROOT, Broker

ADMIN_SECONDS_MAX = 300.0
PARTITIONS_AT_ONCE = 5_000  # Kafka refuses an operation that makes more than 10,000 metadata records


@dataclass(frozen=True, slots=True)
class Sample:
    """
    What one run of a driver gave. The latencies are of single requests, 0 where a load has none.

    End to end is from the sending of a record until a consumer has it.
    """

    messages: int
    seconds: float
    server_cpu_seconds: float
    acknowledged: int = 0  # records that must be in the log, those before the clock started too
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    end_to_end_p50_ms: float = 0.0
    end_to_end_p99_ms: float = 0.0

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds

    @property
    def cpu_micros(self) -> float:
        """The broker's CPU time per message, in µs."""
        return self.server_cpu_seconds * 1e6 / self.messages


def median(samples: Sequence[Sample]) -> Sample:
    """The median of each figure by itself."""
    return Sample(
        messages=1,
        seconds=1 / statistics.median(sample.rate for sample in samples),
        server_cpu_seconds=statistics.median(sample.cpu_micros for sample in samples) / 1e6,
        p50_ms=statistics.median(sample.p50_ms for sample in samples),
        p99_ms=statistics.median(sample.p99_ms for sample in samples),
        end_to_end_p50_ms=statistics.median(sample.end_to_end_p50_ms for sample in samples),
        end_to_end_p99_ms=statistics.median(sample.end_to_end_p99_ms for sample in samples),
    )


def drive(broker: Broker, driver: str, load: Mapping[str, Any]) -> Sample:
    """Run a driver with its load, a module here or named in full; dirty pages of before are written out first."""
    os.sync()
    module = driver if "." in driver else f"tests.bench.broker.{driver}"
    words = [sys.executable, "-m", module, json.dumps({"address": broker.address, **load})]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    with subprocess.Popen(
        words, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the driver {driver} could not begin its load on {broker.name}")
        before = broker.cpu_seconds()
        process.stdin.write("go\n")
        process.stdin.flush()
        line = process.stdout.readline()
        after = broker.cpu_seconds()
    if not line:
        raise RuntimeError(f"the driver {driver} failed on {broker.name}")
    return Sample(server_cpu_seconds=after - before, **json.loads(line))


def admin_of(broker: Broker) -> AdminClient:
    """A client for topics and configs."""
    return AdminClient({"bootstrap.servers": broker.address, "log_level": 2})


def create_topic(broker: Broker, name: str, partitions: int, config: Iterable[tuple[str, str]]) -> float:
    """Create a topic and return the seconds until the request was answered."""
    admin = admin_of(broker)
    began = time.monotonic()
    first = min(partitions, PARTITIONS_AT_ONCE)
    timeouts = {"request_timeout": ADMIN_SECONDS_MAX, "operation_timeout": ADMIN_SECONDS_MAX}
    topic = NewTopic(name, num_partitions=first, replication_factor=broker.replication_factor, config=dict(config))
    admin.create_topics([topic], **timeouts)[name].result()
    for total in range(first + PARTITIONS_AT_ONCE, partitions + PARTITIONS_AT_ONCE, PARTITIONS_AT_ONCE):
        admin.create_partitions([NewPartitions(name, min(total, partitions))], **timeouts)[name].result()
    seconds = time.monotonic() - began
    await_leaders(broker, name, partitions)
    return seconds


def await_leaders(broker: Broker, name: str, partitions: int) -> None:
    """Return once every partition has a leader that clients can be told of."""
    admin = admin_of(broker)
    deadline = time.monotonic() + ADMIN_SECONDS_MAX
    while time.monotonic() < deadline:
        found = admin.list_topics(name, timeout=60).topics[name]
        if found.error is None and sum(at.leader >= 0 for at in found.partitions.values()) == partitions:
            return
        time.sleep(0.05)
    raise RuntimeError(f"{broker.name} has no leaders for {name}")


def delete_topic(broker: Broker, name: str) -> None:
    """Delete a topic; one that is not there is no error."""
    admin = admin_of(broker)
    try:
        admin.delete_topics([name], request_timeout=60.0)[name].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise


@contextmanager
def topic(broker: Broker, name: str, partitions: int, config: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A topic that is deleted afterwards."""
    create_topic(broker, name, partitions, config)
    try:
        yield name
    finally:
        delete_topic(broker, name)


def stored(broker: Broker, name: str, partitions: Iterable[int]) -> int:
    """How many offsets the partitions hold: what acknowledged loads are held to."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "bench", "log_level": 2})
    try:
        ends = [consumer.get_watermark_offsets(TopicPartition(name, at), timeout=30) for at in partitions]
    finally:
        consumer.close()
    return sum(high - low for low, high in ends)
