"""
What one client writes every other reads: keys, values, headers and timestamps in every codec; and seeks by time.

Each writer writes the same records in each codec into a topic of its own, and every reader reads it.
"""

import json
import shutil
import subprocess
import uuid
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import kafkajs_scripts
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AIOTopicPartition
from compat_cluster import COPIES
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from secured import aiokafka, java, kafka_python, librdkafka

with warnings.catch_warnings():
    # It reads its schemas by a function that the standard library is about to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer
    from kafka import TopicPartition as PythonTopicPartition
    from kafka import codec as kafka_codec

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

KCAT_LOGS = "broker,topic,metadata,protocol,security,fetch,consumer"
LOG_CHARACTERS_MAX = 12_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
START_MS = 1_600_000_000_000
ATTRIBUTES_LOW_BYTE = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One record; `timestamp` in ms. A header may be empty, and its name may be anything."""

    key: str | None = None
    value: str | None = None
    timestamp: int = START_MS
    headers: Mapping[str, str] = field(default_factory=dict)


RECORDS = (
    Written(value="no key", timestamp=START_MS),
    Written(key="", value="an empty key", timestamp=START_MS + 1000),
    Written(key="tombstone", timestamp=START_MS + 2000),
    Written(key="headers", value="", timestamp=START_MS + 3000, headers={"one": "1", "größe": "ü", "empty": ""}),
    Written(key="late", value="x" * 5000, timestamp=START_MS + 10_000),
    Written(key="early", value="y" * 5000, timestamp=START_MS + 4000),
)


def octets(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def text(value: Any) -> str | None:
    return None if value is None else bytes(value).decode()


# Writers: (bootstrap servers, topic, codec, records)


def confluent_writes(servers: str, topic: str, codec: str, records: Sequence[Written]) -> None:
    producer = Producer({**librdkafka(servers), "compression.type": codec, "enable.idempotence": True})
    for each in records:
        producer.produce(
            topic,
            each.value,
            each.key,
            partition=0,
            timestamp=each.timestamp,
            headers=[(name, value.encode()) for name, value in each.headers.items()],
        )
    assert producer.flush(60) == 0


async def aiokafka_writes(servers: str, topic: str, codec: str, records: Sequence[Written]) -> None:
    producer = AIOKafkaProducer(
        **aiokafka(servers), compression_type=None if codec == "none" else codec, enable_idempotence=True
    )
    await producer.start()
    try:
        for each in records:
            await producer.send(
                topic,
                octets(each.value),
                octets(each.key),
                partition=0,
                timestamp_ms=each.timestamp,
                headers=[(name, value.encode()) for name, value in each.headers.items()],
            )
        await producer.flush()
    finally:
        await producer.stop()


def kafka_python_writes(servers: str, topic: str, codec: str, records: Sequence[Written]) -> None:
    producer = KafkaProducer(
        **kafka_python(servers), acks="all", compression_type=None if codec == "none" else codec, linger_ms=20
    )
    for each in records:
        producer.send(
            topic,
            octets(each.value),
            octets(each.key),
            partition=0,
            timestamp_ms=each.timestamp,
            headers=[(name, value.encode()) for name, value in each.headers.items()],
        )
    producer.flush()
    producer.close()


def java_writes(jvm: Any, servers: str, topic: str, codec: str, records: Sequence[Written]) -> None:
    clients = jvm.org.apache.kafka
    properties = jvm.java.util.Properties()
    for key, value in {**java(servers), "compression.type": codec, "acks": "all"}.items():
        properties.setProperty(key, value)
    serializer = clients.common.serialization.StringSerializer
    producer = clients.clients.producer.KafkaProducer(properties, serializer(), serializer())
    for each in records:
        headers = clients.common.header.internals.RecordHeaders()
        for name, value in each.headers.items():
            headers.add(name, value.encode())
        producer.send(
            clients.clients.producer.ProducerRecord(
                topic, 0, jvm.java.lang.Long(each.timestamp), each.key, each.value, headers
            )
        )
    producer.flush()
    producer.close()


def kafkajs_writes(servers: str, topic: str, codec: str, records: Sequence[Written]) -> None:
    messages = [{**asdict(each), "timestamp": str(each.timestamp), "partition": 0} for each in records]
    kafkajs_scripts.run_script(servers, "produce", topic=topic, codec=codec, messages=messages)


# Readers: (bootstrap servers, topic, count) to records


def confluent_reads(servers: str, topic: str, count: int) -> list[Written]:
    consumer = Consumer({**librdkafka(servers), "group.id": f"group-{topic}", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    for message in consumer.consume(count, 60):
        assert message.error() is None, message.error()
        found.append(
            Written(
                key=text(message.key()),
                value=text(message.value()),
                timestamp=message.timestamp()[1],
                headers={name: value.decode() for name, value in message.headers() or []},
            )
        )
    consumer.close()
    return found


async def aiokafka_reads(servers: str, topic: str, count: int) -> list[Written]:
    consumer = AIOKafkaConsumer(**aiokafka(servers), auto_offset_reset="earliest", enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign([AIOTopicPartition(topic, 0)])
        return [_of_python(await consumer.getone()) for _ in range(count)]
    finally:
        await consumer.stop()


def kafka_python_reads(servers: str, topic: str, count: int) -> list[Written]:
    consumer = KafkaConsumer(
        **kafka_python(servers), auto_offset_reset="earliest", enable_auto_commit=False, consumer_timeout_ms=60_000
    )
    consumer.assign([PythonTopicPartition(topic, 0)])
    found = [_of_python(next(consumer)) for _ in range(count)]
    consumer.close()
    return found


def _of_python(record: Any) -> Written:
    return Written(
        key=text(record.key),
        value=text(record.value),
        timestamp=record.timestamp,
        headers={name: value.decode() for name, value in record.headers},
    )


def java_reads(jvm: Any, servers: str, topic: str, count: int) -> list[Written]:
    consumer = java_consumer(jvm, servers)
    place = jvm.org.apache.kafka.common.TopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seekToBeginning([place])
    found: list[Written] = []
    for _ in range(120):
        records = consumer.poll(jvm.java.time.Duration.ofMillis(500)).iterator()
        while records.hasNext():
            record = records.next()
            headers = {header.key(): bytes(header.value()).decode() for header in record.headers().toArray()}
            found.append(Written(key=record.key(), value=record.value(), timestamp=record.timestamp(), headers=headers))
        if len(found) >= count:
            break
    consumer.close()
    return found


def java_consumer(jvm: Any, servers: str) -> Any:
    properties = jvm.java.util.Properties()
    for key, value in java(servers).items():
        properties.setProperty(key, value)
    deserializer = jvm.org.apache.kafka.common.serialization.StringDeserializer
    return jvm.org.apache.kafka.clients.consumer.KafkaConsumer(properties, deserializer(), deserializer())


def kafkajs_reads(servers: str, topic: str, count: int) -> list[Written]:
    records = kafkajs_scripts.run_script(servers, "consume", topic=topic, group=f"js-{topic}", count=count)
    return [Written(**{key: record[key] for key in ("key", "value", "timestamp", "headers")}) for record in records]


def kcat(servers: str, *words: str) -> str:
    """What kcat prints; one that comes to no end fails the test with what it logged last."""
    settings = [word for pair in librdkafka(servers).items() for word in ("-X", "=".join(pair))]
    command = ["kcat", *settings, "-d", KCAT_LOGS, *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except subprocess.TimeoutExpired as error:
        out, log = ((each or b"").decode(errors="replace") for each in (error.stdout, error.stderr))
        raise AssertionError(f"kcat came to no end:\n{out}\n{log[-LOG_CHARACTERS_MAX:]}") from None


def kcat_reads(servers: str, topic: str, count: int) -> list[Written]:
    found = []
    for line in kcat(
        servers, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-c", str(count), "-q", "-J"
    ).splitlines():
        record = json.loads(line)
        names_and_values = record.get("headers", [])
        found.append(
            Written(
                key=record["key"],
                value=record["payload"],
                timestamp=record["ts"],
                headers=dict(zip(names_and_values[::2], names_and_values[1::2], strict=True)),
            )
        )
    return found


QUICK = "zstd"
WRITERS = ("librdkafka", "aiokafka", "kafka-python", "java", "kafkajs")
READERS = (*WRITERS, "kcat")

# Pairs of clients that do not understand each other whatever the broker: see FINDINGS.md.
UNREADABLE = {("aiokafka", "lz4"): "java"}


def lacks(client: str, codec: str = "none") -> str | None:
    """What this machine lacks for a client and a codec; None when it can be run."""
    if client == "kafka-python" and codec != "none" and not getattr(kafka_codec, f"has_{codec}")():
        return f"kafka-python has no library for {codec} here"
    if client == "kcat" and shutil.which("kcat") is None:
        return "kcat is not installed (apt-get install kcat)"
    return kafkajs_scripts.lacking() if client == "kafkajs" else None


async def write(request: pytest.FixtureRequest, writer: str, servers: str, topic: str, codec: str) -> None:
    if (lack := lacks(writer, codec)) is not None:
        pytest.skip(lack)
    match writer:
        case "librdkafka":
            confluent_writes(servers, topic, codec, RECORDS)
        case "aiokafka":
            await aiokafka_writes(servers, topic, codec, RECORDS)
        case "kafka-python":
            kafka_python_writes(servers, topic, codec, RECORDS)
        case "java":
            java_writes(request.getfixturevalue("jvm"), servers, topic, codec, RECORDS)
        case _:
            kafkajs_writes(servers, topic, codec, RECORDS)


async def read(request: pytest.FixtureRequest, reader: str, servers: str, topic: str) -> list[Written]:
    count = len(RECORDS)
    match reader:
        case "librdkafka":
            return confluent_reads(servers, topic, count)
        case "aiokafka":
            return await aiokafka_reads(servers, topic, count)
        case "kafka-python":
            return kafka_python_reads(servers, topic, count)
        case "java":
            return java_reads(request.getfixturevalue("jvm"), servers, topic, count)
        case "kafkajs":
            return kafkajs_reads(servers, topic, count)
        case _:
            return kcat_reads(servers, topic, count)


def create(broker: Any, topic: str, **config: str) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin = AdminClient(librdkafka(broker.bootstrap_servers))
    admin.create_topics([NewTopic(topic, 1, COPIES, config=settings)])[topic].result(30)


def stored_codecs(broker: Any, topic: str) -> set[int]:
    """The codecs of the batches in the log's first file, from the attributes of each."""
    log = (broker.data_dir / f"{topic}-0" / f"{0:020}.log").read_bytes()
    found, at = set(), 0
    while at < len(log):
        found.add(log[at + ATTRIBUTES_LOW_BYTE] & 7)
        at += 12 + int.from_bytes(log[at + 8 : at + 12], "big")
    return found


@pytest.mark.parametrize(
    "codec", [pytest.param(codec, marks=() if codec == QUICK else pytest.mark.compat_long) for codec in CODECS]
)
@pytest.mark.parametrize("writer", WRITERS)
async def test_every_client_reads_what_one_wrote(
    request: pytest.FixtureRequest, broker: Any, writer: str, codec: str
) -> None:
    topic = f"between-{uuid.uuid4().hex[:8]}"
    create(broker, topic)
    await write(request, writer, broker.bootstrap_servers, topic, codec)
    await expect(request, broker, topic, codec, but=UNREADABLE.get((writer, codec)))


@pytest.mark.compat_long
@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "none"])
async def test_every_client_reads_what_the_broker_compressed(
    request: pytest.FixtureRequest, broker: Any, codec: str
) -> None:
    topic = f"between-{uuid.uuid4().hex[:8]}"
    create(broker, topic, compression_type=codec)
    confluent_writes(broker.bootstrap_servers, topic, "none", RECORDS)
    await expect(request, broker, topic, codec)


async def expect(
    request: pytest.FixtureRequest, broker: Any, topic: str, codec: str, *, but: str | None = None
) -> None:
    assert stored_codecs(broker, topic) == {CODECS.index(codec)}
    readers = [reader for reader in READERS if reader != but and not lacks(reader, codec)]
    found = {reader: await read(request, reader, broker.bootstrap_servers, topic) for reader in readers}
    assert found == {reader: list(RECORDS) for reader in readers}


def kcat_finds(servers: str, topic: str, timestamp: int) -> int | None:
    offset = int(kcat(servers, "-Q", "-t", f"{topic}:0:{timestamp}").rpartition("offset ")[2])
    return offset if offset >= 0 else None


AT_OR_AFTER = START_MS + 3500
BEYOND = START_MS + 60_000


async def places_of(request: pytest.FixtureRequest, client: str, servers: str, topic: str) -> list[int | None]:
    """The offsets a client finds for the two times; None where it is told that there is none."""
    times = (AT_OR_AFTER, BEYOND)
    match client:
        case "librdkafka":
            consumer = Consumer({**librdkafka(servers), "group.id": "times"})
            asked = [TopicPartition(topic, 0, each) for each in times]
            offsets = [consumer.offsets_for_times([each], 30)[0].offset for each in asked]
            consumer.close()
            return [offset if offset >= 0 else None for offset in offsets]
        case "aiokafka":
            aio = AIOKafkaConsumer(**aiokafka(servers))
            await aio.start()
            try:
                place = AIOTopicPartition(topic, 0)
                answers = [(await aio.offsets_for_times({place: each}))[place] for each in times]
            finally:
                await aio.stop()
            return [None if answer is None else answer.offset for answer in answers]
        case "kafka-python":
            python = KafkaConsumer(**kafka_python(servers))
            partition = PythonTopicPartition(topic, 0)
            answers = [python.offsets_for_times({partition: each})[partition] for each in times]
            python.close()
            return [None if answer is None else answer.offset for answer in answers]
        case "java":
            jvm = request.getfixturevalue("jvm")
            java = java_consumer(jvm, servers)
            key = jvm.org.apache.kafka.common.TopicPartition(topic, 0)
            found = [java.offsetsForTimes({key: jvm.java.lang.Long(each)})[key] for each in times]
            java.close()
            return [None if each is None else each.offset() for each in found]
        case _:
            return [kcat_finds(servers, topic, each) for each in times]


@pytest.mark.lone_broker
@pytest.mark.parametrize("client", ["librdkafka", "aiokafka", "kafka-python", "java", "kcat"])
async def test_the_first_record_of_a_time_is_found(request: pytest.FixtureRequest, broker: Any, client: str) -> None:
    if (lack := lacks(client)) is not None:
        pytest.skip(lack)
    topic = f"times-{uuid.uuid4().hex[:8]}"
    create(broker, topic)
    confluent_writes(broker.bootstrap_servers, topic, "none", RECORDS)
    assert await places_of(request, client, broker.bootstrap_servers, topic) == [4, None]
