"""How far a log has moved on beyond tables: the arithmetic, what a broker says of its ends, what Dagster remembers."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import log_broker
from fluvial.config import Settings
from fluvial.orchestration.assets.graph import asset_key
from fluvial.orchestration.assets.metadata import offsets_table
from fluvial.orchestration.checks import lag
from fluvial.orchestration.checks.lag import end_offsets, lag_of, log_ends, table_ends
from fluvial.spark.kafka import TopicError
from log_broker.server.embedded import EmbeddedBroker

NO_BROKER = "127.0.0.1:1"


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with log_broker.embedded() as running:
        yield running


@pytest.fixture
def live(settings: Settings, broker: EmbeddedBroker) -> Settings:
    return replace(settings, bootstrap_servers=broker.bootstrap_servers)


def make_topic(settings: Settings, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=1)])[name].result(30)


def producer_of(settings: Settings, **options: object) -> Producer:
    return Producer({"bootstrap.servers": settings.bootstrap_servers, "acks": "all", "log_level": 0, **options})


def test_the_lags_of_partitions_add_up() -> None:
    assert lag_of({0: 10, 1: 5, 2: 4}, {0: 7, 1: 5, 2: 2}) == 5


def test_a_log_that_was_cut_back_makes_up_for_no_other_partition() -> None:
    assert lag_of({0: 3, 1: 5}, {0: 9, 1: 1}) == 4


def test_a_position_in_a_partition_that_is_gone_counts_nothing() -> None:
    assert lag_of({0: 3}, {0: 3, 1: 9}) == 0
    assert lag_of({}, {0: 3}) == 0


def test_the_ends_are_asked_for_topic_by_topic_and_partition(live: Settings) -> None:
    make_topic(live, "filled", 2)
    make_topic(live, "empty", 1)
    producer = producer_of(live)
    for partition, count in ((0, 3), (1, 2)):
        for _ in range(count):
            producer.produce("filled", b"x", partition=partition)
    assert producer.flush(30) == 0
    found = log_ends(live, ["filled", "empty", "nowhere"])
    assert found.ends == {"filled": {0: 3, 1: 2}, "empty": {0: 0}}
    assert found.absent == ("nowhere",)


def test_records_of_an_open_transaction_are_no_lag_yet(live: Settings) -> None:
    make_topic(live, "paid", 1)
    producer = producer_of(live, **{"transactional.id": "payer"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("paid", b"x", partition=0)
    assert producer.flush(30) == 0
    assert log_ends(live, ["paid"]).ends == {"paid": {0: 0}}
    producer.commit_transaction(30)
    # The marker of the commit has an offset of its own.
    assert log_ends(live, ["paid"]).ends == {"paid": {0: 2}}


def test_a_lag_that_is_not_known_is_a_remark_and_no_error(
    settings: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag, "REQUEST_TIMEOUT_S", 0.3)
    unreachable = replace(settings, bootstrap_servers=NO_BROKER)
    assert end_offsets(unreachable, "orders") is None
    assert "the lag of orders is not known" in caplog.text
    with pytest.raises(TopicError, match="no answer from"):
        log_ends(unreachable, ["orders"])


def test_where_the_warehouse_is_elsewhere_the_last_run_says_how_far_a_table_is(tmp_path: Path) -> None:
    elsewhere = Settings(data_dir=tmp_path, warehouse="s3a://tables")
    assert table_ends(elsewhere, "history.orders") == {}
    with dg.DagsterInstance.ephemeral() as instance:
        assert table_ends(elsewhere, "history.orders", instance) == {}
        told = dg.AssetMaterialization(
            asset_key("history.orders"), metadata={"offsets": offsets_table({0: (3, 7), 1: (0, 2)})}
        )
        instance.report_runless_asset_event(told)
        assert table_ends(elsewhere, "history.orders", instance) == {0: 7, 1: 2}


def test_a_table_that_is_not_there_lacks_everything(settings: Settings) -> None:
    assert table_ends(settings, "history.orders") == {}
