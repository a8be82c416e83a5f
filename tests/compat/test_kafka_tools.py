"""Apache Kafka's own command-line tools and system-test clients, each held to what it did."""

import json
import re
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compat_cluster import BROKERS, COPIES
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from secured import SECURE, java_file, librdkafka

from log_broker.core.cluster.features import METADATA_LEVELS
from tests.peers.kafka_jars import lacking, run_kafka, start_kafka

LACK = lacking()
pytestmark = pytest.mark.skipif(LACK is not None, reason=LACK or "")
long = pytest.mark.compat_long

TOOLS = "org.apache.kafka.tools"
GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"


def name(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:8]}"


# What the file of a client's settings is called, where it is not --command-config.
CONFIG = {
    "ConsoleProducer": "--producer.config",
    "ConsoleShareConsumer": "--consumer-config",
    "ConsumerPerformance": "--consumer.config",
    "LeaderElectionCommand": "--admin.config",
    "VerifiableConsumer": "--consumer.config",
    "VerifiableProducer": "--producer.config",
    "ClusterTool": "--config",
}


def at(broker: Any, main_class: str) -> tuple[object, ...]:
    """The words that take a tool to a broker, and let it in."""
    servers = broker.bootstrap_servers
    config = java_file(servers)
    more = () if config is None else (CONFIG.get(main_class.rpartition(".")[2], "--command-config"), config)
    return ("--bootstrap-server", servers, *more)


def producer_of(broker: Any, *more: str) -> tuple[object, ...]:
    """The words that give ProducerPerformance its settings; those with a second `=` it takes from a file alone."""
    servers = broker.bootstrap_servers
    config = java_file(servers)
    own = () if config is None else ("--producer.config", config)
    return (*own, "--producer-props", f"bootstrap.servers={servers}", *more)


def run_at(broker: Any, main_class: str, *words: object, **how: Any) -> "subprocess.CompletedProcess[str]":
    """Run a tool of package `org.apache.kafka.tools` or one named in full, whatever it ends with."""
    full = main_class if main_class.startswith(("org.", "kafka.")) else f"{TOOLS}.{main_class}"
    return run_kafka(full, *at(broker, main_class), *words, **how)


def tool(broker: Any, main_class: str, *words: object) -> str:
    """Run a tool of package `org.apache.kafka.tools` or one named in full; it must exit with 0."""
    done = run_at(broker, main_class, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def events(output: str) -> list[dict[str, Any]]:
    """The events of a verifiable client: a JSON object a line."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def create(broker: Any, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient(librdkafka(broker.bootstrap_servers))
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, COPIES, config=settings)])[topic].result(30)


def send(broker: Any, topic: str, count: int, **config: Any) -> None:
    producer = Producer({**librdkafka(broker.bootstrap_servers), **config})
    for number in range(count):
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(60) == 0


def read_all(broker: Any, topic: str, partitions: int = 1, isolation: str = "read_committed") -> list[str]:
    """Every value of a topic up to its end as that isolation level sees it."""
    reader = Consumer(
        {
            **librdkafka(broker.bootstrap_servers),
            "group.id": name("reader"),
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    values: list[str] = []
    at_end: set[int] = set()
    reader.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    deadline = time.monotonic() + 120
    while len(at_end) < partitions:
        assert time.monotonic() < deadline, f"the end of {topic} was not reached"
        message = reader.poll(1)
        if message is None:
            continue
        if message.error() is not None:
            at_end.add(message.partition())
        else:
            values.append(message.value().decode())
    reader.close()
    return values


# The clients of Kafka's system tests


@pytest.mark.skipif(SECURE, reason="ClientCompatibilityTest takes no settings of a client")
def test_client_compatibility_test(broker: Any) -> None:
    """Every feature of a broker of today is expected, and no exception that only old brokers give."""
    supported = (
        "offsets-for-times-supported",
        "cluster-id-supported",
        "create-topics-supported",
        "describe-acls-supported",
        "describe-configs-supported",
        "idempotent-producer-supported",
    )
    words = [word for flag in supported for word in (f"--{flag}", "true")]
    topic = name("compatibility")
    create(broker, topic)
    out = tool(
        broker,
        "ClientCompatibilityTest",
        *("--topic", topic, "--num-cluster-nodes", BROKERS, "--expect-record-too-large-exception", "false", *words),
    )
    assert "SUCCESS" in out


@long
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_verifiable_clients(broker: Any, tmp_path: Path, protocol: str) -> None:
    """Two consumers of one group read what was acknowledged, each record once; what they commit is what they read."""
    topic, group, count = name("verifiable"), name("group"), 20_000
    create(broker, topic, 4)
    produced = events(tool(broker, "VerifiableProducer", "--topic", topic, "--max-messages", count, "--acks", -1))
    acked = Counter(
        (event["partition"], event["offset"]) for event in produced if event["name"] == "producer_send_success"
    )
    assert len(acked) == count
    assert produced[-1]["acked"] == count
    words = ("--topic", topic, "--group-id", group, "--group-protocol", protocol, "--verbose")
    said = [tmp_path / "one", tmp_path / "two"]
    members = []
    for path in said:
        with path.open("w") as out:
            command = (f"{TOOLS}.VerifiableConsumer", *at(broker, "VerifiableConsumer"))
            members.append(start_kafka(*command, *words, stdout=out, stderr=subprocess.DEVNULL))
    try:
        wait_for_commits(broker, group, topic, ends(acked))
    finally:
        for member in members:
            member.send_signal(signal.SIGTERM)
        for member in members:
            member.wait(60)
    outputs = [path.read_text() for path in said]
    read = Counter(
        (event["partition"], event["offset"])
        for output in outputs
        for event in events(output)
        if event["name"] == "record_data"
    )
    assert read == acked
    assert all(events(output)[-1]["name"] == "shutdown_complete" for output in outputs)


def ends(places: Counter[tuple[int, int]]) -> dict[int, int]:
    """Partition to the offset after its last record."""
    found: dict[int, int] = {}
    for partition, offset in places:
        found[partition] = max(found.get(partition, 0), offset + 1)
    return found


def wait_for_commits(broker: Any, group: str, topic: str, wanted: dict[int, int]) -> None:
    reader = Consumer({**librdkafka(broker.bootstrap_servers), "group.id": group})
    places = [TopicPartition(topic, partition) for partition in wanted]
    deadline = time.monotonic() + 120
    committed: dict[int, int] = {}
    while committed != wanted:
        assert time.monotonic() < deadline, f"committed {committed}, wanted {wanted}"
        time.sleep(0.2)
        committed = {place.partition: place.offset for place in reader.committed(places, 30)}
    reader.close()


@long
@pytest.mark.skipif(SECURE, reason="TransactionalMessageCopier takes no settings of a client")
@pytest.mark.parametrize("group_mode", [False, True])
def test_transactional_message_copier(broker: Any, group_mode: bool) -> None:
    """
    Copiers that abort at random copy every record exactly once, offsets and records in one transaction.

    Of 40 transactions each is aborted with probability 1/3, so that none is aborted is out of the question.
    """
    source, target, group, count = name("source"), name("target"), name("group"), 2000
    create(broker, source, 2)
    create(broker, target, 3)
    producer = Producer(librdkafka(broker.bootstrap_servers))
    for number in range(2 * count):
        producer.produce(source, str(number), partition=number % 2)
    assert producer.flush(60) == 0
    mode = ("--group-mode", "--use-group-metadata") if group_mode else ()
    copiers = [
        start_kafka(
            f"{TOOLS}.TransactionalMessageCopier",
            *("--broker-list", broker.bootstrap_servers, "--input-topic", source, "--input-partition", partition),
            *("--output-topic", target, "--consumer-group", group, "--transaction-size", 50),
            *("--transactional-id", name("copier"), "--enable-random-aborts", *mode),
        )
        for partition in range(2)
    ]
    try:
        wait_for_commits(broker, group, source, {0: count, 1: count})
    finally:
        for copier in copiers:
            copier.send_signal(signal.SIGTERM)
        outputs = [copier.communicate(timeout=60) for copier in copiers]
    assert all("ShutdownComplete" in out for out, _ in outputs), outputs
    committed = read_all(broker, target, 3)
    assert sorted(map(int, committed)) == list(range(2 * count))
    every = read_all(broker, target, 3, "read_uncommitted")
    assert len(every) > 2 * count, "records of aborted transactions lie in the log and are not shown"


@long
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_producer_and_consumer_performance(broker: Any, codec: str) -> None:
    topic, count = name("performance"), 50_000
    create(broker, topic, 2)
    done = run_kafka(
        f"{TOOLS}.ProducerPerformance",
        *("--topic", topic, "--num-records", count, "--record-size", 100, "--throughput", -1),
        *producer_of(broker, f"compression.type={codec}", "acks=all"),
    )
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^{count} records sent", done.stdout, re.MULTILINE), done.stdout
    assert sum(offsets(broker, topic).values()) == count
    header, row = tool(
        broker, "ConsumerPerformance", "--topic", topic, "--messages", count, "--timeout", 60_000
    ).splitlines()[-2:]
    read = dict(zip(header.split(", "), row.split(", "), strict=True))
    assert int(read["data.consumed.in.nMsg"]) == count
    assert float(read["data.consumed.in.MB"]) == pytest.approx(count * 100 / 2**20, abs=0.001)


@long
def test_producer_performance_in_transactions(broker: Any) -> None:
    topic, count = name("performance"), 20_000
    create(broker, topic)
    done = run_kafka(
        f"{TOOLS}.ProducerPerformance",
        *("--topic", topic, "--num-records", count, "--record-size", 100, "--throughput", -1),
        *("--transaction-duration-ms", 50, "--transactional-id", name("tx")),
        *producer_of(broker),
    )
    assert done.returncode == 0, done.stderr
    assert len(read_all(broker, topic)) == count
    assert offsets(broker, topic)[0] > count, "the end of each transaction takes an offset"


@long
def test_end_to_end_latency(broker: Any) -> None:
    topic = name("latency")
    create(broker, topic)
    config = java_file(broker.bootstrap_servers)
    given = () if config is None else (config,)
    done = run_kafka(f"{TOOLS}.EndToEndLatency", broker.bootstrap_servers, topic, 200, "all", 100, *given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Percentiles" in done.stdout
    assert offsets(broker, topic)[0] == 200


@long
def test_console_producer(broker: Any) -> None:
    topic = name("console")
    create(broker, topic)
    done = run_at(
        broker,
        "ConsoleProducer",
        *("--topic", topic, "--compression-codec", "zstd"),
        *("--property", "parse.key=true", "--property", "key.separator=:"),
        given="a:one\nb:two\n",
    )
    assert done.returncode == 0, done.stderr
    assert read_all(broker, topic) == ["one", "two"]


# The log's files


def offsets(broker: Any, topic: str, when: str = "latest") -> dict[int, int]:
    out = tool(broker, "GetOffsetShell", "--topic", topic, "--time", when)
    return {int(partition): int(offset) for _, partition, offset in (line.split(":") for line in out.split())}


@long
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_dump_log_segments(own_broker: Any, codec: str) -> None:
    """Kafka reads our segments, our offset indexes and our time indexes, and finds each entry where it should be."""
    topic, count = name("dumped"), 5000
    create(own_broker, topic, 1, segment_bytes="8000", index_interval_bytes="500")
    settings = {"enable.idempotence": True, "compression.type": codec, "batch.num.messages": 50, "linger.ms": 1}
    send(own_broker, topic, count, **settings)
    own_broker.stop()
    folder = own_broker.data_dir / f"{topic}-0"
    logs = sorted(folder.glob("*.log"))
    assert len(logs) > 2
    dumped = dump(*logs, "--print-data-log")
    batches = re.findall(r"^baseOffset: .*isvalid: (\w+)", dumped, re.MULTILINE)
    assert batches
    assert set(batches) == {"true"}
    records = re.findall(r"^\| offset: (\d+) .* payload: (\d+)$", dumped, re.MULTILINE)
    assert records == [(str(number), str(number)) for number in range(count)]
    codecs = set(re.findall(r"compresscodec: (\w+)", dumped))
    assert codecs == {codec}
    indexes = sorted(folder.glob("*.index"))
    assert len(indexes) >= len(logs) - 1
    assert "mismatch" not in (said := dump(*indexes, "--verify-index-only").lower())
    assert "non-consecutive" not in said
    entries = re.findall(r"^offset: (\d+) position: (\d+)$", dump(*indexes), re.MULTILINE)
    assert len(entries) > len(indexes), "an index holds more than its last entry"
    times = sorted(folder.glob("*.timeindex"))
    assert len(times) >= len(logs) - 1
    said = dump(*times)
    assert re.search(r"^timestamp: \d{13} offset: \d+$", said, re.MULTILINE)
    assert not re.search(r"mismatch|out of order|not found", said, re.IGNORECASE), said


def dump(*words: "Path | str") -> str:
    files = ",".join(str(word) for word in words if isinstance(word, Path))
    done = run_kafka(
        "kafka.tools.DumpLogSegments", "--files", files, *(word for word in words if isinstance(word, str))
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@long
def test_dump_log_segments_shows_transactions(own_broker: Any) -> None:
    """Control records and the transactional attribute are Kafka's."""
    topic = name("dumped")
    create(own_broker, topic)
    producer = Producer({**librdkafka(own_broker.bootstrap_servers), "transactional.id": name("tx")})
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, "value", partition=0)
        producer.flush(30)  # an abort drops what was not sent
        end(30)
    own_broker.stop()
    said = dump(*(own_broker.data_dir / f"{topic}-0").glob("*.log"), "--print-data-log")
    assert re.findall(r"isTransactional: (\w+) isControl: (\w+)", said) == [("true", "false"), ("true", "true")] * 2
    assert re.findall(r"endTxnMarker: (\w+)", said) == ["COMMIT", "ABORT"]


# The admin tools


@long
def test_topic_command(broker: Any) -> None:
    topic = name("topics")
    words = ("--topic", topic)
    assert f"Created topic {topic}" in tool(
        broker, "TopicCommand", "--create", *words, "--partitions", 2, "--config", "retention.ms=60000"
    )
    tool(broker, "TopicCommand", "--alter", *words, "--partitions", 3)
    described = tool(broker, "TopicCommand", "--describe", *words)
    assert "PartitionCount: 3" in described
    assert "retention.ms=60000" in described
    nodes = ",".join([r"\d"] * COPIES)
    assert len(re.findall(rf"Partition: \d\tLeader: \d\tReplicas: {nodes}\tIsr: {nodes}", described)) == 3
    assert topic in tool(broker, "TopicCommand", "--list").splitlines()
    for question in ("--under-replicated-partitions", "--unavailable-partitions", "--at-min-isr-partitions"):
        listed = tool(broker, "TopicCommand", "--describe", *words, question)
        # A topic of one copy is at its minimum of one, one of three is above that of two.
        assert len(listed.splitlines()) == (3 if question == "--at-min-isr-partitions" and COPIES == 1 else 0)
    tool(broker, "TopicCommand", "--delete", *words)
    assert topic not in tool(broker, "TopicCommand", "--list").splitlines()


@long
def test_config_command(broker: Any) -> None:
    topic = name("configs")
    create(broker, topic)
    command = "kafka.admin.ConfigCommand"
    which = ("--entity-type", "topics", "--entity-name", topic)
    tool(broker, command, "--alter", *which, "--add-config", "retention.ms=12345,cleanup.policy=[compact,delete]")
    described = tool(broker, command, "--describe", *which)
    assert "retention.ms=12345" in described
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=12345, DEFAULT_CONFIG:log.retention.ms=604800000" in described
    assert "cleanup.policy=compact,delete" in described
    tool(broker, command, "--alter", *which, "--delete-config", "retention.ms,cleanup.policy")
    assert "retention.ms" not in tool(broker, command, "--describe", *which)
    every = tool(broker, command, "--describe", "--all", "--entity-type", "brokers", "--entity-name", 0)
    assert "group.min.session.timeout.ms=1000 sensitive=false" in every
    refused = run_at(broker, command, "--alter", *which, "--add-config", "retention.ms=soon")
    assert refused.returncode != 0
    assert "InvalidConfigurationException" in refused.stdout + refused.stderr


@long
def test_config_command_of_other_entities(broker: Any) -> None:
    """Entities without any config are answered, not refused."""
    for kind in ("users", "clients", "groups", "client-metrics"):
        tool(broker, "kafka.admin.ConfigCommand", "--describe", "--entity-type", kind)
    assert "Default configs" in tool(
        broker, "kafka.admin.ConfigCommand", "--describe", "--entity-type", "brokers", "--entity-default"
    )


def rows(output: str) -> list[dict[str, str]]:
    """The rows of a tool's table by the names of its columns."""
    lines = [line.split() for line in output.splitlines() if line.strip()]
    start = next(index for index, words in enumerate(lines) if words[0] == "GROUP")
    return [dict(zip(lines[start], words, strict=False)) for words in lines[start + 1 :]]


@long
def test_consumer_group_command(broker: Any) -> None:
    topic, group, count = name("grouped"), name("group"), 100
    create(broker, topic, 1)
    send(broker, topic, count)
    which = ("--group", group)
    words = ("--topic", topic, "--group-id", group)
    member = start_kafka(f"{TOOLS}.VerifiableConsumer", *at(broker, "VerifiableConsumer"), *words)
    try:
        wait_for_commits(broker, group, topic, {0: count})
        (row,) = rows(tool(broker, GROUPS, "--describe", *which))
        assert (row["TOPIC"], row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) == (topic, "100", "100", "0")
        (row,) = rows(tool(broker, GROUPS, "--describe", *which, "--members"))
        assert row["#PARTITIONS"] == "1"
        (row,) = rows(tool(broker, GROUPS, "--describe", *which, "--state"))
        assert (row["ASSIGNMENT-STRATEGY"], row["#MEMBERS"]) == ("(0)", "Stable") or "Stable" in row.values()
        refused = run_at(broker, GROUPS, "--delete", *which)
        assert "GroupNotEmptyException" in refused.stdout + refused.stderr
    finally:
        member.send_signal(signal.SIGTERM)
        member.communicate(timeout=60)
    assert group in tool(broker, GROUPS, "--list").splitlines()
    assert re.search(rf"^{group}\s+Classic\s+consumer", tool(broker, "GroupsCommand", "--list"), re.MULTILINE)
    for aim, offset in (
        (("--to-earliest",), 0),
        (("--shift-by", 5), 5),
        (("--to-offset", 42), 42),
        (("--by-duration", "PT1H"), 0),
        (("--to-latest",), 100),
    ):
        reset = ("--reset-offsets", "--topic", topic, *aim)
        assert rows(tool(broker, GROUPS, *which, *reset, "--dry-run"))[0]["NEW-OFFSET"] == str(offset)
        tool(broker, GROUPS, *which, *reset, "--execute")
        (row,) = rows(tool(broker, GROUPS, "--describe", *which))
        assert row["CURRENT-OFFSET"] == str(offset)
        assert row["LAG"] == str(count - offset)
    assert "Successful" in tool(broker, GROUPS, "--delete-offsets", *which, "--topic", topic)
    send(broker, topic, 1)
    tool(broker, GROUPS, *which, "--topic", topic, "--reset-offsets", "--to-latest", "--execute")
    assert "was successful" in tool(broker, GROUPS, "--delete", *which)
    assert group not in tool(broker, GROUPS, "--list").splitlines()


@long
def test_offsets_and_delete_records(broker: Any, tmp_path: Path) -> None:
    topic = name("front")
    create(broker, topic)
    send(broker, topic, 100)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 10}]}))
    assert f"partition: {topic}-0\tlow_watermark: 10" in tool(
        broker, "DeleteRecordsCommand", "--offset-json-file", plan
    )
    assert offsets(broker, topic, "earliest") == {0: 10}
    assert offsets(broker, topic, "latest") == {0: 100}
    assert 10 <= offsets(broker, topic, "max-timestamp")[0] < 100
    # Without a remote tier the local log is all there is (KIP-405).
    assert offsets(broker, topic, "earliest-local") == {0: 10}
    beyond = run_at(broker, "DeleteRecordsCommand", "--offset-json-file", _plan(tmp_path, topic, 1000))
    assert "OffsetOutOfRangeException" in beyond.stdout + beyond.stderr


def _plan(folder: Path, topic: str, offset: int) -> Path:
    path = folder / f"plan-{offset}.json"
    path.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": offset}]}))
    return path


@pytest.mark.lone_broker
@long
def test_log_dirs_command(broker: Any) -> None:
    topic = name("directories")
    create(broker, topic)
    send(broker, topic, 100)
    said = tool(broker, "LogDirsCommand", "--describe", "--topic-list", topic)
    (found,) = json.loads(said.splitlines()[-1])["brokers"]
    (directory,) = found["logDirs"]
    assert directory["error"] is None
    size = sum(path.stat().st_size for path in (broker.data_dir / f"{topic}-0").glob("*.log"))
    assert [(each["partition"], each["size"], each["isFuture"]) for each in directory["partitions"]] == [
        (f"{topic}-0", size, False)
    ]


@long
def test_transactions_command(broker: Any) -> None:
    topic, transactional_id = name("transactions"), name("tx")
    create(broker, topic)
    producer = Producer({**librdkafka(broker.bootstrap_servers), "transactional.id": transactional_id})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "open", partition=0)
    producer.flush(30)
    command = "TransactionsCommand"

    def ask(*words: object) -> str:
        done = run_at(broker, command, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert re.search(rf"^{transactional_id}\s+\d+\s+\d+\s+Ongoing", ask("list"), re.MULTILINE)
    described = ask("describe", "--transactional-id", transactional_id)
    assert "Ongoing" in described
    assert f"{topic}-0" in described
    row = ask("describe-producers", "--topic", topic, "--partition", 0).splitlines()[1].split()
    assert row[-1] == "0", "the transaction began at offset 0"
    hanging = ask("find-hanging", "--broker-id", 0)
    assert transactional_id not in hanging
    producer.commit_transaction(30)
    assert "CompleteCommit" in ask("describe", "--transactional-id", transactional_id)
    row = ask("describe-producers", "--topic", topic, "--partition", 0).splitlines()[1].split()
    assert row[-1] == "None"


@long
def test_transactions_command_terminates_a_transaction(broker: Any) -> None:
    topic, transactional_id = name("transactions"), name("tx")
    create(broker, topic)
    producer = Producer({**librdkafka(broker.bootstrap_servers), "transactional.id": transactional_id})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "never", partition=0)
    producer.flush(30)
    words = ("forceTerminateTransaction", "--transactionalId", transactional_id)
    done = run_at(broker, "TransactionsCommand", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_all(broker, topic) == []
    assert read_all(broker, topic, isolation="read_uncommitted") == ["never"]


@long
def test_feature_command(broker: Any) -> None:
    """Levels are listed, lowered and raised; those that nodes do not support are refused, and a dry run is one."""

    def features(*words: object, status: int = 0) -> str:
        done = run_at(broker, "FeatureCommand", *words)
        assert done.returncode == status, done.stdout + done.stderr
        assert "Exception" not in done.stdout + done.stderr
        return done.stdout

    def level(feature: str) -> str:
        found = re.search(rf"Feature: {feature}\s.*FinalizedVersionLevel: (\S+)", features("describe"))
        assert found is not None
        return found[1]

    assert level("metadata.version") == METADATA_LEVELS[max(METADATA_LEVELS)]
    lower = ("downgrade", "--feature", "group.version=0")
    assert "group.version can be downgraded to 0." in features(*lower, "--dry-run")
    assert level("group.version") == "1"
    try:
        assert "group.version was downgraded to 0." in features(*lower)
        assert level("group.version") == "0"
    finally:
        features("upgrade", "--feature", "group.version=1")
    assert level("group.version") == "1"
    newest = max(METADATA_LEVELS)
    for words in (
        ("upgrade", "--feature", f"metadata.version={newest + 1}"),
        ("downgrade", "--feature", f"metadata.version={newest - 1}"),
    ):
        assert f"Could not {words[0]} metadata.version" in features(*words, status=1)


@long
def test_leader_election_command(broker: Any, tmp_path: Path) -> None:
    topic = name("leaders")
    create(broker, topic)
    said = tool(broker, "LeaderElectionCommand", "--election-type", "preferred", "--topic", topic, "--partition", 0)
    assert f"Valid replica already elected for partitions {topic}-0" in said
    tool(broker, "LeaderElectionCommand", "--election-type", "unclean", "--all-topic-partitions")


@pytest.mark.lone_broker
@long
def test_cluster_tool(broker: Any) -> None:
    def ask(verb: str) -> str:
        done = run_kafka(f"{TOOLS}.ClusterTool", verb, *at(broker, "ClusterTool"))
        assert done.returncode == 0, done.stderr
        return done.stdout

    metadata = AdminClient(librdkafka(broker.bootstrap_servers)).list_topics(timeout=30)
    assert ask("cluster-id").strip() == f"Cluster ID: {metadata.cluster_id}"
    assert re.search(rf"^0\s+127\.0\.0\.1\s+{broker.port}\s.*unfenced\s+broker", ask("list-endpoints"), re.MULTILINE)


@pytest.mark.lone_broker
@long
def test_broker_api_versions_command(broker: Any) -> None:
    said = tool(broker, "BrokerApiVersionsCommand")
    assert f"127.0.0.1:{broker.port} (id: 0" in said
    usable = re.findall(r"^\t(\w+)\(\d+\): .*\[usable: \d+\]", said, re.MULTILINE)
    assert {"Produce", "Fetch", "JoinGroup", "InitProducerId", "CreateTopics", "OffsetFetch"} <= set(usable)
    assert "ERROR" not in said


@long
def test_reassign_partitions_command(broker: Any) -> None:
    done = run_at(broker, f"{TOOLS}.reassign.ReassignPartitionsCommand", "--list")
    assert done.returncode == 0, done.stderr
    assert "No partition reassignments found" in done.stdout


@long
def test_acl_and_metrics_commands_say_that_there_are_none(broker: Any) -> None:
    done = run_at(broker, "AclCommand", "--list")
    if SECURE:
        assert (done.returncode, done.stdout.strip()) == (0, "")
    else:
        assert "SecurityDisabledException" in done.stdout + done.stderr
    assert tool(broker, "ClientMetricsCommand", "--list").strip() == ""


@long
def test_metadata_quorum_command(broker: Any) -> None:
    done = run_at(broker, "MetadataQuorumCommand", "describe", "--status")
    assert done.returncode == 0, done.stdout + done.stderr
    leader = re.search(r"^LeaderId:\s+(\d)$", done.stdout, re.MULTILINE)
    assert leader is not None
    assert int(leader[1]) in range(BROKERS)


@long
def test_a_share_consumer_is_told_that_there_are_no_share_groups(
    broker: Any, tmp_path: Path, eventually: Callable[[Callable[[], bool], float], None]
) -> None:
    topic, said = name("shared"), tmp_path / "said"
    create(broker, topic)
    command = (f"{TOOLS}.consumer.ConsoleShareConsumer", *at(broker, "ConsoleShareConsumer"))
    with said.open("w") as out:
        # It may wait for itself for ever once its close has failed, and so is not waited for.
        consumer = start_kafka(*command, "--topic", topic, "--timeout-ms", 30_000, stdout=out, stderr=out)
    told = "UnsupportedVersionException: The cluster does not support the share group protocol"
    try:
        eventually(lambda: told in said.read_text(), 120)
    finally:
        consumer.kill()
        consumer.wait()
