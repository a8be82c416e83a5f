"""Spark's Kafka source and sink: batch and stream, from offsets and from times, keys, headers and timestamps."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import secured
from compat_cluster import COPIES
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from secured import librdkafka

pytestmark = [
    pytest.mark.spark,
    pytest.mark.compat_long,
    # PySpark leaves the socket that each collect() reads from to the garbage collector, whenever that comes.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

START_MS = 1_600_000_000_000
COUNT = 300


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from fluvial.config import Settings
    from fluvial.spark.session import build_session

    settings = Settings(
        warehouse=str(tmp_path_factory.mktemp("warehouse")),
        spark_master="local[2]",
        spark_conf={"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"},
    )
    session = build_session(settings, "compat")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def topic(broker: Any) -> str:
    """Three partitions with records a second apart in each, the last of each a tombstone with a header."""
    name = "spark-source"
    admin = AdminClient(librdkafka(broker.bootstrap_servers))
    admin.create_topics([NewTopic(name, 3, COPIES)])[name].result(30)
    producer = Producer({**librdkafka(broker.bootstrap_servers), "compression.type": "lz4"})
    for number in range(COUNT):
        last = number >= COUNT - 3
        producer.produce(
            name,
            None if last else f"value {number}",
            str(number),
            partition=number % 3,
            timestamp=START_MS + 1000 * (number // 3),
            headers=[("origin", b"compat")] if last else None,
        )
    assert producer.flush(60) == 0
    return name


def source(spark: Any, broker: Any, topic: str, **options: str) -> Any:
    reader = spark.read.format("kafka").options(**secured.spark(broker.bootstrap_servers))
    return reader.option("subscribe", topic).options(includeHeaders="true", **options).load()


def test_a_batch_reads_every_record(spark: Any, broker: Any, topic: str) -> None:
    rows = source(spark, broker, topic).orderBy("partition", "offset").collect()
    assert len(rows) == COUNT
    for row in rows:
        number = int(row.key)
        assert (row.partition, row.offset) == (number % 3, number // 3)
        assert row.timestamp.timestamp() * 1000 == START_MS + 1000 * (number // 3)
        last = number >= COUNT - 3
        assert row.value == (None if last else f"value {number}".encode())
        assert [(header.key, bytes(header.value)) for header in row.headers or []] == (
            [("origin", b"compat")] if last else []
        )


def test_a_batch_reads_between_two_times(spark: Any, broker: Any, topic: str) -> None:
    rows = source(
        spark,
        broker,
        topic,
        startingTimestamp=str(START_MS + 9_500),
        endingTimestamp=str(START_MS + 20_000),
    ).collect()
    assert sorted({row.offset for row in rows}) == list(range(10, 20))
    assert len(rows) == 30


def test_a_stream_reads_what_the_sink_wrote(spark: Any, broker: Any, topic: str, tmp_path: Path) -> None:
    target = f"spark-sink-{time.monotonic_ns()}"
    admin = AdminClient(librdkafka(broker.bootstrap_servers))
    admin.create_topics([NewTopic(target, 2, COPIES)])[target].result(30)
    query = (
        spark.readStream.format("kafka")
        .options(**secured.spark(broker.bootstrap_servers))
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "90")
        .load()
        .select("key", "value")
        .writeStream.format("kafka")
        .options(**secured.spark(broker.bootstrap_servers))
        .option("topic", target)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    copied, written = (source(spark, broker, name).collect() for name in (target, topic))
    assert len(copied) == COUNT
    assert {int(row.key): row.value for row in copied} == {int(row.key): row.value for row in written}
