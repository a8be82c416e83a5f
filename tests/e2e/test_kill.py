"""
SIGKILL in the middle of the main job: running it again completes it, and every count still agrees.

Each test works on the flights of January, so that a run takes seconds; the code is the one of the whole year.
"""

import os
import signal
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import csv_truth
import psutil
import pytest
from conftest import LocalPlatform, kill_group, wait_until

UNTIL = datetime(2013, 2, 1, tzinfo=UTC)
JANUARY = ("--until", "2013-02-01")


def assert_tables_are_exact(platform: LocalPlatform) -> None:
    counts = csv_truth.event_counts(UNTIL)
    answer = platform.ask("select event_type, count(*) n from history.flight_events group by 1")
    assert {row["event_type"]: row["n"] for row in answer} == dict(counts)
    distinct = platform.ask("select count(distinct _partition, _offset) n from history.flight_events")
    assert distinct == [{"n": sum(counts.values())}]
    expected = {
        plane.tailnum: (plane.last_airport, plane.departures, plane.arrivals, plane.cancellations, plane.miles)
        for plane in csv_truth.aircraft(UNTIL).values()
    }
    state = platform.ask("select tailnum, last_airport, departures, arrivals, cancellations, miles from state.aircraft")
    assert len(state) == len(expected)
    assert {row["tailnum"]: tuple(list(row.values())[1:]) for row in state} == expected


def log_bytes(platform: LocalPlatform, topic: str) -> int:
    return sum(path.stat().st_size for path in platform.data_dir.glob(f"node-0/**/{topic}-*/*.log"))


def spark_drivers(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if child.name() == "java"]


def complete(platform: LocalPlatform) -> None:
    platform.run(*platform.demo_words(*JANUARY))
    assert_tables_are_exact(platform)


def test_broker_killed_while_events_are_published(platform: LocalPlatform) -> None:
    job = platform.start(*platform.demo_words(*JANUARY))
    wait_until(lambda: log_bytes(platform, "flight_events") > 200_000)
    platform.kill_node()
    try:
        job.wait(timeout=300)
    except subprocess.TimeoutExpired:
        kill_group(job)
    complete(platform)


def test_publisher_killed_midway_resumes_from_the_log(platform: LocalPlatform) -> None:
    job = platform.start(*platform.demo_words(*JANUARY))
    wait_until(lambda: log_bytes(platform, "flight_events") > 200_000)
    os.kill(job.pid, signal.SIGKILL)
    job.wait(timeout=30)
    assert not list(platform.data_dir.glob("warehouse/*/*")), "killed while publishing, before any table"
    complete(platform)


def first_commit_of(platform: LocalPlatform, table: str) -> Callable[[], bool]:
    commit: Path = platform.data_dir / "warehouse" / table / "_delta_log" / f"{0:020d}.json"
    return commit.exists


@pytest.mark.parametrize("table", ["history/airports", "history/flight_events"])
def test_spark_driver_killed_between_commits(platform: LocalPlatform, table: str) -> None:
    job = platform.start(*platform.demo_words(*JANUARY))
    wait_until(lambda: first_commit_of(platform, table)() or job.poll() is not None)
    drivers = spark_drivers(job)
    assert drivers, "the job was still running"
    for driver in drivers:
        driver.kill()
    assert job.wait(timeout=300) != 0, "a job without its driver does not report success"
    complete(platform)


def test_dagster_run_killed_while_history_is_written(platform: LocalPlatform) -> None:
    job = platform.start(*platform.demo_words(*JANUARY))
    data = platform.data_dir / "warehouse" / "history" / "flight_events"
    wait_until(lambda: any(data.glob("*.parquet")) or job.poll() is not None)
    kill_group(job)
    complete(platform)
