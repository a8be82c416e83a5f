"""The sensor on new offsets, evaluated by Dagster itself on a broker that runs in this process."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import dagster as dg
import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from dagster._core.definitions.sensor_definition import SensorExecutionData
from miniature import DECLARATIONS, NoSpark, Runner, busiest, result_of

from fluvial.config import Settings
from fluvial.orchestration import Alert, Allowed, Policy, assets_for, lag_sensor, offsets_sensor, webhook
from fluvial.orchestration.assets.graph import contract_key, topic_key
from fluvial.orchestration.assets.metadata import plain
from fluvial.orchestration.checks.log_checks import standing
from fluvial.orchestration.run.dry_run import plan_run
from fluvial.orchestration.sensors.sensors import SENSOR_TAG
from fluvial.registry.client import RegistryClient
from fluvial.registry.contracts import Contract
from fluvial.tables import Declaration, DeclarationError, aggregate, history, state, tumbling
from fluvial.tables.declare.folds import count
from fluvial.testing.embedded import EmbeddedPlatform, embedded_platform
from log_broker.server.embedded import EmbeddedBroker

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def platform() -> Iterator[EmbeddedPlatform]:
    with embedded_platform() as running:
        yield running


@pytest.fixture(scope="module")
def broker(platform: EmbeddedPlatform) -> EmbeddedBroker:
    return platform.broker


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def live(settings: Settings, broker: EmbeddedBroker) -> Settings:
    """Settings of the broker; each test has topics of its own."""
    return replace(settings, bootstrap_servers=broker.bootstrap_servers)


def make_topic(settings: Settings, name: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers, "log_level": 0})
    keeps = {"retention.ms": "-1"}
    admin.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=1, config=keeps)])[name].result(
        30
    )


def send(settings: Settings, topic: str, count: int = 1, timestamp: int | None = None) -> None:
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers, "acks": "all", "log_level": 0})
    for number in range(count):
        extra = {} if timestamp is None else {"timestamp": timestamp}
        producer.produce(topic, f"{number}".encode(), partition=0, **extra)
    assert producer.flush(30) == 0


def stand_at(settings: Settings, table: str, topic: str, end: int, version: int) -> None:
    """Write what a table's own log says when the table has read partition 0 up to `end`."""
    stamp = {"fluvial": {"topic": topic, "batch": version + 1, "offsets": {"0": [0, end]}, "run": "r"}}
    log = Path(settings.warehouse) / table.replace(".", "/") / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    commit = {"commitInfo": {"operation": "WRITE", "userMetadata": json.dumps(stamp)}}
    batch = {"txn": {"appId": f"fluvial/{topic}", "version": version + 1}}
    for earlier in range(version):
        if not (log / f"{earlier:020d}.json").exists():
            (log / f"{earlier:020d}.json").write_text('{"commitInfo": {"operation": "WRITE"}}')
    (log / f"{version:020d}.json").write_text(f"{json.dumps(commit)}\n{json.dumps(batch)}\n")


def evaluate(
    settings: Settings,
    instance: dg.DagsterInstance,
    declarations: dict[str, Declaration],
    cursor: str | None = None,
    **policies: Policy,
) -> tuple[SensorExecutionData, str | None]:
    named = {name.replace("__", "."): policy for name, policy in policies.items()}
    sensor = offsets_sensor(declarations, settings=lambda: settings, policies=named)
    definitions = dg.Definitions(
        assets=assets_for(declarations, policies=named), sensors=[sensor], resources={"spark": NoSpark()}
    )
    repository = definitions.get_repository_def()
    context = dg.build_sensor_context(instance=instance, cursor=cursor, repository_def=repository)
    found = repository.get_sensor_def(sensor.name).evaluate_tick(context)
    return found, found.cursor


def declared(topic: str) -> dict[str, Declaration]:
    made = (
        history(topic, name="orders"),
        state("customers", topic=topic, key="customer", fields={"n": count()}),
        busiest,
    )
    return {each.table: each for each in made}


def tables_of(request: dg.RunRequest) -> set[str]:
    return {".".join(key.path) for key in request.asset_selection or ()}


def test_new_records_start_one_run_of_the_tables_that_lack_them(live: Settings, instance: dg.DagsterInstance) -> None:
    tables = declared("fresh")
    make_topic(live, "fresh")
    nothing, cursor = evaluate(live, instance, tables)
    assert (nothing.run_requests, nothing.skip_message) == ([], "nothing new in the log")
    send(live, "fresh", 3)
    found, cursor = evaluate(live, instance, tables, cursor)
    (request,) = found.run_requests
    assert tables_of(request) == {"history.orders", "state.customers", "marts.busiest"}
    assert request.tags[SENSOR_TAG] == "new_offsets"
    (seen,) = found.asset_events
    assert (seen.asset_key, plain(seen.metadata)) == (
        topic_key("fresh"),
        {"offsets": [{"partition": 0, "end_offset": 3}], "lag/history.orders": 3, "lag/state.customers": 3},
    )
    # The daemon died before it kept the cursor: the same tick asks for the same run, which Dagster knows by its key.
    (again,) = evaluate(live, instance, tables)[0].run_requests
    assert again.run_key == request.run_key
    stand_at(live, "history.orders", "fresh", 3, version=0)
    stand_at(live, "state.customers", "fresh", 3, version=0)
    assert evaluate(live, instance, tables, cursor)[0].run_requests == []
    send(live, "fresh")
    stand_at(live, "history.orders", "fresh", 4, version=1)
    (third,) = evaluate(live, instance, tables, cursor)[0].run_requests
    assert tables_of(third) == {"state.customers"}
    assert third.run_key != request.run_key


def test_a_topic_that_is_not_there_does_not_hold_up_the_others(live: Settings, instance: dg.DagsterInstance) -> None:
    make_topic(live, "there")
    tables = {**declared("there"), "history.gone": history("nowhere", name="gone")}
    assert evaluate(live, instance, tables)[0].skip_message == "there is no topic nowhere"
    send(live, "there")
    (request,) = evaluate(live, instance, tables)[0].run_requests
    assert "history.gone" not in tables_of(request)


def test_a_broker_that_is_away_is_a_reason_to_skip_and_nothing_is_forgotten(
    live: Settings, instance: dg.DagsterInstance
) -> None:
    make_topic(live, "away")
    send(live, "away")
    cursor = evaluate(live, instance, declared("away"))[1]
    gone = replace(live, bootstrap_servers="127.0.0.1:1")
    found, kept = evaluate(gone, instance, declared("away"), cursor)
    assert found.run_requests == []
    assert "no answer from 127.0.0.1:1" in (found.skip_message or "")
    assert kept == cursor


def test_what_comes_during_a_run_is_the_next_ones(live: Settings, instance: dg.DagsterInstance) -> None:
    make_topic(live, "during")
    send(live, "during")
    run = dg.DagsterRun(job_name="any", status=dg.DagsterRunStatus.STARTED, tags={SENSOR_TAG: "new_offsets"})
    instance.add_run(run)
    found, _ = evaluate(live, instance, declared("during"))
    assert found.run_requests == []
    assert f"run {run.run_id} is under way" in (found.skip_message or "")


def test_a_table_with_partitions_is_run_for_the_newest_window_that_has_ended(
    live: Settings, instance: dg.DagsterInstance
) -> None:
    policy = Policy(partitions=dg.HourlyPartitionsDefinition("2023-11-14-00:00"))
    make_topic(live, "windows")
    noon = 1_699_963_200_000  # 2023-11-14 12:00 UTC
    for hour in (0, 1, 5):
        send(live, "windows", timestamp=noon + hour * HOUR_MS)
    tables: dict[str, Declaration] = {"history.orders": history("windows", name="orders"), busiest.table: busiest}
    found, cursor = evaluate(live, instance, tables, history__orders=policy)
    (request,) = found.run_requests
    assert request.partition_key == "2023-11-14-17:00"
    assert tables_of(request) == {"history.orders", "marts.busiest"}
    stand_at(live, "history.orders", "windows", 3, version=0)
    assert evaluate(live, instance, tables, cursor, history__orders=policy)[0].run_requests == []


def test_a_mart_and_what_it_reads_are_run_for_the_same_partition(live: Settings, instance: dg.DagsterInstance) -> None:
    hours = Policy(partitions=dg.HourlyPartitionsDefinition("2023-11-14-00:00"))
    make_topic(live, "alike")
    send(live, "alike", timestamp=1_699_963_200_000)
    source = history("alike", name="orders")
    fields, windows = {"n": count()}, tumbling("at", "1 hour")
    mart = aggregate(source.table, name="by_hour", by="customer", fields=fields, window=windows)
    tables: dict[str, Declaration] = {source.table: source, mart.table: mart}
    found, _ = evaluate(live, instance, tables, history__orders=hours, marts__by_hour=hours)
    (request,) = found.run_requests
    assert (request.partition_key, tables_of(request)) == ("2023-11-14-12:00", {source.table, mart.table})
    days = Policy(partitions=dg.DailyPartitionsDefinition("2023-11-14"))
    with pytest.raises(DeclarationError, match=r"marts\.by_hour and history\.orders, which it reads, have different"):
        evaluate(live, instance, tables, history__orders=hours, marts__by_hour=days)


def test_a_run_without_a_partition_reports_those_that_it_completed(
    live: Settings, instance: dg.DagsterInstance
) -> None:
    policy = Policy(partitions=dg.HourlyPartitionsDefinition("2023-11-14-00:00"))
    make_topic(live, "complete")
    noon = 1_699_963_200_000  # 2023-11-14 12:00 UTC
    for hour in (0, 1, 3, 5):
        send(live, "complete", timestamp=noon + hour * HOUR_MS)
    declaration, runner = history("complete", name="orders"), Runner()
    assets = assets_for({declaration.table: declaration}, policy=policy, run=runner)
    key = dg.AssetKey(["history", "orders"])

    def run(start: int, end: int, partition: str | None = None) -> dg.ExecuteInProcessResult:
        runner.outcomes = {declaration.table: result_of(declaration.table, offsets={0: (start, end)})}
        return dg.materialize(
            assets,
            selection=[key],
            instance=instance,
            partition_key=partition,
            resources={"spark": NoSpark.of(live)},
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )

    done = run(0, 2)
    # Nothing came between 13:00 and 15:00, and the record of 15:00 is not in the table.
    assert instance.get_materialized_partitions(key) == {f"2023-11-14-{hour}:00" for hour in (12, 13, 14)}
    (seen,) = [each for each in done.all_events if each.event_type_value == "ASSET_OBSERVATION"]
    assert seen.asset_key == topic_key("complete")
    assert plain(seen.asset_observation_data.asset_observation.metadata)["lag/history.orders"] == 2
    run(2, 3, partition="2023-11-14-16:00")
    assert "2023-11-14-15:00" in instance.get_materialized_partitions(key)
    done = run(3, 4)
    assert instance.get_materialized_partitions(key) == {f"2023-11-14-{hour}:00" for hour in range(12, 18)}
    reported = [each.partition for each in done.asset_materializations_for_node("history__orders")]
    assert reported == ["2023-11-14-17:00", None]


def test_a_run_observes_the_contract_of_its_topic(platform: EmbeddedPlatform, tmp_path: Path) -> None:
    live = platform.settings(tmp_path)
    with RegistryClient(platform.registry_url) as registry:
        number = registry.register("agreed-value", ORDERS)
    make_topic(live, "agreed")
    contract = Contract(
        producer="shop",
        contact="shop@example.org",
        subject="agreed-value",
        path=tmp_path / "orders.avsc",
        schema=json.loads(ORDERS),
        text=ORDERS,
        compatibility="BACKWARD",
        topics=("agreed",),
    )
    declaration, runner = history("agreed", name="orders"), Runner()
    runner.outcomes = {declaration.table: result_of(declaration.table, offsets={0: (0, 0)})}
    done = dg.materialize(
        assets_for({declaration.table: declaration}, contracts=[contract], run=runner),
        selection=["history/orders"],
        resources={"spark": NoSpark.of(live)},
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
    )
    seen = [
        each.asset_observation_data.asset_observation
        for each in done.all_events
        if each.event_type_value == "ASSET_OBSERVATION"
    ]
    assert [each.asset_key for each in seen] == [contract_key("agreed-value"), topic_key("agreed")]
    assert plain(seen[0].metadata) == {"version": 1, "schema_id": number}


def test_the_declarations_of_a_project_are_all_it_needs(settings: Settings) -> None:
    sensor = offsets_sensor(DECLARATIONS, running=False)
    assert sensor.default_status is dg.DefaultSensorStatus.STOPPED
    dg.Definitions(
        assets=assets_for(DECLARATIONS), sensors=[sensor], resources={"spark": NoSpark()}
    ).get_repository_def()


def ticks(sensor: dg.SensorDefinition, instance: dg.DagsterInstance) -> Callable[[], SensorExecutionData]:
    """Evaluate a sensor again and again, each time with the cursor that the time before left."""
    cursor: list[str | None] = [None]

    def tick() -> SensorExecutionData:
        found = sensor.evaluate_tick(dg.build_sensor_context(instance=instance, cursor=cursor[0]))
        cursor[0] = found.cursor
        return found

    return tick


def test_a_table_that_lags_too_far_is_told_once_and_again_when_it_has_caught_up(
    live: Settings, instance: dg.DagsterInstance
) -> None:
    make_topic(live, "slow")
    told: list[Alert] = []
    sensor = lag_sensor(
        declared("slow"), allowed={"history.orders": Allowed(records=2)}, notify=told.append, settings=lambda: live
    )
    tick = ticks(sensor, instance)
    send(live, "slow", 2)
    assert tick().asset_events == []
    send(live, "slow")
    (event,) = tick().asset_events
    assert isinstance(event, dg.AssetCheckEvaluation)
    assert (event.check_name, event.passed, event.metadata["lag"].value) == ("keeps_up", False, 3)
    assert tick().asset_events == []
    stand_at(live, "history.orders", "slow", 3, version=0)
    (event,) = tick().asset_events
    assert isinstance(event, dg.AssetCheckEvaluation)
    assert event.passed
    assert [(alert.table, alert.passed) for alert in told] == [("history.orders", False), ("history.orders", True)]
    assert told[0].text == "history.orders: 3 records of lag, 2 are allowed"


def test_the_age_of_what_is_missing_counts_and_not_that_of_the_table(live: Settings) -> None:
    make_topic(live, "old")
    table = history("old", name="orders")
    allowed = Allowed(within=timedelta(hours=1))
    send(live, "old", timestamp=round((time.time() - 7_200) * 1000))
    send(live, "old")
    late = standing(table, live, allowed)
    assert (late.passed, late.metadata["older_than_allowed"]) == (False, 1)
    stand_at(live, "history.orders", "old", 1, version=0)
    assert standing(table, live, allowed).passed
    stand_at(live, "history.orders", "old", 2, version=1)
    assert standing(table, live, allowed).text == "history.orders: 0 records of lag"


def test_a_webhook_gets_what_happened() -> None:
    heard: list[bytes] = []

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200 if len(heard) == 1 else 500)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing on stderr."""

    with HTTPServer(("127.0.0.1", 0), Chat) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            post = webhook(f"http://127.0.0.1:{server.server_port}/hook")
            post(Alert(table="history.orders", passed=False, text="history.orders: 3 records of lag"))
            with pytest.raises(httpx.HTTPStatusError):
                post(Alert(table="history.orders", passed=True, text="history.orders: 0 records of lag"))
        finally:
            server.shutdown()
            thread.join()
    assert json.loads(heard[0]) == {"text": "[lags] history.orders: 3 records of lag"}


ORDERS = '{"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "int"}]}'


def test_a_dry_run_tells_what_would_be_read_and_written(platform: EmbeddedPlatform, tmp_path: Path) -> None:
    live = platform.settings(tmp_path)
    with RegistryClient(platform.registry_url) as registry:
        registry.register("plan-value", ORDERS)
    make_topic(live, "plan")
    send(live, "plan", 5)
    tables = {**declared("plan"), "history.gone": history("nowhere", name="gone")}
    stand_at(live, "history.orders", "plan", 3, version=6)
    told = {each.table: each for each in plan_run(tables, live)}
    orders, customers = told["history.orders"], told["state.customers"]
    assert (orders.reads, dict(orders.ranges), orders.version, orders.would_write) == (
        ("topic plan",),
        {0: (3, 5)},
        6,
        True,
    )
    assert (customers.records_max, customers.version, customers.would_write) == (5, None, True)
    assert orders.writes == str(Path(live.warehouse) / "history" / "orders")
    assert told["marts.busiest"].would_write
    assert "there is no topic nowhere" in (told["history.gone"].problem or "")
    stand_at(live, "history.orders", "plan", 5, version=7)
    (again,) = plan_run(tables, live, ["history.orders"])
    assert (again.records_max, again.would_write) == (0, False)
