"""
What the programs share: the platform that they run on, topics with a contract, and how they are started.

    python -m examples.access_log                                   # on the platform of `fluvial up`
    python -m examples.access_log --bootstrap-server kafka-1:9092 --registry-url http://registry:8081
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from fluvial.config import Settings, load_settings
from fluvial.errors import FluvialError
from fluvial.kafka.admin import admin_of, cluster_errors, describe_cluster
from fluvial.serde.encoding import Decoder, Encoder
from fluvial.spark.kafka import topic_bounds
from fluvial.tables import Declaration
from fluvial.tables.drive.runner import materialize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Event = Mapping[str, Any]
Record = tuple[int, str, Any]  # offset, key, value or None
SECONDS_MAX = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A broker, a registry and a warehouse, and the Spark that works on them."""

    settings: Settings
    spark: "SparkSession"

    def open_topic(self, topic: str, schema: Mapping[str, Any], *, partitions: int = 1) -> bool:
        """Make a topic and register its contract where they are not there yet; return whether the topic is empty."""
        with self.settings.registry.client() as registry:
            registry.register(f"{topic}-value", json.dumps(schema))
        admin = admin_of(self.settings.cluster)
        if topic not in describe_cluster(self.settings, admin).topics:
            with cluster_errors(f"create topic {topic}"):
                admin.create_topics([NewTopic(topic, num_partitions=partitions)])[topic].result(SECONDS_MAX)
        return self.end_of(topic) == 0

    def end_of(self, topic: str) -> int:
        """Return the sum of the offsets at which the topic's partitions end."""
        return sum(topic_bounds(self.settings.cluster, topic).ends.values())

    def encoder(self, topic: str) -> Callable[[Any], bytes]:
        """Return what writes a value in Avro under the topic's contract."""
        with self.settings.registry.client() as registry:
            return Encoder.of(registry, topic=topic, subject=None, schema=None).encode

    def producer(self, **conf: Any) -> Producer:
        """Return a producer that puts a key where Java's clients do."""
        return Producer(self.settings.cluster.client(partitioner="murmur2_random", **conf))

    def send(self, topic: str, events: Iterable[Event], *, key: str) -> None:
        """Write events, keyed by one of their fields: all of them or, if this is killed, none."""
        encode = self.encoder(topic)
        producer = self.producer(**{"transactional.id": f"examples-{topic}"})
        producer.init_transactions(SECONDS_MAX)
        producer.begin_transaction()
        for event in events:
            producer.produce(topic, encode(event), str(event[key]))
            producer.poll(0)
        producer.commit_transaction(SECONDS_MAX)

    def read(self, topic: str) -> Iterator[Record]:
        """Read the committed records of a topic's only partition, from its first to what is its last one now."""
        conf = {"group.id": "examples", "isolation.level": "read_committed", "enable.partition.eof": True}
        consumer = Consumer(self.settings.cluster.client(**conf, **{"enable.auto.commit": False}))
        consumer.assign([TopicPartition(topic, 0, 0)])
        try:
            with self.settings.registry.client() as registry:
                decoder = Decoder(registry)
                while True:
                    (message,) = consumer.consume(1, SECONDS_MAX) or [None]
                    if message is None or (message.error() and message.error().code() != KafkaError._PARTITION_EOF):
                        raise FluvialError(f"{topic} cannot be read: {message and message.error()}")
                    if message.error():
                        return
                    payload = message.value()
                    value = None if payload is None else decoder.decode(payload)[1]
                    yield message.offset(), message.key().decode(), value
        finally:
            consumer.close()

    def bring_up(self, *tables: Declaration) -> None:
        """Bring tables up to date, as `fluvial run` does."""
        for table in tables:
            materialize(table, self.settings, self.spark)

    def sql(self, query: str, **values: Any) -> "DataFrame":
        """Ask Spark SQL; `:name` in the query is a value."""
        return self.spark.sql(query, args=values)


def main(run: Callable[[Platform], str]) -> None:
    """Run a program on the platform that the command line, the environment or `fluvial.toml` names, and print."""
    options = argparse.ArgumentParser(description=(sys.modules[run.__module__].__doc__ or "").strip().split("\n")[0])
    options.add_argument("--data-dir", type=Path, help="folder of the local platform (default: .fluvial)")
    options.add_argument("--bootstrap-server", dest="bootstrap_servers", help="host:port of another cluster")
    options.add_argument("--registry-url", help="address of its schema registry")
    options.add_argument("--warehouse", help="where the tables lie (default: in the data directory)")
    from fluvial.spark.session import build_session

    try:
        settings = load_settings(**vars(options.parse_args()))
        spark = build_session(settings, "fluvial examples")
        try:
            print(run(Platform(settings=settings, spark=spark)))
        finally:
            spark.stop()
    except FluvialError as error:
        sys.exit(str(error))
