"""What nodes tell in their metrics, read from the text that the broker really writes."""

from pathlib import Path

import httpx
from confluent_kafka import Producer

import log_broker
from fluvial.local.node_metrics import NodeMetrics, node_metrics_of, read_node_metrics
from fluvial.local.state import Platform
from log_broker.server.embedded import EmbeddedBroker
from log_broker.server.ops.exposition import metrics_app


async def metrics_of(broker: EmbeddedBroker) -> str:
    transport = httpx.ASGITransport(app=metrics_app(broker.node))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        return (await client.get("/metrics")).text


def write(broker: EmbeddedBroker, topic: str, *, idempotent: bool) -> None:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, "enable.idempotence": idempotent}
    producer = Producer(settings)
    producer.produce(topic, b"x")
    assert producer.flush(30) == 0


async def test_producers_that_are_not_idempotent_are_counted_by_topic() -> None:
    with log_broker.embedded() as broker:
        write(broker, "careful", idempotent=True)
        write(broker, "careless", idempotent=False)
        found = read_node_metrics(await metrics_of(broker))
    assert found.unsequenced_batches == {"careless": 1}


def test_what_is_not_told_is_nothing() -> None:
    assert read_node_metrics("") == NodeMetrics(unsynced_records=0, unsynced_bytes=0, unsequenced_batches={})
    text = "log_broker_all_unsynced_records 7.0\nlog_broker_all_unsynced_bytes 900.0\n"
    assert read_node_metrics(text) == NodeMetrics(unsynced_records=7, unsynced_bytes=900, unsequenced_batches={})


def test_nodes_that_serve_no_metrics_or_do_not_answer_are_left_out(tmp_path: Path) -> None:
    assert node_metrics_of(tmp_path) == {}
    Platform.planned(brokers=1, port=7000, registry_port=8000).save(tmp_path)
    assert node_metrics_of(tmp_path) == {}
    Platform.planned(brokers=1, port=7000, registry_port=8000, metrics_port=1).save(tmp_path)
    assert node_metrics_of(tmp_path) == {}
