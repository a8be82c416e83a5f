"""Kafka Streams, by its own system tests: what they process exactly once, a process killed, they verify themselves."""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from compat_cluster import COPIES
from confluent_kafka.admin import AdminClient, NewTopic
from conftest import as_many_as_asked
from secured import SECURE, java, librdkafka

from tests.peers.kafka_jars import STREAMS_AND_CONNECT, kafka_command, lacking

LACK = lacking(STREAMS_AND_CONNECT)
pytestmark = [pytest.mark.skipif(LACK is not None, reason=LACK or ""), pytest.mark.compat_long]

TESTS = "org.apache.kafka.streams.tests"
SMOKE_TOPICS = {
    "data": 3,
    **dict.fromkeys(("echo", "max", "min", "min-suppressed", "min-raw", "dif", "sum"), 3),
    **dict.fromkeys(("sws-raw", "sws-suppressed", "cnt", "avg", "tagg", "fk"), 3),
}
RELATIONAL_TOPICS = ("in-article", "in-comment", "out-augmented-article", "out-augmented-comment")
EOS_TOPICS = ("data", "echo", "min", "sum", "repartition", "max", "cnt")
SECONDS_MAX = 900
# One of the tests logs its verdict.
VERDICTS = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.streams.tests=info"
JVM = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", VERDICTS)


class Program:
    """One process of a test, its output in a file."""

    def __init__(self, log: Path, main_class: str, *words: object) -> None:
        self.log = log
        command = kafka_command(f"{TESTS}.{main_class}", *words, jvm=JVM, artifacts=STREAMS_AND_CONNECT)
        with log.open("w") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=log.parent)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, *words: str) -> None:
        """Wait until it has said one of the words; fail where it ends before."""
        deadline = time.monotonic() + SECONDS_MAX
        while not any(word in self.said() for word in words):
            assert self.process.poll() is None, self.said()[-4000:]
            assert time.monotonic() < deadline, self.said()[-4000:]
            time.sleep(0.2)

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()


@pytest.fixture
def programs() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def as_properties(servers: str) -> str:
    """A client's settings, a line each."""
    return "".join(f"{name}={value}\n" for name, value in java(servers).items())


def create(servers: str, topics: dict[str, int], copies: int = COPIES) -> None:
    admin = AdminClient(librdkafka(servers))
    for future in admin.delete_topics(list(topics), operation_timeout=30).values():
        future.exception(30)
    made = admin.create_topics([NewTopic(topic, count, copies) for topic, count in topics.items()])
    for future in made.values():
        future.result(60)


@pytest.mark.skipif(SECURE, reason="the driver of StreamsSmokeTest takes no settings of a client")
def test_the_smoke_test_of_streams_holds_exactly_once(stock_broker: Any, tmp_path: Path, programs: ExitStack) -> None:
    """Three instances of `exactly_once_v2`, of which one is killed and another one added; the driver verifies."""
    servers = stock_broker.bootstrap_servers
    create(servers, SMOKE_TOPICS)

    def instance(number: int) -> Program:
        properties = tmp_path / f"{number}.properties"
        properties.write_text(
            f"{as_properties(servers)}processing.guarantee=exactly_once_v2\nnum.stream.threads=2\n"
            f"state.dir={tmp_path / f'state-{number}'}\nclient.id=smoke-{number}\nreplication.factor={COPIES}\n"
            "session.timeout.ms=10000\ncommit.interval.ms=500\n"
        )
        program = Program(tmp_path / f"{number}.log", "StreamsSmokeTest", properties, "process")
        programs.callback(program.end)
        return program

    first, second = instance(1), instance(2)
    driver_properties = tmp_path / "driver.properties"
    driver_properties.write_text(as_properties(servers))
    driver = Program(tmp_path / "driver.log", "StreamsSmokeTest", driver_properties, "run")
    programs.callback(driver.end)
    for program in (first, second):
        program.wait_for("processed")
    first.end(signal.SIGKILL)
    instance(3)
    driver.wait_for("ALL-RECORDS-DELIVERED", "PROCESSED-")
    driver.process.wait(SECONDS_MAX)
    said = driver.said()
    assert "ALL-RECORDS-DELIVERED" in said, said[-6000:]
    assert "SUCCESS" in said, said[-6000:]
    assert "PROCESSED-" not in said, said[-6000:]


@pytest.mark.skipif(SECURE, reason="RelationalSmokeTest takes no settings of a client")
def test_the_relational_test_of_streams_passes(stock_broker: Any, tmp_path: Path, programs: ExitStack) -> None:
    """Foreign-key and equal joins of tables, exactly once: its driver verifies what is joined."""
    servers = stock_broker.bootstrap_servers
    create(servers, dict.fromkeys(RELATIONAL_TOPICS, 3))
    driver = Program(tmp_path / "driver.log", "RelationalSmokeTest", "driver", servers)
    programs.callback(driver.end)
    words = ("application", servers, "node", "exactly_once_v2", "classic", tmp_path / "state")
    programs.callback(Program(tmp_path / "application.log", "RelationalSmokeTest", *words).end)
    driver.wait_for("Smoke test complete:")
    assert "Smoke test complete: passed" in driver.said(), driver.said()[-6000:]


@pytest.mark.skipif(SECURE, reason="the driver of StreamsEosTest takes no settings of a client")
@pytest.mark.lone_broker  # It has three of its own: what Streams makes is on three.
def test_the_test_of_exactly_once_verifies_what_survived_a_kill(tmp_path: Path, programs: ExitStack) -> None:
    """`StreamsEosTest` with repartitioning: one killed, one ended, both back; then every result is computed again."""
    brokers = as_many_as_asked(tmp_path, count=3)
    brokers.start()
    programs.callback(brokers.stop)
    create(brokers.bootstrap_servers, dict.fromkeys(EOS_TOPICS, 5), copies=3)

    def program(name: str, command: str) -> Program:
        properties = tmp_path / f"{name}.properties"
        properties.write_text(
            f"bootstrap.servers={brokers.bootstrap_servers}\nprocessing.guarantee=exactly_once_v2\n"
            f"state.dir={tmp_path / f'state-{name}'}\nsession.timeout.ms=10000\n"
        )
        started = Program(tmp_path / f"{name}.log", "StreamsEosTest", properties, command)
        programs.callback(started.end)
        return started

    generator = program("generator", "run")
    first, second = program("first", "process-complex"), program("second", "process-complex")
    for instance in (first, second):
        instance.wait_for("processed")
    first.end(signal.SIGKILL)
    first = program("first", "process-complex")
    first.wait_for("processed")
    second.end()
    assert "EOS-TEST-CLIENT-CLOSED" in second.said(), second.said()[-4000:]
    second = program("second", "process-complex")
    second.wait_for("processed")
    generator.end()
    assert "numRecordsProduced" in generator.said() or "Terminated" in generator.said(), generator.said()[-4000:]
    for instance in (first, second):
        instance.end()
    verifier = program("verifier", "verify-complex")
    verifier.wait_for("ALL-RECORDS-DELIVERED", "FAILED", "FAIL:")
    assert "ALL-RECORDS-DELIVERED" in verifier.said(), verifier.said()[-6000:]
