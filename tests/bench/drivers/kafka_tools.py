"""
Apache Kafka's own measuring tools, as its `bin/kafka-*-perf-test.sh` start them, on both brokers.

What a row says is what the tool printed; only the broker's CPU time is taken beside it.
"""

import os
import re
import statistics
from collections.abc import Mapping

from tests.bench.broker.arena import KAFKA_DEFAULT, OURS_FSYNC, Arena, Side
from tests.bench.broker.measuring import Sample, drive, stored, topic
from tests.bench.broker.rows import Row, throughput_rows
from tests.bench.broker.servers import KAFKA_FLAGS, Broker
from tests.bench.drivers.sides import compared
from tests.peers.kafka_jars import run_kafka

TOOLS = "org.apache.kafka.tools"
TOOL_FLAGS = ("-Xmx512M", *KAFKA_FLAGS[1:])  # of kafka-producer-perf-test.sh and kafka-run-class.sh
AS_FAST_AS_IT_CAN = -1

# (bytes of a record, records, records a second)
PRODUCER_LOADS = ((1000, 300_000, AS_FAST_AS_IT_CAN), (100, 1_500_000, AS_FAST_AS_IT_CAN), (100, 30_000, 5_000))
CONSUMER_LOADS = ((1000, 500_000), (100, 2_000_000))
LATENCY_RECORDS = 2_000


def producer(arena: Arena) -> list[Row]:
    """ProducerPerformance, acks=all and otherwise as it comes: as fast as it can, and at a rate that both carry."""
    rows = []
    for value_bytes, records, throughput in PRODUCER_LOADS:
        count = arena.scale.count(records)

        def run(
            broker: Broker, side: Side, count: int = count, size: int = value_bytes, throughput: int = throughput
        ) -> Sample:
            with topic(broker, arena.topic_name(), 1, side.config) as name:
                sample = produced(broker, name, count, size, throughput)
                if (found := stored(broker, name, range(1))) != count:
                    raise RuntimeError(f"{broker.name} acknowledged {count} records and holds {found}")
            return sample

        pace = "as fast as it can" if throughput == AS_FAST_AS_IT_CAN else f"{throughput:,}/s"
        rows += compared(arena, "producer", f"ProducerPerformance, {value_bytes} B, {pace}", run)
    return rows


def consumer(arena: Arena) -> list[Row]:
    """ConsumerPerformance on a topic of one partition that is full already."""
    rows = []
    for value_bytes, records in CONSUMER_LOADS:
        count, name = arena.scale.count(records), arena.topic_name()
        filling = {"mode": "produce", "topic": name, "messages": count, "value_bytes": value_bytes, "partitions": 1}
        joins: dict[Side, list[float]] = {OURS_FSYNC: [], KAFKA_DEFAULT: []}
        with (
            topic(arena.broker("ours"), name, 1, OURS_FSYNC.config),
            topic(arena.broker("Kafka"), name, 1, KAFKA_DEFAULT.config),
        ):
            for each in ("ours", "Kafka"):
                drive(arena.broker(each), "bulk", filling)

            def run(
                broker: Broker,
                side: Side,
                name: str = name,
                count: int = count,
                joins: Mapping[Side, list[float]] = joins,
            ) -> Sample:
                sample, join_ms = consumed(broker, name, count)
                joins[side].append(join_ms)
                return sample

            what = f"ConsumerPerformance, {value_bytes} B"
            found = arena.rounds(what, tuple(joins), run)
        rows += throughput_rows("consumer", what, found[OURS_FSYNC], found[KAFKA_DEFAULT], aim=1.0)
        ours, kafka = (statistics.median(joins[side]) for side in (OURS_FSYNC, KAFKA_DEFAULT))
        rows.append(Row(group="consumer", load=what, unit="ms to join the group", ours=ours, kafka=kafka))
    return rows


def latency(arena: Arena) -> list[Row]:
    """EndToEndLatency: a record of 100 bytes at a time, acks=all, from its sending until it is read."""
    count = arena.scale.count(LATENCY_RECORDS)

    def run(broker: Broker, side: Side) -> Sample:
        with topic(broker, arena.topic_name(), 1, side.config) as name:
            return one_by_one(broker, name, count)

    return compared(arena, "latency", "EndToEndLatency, 100 B", run, unit="records/s, one at a time")


def produced(broker: Broker, name: str, count: int, value_bytes: int, throughput: int) -> Sample:
    """Run ProducerPerformance and return what it says of the whole run."""
    words = ("--topic", name, "--num-records", count, "--record-size", value_bytes, "--throughput", throughput)
    settings = ("--producer-props", f"bootstrap.servers={broker.address}", "acks=all")
    said, cpu = _run(broker, "ProducerPerformance", *words, *settings)
    return producer_sample(said, cpu)


def consumed(broker: Broker, name: str, count: int) -> tuple[Sample, float]:
    """Run ConsumerPerformance; return what it fetched, and the milliseconds of joining its group before that."""
    words = ("--bootstrap-server", broker.address, "--topic", name, "--messages", count, "--timeout", 60_000)
    said, cpu = _run(broker, "ConsumerPerformance", *words)
    return consumer_sample(said, cpu)


def one_by_one(broker: Broker, name: str, count: int) -> Sample:
    """Run EndToEndLatency; its percentiles are whole milliseconds, its average is not."""
    said, cpu = _run(broker, "EndToEndLatency", broker.address, name, count, "all", 100)
    return latency_sample(said, cpu, count)


def producer_sample(said: str, cpu_seconds: float) -> Sample:
    """Read the last line of ProducerPerformance."""
    number = r"([\d.]+)"
    whole = rf"^(\d+) records sent, {number} records/sec .*, {number} ms 50th, {number} ms 95th, {number} ms 99th"
    found = re.findall(whole, said, re.MULTILINE)
    if not found:
        raise RuntimeError(f"ProducerPerformance did not end with what it sent:\n{said[-500:]}")
    count, rate, p50, _, p99 = (float(each) for each in found[-1])
    return Sample(int(count), count / rate, cpu_seconds, int(count), p50_ms=p50, p99_ms=p99)


def consumer_sample(said: str, cpu_seconds: float) -> tuple[Sample, float]:
    """Read the two lines of ConsumerPerformance: names and values."""
    *_, header, values = said.splitlines()
    found = dict(zip(header.split(", "), values.split(", "), strict=True))
    fetch_seconds = float(found["fetch.time.ms"]) / 1000
    sample = Sample(int(found["data.consumed.in.nMsg"]), fetch_seconds, cpu_seconds)
    return sample, float(found["rebalance.time.ms"])


def latency_sample(said: str, cpu_seconds: float, count: int) -> Sample:
    """Read the last two lines of EndToEndLatency: the average, and percentiles."""
    average = re.search(r"^Avg latency: ([\d.]+) ms", said, re.MULTILINE)
    percentiles = re.search(r"^Percentiles: 50th = (\d+), 99th = (\d+)", said, re.MULTILINE)
    if average is None or percentiles is None:
        raise RuntimeError(f"EndToEndLatency did not end with its latencies:\n{said[-500:]}")
    seconds = float(average[1]) / 1000 * count
    p50, p99 = (float(each) for each in percentiles.groups())
    return Sample(count, seconds, cpu_seconds, count, p50_ms=p50, p99_ms=p99)


def _run(broker: Broker, tool: str, *words: object) -> tuple[str, float]:
    """Run a tool to its end; return what it printed and the broker's CPU seconds meanwhile."""
    os.sync()
    before = broker.cpu_seconds()
    done = run_kafka(f"{TOOLS}.{tool}", *words, jvm=TOOL_FLAGS)
    spent = broker.cpu_seconds() - before
    if done.returncode:
        raise RuntimeError(f"{tool} failed on {broker.name}:\n{(done.stdout + done.stderr)[-1000:]}")
    return done.stdout, spent
