"""The drivers and the arithmetic of `make bench-broker`, with our broker alone and loads of a moment."""

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.bench.broker.arena import OURS_FSYNC, OURS_MEMORY, Arena, Scale
from tests.bench.broker.commit_requests import OFFSET
from tests.bench.broker.measuring import Sample, drive, median, topic
from tests.bench.broker.rows import Row, row_of_json, throughput_rows
from tests.bench.broker.servers import Broker, Ours


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    broker = Ours(tmp_path_factory.mktemp("bench"))
    broker.start()
    yield broker
    broker.stop()


@pytest.mark.parametrize("side", [OURS_MEMORY, OURS_FSYNC], ids=lambda side: side.level)
def test_every_acknowledged_single_record_is_found(ours: Broker, side) -> None:
    load = {"connections": 3, "in_flight": 4, "acks": 1, "value_bytes": 100, "seconds": 0.2}
    sample = Arena(None, Scale(1, 1.0)).produce(ours, side, "raw_requests", load, partitions=2)
    assert sample.acknowledged == sample.messages + 2
    assert 0 < sample.p50_ms <= sample.p99_ms


def test_a_bulk_load_is_written_and_read_back(ours: Broker) -> None:
    load = {"topic": "bench-bulk", "partitions": 1, "messages": 500, "value_bytes": 100}
    with topic(ours, "bench-bulk", 1, ()):
        assert drive(ours, "bulk", {"mode": "produce", **load}).acknowledged == 500 + 1
        assert drive(ours, "bulk", {"mode": "consume", **load}).messages >= 500


@pytest.mark.parametrize("in_group", [True, False])
@pytest.mark.parametrize("pace", [0, 200])
def test_commits_are_those_of_readers_with_and_without_a_group(ours: Broker, pace: int, *, in_group: bool) -> None:
    name = f"bench-commits-{pace}-{in_group}"
    load = {"topic": name, "partitions": 3, "connections": 2, "in_group": in_group, "seconds": 0.2}
    with topic(ours, name, 3, ()):
        sample = drive(ours, "commit_requests", {**load, "commits_a_second": pace})
        reader = Consumer({"bootstrap.servers": ours.address, "group.id": f"{name}-0001"})
        found = reader.committed([TopicPartition(name, at) for at in range(3)], timeout=10)
        reader.close()
    assert 0 < sample.p50_ms <= sample.p99_ms
    assert [place.offset for place in found] == [OFFSET] * 3


def test_a_refused_request_fails_the_measurement(ours: Broker) -> None:
    with topic(ours, "bench-small", 1, [("max.message.bytes", "300")]):
        load = {"topic": "bench-small", "partitions": 1, "connections": 1, "in_flight": 1, "acks": 1}
        with pytest.raises(RuntimeError, match="could not begin"):
            drive(ours, "raw_requests", {**load, "value_bytes": 1000, "seconds": 0.2, "touch_seconds_max": 0.2})


def test_medians_are_of_each_figure_by_itself() -> None:
    samples = [Sample(100, 1.0, 0.5, p99_ms=3.0), Sample(300, 1.0, 0.3, p99_ms=1.0), Sample(200, 1.0, 0.4, p99_ms=2.0)]
    middle = median(samples)
    assert middle.rate == pytest.approx(200)
    assert middle.cpu_micros == pytest.approx(2000)
    assert middle.p99_ms == 2.0


def test_an_aim_is_reached_from_the_right_side() -> None:
    faster = Row(group="g", load="l", unit="messages/s", ours=3.0, kafka=2.0, aim=1.5)
    dearer = Row(group="g", load="l", unit="µs", ours=3.0, kafka=2.0, aim=1.4, at_most=True)
    assert faster.reached
    assert dearer.reached is False
    assert Row(group="g", load="l", unit="ms", ours=1.0, kafka=1.0).reached is None
    assert row_of_json(faster.as_json()) == faster


def test_a_load_without_latencies_has_no_rows_for_them() -> None:
    without = throughput_rows("g", "l", Sample(1, 1.0, 1.0), Sample(1, 1.0, 1.0), aim=1.0)
    with_them = throughput_rows("g", "l", Sample(1, 1.0, 1.0, p99_ms=1.0), Sample(1, 1.0, 1.0, p99_ms=2.0), aim=1.0)
    assert [row.unit for row in without] == ["messages/s", "server CPU µs/message"]
    assert [row.unit for row in with_them][2:] == ["p50 ms", "p99 ms"]
