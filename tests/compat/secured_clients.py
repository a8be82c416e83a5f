"""What the table of secured clients has each client do: make a topic, write to it, read it as a member of a group."""

import asyncio
import json
import shutil
import subprocess
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kafkajs_scripts
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioTopic
from compat_cluster import COPIES
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from secured import Access, properties_file

from tests.peers import kafka_jars
from tests.peers.kafka_jars import run_kafka

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
    from kafka.admin import NewTopic as PythonTopic

SENT = [f"value {number}" for number in range(20)]
KCAT = shutil.which("kcat") or shutil.which("kafkacat")
SECONDS = 30


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One client's turn: by which way, on what, and where it may write files."""

    request: pytest.FixtureRequest
    access: Access
    topic: str
    folder: Path

    @property
    def jvm(self) -> Any:
        return self.request.getfixturevalue("jvm")

    def properties_file(self) -> Path:
        return properties_file(self.access.java(), self.folder / "client.properties")

    def properties(self, **more: str) -> Any:
        made = self.jvm.java.util.Properties()
        settings = {"bootstrap.servers": self.access.servers, **self.access.java()}
        for name, value in (settings | {key.replace("_", "."): text for key, text in more.items()}).items():
            made.setProperty(name, value)
        return made


@dataclass(frozen=True, kw_only=True)
class Client:
    """
    `works` returns the values that were read; `is_refused` what is said to somebody who is not let in.

    `vague` is what it says instead where it drops the reason that it was given.
    """

    lacking: Callable[[], str | None] = lambda: None
    vague: str | None = None
    works: Callable[[Visit], list[str]]
    is_refused: Callable[[Visit], str]


def _confluent(visit: Visit) -> list[str]:
    settings = {"bootstrap.servers": visit.access.servers, **visit.access.librdkafka()}
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(visit.topic, 2, COPIES)])[visit.topic].result(SECONDS)
    producer = Producer({**settings, "enable.idempotence": True})
    for value in SENT:
        producer.produce(visit.topic, value, "k")
    assert producer.flush(SECONDS) == 0
    consumer = Consumer({**settings, "group.id": visit.topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([visit.topic])
    values = [message.value().decode() for message in consumer.consume(len(SENT), SECONDS)]
    consumer.close()
    return values


def _confluent_refused(visit: Visit) -> str:
    said: list[str] = []
    settings = {"bootstrap.servers": visit.access.servers, **visit.access.librdkafka(), "log_level": 0}
    admin = AdminClient({**settings, "error_cb": lambda error: said.append(str(error))})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=3)
    admin.poll(0)
    return " ".join(said)


def _kcat(visit: Visit, *words: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    settings = [word for pair in visit.access.librdkafka().items() for word in ("-X", "=".join(pair))]
    command = [str(KCAT), "-b", visit.access.servers, *settings, *words]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)


def _kcat_works(visit: Visit) -> list[str]:
    assert _kcat(visit, "-P", "-t", visit.topic, given="\n".join(SENT)).returncode == 0
    reset = ("-X", "auto.offset.reset=earliest")
    read = _kcat(visit, "-G", visit.topic, "-c", str(len(SENT)), *reset, "-q", visit.topic)
    assert read.returncode == 0, read.stderr
    return read.stdout.splitlines()


def _kcat_refused(visit: Visit) -> str:
    done = _kcat(visit, "-L", "-m", "3")
    assert done.returncode != 0
    return done.stderr


def _kafka_python(visit: Visit) -> list[str]:
    settings = {"bootstrap_servers": visit.access.servers, **visit.access.kafka_python()}
    admin = KafkaAdminClient(**settings)
    admin.create_topics([PythonTopic(visit.topic, num_partitions=2, replication_factor=COPIES)])
    admin.close()
    producer = KafkaProducer(**settings, acks="all")
    for value in SENT:
        producer.send(visit.topic, key=b"k", value=value.encode())
    producer.flush()
    producer.close()
    consumer = KafkaConsumer(
        visit.topic,
        **settings,
        group_id=visit.topic,
        auto_offset_reset="earliest",
        consumer_timeout_ms=SECONDS * 1000,
    )
    values = [next(consumer).value.decode() for _ in SENT]
    consumer.close()
    return values


def _kafka_python_refused(visit: Visit) -> str:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - what is raised is what the test looks at
        KafkaAdminClient(
            bootstrap_servers=visit.access.servers, **visit.access.kafka_python(), bootstrap_timeout_ms=3000
        )
    return repr(raised.value)


async def _aiokafka(visit: Visit) -> list[str]:
    settings = {"bootstrap_servers": visit.access.servers, **visit.access.aiokafka()}
    admin = AIOKafkaAdminClient(**settings)
    await admin.start()
    await admin.create_topics([AioTopic(visit.topic, num_partitions=2, replication_factor=COPIES)])
    await admin.close()
    async with AIOKafkaProducer(**settings, enable_idempotence=True) as producer:
        for value in SENT:
            await producer.send_and_wait(visit.topic, value.encode(), key=b"k")
    reader = AIOKafkaConsumer(visit.topic, **settings, group_id=visit.topic, auto_offset_reset="earliest")
    async with reader as consumer:
        return [(await asyncio.wait_for(consumer.getone(), SECONDS)).value.decode() for _ in SENT]


async def _aiokafka_refused(visit: Visit) -> str:
    admin = AIOKafkaAdminClient(bootstrap_servers=visit.access.servers, **visit.access.aiokafka())
    with pytest.raises(Exception) as raised:  # noqa: PT011 - what is raised is what the test looks at
        await admin.start()
    await admin.close()
    return repr(raised.value)


def _kafkajs(visit: Visit, script: str, **words: Any) -> "subprocess.CompletedProcess[str]":
    client = {"brokers": visit.access.servers.split(","), **visit.access.kafkajs(), "retry": {"retries": 3}}
    return kafkajs_scripts.start_script(client, script, **words)


def _kafkajs_works(visit: Visit) -> list[str]:
    topics = [{"topic": visit.topic, "numPartitions": 2, "replicationFactor": COPIES}]
    messages = [{"key": "k", "value": value} for value in SENT]
    steps: list[tuple[str, dict[str, Any]]] = [
        ("admin", {"calls": [["createTopics", {"topics": topics, "waitForLeaders": True}]]}),
        ("produce", {"topic": visit.topic, "messages": messages, "idempotent": True}),
        ("consume", {"topic": visit.topic, "group": visit.topic, "count": len(SENT)}),
    ]
    for script, words in steps:
        done = _kafkajs(visit, script, **words)
        assert done.returncode == 0, done.stderr
    return [record["value"] for record in json.loads(done.stdout)]


def _kafkajs_refused(visit: Visit) -> str:
    done = _kafkajs(visit, "admin", calls=[["listTopics", {}]])
    assert done.returncode != 0
    return done.stderr


def _java(visit: Visit) -> list[str]:
    kafka = visit.jvm.org.apache.kafka
    admin = kafka.clients.admin.Admin.create(visit.properties())
    admin.createTopics([kafka.clients.admin.NewTopic(visit.topic, 2, COPIES)]).all().get()
    admin.close()
    string = "org.apache.kafka.common.serialization.String"
    writing = {"key_serializer": f"{string}Serializer", "value_serializer": f"{string}Serializer"}
    producer = kafka.clients.producer.KafkaProducer(visit.properties(enable_idempotence="true", **writing))
    for value in SENT:
        producer.send(kafka.clients.producer.ProducerRecord(visit.topic, "k", value)).get()
    producer.close()
    reading = {"key_deserializer": f"{string}Deserializer", "value_deserializer": f"{string}Deserializer"}
    consumer = kafka.clients.consumer.KafkaConsumer(
        visit.properties(group_id=visit.topic, auto_offset_reset="earliest", **reading)
    )
    consumer.subscribe([visit.topic])
    values: list[str] = []
    for _ in range(2 * SECONDS):
        records = consumer.poll(visit.jvm.java.time.Duration.ofMillis(500)).iterator()
        while records.hasNext():
            values.append(records.next().value())
        if len(values) >= len(SENT):
            break
    consumer.close()
    return values


def _java_refused(visit: Visit) -> str:
    from py4j.protocol import Py4JJavaError

    more = {"request_timeout_ms": "3000", "default_api_timeout_ms": "3000"}
    admin = visit.jvm.org.apache.kafka.clients.admin.Admin.create(visit.properties(**more))
    with pytest.raises(Py4JJavaError) as raised:
        admin.listTopics().names().get()
    admin.close()
    return str(raised.value.java_exception.getCause().toString())


def _tools(visit: Visit) -> list[str]:
    tools, servers, config = "org.apache.kafka.tools", visit.access.servers, visit.properties_file()
    at = ("--bootstrap-server", servers, "--topic", visit.topic)
    steps: list[tuple[str, tuple[object, ...], str | None]] = [
        ("TopicCommand", ("--create", "--partitions", 2, "--command-config", config), None),
        ("ConsoleProducer", ("--producer.config", config), "\n".join(SENT)),
        (
            "consumer.ConsoleConsumer",
            (
                *("--consumer.config", config, "--group", visit.topic, "--from-beginning"),
                *("--max-messages", len(SENT), "--timeout-ms", SECONDS * 1000),
            ),
            None,
        ),
    ]
    for tool, words, given in steps:
        done = run_kafka(f"{tools}.{tool}", *at, *words, given=given)
        assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def _tools_refused(visit: Visit) -> str:
    words = ("--bootstrap-server", visit.access.servers, "--command-config", visit.properties_file(), "--list")
    done = run_kafka("org.apache.kafka.tools.TopicCommand", *words)
    assert done.returncode != 0
    return done.stdout + done.stderr


def _spark_options(visit: Visit) -> dict[str, str]:
    settings = {"bootstrap.servers": visit.access.servers, **visit.access.java()}
    return {f"kafka.{name}": value for name, value in settings.items()}


def _spark(visit: Visit) -> list[str]:
    session, options = visit.request.getfixturevalue("spark"), _spark_options(visit)
    rows = session.createDataFrame([("k", value) for value in SENT], "key string, value string").coalesce(1)
    rows.write.format("kafka").options(**options, topic=visit.topic).save()
    found = session.read.format("kafka").options(**options, subscribe=visit.topic).load()
    return [row.value.decode() for row in found.orderBy("partition", "offset").collect()]


def _spark_refused(visit: Visit) -> str:
    session = visit.request.getfixturevalue("spark")
    more = {"kafka.request.timeout.ms": "3000", "kafka.default.api.timeout.ms": "3000"}
    with pytest.raises(Exception) as raised:  # noqa: PT011 - what is raised is what the test looks at
        session.read.format("kafka").options(**_spark_options(visit), **more, subscribe=visit.topic).load().collect()
    return str(raised.value)


CLIENTS = {
    "confluent-kafka": Client(works=_confluent, is_refused=_confluent_refused),
    "kcat": Client(
        lacking=lambda: None if KCAT else "kcat is not installed (apt-get install kcat)",
        works=_kcat_works,
        is_refused=_kcat_refused,
    ),
    "kafka-python": Client(
        works=_kafka_python,
        is_refused=_kafka_python_refused,
        # An answer that arrives together with the end of the connection, from Apache Kafka too.
        vague="socket disconnected",
    ),
    "aiokafka": Client(
        works=lambda visit: asyncio.run(_aiokafka(visit)),
        is_refused=lambda visit: asyncio.run(_aiokafka_refused(visit)),
        vague="Connection at .* closed",  # an alert of TLS
    ),
    "kafkajs": Client(lacking=kafkajs_scripts.lacking, works=_kafkajs_works, is_refused=_kafkajs_refused),
    "java": Client(works=_java, is_refused=_java_refused),
    "kafka-tools": Client(lacking=kafka_jars.lacking, works=_tools, is_refused=_tools_refused),
    "spark": Client(works=_spark, is_refused=_spark_refused),
}
