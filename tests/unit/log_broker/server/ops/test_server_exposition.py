"""The metrics of a node as Prometheus reads them."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

import log_broker
from log_broker.server.embedded import EmbeddedBroker
from log_broker.server.ops.exposition import NodeCollector, metrics_app
from log_broker.server.process.counters import Durations


def in_loop(broker: EmbeddedBroker, work: Callable[[], Any]) -> Any:
    async def run() -> Any:
        return work()

    return asyncio.run_coroutine_threadsafe(run(), broker.node.loop).result(30)


def samples(broker: EmbeddedBroker) -> dict[tuple[str, ...], float]:
    """The value of every sample, by name and the values of its labels."""
    families = in_loop(broker, lambda: list(NodeCollector(broker.node).collect()))
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def produce(broker: EmbeddedBroker, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": "all"})
    for number in range(count):
        producer.produce(topic, value=b"%d" % number)
    assert producer.flush(30) == 0


def consume(broker: EmbeddedBroker, topic: str, count: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "metrics"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert len(consumer.consume(count, 30)) == count
    consumer.close()


def test_what_clients_do_is_counted() -> None:
    with log_broker.embedded() as broker:
        before = samples(broker)
        assert before["log_broker_connections_accepted_total",] == 0
        produce(broker, "counted", 50)
        produce(broker, "other", 3)
        consume(broker, "counted", 50)
        after = samples(broker)
        assert after["log_broker_topic_records_total", "counted"] == 50
        assert after["log_broker_topic_records_total", "other"] == 3
        stored = after["log_broker_topic_bytes_total", "counted"]
        assert stored == after["log_broker_topic_size_bytes", "counted"]
        assert stored > 50 * 7
        assert after["log_broker_all_unsynced_records",] == 0
        assert ("log_broker_unsynced_records", "counted", "0") not in after
        assert after["log_broker_storage_errors_total",] == 0
        assert after["log_broker_received_bytes_total",] > stored
        assert after["log_broker_sent_bytes_total",] > stored
        assert after["log_broker_connections_accepted_total",] >= 3
        assert after["log_broker_offline_partitions",] == 0
        for api in ("produce", "fetch"):
            answered = after["log_broker_request_seconds_count", api]
            assert after["log_broker_requests_total", api] == answered > 0
            assert after["log_broker_request_seconds_bucket", api, "+Inf"] == answered
            assert after["log_broker_request_seconds_sum", api] > 0


def test_what_is_at_risk_is_seen() -> None:
    with log_broker.embedded(fluvial_durability="memory") as broker:
        produce(broker, "risky", 20)
        found = samples(broker)
        assert found["log_broker_unsynced_records", "risky", "0"] == 20
        assert found["log_broker_unsynced_bytes", "risky", "0"] == found["log_broker_topic_size_bytes", "risky"]
        assert found["log_broker_unsynced_seconds", "risky", "0"] >= 0
        assert found["log_broker_unsynced_offset", "risky", "0"] == 0
        produce(broker, "risky", 5)
        produce(broker, "other", 1)
        found = samples(broker)
        assert found["log_broker_unsynced_records", "risky", "0"] == 25
        assert found["log_broker_all_unsynced_records",] == 26
        sizes = [found["log_broker_topic_size_bytes", topic] for topic in ("risky", "other")]
        assert found["log_broker_all_unsynced_bytes",] == sum(sizes)


def test_the_page_is_one_that_prometheus_reads() -> None:
    with log_broker.embedded() as broker:
        produce(broker, "page", 1)
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request"}

        scope = {"type": "http", "method": "GET", "path": "/metrics", "query_string": b"", "headers": []}
        page = metrics_app(broker.node)(scope, receive, send)
        asyncio.run_coroutine_threadsafe(page, broker.node.loop).result(30)
    start, body = sent
    assert start["status"] == 200
    names = {family.name for family in text_string_to_metric_families(body["body"].decode())}
    assert {"log_broker_requests", "log_broker_topic_records", "log_broker_request_seconds"} <= names


def test_durations_fall_into_buckets_that_double() -> None:
    durations = Durations()
    for seconds in (0.0, 0.000_001, 0.000_003, 0.000_004, 1.0):
        durations.add(seconds)
    assert [(power, count) for power, count in enumerate(durations.buckets) if count] == [
        (0, 1),
        (1, 1),
        (2, 1),
        (3, 1),
        (20, 1),
    ]
    assert (durations.count, durations.sum_micros) == (5, 1_000_008)


def test_refused_records_are_counted_and_told_by_topic_and_cause() -> None:
    with log_broker.embedded() as broker:
        broker.create_topic("compacted", config={"cleanup.policy": "compact"})
        broker.create_topic("gated", config={"fluvial.value.schema.validation": "id"})
        for topic in ("compacted", "compacted", "gated"):
            produce(broker, topic, 2)
        found = samples(broker)
        assert found["log_broker_records_refused_total", "compacted", "no_key"] == 4
        assert found["log_broker_records_refused_total", "gated", "registry"] == 2
        assert found["log_broker_topic_records_total", "gated"] == 0
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "diary"})
        consumer.assign([TopicPartition("__fluvial_events", 0, 0)])
        events = [json.loads(each.value()) for each in consumer.consume(2, 30)]
        assert consumer.consume(1, 0.3) == [], "the same again within a minute is counted only"
        consumer.close()
        told = {event["topic"]: (event["kind"], event["cause"], event["partition"]) for event in events}
        assert told == {
            "compacted": ("records_refused", "no_key", 0),
            "gated": ("records_refused", "registry", 0),
        }
        assert "takes no record without a key" in events[0]["reason"]
