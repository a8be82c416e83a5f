"""
Dagster's own daemon and code server, as processes of their own, on a project of two tables.

The short form is part of every run; `make rota`, or FLUVIAL_ROTA=1, adds a broker that is away for a while, runs at
once, a run killed half way, and a backfill of past hours while new events flow.
"""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import fastavro
import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from local_platform import LocalPlatform, wait_until

from fluvial.config import Settings, load_settings
from fluvial.orchestration import Policy, SparkResource, Submit
from fluvial.orchestration.assets.assets import table_asset
from fluvial.orchestration.checks.lag import table_ends
from fluvial.orchestration.run.instance import home_of, open_instance
from fluvial.registry.client import RegistryClient
from fluvial.tables.declare.project import load_project
from fluvial.tables.inspect.verify import verify

PATIENCE_S = 900.0
PARTITIONS = 2
TABLES = ("history.orders", "state.customers")
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "amount", "type": "int"}, {"name": "placed_at", "type": "long"}],
}
DECLARATIONS = """
from fluvial.tables import count, history, state, sum_

orders = history("orders")
customers = state("customers", topic="orders", key="customer", fields={"orders": count(), "spent": sum_("amount")})
"""
DEFINITIONS = """
from datetime import UTC, datetime, timedelta

import dagster as dg

from fluvial.tables.declare.project import load_project
from fluvial.orchestration import Policy, SparkResource, assets_for, offsets_sensor

tables = load_project("shop_tables")
policies = {policies}
spark_conf = {{"spark.driver.memory": "1g", "spark.ui.enabled": "true"}}
defs = dg.Definitions(
    assets=assets_for(tables, policies=policies),
    sensors=[offsets_sensor(tables, policies=policies, seconds_between=1)],
    resources={{"spark": SparkResource(spark_master="local[1]", spark_conf=spark_conf)}},
    executor=dg.in_process_executor,
)
"""
HOURLY = (
    '{"history.orders": Policy(partitions=dg.HourlyPartitionsDefinition('
    '(datetime.now(UTC) - timedelta(hours=6)).strftime("%Y-%m-%d-%H:00"), end_offset=1))}'
)


class Shop:
    """A platform, a project, and the daemon that looks after it."""

    def __init__(self, platform: LocalPlatform, folder: Path, *, hourly: bool) -> None:
        self.platform = platform
        self.folder = folder
        folder.mkdir()
        (folder / "shop_tables.py").write_text(DECLARATIONS)
        (folder / "shop_defs.py").write_text(DEFINITIONS.format(policies=HOURLY if hourly else "{}"))
        platform.up()
        self.settings: Settings = replace(load_settings(data_dir=str(platform.data_dir)), project="shop_tables")
        self.home = home_of(self.settings.data_dir)
        with RegistryClient(self.settings.registry_url) as registry:
            self.schema_id = registry.register("orders-value", json.dumps(ORDER))
        admin = AdminClient({"bootstrap.servers": self.settings.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic("orders", num_partitions=PARTITIONS, replication_factor=1)])["orders"].result(30)
        self.sent = 0
        self.daemon: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FLUVIAL_")}
        path = os.pathsep.join([str(self.folder), inherited.get("PYTHONPATH", "")])
        data = str(self.platform.data_dir)
        return {**inherited, "FLUVIAL_DATA_DIR": data, "DAGSTER_HOME": str(self.home), "PYTHONPATH": path}

    def start_daemon(self) -> None:
        words = ("-m", "dagster._daemon", "run", "-m", "shop_defs", "--log-level", "warning")
        with (self.folder / "daemon.log").open("ab") as log:
            self.daemon = subprocess.Popen(
                [sys.executable, *words],
                cwd=self.folder,
                env=self.environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def end(self) -> None:
        if self.daemon is not None and self.daemon.poll() is None:
            started = psutil.Process(self.daemon.pid).children(recursive=True)
            self.daemon.send_signal(signal.SIGTERM)
            try:
                self.daemon.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.daemon.pid, signal.SIGKILL)
                self.daemon.wait()
            # The code server gives its runs time to end, which nobody here waits for.
            for process in started:
                if process.is_running():
                    process.kill()
        self.platform.run("down", check=False)

    def send(self, count: int, *, hours_ago: int = 0) -> None:
        """Append orders of ten customers, and wait until all are in the log."""
        moment = round((time.time() - hours_ago * 3600) * 1000)
        producer = Producer(
            {
                "bootstrap.servers": self.settings.bootstrap_servers,
                "acks": "all",
                "log_level": 0,
                "partitioner": "murmur2_random",
            }
        )
        for number in range(self.sent, self.sent + count):
            body = io.BytesIO()
            value = {"amount": number, "placed_at": moment}
            fastavro.schemaless_writer(body, fastavro.parse_schema(dict(ORDER)), value)
            framed = b"\0" + self.schema_id.to_bytes(4, "big") + body.getvalue()
            producer.produce("orders", framed, key=f"customer {number % 10}", timestamp=moment)
        assert producer.flush(60) == 0
        self.sent += count

    def read_up(self) -> bool:
        """Whether both tables hold every record that was sent."""
        return all(sum(table_ends(self.settings, table).values()) == self.sent for table in TABLES)

    def wait_until_read(self) -> None:
        try:
            wait_until(self.read_up, PATIENCE_S)
        except AssertionError as error:
            stands = {table: dict(table_ends(self.settings, table)) for table in TABLES}
            log = (self.folder / "daemon.log").read_text()[-3000:]
            raise AssertionError(f"{self.sent} were sent, and {stands}; runs {self.runs()}; {log}") from error

    def runs(self) -> Mapping[str, str]:
        with open_instance(self.home) as instance:
            return {run.run_id: run.status.value for run in instance.get_runs()}

    def skipped_because(self, words: str) -> bool:
        """Whether a tick of the sensor has said this as its reason to skip."""
        with open_instance(self.home) as instance:
            for state in instance.all_instigator_state():
                ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=20)
                if any(words in (tick.skip_reason or "") for tick in ticks):
                    return True
        return False

    def spark_pages(self) -> set[str]:
        """Where the runs have said that Spark's own page is."""
        with open_instance(self.home) as instance:
            told = [
                record.asset_observation
                for table in TABLES
                for record in instance.fetch_observations(dg.AssetKey(table.split(".")), limit=10).records
            ]
        return {str(each.metadata["spark_ui"].value) for each in told if each is not None}

    def run_workers(self) -> list[psutil.Process]:
        """The JVMs of the runs that go on now."""
        assert self.daemon is not None
        return [each for each in psutil.Process(self.daemon.pid).children(recursive=True) if each.name() == "java"]

    def assert_exact(self) -> None:
        """Prove the tables from the log, as `fluvial table verify` does."""
        from fluvial.spark.session import build_session

        spark = build_session(self.settings, "fluvial tests")
        sys.path.insert(0, str(self.folder))
        try:
            declared = load_project("shop_tables")
            with RegistryClient(self.settings.registry_url) as schemas:
                for table in TABLES:
                    verdict = verify(declared[table], self.settings, spark, schemas=schemas)
                    assert verdict.is_exact, verdict
                    assert sum(end for _, end in verdict.ranges.values()) == self.sent, verdict
        finally:
            sys.path.remove(str(self.folder))
            sys.modules.pop("shop_tables", None)


@pytest.fixture
def shop(platform: LocalPlatform, tmp_path: Path, request: Any) -> Iterator[Shop]:
    made = Shop(platform, tmp_path / "project", hourly=request.param)
    yield made
    made.end()


@pytest.mark.parametrize("shop", [False], indirect=True)
def test_new_events_start_runs(shop: Shop) -> None:
    shop.send(500)
    shop.start_daemon()
    shop.wait_until_read()
    assert all(re.fullmatch(r"http://[\w.-]+:\d+", page) for page in shop.spark_pages())
    assert shop.spark_pages(), "a run says where Spark's page is while it goes on"
    shop.assert_exact()


@pytest.mark.rota
@pytest.mark.parametrize("shop", [False], indirect=True)
def test_new_events_start_runs_also_after_the_broker_was_away(shop: Shop) -> None:
    shop.send(500)
    shop.start_daemon()
    shop.wait_until_read()
    shop.platform.run("down")
    wait_until(lambda: shop.skipped_because("no answer from"), PATIENCE_S)
    assert shop.daemon is not None
    assert shop.daemon.poll() is None, "the daemon outlives the broker"
    shop.platform.up()
    shop.send(500)
    shop.wait_until_read()
    shop.assert_exact()


# Asking for a backfill in Dagster's own name goes through what Dagster itself calls deprecated.
@pytest.mark.filterwarnings("ignore:Function `AssetSelection:DeprecationWarning")
@pytest.mark.rota
@pytest.mark.parametrize("shop", [True], indirect=True)
def test_runs_at_once_a_killed_run_and_a_backfill_leave_tables_exact(shop: Shop) -> None:
    for hours_ago in (4, 3, 2):
        shop.send(300, hours_ago=hours_ago)
    shop.send(300)
    shop.start_daemon()
    shop.wait_until_read()
    # Killed half way: the JVM of the next run dies as soon as there is one.
    shop.send(2_000)
    wait_until(lambda: bool(shop.run_workers()), PATIENCE_S)
    for worker in shop.run_workers():
        worker.kill()
    # Two runs of the same table at once: one of the command line beside those of the sensor.
    shop.send(2_000)
    rival = subprocess.Popen(
        [sys.executable, "-m", "dagster", "asset", "materialize", "-m", "shop_defs", "--select", "state/customers"],
        cwd=shop.folder,
        env=shop.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    backfill_past_hours(shop, hours=(4, 3, 2))
    for _ in range(5):
        shop.send(200)
        time.sleep(1)
    assert rival.wait(PATIENCE_S) == 0
    shop.wait_until_read()
    wait_until(lambda: shop_is_idle(shop), PATIENCE_S)
    shop.assert_exact()
    assert "FAILURE" in shop.runs().values(), "a run was killed"
    rewritten = {commit["rewritten"] for commit in stamps(shop) if commit.get("rewritten")}
    assert rewritten, "the backfill made rows again"


def backfill_past_hours(shop: Shop, *, hours: tuple[int, ...]) -> None:
    """Ask the daemon for a backfill, as the page does."""
    from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

    sys.path.insert(0, str(shop.folder))
    try:
        import shop_defs

        graph = shop_defs.defs.resolve_asset_graph()
        now = datetime.now(UTC)
        keys = [(now - timedelta(hours=each)).strftime("%Y-%m-%d-%H:00") for each in hours]
        with open_instance(shop.home) as instance:
            instance.add_backfill(
                PartitionBackfill.from_asset_partitions(
                    backfill_id=uuid.uuid4().hex[:8],
                    asset_graph=graph,
                    backfill_timestamp=now.timestamp(),
                    tags={},
                    asset_selection=[dg.AssetKey(["history", "orders"])],
                    partition_names=keys,
                    dynamic_partitions_store=instance,
                    all_partitions=False,
                    title=None,
                    description=None,
                    run_config=None,
                )
            )
        wait_until(
            lambda: backfills(shop) == {BulkActionStatus.COMPLETED_SUCCESS.value},
            PATIENCE_S,
        )
    finally:
        sys.path.remove(str(shop.folder))
        sys.modules.pop("shop_defs", None)


def backfills(shop: Shop) -> set[str]:
    with open_instance(shop.home) as instance:
        return {each.status.value for each in instance.get_backfills()}


def shop_is_idle(shop: Shop) -> bool:
    return not {"STARTED", "STARTING", "QUEUED", "NOT_STARTED"} & set(shop.runs().values())


def stamps(shop: Shop) -> Iterator[Mapping[str, Any]]:
    log = Path(shop.settings.warehouse) / "history" / "orders" / "_delta_log"
    for path in sorted(log.glob("*.json")):
        for line in path.read_text().splitlines():
            info = json.loads(line).get("commitInfo")
            if info and info.get("userMetadata"):
                body = json.loads(info["userMetadata"])["fluvial"]
                yield (
                    {**body, "rewritten": json.dumps(body.get("rewritten"), sort_keys=True)}
                    if body.get("rewritten")
                    else body
                )


@pytest.mark.rota
# Dagster's client of Pipes uses what Dagster itself calls preview or deprecated.
@pytest.mark.filterwarnings("ignore:AssetExecutionContext.run_id is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.PreviewWarning")
@pytest.mark.parametrize("shop", [False], indirect=True)
def test_a_driver_of_its_own_tells_what_a_run_here_would(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.send(100)
    monkeypatch.chdir(shop.folder)
    monkeypatch.syspath_prepend(shop.folder)
    try:
        declared = load_project("shop_tables")["state.customers"]
        settings = replace(shop.settings, spark_master="local[1]", spark_conf={"spark.driver.memory": "1g"})
        result = dg.materialize(
            [table_asset(declared, contract=None, policy=Policy(submit=Submit()))],
            resources={"spark": SparkResource.of(settings)},
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )
    finally:
        sys.modules.pop("shop_tables", None)
    (told,) = result.asset_materializations_for_node("state__customers")
    assert (told.metadata["rows"].value, told.metadata["delta_version"].value) == (10, 0)
    assert (told.metadata["lag_before"].value, told.metadata["lag"].value) == (100, 0)
    offsets = told.metadata["offsets"]
    assert isinstance(offsets, dg.TableMetadataValue)
    assert sum(int(row.data["records"] or 0) for row in offsets.records) == 100
    columns = told.metadata["dagster/column_schema"]
    assert isinstance(columns, dg.TableSchemaMetadataValue)
    assert [column.name for column in columns.schema.columns] == ["customer", "orders", "spent"]
