"""`fluvial group`, `config`, `topic` and `elect-leaders` against a broker, as a user of a shell sees them."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

import log_broker
from fluvial.cli.main import execute
from log_broker.errors import ErrorCode
from log_broker.server.embedded import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with log_broker.embedded(offsets_topic_num_partitions=1, group_min_session_timeout_ms=1000) as running:
        yield running


@dataclass
class Shell:
    """Command lines against one broker, run in this process; what they print is captured."""

    broker: EmbeddedBroker
    captured: Callable[[], Any]

    def run(self, *words: str) -> tuple[int, str, str]:
        self.captured()
        status = execute([*words, "--bootstrap-server", self.broker.bootstrap_servers])
        out, err = self.captured()
        return status, out, err

    def ok(self, *words: str) -> str:
        status, out, err = self.run(*words)
        assert status == 0, err
        return out

    def json(self, *words: str) -> Any:
        return json.loads(self.ok(*words, "--format", "json"))

    def refused(self, *words: str, status: int = 1) -> str:
        """Run a command that fails with one line and answers nothing."""
        found, out, err = self.run(*words)
        assert (found, out, err.count("\n")) == (status, "", 1), err
        return err

    def offsets(self, group: str) -> dict[tuple[str, int], Any]:
        found = self.json("group", "describe", group)
        return {(each["topic"], each["partition"]): each["committed_offset"] for each in found["partitions"]}


@pytest.fixture
def shell(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(broker, capsys.readouterr)


@pytest.fixture
def orders(broker: EmbeddedBroker) -> str:
    """A topic of three partitions with 4, 5 and 6 records, a second apart from 2026-01-01 on."""
    topic = broker.unique_topic("orders", partitions=3)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, "linger.ms": 0})
    for partition, count in enumerate((4, 5, 6)):
        for number in range(count):
            time_ms = 1_767_225_600_000 + number * 1000
            producer.produce(topic, value=str(number), partition=partition, timestamp=time_ms)
    assert producer.flush(30) == 0
    return topic


@contextmanager
def member(broker: EmbeddedBroker, group: str, topic: str) -> Iterator[Consumer]:
    """A consumer that has been given its partitions."""
    client = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "client.id": "the-reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    client.subscribe([topic])
    try:
        for _ in range(300):
            client.poll(0.1)
            if client.assignment():
                break
        yield client
    finally:
        client.close()


def test_a_group_is_reset_only_when_told_to(shell: Shell, orders: str) -> None:
    status, out, err = shell.run("group", "reset", "settle", "--topic", orders, "--to-latest")
    assert (status, "add --execute" in err) == (0, True)
    assert orders in out
    assert "settle" not in shell.ok("group", "list")
    shell.ok("group", "reset", "settle", "--topic", f"{orders}:0,2", "--to-offset", "5", "--execute")
    assert shell.offsets("settle") == {(orders, 0): 4, (orders, 2): 5}, "an offset behind the end is the end"
    shell.ok("group", "delete", "settle")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--to-earliest",), [0, 0, 0]),
        (("--to-latest",), [4, 5, 6]),
        (("--to-offset", "3"), [3, 3, 3]),
        (("--shift-by", "2"), [3, 3, 3]),
        (("--shift-by", "-2"), [0, 0, 0]),
        (("--to-datetime", "2026-01-01T00:00:04Z"), [4, 4, 4]),
        (("--to-datetime", "2026-01-01T02:00:03.5+02:00"), [4, 4, 4]),
        (("--to-datetime", "2026-01-01"), [0, 0, 0]),
        (("--by-duration", "9999d"), [0, 0, 0]),
    ],
)
def test_each_target_is_worked_out_within_what_is_held(
    shell: Shell, orders: str, words: tuple[str, ...], expected: list[int]
) -> None:
    group = f"of-{orders}"
    shell.ok("group", "reset", group, "--topic", orders, "--to-offset", "1", "--execute")
    found = shell.json("group", "reset", group, "--all-topics", *words, "--execute")
    assert [each["new_offset"] for each in found["partitions"]] == expected
    assert [each["committed_offset"] for each in found["partitions"]] == [1, 1, 1]
    assert list(shell.offsets(group).values()) == expected


def test_a_group_with_members_is_described_and_left_alone(shell: Shell, broker: EmbeddedBroker, orders: str) -> None:
    group = f"busy-{orders}"
    shell.ok("group", "reset", group, "--topic", f"{orders}:1", "--to-offset", "2", "--execute")
    with member(broker, group, orders):
        found = shell.json("group", "describe", group)
        (reader,) = found["members"]
        assert (found["state"], found["type"], found["lag"]) == ("stable", "classic", 3)
        assert (reader["client_id"], len(reader["partitions"])) == ("the-reader", 3)
        assert [(each["committed_offset"], each["end_offset"], each["lag"]) for each in found["partitions"]] == [
            (None, 4, None),
            (2, 5, 3),
            (None, 6, None),
        ]
        assert {each["member_id"] for each in found["partitions"]} == {reader["member_id"]}
        drawn = shell.ok("group", "describe", group)
        assert "the-reader on 127.0.0.1" in drawn
        assert "1 member, lag 3" in drawn
        why = shell.refused("group", "reset", group, "--all-topics", "--to-earliest", "--execute")
        assert "has 1 member (the-reader on 127.0.0.1)" in why
        assert "stop them first" in why
        assert "cannot be deleted" in shell.refused("group", "delete", group)
        listed = {each["group"] for each in shell.json("group", "list", "--state", "stable")}
        assert group in listed
        assert group not in {each["group"] for each in shell.json("group", "list", "--state", "empty")}
    assert shell.offsets(group) == {(orders, 1): 2}
    shell.ok("group", "delete", group)
    assert group not in {each["group"] for each in shell.json("group", "list")}


def test_a_coordinator_that_comes_up_is_waited_for(
    shell: Shell, broker: EmbeddedBroker, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = broker.node.groups.check
    answers = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 3
    monkeypatch.setattr(broker.node.groups, "check", lambda group: answers.pop() if answers else check(group))
    shell.ok("group", "reset", "patient", "--topic", f"{orders}:0", "--to-offset", "2", "--execute")
    assert not answers
    assert shell.offsets("patient") == {(orders, 0): 2}
    shell.ok("group", "delete", "patient")


@pytest.mark.parametrize(
    ("words", "complaint", "status"),
    [
        (("describe", "nobody"), "no group 'nobody' in the cluster", 1),
        (("delete", "nobody"), "no group 'nobody' in the cluster", 1),
        (("reset", "g", "--to-latest"), "choose what to reset", 2),
        (("reset", "g", "--topic", "t"), "choose the target offsets", 2),
        (("reset", "g", "--topic", "t", "--to-latest", "--shift-by", "1"), "not --to-latest and --shift-by at once", 2),
        (("reset", "g", "--topic", "t", "--to-datetime", "noon"), "--to-datetime 'noon': write a time such as", 2),
        (("reset", "g", "--topic", "t", "--by-duration", "long"), "--by-duration 'long': write a duration such as", 2),
        (("reset", "g", "--topic", "nowhere", "--to-latest"), "no topic 'nowhere' in the cluster", 1),
        (("reset", "nobody", "--all-topics", "--to-latest"), "no group 'nobody' in the cluster", 1),
    ],
)
def test_a_wrong_call_says_what_is_wrong(shell: Shell, words: tuple[str, ...], complaint: str, status: int) -> None:
    assert complaint in shell.refused("group", *words, status=status)


def test_a_misspelt_group_or_partition_is_named(shell: Shell, orders: str) -> None:
    shell.ok("group", "reset", "settlement", "--topic", orders, "--to-latest", "--execute")
    assert "did you mean settlement?" in shell.refused("group", "describe", "setlement")
    assert f"'{orders}' has no partition 3; it has 3" in shell.refused("topic", "offsets", f"{orders}:3")
    assert "write TOPIC or TOPIC:PARTITION" in shell.refused("topic", "offsets", f"{orders}:a", status=2)
    shell.ok("group", "delete", "settlement")


def test_settings_are_shown_with_their_source_set_and_taken_back(shell: Shell, orders: str) -> None:
    assert shell.json("cluster", "config", "get", "--topic", orders) == []
    shell.ok("cluster", "config", "set", "--topic", orders, "retention.ms=5000", "cleanup.policy=compact")
    found = {each["name"]: each for each in shell.json("cluster", "config", "get", "--topic", orders)}
    assert found.keys() == {"retention.ms", "cleanup.policy"}
    assert found["retention.ms"] == {
        "name": "retention.ms",
        "value": "5000",
        "source": "DYNAMIC_TOPIC_CONFIG",
        "default": "604800000",
    }
    shell.ok("cluster", "config", "set", "--topic", orders, "retention.ms=6000", "--dry-run")
    shell.ok("cluster", "config", "delete", "--topic", orders, "cleanup.policy")
    found = {each["name"]: each["value"] for each in shell.json("cluster", "config", "get", "--topic", orders)}
    assert found == {"retention.ms": "5000"}
    (one,) = shell.json("cluster", "config", "get", "--topic", orders, "segment.bytes")
    assert (one["value"], one["source"]) == ("1073741824", "DEFAULT_CONFIG")
    assert len(shell.json("cluster", "config", "get", "--topic", orders, "--all")) > 20
    assert "retention.ms" in shell.ok("cluster", "config", "get", "--topic", orders)


def test_a_brokers_settings_are_shown_and_set(shell: Shell) -> None:
    shell.ok("cluster", "config", "set", "--broker", "0", "log.segment.bytes=1000000")
    found = {each["name"]: each for each in shell.json("cluster", "config", "get", "--broker", "0")}
    assert found["log.segment.bytes"]["source"] == "DYNAMIC_BROKER_CONFIG"
    assert found["group.min.session.timeout.ms"]["source"] == "STATIC_BROKER_CONFIG"
    shell.ok("cluster", "config", "delete", "--broker", "0", "log.segment.bytes")
    assert "log.segment.bytes" not in {each["name"] for each in shell.json("cluster", "config", "get", "--broker", "0")}


def test_what_cannot_be_set_is_said(shell: Shell, orders: str) -> None:
    assert "Invalid value soon" in shell.refused("cluster", "config", "set", "--topic", orders, "retention.ms=soon")
    assert "did you mean retention.ms" in shell.refused("cluster", "config", "get", "--topic", orders, "retention.sm")
    assert "no broker 7 is up in the cluster; there are 0" in shell.refused("cluster", "config", "get", "--broker", "7")
    assert "--topic NAME or --broker ID" in shell.refused("cluster", "config", "get", status=2)
    assert "write KEY=VALUE" in shell.refused("cluster", "config", "set", "--topic", orders, "retention.ms", status=2)


def test_a_topic_grows_and_takes_settings(shell: Shell, orders: str) -> None:
    status, _, said = shell.run("topic", "alter", orders, "--partitions", "5", "--config", "retention.ms=1000")
    assert status == 0
    assert "5 is no multiple of 3" in said
    assert len(shell.json("topic", "offsets", orders)) == 5
    assert [each["value"] for each in shell.json("cluster", "config", "get", "--topic", orders)] == ["1000"]
    shell.ok("topic", "alter", orders, "--delete-config", "retention.ms", "--partitions", "5")
    assert shell.json("cluster", "config", "get", "--topic", orders) == []
    assert "multiple" not in shell.run("topic", "alter", orders, "--partitions", "10")[2]
    assert "cannot have fewer" in shell.refused("topic", "alter", orders, "--partitions", "2")
    assert "choose what to change" in shell.refused("topic", "alter", orders, status=2)


def test_offsets_are_told_by_name_and_by_time(shell: Shell, orders: str) -> None:
    assert [(each["start_offset"], each["end_offset"]) for each in shell.json("topic", "offsets", orders)] == [
        (0, 4),
        (0, 5),
        (0, 6),
    ]

    def told(*words: str) -> list[Any]:
        return [each["offset"] for each in shell.json("topic", "offsets", orders, *words)]

    assert told("--at", "latest") == [4, 5, 6]
    assert told("--at", "max-timestamp") == [3, 4, 5]
    assert told("--time", "2026-01-01T00:00:04Z") == [None, 4, 4]
    assert "-" in shell.ok("topic", "offsets", orders, "--time", "2026-01-01T00:00:04Z")


def test_records_are_deleted_only_when_told_to(shell: Shell, orders: str) -> None:
    words = ("topic", "delete-records", f"{orders}:1,2", "--before", "3")
    shown = shell.json(*words)
    assert (shown["executed"], [each["new_start_offset"] for each in shown["partitions"]]) == (False, [3, 3])
    assert [each["start_offset"] for each in shell.json("topic", "offsets", orders)] == [0, 0, 0]
    assert shell.json(*words, "--execute")["executed"]
    assert [each["start_offset"] for each in shell.json("topic", "offsets", orders)] == [0, 3, 3]
    shell.ok("topic", "delete-records", orders, "--all", "--execute")
    assert [each["start_offset"] for each in shell.json("topic", "offsets", orders)] == [4, 5, 6]
    assert "ends at offset 4" in shell.refused("topic", "delete-records", orders, "--before", "5", "--execute")
    assert "choose the records" in shell.refused("topic", "delete-records", orders, status=2)


def test_no_leader_needs_to_be_elected(shell: Shell, orders: str) -> None:
    status, out, err = shell.run("cluster", "elect", orders)
    assert (status, out) == (0, "")
    assert "0 leaders elected; 3 of 3 partitions had the right one already" in err
    assert {each["outcome"] for each in shell.json("cluster", "elect", f"{orders}:0,1")} == {"not needed"}


def test_the_shell_completes_names(broker: EmbeddedBroker, orders: str, shell: Shell) -> None:
    from types import SimpleNamespace

    from fluvial.cli import completion

    shell.ok("group", "reset", "completed", "--topic", orders, "--to-latest", "--execute")
    context: Any = SimpleNamespace(params={"bootstrap_server": broker.bootstrap_servers})
    assert completion.topics(context, orders[:-3]) == [orders]
    assert completion.topics(context, "no such") == []
    assert "completed" in completion.groups(context, "comp")
    nowhere: Any = SimpleNamespace(params={"bootstrap_server": "this is no address"})
    assert completion.topics(nowhere, "") == []
    shell.ok("group", "delete", "completed")


@pytest.mark.parametrize(
    "command",
    [
        ("group", "list"),
        ("group", "describe"),
        ("group", "reset"),
        ("group", "delete"),
        ("cluster", "config", "get"),
        ("cluster", "config", "set"),
        ("cluster", "config", "delete"),
        ("topic", "alter"),
        ("topic", "delete-records"),
        ("topic", "offsets"),
        (
            "cluster",
            "elect",
        ),
    ],
    ids=" ".join,
)
def test_each_command_shows_an_example_of_itself(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*command, "--help"]) == 0
    assert f"Example:  fluvial {' '.join(command)}" in capsys.readouterr().out
