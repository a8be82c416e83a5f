"""What `fluvial run --rebuild`, `--skip` and `--continuous` did is on Dagster's page."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from miniature import result_of

from fluvial.config import Settings
from fluvial.orchestration.run.instance import home_of, open_instance
from fluvial.orchestration.run.reports import report_results
from fluvial.testing.embedded import embedded_platform

HOUR_MS = 3_600_000
NOON_MS = 1_699_963_200_000  # 2023-11-14 12:00 UTC
PROJECT = "reported"
TABLES = """
import dagster as dg
from fluvial.orchestration import Policy, assets_for
from fluvial.tables import history

orders = history("orders")
definitions = dg.Definitions(
    assets=assets_for(
        {orders.table: orders}, policy=Policy(partitions=dg.HourlyPartitionsDefinition("2023-11-14-00:00"))
    ),
    resources={"spark": dg.ResourceDefinition.none_resource()},
)
"""


@pytest.fixture
def live(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    (tmp_path / f"{PROJECT}.py").write_text(TABLES)
    (tmp_path / "pyproject.toml").write_text(f'[tool.dagster]\nmodule_name = "{PROJECT}"\n')
    (tmp_path / "fluvial.toml").write_text(f'project = "{PROJECT}"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with embedded_platform() as running:
        yield replace(settings, bootstrap_servers=running.broker.bootstrap_servers, project=PROJECT)
    sys.modules.pop(PROJECT, None)


def test_results_beside_dagster_are_materialisations_and_complete_windows(live: Settings) -> None:
    admin = AdminClient({"bootstrap.servers": live.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic("orders", 1, 1, config={"retention.ms": "-1"})])["orders"].result(30)
    producer = Producer({"bootstrap.servers": live.bootstrap_servers, "acks": "all", "log_level": 0})
    for hour in (0, 1, 3):
        producer.produce("orders", b"order", partition=0, timestamp=NOON_MS + hour * HOUR_MS)
    assert producer.flush(30) == 0

    report_results(live, [result_of("history.orders", version_after=7, offsets={0: (0, 2)})])

    key = dg.AssetKey(["history", "orders"])
    with open_instance(home_of(live.data_dir)) as instance:
        # The record of 15:00 is not in the table.
        assert instance.get_materialized_partitions(key) == {f"2023-11-14-{hour}:00" for hour in (12, 13, 14)}
        records = instance.fetch_materializations(key, limit=10).records
        versions = [
            record.asset_materialization.tags["dagster/data_version"]
            for record in records
            if record.asset_materialization is not None and record.partition_key is None
        ]
    assert versions == ["delta-7"]
