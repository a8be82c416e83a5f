"""The Java client (the very jar that Spark's Kafka source uses), driven through a py4j gateway."""

from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from compat_cluster import BROKERS
from confluent_kafka.admin import AdminClient, NewTopic
from py4j.protocol import Py4JJavaError
from secured import java, librdkafka

import log_broker
from log_broker.core.fetch.session import FetchSessions
from log_broker.interfaces import Contract, Violation

pytestmark = pytest.mark.spark

RECORDS = 500


def properties(jvm: Any, *, bootstrap_servers: str, **settings: str) -> Any:
    props = jvm.java.util.Properties()
    named = {name.replace("_", "."): value for name, value in settings.items()}
    for name, value in (java(bootstrap_servers) | named).items():
        props.setProperty(name, value)
    return props


STRING = "org.apache.kafka.common.serialization.String"


def producer(jvm: Any, bootstrap_servers: str, **settings: str) -> Any:
    props = properties(jvm, bootstrap_servers=bootstrap_servers, **settings)
    props.setProperty("key.serializer", f"{STRING}Serializer")
    props.setProperty("value.serializer", f"{STRING}Serializer")
    return jvm.org.apache.kafka.clients.producer.KafkaProducer(props)


def consumer(jvm: Any, bootstrap_servers: str, **settings: str) -> Any:
    props = properties(jvm, bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest", **settings)
    props.setProperty("key.deserializer", f"{STRING}Deserializer")
    props.setProperty("value.deserializer", f"{STRING}Deserializer")
    return jvm.org.apache.kafka.clients.consumer.KafkaConsumer(props)


def poll_values(jvm: Any, reader: Any, wanted: int) -> list[str]:
    values: list[str] = []
    for _ in range(100):
        records = reader.poll(jvm.java.time.Duration.ofMillis(500)).iterator()
        while records.hasNext():
            values.append(records.next().value())
        if len(values) >= wanted:
            break
    return values


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_idempotent_producer_and_group_consumer(jvm: Any, broker: Any, codec: str) -> None:
    topic = f"java-{codec}"
    sender = producer(jvm, broker.bootstrap_servers, enable_idempotence="true", acks="all", compression_type=codec)
    record = jvm.org.apache.kafka.clients.producer.ProducerRecord
    futures = [sender.send(record(topic, "key", f"value-{n}")) for n in range(RECORDS)]
    offsets = [future.get().offset() for future in futures]
    sender.close()
    assert offsets == list(range(RECORDS))

    reader = consumer(jvm, broker.bootstrap_servers, group_id=f"group-{codec}", enable_auto_commit="false")
    reader.subscribe([topic])
    assert poll_values(jvm, reader, RECORDS) == [f"value-{n}" for n in range(RECORDS)]
    reader.commitSync()
    reader.close()

    late = consumer(jvm, broker.bootstrap_servers, group_id=f"group-{codec}")
    partition = jvm.org.apache.kafka.common.TopicPartition(topic, 0)
    late.assign([partition])
    assert late.position(partition) == RECORDS, "a new member resumes at the committed offset"
    late.close()


class NoBad:
    """A registry by which values must not begin with `bad`."""

    accepted: Mapping[bytes, None] = MappingProxyType({})
    keyless: Violation | None = None

    def check_of(self, contract: Contract) -> "NoBad":
        return self

    def violation(self, datum: bytes | None) -> Violation | None:
        bad = datum is None or datum.startswith(b"bad")
        return Violation("schema id 7 of the value is not registered: register it first", "tail") if bad else None


def test_a_producer_that_breaks_its_contract_reads_which_record_and_why(jvm: Any) -> None:
    with log_broker.embedded(validator=NoBad()) as own:
        admin = AdminClient(librdkafka(own.bootstrap_servers))
        config = {"confluent.value.schema.validation": "true"}
        admin.create_topics([NewTopic("enforced", num_partitions=1, config=config)])["enforced"].result(30)
        sender = producer(jvm, own.bootstrap_servers, linger_ms="500", enable_idempotence="true")
        record = jvm.org.apache.kafka.clients.producer.ProducerRecord
        futures = [sender.send(record("enforced", "key", value)) for value in ("good", "bad", "good too")]
        said = []
        for future in futures:
            with pytest.raises(Py4JJavaError) as refusal:
                future.get()
            cause = refusal.value.java_exception.getCause()
            said.append((cause.getClass().getSimpleName(), cause.getMessage()))
        assert said[1] == (
            "InvalidRecordException",
            "schema id 7 of the value is not registered: register it first",
        )
        assert all("part of a batch" in said[at][1] for at in (0, 2))
        assert sender.send(record("enforced", "key", "good again")).get().offset() == 0
        sender.close()


def test_a_java_consumer_reads_over_the_gaps_that_a_quarantine_leaves(jvm: Any) -> None:
    with log_broker.embedded(validator=NoBad()) as own:
        admin = AdminClient(librdkafka(own.bootstrap_servers))
        config = {"confluent.value.schema.validation": "true", "fluvial.schema.violation": "quarantine"}
        admin.create_topics([NewTopic("gaps", num_partitions=1, config=config)])["gaps"].result(30)
        record = jvm.org.apache.kafka.clients.producer.ProducerRecord
        for values in (("bad1", "one", "bad2"), ("bad3", "bad4"), ("two",), ("bad5",)):
            sender = producer(jvm, own.bootstrap_servers, linger_ms="200", compression_type="lz4")
            for future in [sender.send(record("gaps", "key", value)) for value in values]:
                future.get()
            sender.close()
        for topic, wanted, end in (
            ("gaps", ["one", "two"], 7),
            ("gaps.quarantine", [f"bad{n}" for n in range(1, 6)], 5),
        ):
            reader = consumer(jvm, own.bootstrap_servers, isolation_level="read_committed")
            place = jvm.org.apache.kafka.common.TopicPartition(topic, 0)
            reader.assign([place])
            assert poll_values(jvm, reader, len(wanted)) == wanted
            for _ in range(50):
                reader.poll(jvm.java.time.Duration.ofMillis(100))
                if reader.position(place) == end:
                    break
            assert reader.position(place) == end, "an empty batch at the end is passed over"
            reader.close()


class SessionReader:
    """A consumer of some partitions that notes what it got from each."""

    def __init__(self, jvm: Any, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self._jvm = jvm
        self.partitions = [jvm.org.apache.kafka.common.TopicPartition(topic, index) for index in range(partitions)]
        self.consumer = consumer(jvm, bootstrap_servers, client_id="in-session", fetch_max_wait_ms="100")
        self.consumer.assign(self.partitions)
        self.values: dict[int, list[str]] = defaultdict(list)

    def poll(self) -> None:
        records = self.consumer.poll(self._jvm.java.time.Duration.ofMillis(200)).iterator()
        while records.hasNext():
            record = records.next()
            self.values[record.partition()].append(record.value())

    def read_until(self, wanted: dict[int, list[str]]) -> None:
        for _ in range(150):
            if self.values == wanted:
                return
            self.poll()
        assert self.values == wanted


def test_a_consumer_reads_in_one_fetch_session(jvm: Any) -> None:
    with log_broker.embedded(num_partitions="12") as own:
        sent: dict[int, list[str]] = defaultdict(list)
        sender = producer(jvm, own.bootstrap_servers, acks="all")

        def send(*partitions: int) -> None:
            for partition in partitions:
                sent[partition].append(f"{partition}: {len(sent[partition])}")
                record = jvm.org.apache.kafka.clients.producer.ProducerRecord(
                    "sessions", partition, "", sent[partition][-1]
                )
                sender.send(record).get()

        send(*range(12))
        reader = SessionReader(jvm, own.bootstrap_servers, "sessions", 12)
        reader.read_until(sent)
        (session,) = own.node.fetch_sessions._sessions.values()
        assert len(session.partitions) == 12
        for partition in (3, 7, 3, 11, 0):
            send(partition)
            reader.read_until(sent)
        reader.poll()
        assert len(own.node.fetch_sessions) == 1
        assert session.session_id in own.node.fetch_sessions, "one session from the first fetch on"
        assert session.epoch > 6

        # Partitions that are paused leave the session and come back where they were.
        reader.consumer.pause(reader.partitions[:6])
        send(2, 8)
        reader.read_until({**sent, 2: sent[2][:-1]})
        reader.poll()
        assert len(session.partitions) == 6
        reader.consumer.resume(reader.partitions[:6])
        reader.read_until(sent)

        # A broker that has forgotten the session has the consumer begin another.
        own.node.fetch_sessions = FetchSessions(slots_max=10)
        send(5, 9)
        reader.read_until(sent)
        reader.consumer.seekToBeginning(reader.partitions[:1])
        before = list(reader.values[0])
        reader.read_until({**sent, 0: before + sent[0]})
        assert len(own.node.fetch_sessions) == 1

        # So does one that has no room for any: every fetch is a full one then.
        own.node.fetch_sessions = FetchSessions(slots_max=0)
        sent[0] = reader.values[0].copy()
        send(1, 10)
        reader.read_until(sent)
        assert len(own.node.fetch_sessions) == 0
        own.node.fetch_sessions = FetchSessions(slots_max=10)
        send(4)
        reader.read_until(sent)
        reader.consumer.close()
        assert len(own.node.fetch_sessions) == 0, "a consumer that is closed closes its session"
        sender.close()


def test_admin_creates_describes_and_deletes(jvm: Any, broker: Any) -> None:
    admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties(jvm, bootstrap_servers=broker.bootstrap_servers))
    new_topic = jvm.org.apache.kafka.clients.admin.NewTopic("java-admin", 3, 1).configs({"retention.ms": "60000"})
    admin.createTopics([new_topic]).all().get()
    assert "java-admin" in set(admin.listTopics().names().get())
    described = admin.describeTopics(["java-admin"]).allTopicNames().get()["java-admin"]
    assert described.partitions().size() == 3
    resource_type = jvm.org.apache.kafka.common.config.ConfigResource.Type.TOPIC
    resource = jvm.org.apache.kafka.common.config.ConfigResource(resource_type, "java-admin")
    config = admin.describeConfigs([resource]).all().get()[resource]
    assert config.get("retention.ms").value() == "60000"
    assert config.get("retention.bytes").value() == "-1"
    assert admin.describeCluster().nodes().get().size() == BROKERS
    admin.deleteTopics(["java-admin"]).all().get()
    assert "java-admin" not in set(admin.listTopics().names().get())
    admin.close()
