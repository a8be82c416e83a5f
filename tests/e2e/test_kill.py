"""
SIGKILL in the middle of the main job, at each of its steps in turn: running it again completes it, every count agrees.
"""

import subprocess
from datetime import datetime
from pathlib import Path

import csv_truth
import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition
from local_platform import LocalPlatform, kill, kill_group, wait_until

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
    # Each node has a copy, and the last one is never killed here if there are several.
    node = platform.brokers - 1
    return sum(path.stat().st_size for path in platform.data_dir.glob(f"node-{node}/**/{topic}-*/*.log"))


def records_in(platform: LocalPlatform, topic: str) -> int:
    consumer = Consumer(platform.cluster.client(**{"group.id": "count"}))
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, each), timeout=30)[1] for each in partitions]
    consumer.close()
    return sum(ends)


def spark_drivers(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    return [child for child in psutil.Process(process.pid).children(recursive=True) if child.name() == "java"]


def running(platform: LocalPlatform) -> "subprocess.Popen[str]":
    return platform.start(*platform.demo_words())


def until_there(path: Path, pattern: str, job: "subprocess.Popen[str]") -> None:
    """Wait for the file that says how far a job has come."""
    wait_until(lambda: any(path.glob(pattern)) or job.poll() is not None)
    assert job.poll() is None, "the job was still running"


@pytest.mark.rota
def test_whatever_is_killed_the_job_is_completed_by_running_it_again(platform: LocalPlatform) -> None:
    platform.up()
    warehouse = platform.data_dir / "warehouse"

    # The broker, while events are published: the publisher outlives its restart, or its absence where others lead on.
    job = running(platform)
    wait_until(lambda: log_bytes(platform, "flight_events") > MIDWAY_BYTES)
    kill(platform.node_pid())
    assert job.poll() is None, "killed in the middle"
    if platform.brokers == 1:
        platform.up()
    wait_until(lambda: log_bytes(platform, "flight_events") > 2 * MIDWAY_BYTES or job.poll() is not None)

    # The publisher: what it has not published, the next run does.
    assert job.poll() is None, "the publisher went on"
    kill_group(job)
    platform.up()
    held = records_in(platform, "flight_events")
    assert 0 < held < sum(csv_truth.event_counts().values()), "killed in the middle"

    # Spark's driver, between the commits of two tables: a job without its driver does not report success.
    job = running(platform)
    until_there(warehouse / "history/airports/_delta_log", f"{0:020d}.json", job)
    for driver in spark_drivers(job):
        driver.kill()
    assert job.wait(timeout=300) != 0

    # All of it, while a table is written.
    job = running(platform)
    until_there(warehouse / "history/flight_events", "*.parquet", job)
    kill_group(job)

    platform.run(*platform.demo_words())
    assert_tables_are_exact(platform, None)
