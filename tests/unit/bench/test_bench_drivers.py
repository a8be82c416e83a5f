"""The drivers of `make bench-drivers`: what is read out of what Kafka's tools print, and a load of a moment."""

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType

from tests.bench.broker.arena import OURS_FSYNC, OURS_MEMORY, Arena, Scale
from tests.bench.broker.measuring import admin_of
from tests.bench.broker.servers import Ours
from tests.bench.drivers.kafka_tools import consumer_sample, latency_sample, producer_sample
from tests.bench.drivers.openmessaging import FIXED_RATE, LOAD, MAX_RATE, OFFSETS, Shape, sync_commits

PRODUCED = """\
24786 records sent, 4957.2 records/sec (0.47 MB/sec), 1.3 ms avg latency, 210.0 ms max latency.
30000 records sent, 4998.3 records/sec (0.48 MB/sec), 1.10 ms avg latency, 210.00 ms max latency, 1 ms 50th, \
2 ms 95th, 5 ms 99th, 40 ms 99.9th.
"""
CONSUMED = """\
start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, \
fetch.MB.sec, fetch.nMsg.sec
2026-11-27 10:00:00:000, 2026-11-27 10:00:05:000, 190.7, 38.1, 2000100, 400000.0, 3100, 2000, 95.3, 1000050.0
"""
ONE_BY_ONE = "0\t1.5\n1000\t0.7\nAvg latency: 0.7500 ms\nPercentiles: 50th = 1, 99th = 3, 99.9th = 9\n"


def test_the_last_line_of_a_producer_is_that_of_the_whole_run() -> None:
    sample = producer_sample(PRODUCED, cpu_seconds=0.3)
    assert (sample.messages, sample.p50_ms, sample.p99_ms) == (30_000, 1.0, 5.0)
    assert (sample.rate, sample.cpu_micros) == pytest.approx((4998.3, 10.0))


def test_a_consumers_rate_is_without_the_time_in_which_it_joined_its_group() -> None:
    sample, join_ms = consumer_sample(CONSUMED, cpu_seconds=2.0)
    assert (sample.messages, sample.rate, join_ms) == (2_000_100, 1_000_050.0, 3100.0)


def test_records_one_at_a_time_have_an_average_finer_than_their_percentiles() -> None:
    sample = latency_sample(ONE_BY_ONE, cpu_seconds=0.1, count=2_000)
    assert (1000 / sample.rate, sample.p50_ms, sample.p99_ms) == pytest.approx((0.75, 1.0, 3.0))


def test_what_a_tool_did_not_say_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="did not end with"):
        producer_sample(PRODUCED.splitlines()[0], cpu_seconds=0.3)


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    broker = Ours(tmp_path_factory.mktemp("bench"))
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


@pytest.mark.parametrize("rate", [2_000, 0], ids=["at a rate", "without pause"])
def test_a_shape_is_published_and_read_from_end_to_end(ours: Ours, rate: int) -> None:
    shape = Shape("small", partitions=3, message_bytes=100, producers=2, consumers=2, rate=rate)
    load = {**shape._asdict(), "seconds": 0.5}
    sample = Arena(None, Scale(1, 1.0)).produce(ours, OURS_FSYNC, LOAD, load, partitions=3)
    assert sample.acknowledged > sample.messages > 0, "those before the clock started as well"
    assert 0 < sample.p50_ms <= sample.p99_ms
    assert 0 < sample.end_to_end_p50_ms <= sample.end_to_end_p99_ms
    if rate:
        assert sample.messages <= rate * 0.5 + 1, "no more than is due"


def test_commits_are_as_durable_as_the_messages_of_a_side(ours: Ours) -> None:
    found = []
    for side in (OURS_FSYNC, OURS_MEMORY, OURS_FSYNC):
        sync_commits(ours, side)
        resource, admin = ConfigResource(ResourceType.TOPIC, OFFSETS), admin_of(ours)
        found.append(admin.describe_configs([resource])[resource].result(30)["fluvial.durability"].value)
    assert found == ["fsync-quorum", "memory", "fsync-quorum"]


def test_shapes_are_those_that_their_names_say() -> None:
    for shape in (*FIXED_RATE[1:], *MAX_RATE):
        assert f"1-topic-{shape.partitions}-partition" in shape.name
        assert (shape.message_bytes == 100) == ("100b" in shape.name)
        assert (shape.producers == 4) == ("-4p-4c" in shape.name)
