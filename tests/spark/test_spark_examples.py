"""The programs of `examples/`, run on a broker, a registry and a Spark of this process; each asserts its own result."""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples import access_log, accounts, host_metrics, relational, sensors, stores
from examples.program import Platform
from fluvial.config import Settings
from fluvial.testing import EmbeddedPlatform, embedded_platform

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def running() -> Iterator[EmbeddedPlatform]:
    with embedded_platform() as platform:
        yield platform


@pytest.fixture
def platform(running: EmbeddedPlatform, warehouse_settings: Settings, spark: Any) -> Platform:
    there = running.settings(warehouse_settings.warehouse)
    return Platform(settings=replace(there, spark_conf=warehouse_settings.spark_conf), spark=spark)


@pytest.fixture
def makes_its_topic(running: EmbeddedPlatform) -> Iterator[Callable[[str], None]]:
    """Has a topic taken away after the test, so that the next one of the same name is another."""
    made: list[str] = []
    yield made.append
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": running.bootstrap_servers, "log_level": 0})
    for future in admin.delete_topics(made).values() if made else ():
        future.result(30)


def test_access_log_in_minutes_is_what_awk_counts(
    platform: Platform, makes_its_topic: Callable[[str], None], tmp_path: Path
) -> None:
    makes_its_topic(access_log.TOPIC)
    assert access_log.run(platform).startswith("4000 hits in ")
    table = platform.sql("SELECT * FROM marts.example_hits_per_minute").collect()
    log = tmp_path / "access.log"
    log.write_text("\n".join(access_log.generated_lines()) + "\n", encoding="utf-8")
    script = (
        '{n[substr($4, 2, 17)]++; if ($NF != "-") b[substr($4, 2, 17)] += $NF} END {for (m in n) print m, n[m], b[m]+0}'
    )
    counted = subprocess.run(["awk", script, str(log)], check=True, capture_output=True, text=True).stdout.splitlines()
    assert sorted(counted) == sorted(f"{row.minute:%d/%b/%Y:%H:%M} {row.hits} {row.bytes}" for row in table)
    again = access_log.run(platform)
    assert again.startswith("4000 hits in "), "a second run sends nothing twice"


def test_gaps_of_sensors_at_acks_0_are_filled(platform: Platform, makes_its_topic: Callable[[str], None]) -> None:
    makes_its_topic(sensors.TOPIC)
    sensors.run(platform)
    arrived = platform.sql("SELECT count(*) AS n FROM history.example_sensors").collect()[0].n
    share = arrived / (sensors.SENSORS * sensors.MINUTES)
    assert 0.93 < share < 0.97, "one in twenty was lost"


def test_windows_of_a_stream_are_the_rows_of_the_batch(
    platform: Platform, makes_its_topic: Callable[[str], None], tmp_path: Path
) -> None:
    makes_its_topic(host_metrics.TOPIC)
    host_metrics.run(platform, str(tmp_path))
    # The stream is stopped, lines come for minutes that it has and for new ones, and it goes on from its checkpoint.
    late = [{**event, "level": "ERROR"} for event in host_metrics.logged()[:50]]
    new = [{**event, "at": event["at"].replace("T09", "T23")} for event in late]
    platform.send(host_metrics.TOPIC, [*late, *new], key="host")
    then = host_metrics.stream(platform, str(tmp_path))
    assert then == host_metrics.table(platform) == host_metrics.counted([*host_metrics.logged(), *late, *new])


def test_balances_at_every_past_offset_are_the_fold_up_to_it(
    platform: Platform, makes_its_topic: Callable[[str], None]
) -> None:
    makes_its_topic(accounts.TOPIC)
    # Killed in the middle of a transfer: the first record is in the log, nobody commits or aborts.
    platform.open_topic(accounts.TOPIC, accounts.SCHEMA)
    killed = platform.producer(**{"transactional.id": f"examples-{accounts.TOPIC}"})
    killed.init_transactions(30)
    killed.begin_transaction()
    killed.produce(accounts.TOPIC, platform.encoder(accounts.TOPIC)({"transfer": 0, "cents": -1}), "ada")
    killed.flush(30)
    accounts.run(platform)
    log = list(platform.read(accounts.TOPIC))
    versions = platform.sql("SELECT * FROM state.example_accounts").collect()
    for offset in range(log[-1][0] + 1):
        stood = {
            row.account: (row.cents, row.entries)
            for row in versions
            if row._offset <= offset and (row._end_offset is None or row._end_offset > offset)
        }
        assert stood == accounts.folded(record for record in log if record[0] <= offset)
    committed = {
        offset
        for (offset, _, entry), (_, _, other) in zip(log[1:], log, strict=False)
        if entry["transfer"] == other["transfer"]
    }
    assert all(
        sum(cents for cents, _ in accounts.folded(r for r in log if r[0] <= end).values()) == 0 for end in committed
    )


def test_a_relational_table_is_the_same_in_delta(platform: Platform, makes_its_topic: Callable[[str], None]) -> None:
    makes_its_topic(relational.TOPIC)
    assert "customers in the database" in relational.run(platform)
    assert "customers in the database" in relational.run(platform)


def test_three_stores_of_one_topic_are_rebuilt_alone_and_agree(
    platform: Platform, makes_its_topic: Callable[[str], None]
) -> None:
    makes_its_topic(relational.TOPIC)
    assert "in each of three stores" in stores.run(platform)
