"""`fluvial cluster events` against a broker."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

import log_broker
from fluvial.cli.cluster import events
from fluvial.cli.main import execute
from log_broker.core.cluster.image import EVENTS_TOPIC
from log_broker.server.embedded import EmbeddedBroker

NOW_MS = int(time.time() * 1000)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with log_broker.embedded() as running:
        yield running


def note(broker: EmbeddedBroker, *noted: object) -> None:
    # Under the name of Kafka's own tools a client may write to an internal topic.
    settings = {"bootstrap.servers": broker.bootstrap_servers, "client.id": "__admin_client", "linger.ms": 0}
    producer = Producer({**settings, "log_level": 0})
    for event in noted:
        producer.produce(EVENTS_TOPIC, json.dumps(event) if isinstance(event, dict) else event)
    assert producer.flush(30) == 0


def event(number: int, kind: str, text: str, age_ms: int = 0) -> dict[str, object]:
    return {"time_ms": NOW_MS - age_ms, "node": 0, "kind": kind, "text": text, "id": f"0-{number}"}


def tell_story(broker: EmbeddedBroker) -> None:
    """Three events, one of them twice and one behind its time, and a record that is none."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(EVENTS_TOPIC, num_partitions=1, replication_factor=1)])[EVENTS_TOPIC].result()
    fenced = event(1, "broker_fenced", "node 1 was not heard of for 9 s and was fenced", 2_000)
    led = event(2, "leader_elected", "node 2 leads flights-3 from epoch 5 on (was node 1)", 1_000)
    note(broker, led, fenced, fenced, "no event", event(3, "broker_returned", "node 1 takes part again"))


@pytest.fixture(scope="module")
def noted(broker: EmbeddedBroker) -> EmbeddedBroker:
    """A broker that is only read from."""
    tell_story(broker)
    return broker


def run(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str], str]:
    capsys.readouterr()
    status = execute(["cluster", "events", *words, "--bootstrap-server", broker.bootstrap_servers])
    out, err = capsys.readouterr()
    return status, out.splitlines(), err


def test_the_name_of_the_topic_is_the_brokers() -> None:
    assert events.TOPIC == EVENTS_TOPIC


def test_the_timeline_is_told_in_order_and_once(noted: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines, _ = run(noted, capsys)
    assert status == 0
    assert [line.split("  ")[-1].strip() for line in lines] == [
        "node 1 was not heard of for 9 s and was fenced",
        "node 2 leads flights-3 from epoch 5 on (was node 1)",
        "node 1 takes part again",
    ]
    assert lines[0].split()[2] == "broker_fenced"


def test_by_kind_and_time(noted: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    _, lines, _ = run(noted, capsys, "--kind", "leader_elected", "--kind", "broker_returned", "--format", "json")
    assert [json.loads(line)["id"] for line in lines] == ["0-2", "0-3"]
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime((NOW_MS - 1_000) // 1000))
    _, lines, _ = run(noted, capsys, "--since", since, "--kind", "leader_elected")
    assert len(lines) == 1
    _, lines, err = run(noted, capsys, "--since", "2100-01-01")
    assert (lines, err) == ([], "no such event\n")
    _, lines, _ = run(noted, capsys, "--since", "1h")
    assert len(lines) == 3


def test_a_time_that_is_none_is_refused(noted: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines, err = run(noted, capsys, "--since", "yesterday")
    assert (status, lines) == (2, [])
    assert "--since" in err


def test_a_cluster_that_noted_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with log_broker.embedded() as empty:
        status, lines, err = run(empty, capsys)
    assert (status, lines) == (0, [])
    assert err.startswith("nothing has been noted")


def test_follow_goes_on_with_what_comes() -> None:
    words = [
        sys.executable,
        "-m",
        "fluvial.cli.main",
        "cluster",
        "events",
        "--follow",
        "--kind",
        "test",
        "--format",
        "json",
    ]
    with log_broker.embedded() as broker:
        tell_story(broker)
        words += ["--bootstrap-server", broker.bootstrap_servers]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                note(broker, event(4, "test", "first"))
                assert json.loads(process.stdout.readline())["text"] == "first"
                note(broker, event(5, "test", "second"))
                assert json.loads(process.stdout.readline())["text"] == "second"
            finally:
                process.terminate()
