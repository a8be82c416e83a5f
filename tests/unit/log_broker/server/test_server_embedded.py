"""The broker inside someone else's process."""

from pathlib import Path

import pytest

import log_broker
from log_broker.errors import BrokerError
from log_broker.server.node import BindError


def test_it_serves_a_stock_client_and_goes_with_its_directory() -> None:
    from confluent_kafka import Producer

    with log_broker.embedded(num_partitions="3") as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
        for number in range(10):
            producer.produce("t", value=str(number))
        assert producer.flush(30) == 0
        assert len(producer.list_topics("t", 30).topics["t"].partitions) == 3
        assert broker.data_dir.exists()
    assert not broker.data_dir.exists()


def test_what_keeps_it_from_starting_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=r"no\.such\.setting"), log_broker.embedded(no_such_setting="1"):
        pass
    with (
        log_broker.embedded(data_dir=tmp_path / "one") as first,
        pytest.raises(BindError),
        log_broker.embedded(data_dir=tmp_path / "two", port=first.port),
    ):
        pass
    assert (tmp_path / "one").exists()
