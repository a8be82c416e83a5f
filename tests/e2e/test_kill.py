"""
SIGKILL in the middle of the main job: running it again completes it, and every count still agrees.

Where the whole year is not needed for the kill to land in the middle, a test takes the flights of January.
"""

import subprocess
from datetime import UTC, datetime

import csv_truth
import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition
from local_platform import LocalPlatform, kill, kill_group, wait_until

FEBRUARY = datetime(2013, 2, 1, tzinfo=UTC)
JANUARY = ("--until", "2013-02-01")
# About a third of what the flights of the year take in the log.
MIDWAY_BYTES = 8_000_000


def assert_tables_are_exact(platform: LocalPlatform, until: datetime | None) -> None:
    counts = csv_truth.event_counts(until)
    answer = platform.ask("select event_type, count(*) n from history.flight_events group by 1")
    assert {row["event_type"]: row["n"] for row in answer} == dict(counts)
    distinct = platform.ask("select count(distinct _partition, _offset) n from history.flight_events")
    assert distinct == [{"n": sum(counts.values())}]
    expected = {
        plane.tailnum: (plane.last_airport, plane.departures, plane.arrivals, plane.cancellations, plane.miles)
        for plane in csv_truth.aircraft(until).values()
    }
    state = platform.ask("select tailnum, last_airport, departures, arrivals, cancellations, miles from state.aircraft")
    assert len(state) == len(expected)
    assert {row["tailnum"]: tuple(list(row.values())[1:]) for row in state} == expected


def log_bytes(platform: LocalPlatform, topic: str) -> int:
    return sum(path.stat().st_size for path in platform.data_dir.glob(f"node-0/**/{topic}-*/*.log"))


def records_in(platform: LocalPlatform, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{platform.port}", "group.id": "count"})
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, each), timeout=30)[1] for each in partitions]
    consumer.close()
    return sum(ends)


def spark_drivers(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    return [child for child in psutil.Process(process.pid).children(recursive=True) if child.name() == "java"]


def test_broker_killed_while_events_are_published(platform: LocalPlatform) -> None:
    platform.up()
    broker = platform.node_pid()
    job = platform.start(*platform.demo_words())
    wait_until(lambda: log_bytes(platform, "flight_events") > MIDWAY_BYTES)
    kill(broker)
    assert job.poll() is None, "killed in the middle"
    platform.up()
    assert job.wait(timeout=600) == 0, "the publisher outlives a restart of the broker"
    assert_tables_are_exact(platform, None)


def test_publisher_killed_midway_resumes_from_the_log(platform: LocalPlatform) -> None:
    platform.up()
    job = platform.start(*platform.demo_words())
    wait_until(lambda: log_bytes(platform, "flight_events") > MIDWAY_BYTES)
    kill_group(job)
    held = records_in(platform, "flight_events")
    assert 0 < held < sum(csv_truth.event_counts().values()), "killed in the middle"
    platform.run(*platform.demo_words())
    assert_tables_are_exact(platform, None)


@pytest.mark.parametrize("table", ["history/airports", "history/flight_events"])
def test_spark_driver_killed_between_commits(platform: LocalPlatform, table: str) -> None:
    job = platform.start(*platform.demo_words(*JANUARY))
    first_commit = platform.data_dir / "warehouse" / table / "_delta_log" / f"{0:020d}.json"
    wait_until(lambda: first_commit.exists() or job.poll() is not None)
    drivers = spark_drivers(job)
    assert drivers, "the job was still running"
    for driver in drivers:
        driver.kill()
    assert job.wait(timeout=300) != 0, "a job without its driver does not report success"
    platform.run(*platform.demo_words(*JANUARY))
    assert_tables_are_exact(platform, FEBRUARY)


def test_dagster_run_killed_while_history_is_written(platform: LocalPlatform) -> None:
    job = platform.start(*platform.demo_words(*JANUARY))
    data = platform.data_dir / "warehouse" / "history" / "flight_events"
    wait_until(lambda: any(data.glob("*.parquet")) or job.poll() is not None)
    assert job.poll() is None, "the job was still running"
    kill_group(job)
    platform.run(*platform.demo_words(*JANUARY))
    assert_tables_are_exact(platform, FEBRUARY)
