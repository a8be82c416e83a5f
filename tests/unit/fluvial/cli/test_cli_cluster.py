"""`fluvial cluster` against a broker that is a cluster of one: what can be told and refused without a second node."""

import json
from collections.abc import Iterator

import pytest

import log_broker
from fluvial.cli.main import execute
from fluvial.cluster import doctor
from log_broker.core.cluster.features import SUPPORTED
from log_broker.server.embedded import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with log_broker.embedded() as running:
        running.create_topic("orders", partitions=4)
        yield running


def run(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = execute(["cluster", *words, "--bootstrap-server", broker.bootstrap_servers])
    out, err = capsys.readouterr()
    return status, out, err


def test_the_status_of_a_healthy_cluster(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(broker, capsys, "status")
    assert status == 0
    assert "all replicas in sync" in out
    _, out, _ = run(broker, capsys, "status", "--format", "json")
    found = json.loads(out)
    (node,) = found["nodes"]
    assert (found["controller"], found["voters"], found["offline"]) == (node["id"], [node["id"]], [])
    assert (node["up"], node["leads"], node["preferred"]) == (True, found["partitions"], found["partitions"])


def test_what_is_even_already_is_left_alone(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(broker, capsys, "reassign", "--execute", "--format", "json")
    assert (status, json.loads(out)["changes"]) == (0, [])
    assert "0 copies" in err
    status, out, err = run(broker, capsys, "move", "orders:0,1", "--to", "0")
    assert (status, out, err) == (0, "", "nothing to move: every partition is already on these nodes\n")
    assert run(broker, capsys, "moves")[2] == "nothing is being moved\n"
    assert run(broker, capsys, "elect", "orders")[0] == 0


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("move", "orders", "--to", "0,7"), 1, "node 7 is not up; the brokers that are: 0"),
        (("move", "orders", "--to", "0,0"), 2, "a node is listed twice"),
        (("move", "orders", "--to", "first"), 2, "write the ids of nodes"),
        (("move", "order", "--to", "0"), 1, "did you mean orders?"),
        (("move", "orders", "--to", "0", "--throttle", "fast"), 2, "write bytes a second"),
        (("reassign", "order"), 1, "did you mean orders?"),
        (("reassign", "--brokers", "1"), 1, "node 1 is not up"),
        (("reassign", "orders", "--replication-factor", "3"), 1, "has 3 replicas and only 1 brokers"),
        (("doctor", "--client", "nowhere.properties"), 1, "--client nowhere.properties: No such file"),
        (("remove", "9"), 1, "node 9 is no member of the cluster; its members are 0"),
        (("remove", "0"), 1, "node 0 is the last one that is up"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, says: str
) -> None:
    found, out, err = run(broker, capsys, *words)
    assert (found, out, err.count("\n")) == (status, "", 1), err
    assert says in err


def test_the_doctor_of_one_broker_finds_no_fault_with_its_topics(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(broker, capsys, "doctor")
    assert (status, err) == (0, "")
    assert "has one broker, so that no topic can have a second copy" in out
    assert "orders" not in out


def test_partitions_beyond_what_a_broker_should_hold_are_warned_of(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--partitions", "6", "--bootstrap-server", broker.bootstrap_servers]
    assert execute(["topic", "create", "few", *words]) == 0
    assert "warning" not in capsys.readouterr().err
    monkeypatch.setattr(doctor, "REPLICAS_MAX", 10)
    assert execute(["topic", "create", "many", *words]) == 0
    assert "warning (stops work): broker 0 holds 16 replicas, more than 10" in capsys.readouterr().err


def test_a_profile_that_the_cluster_cannot_have_is_refused(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["topic", "create", "safe", "--bootstrap-server", broker.bootstrap_servers, "--profile"]
    assert execute([*words, "durable"]) == 1
    assert "3 larger than available brokers: 1" in capsys.readouterr().err
    assert execute([*words, "cheap"]) == 2
    assert "--profile 'cheap': there are durable and available" in capsys.readouterr().err


def test_a_cluster_that_is_down(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert execute(["cluster", "status", "--bootstrap-server", "127.0.0.1:1"]) == 1
    assert "no Kafka broker answers (127.0.0.1:1: Connection refused)" in capsys.readouterr().err


def test_feature_levels_are_shown_lowered_and_raised(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    def levels() -> dict[str, int]:
        found = json.loads(run(broker, capsys, "features", "describe", "--format", "json")[1])
        return {each["name"]: each["level"] for each in found["features"]}

    status, out, err = run(broker, capsys, "features", "describe")
    assert (status, err) == (0, "")
    assert "metadata.version" in out
    assert levels() == {name: supported.highest for name, supported in SUPPORTED.items()}
    assert run(broker, capsys, "features", "upgrade")[2].startswith("metadata.version is at the newest level")
    lower = ("features", "downgrade", "--feature", "group.version=0")
    assert run(broker, capsys, *lower, "--dry-run") == (0, "", "group.version can be lowered to 0\n")
    assert levels()["group.version"] == 1
    assert run(broker, capsys, *lower) == (0, "", "group.version was lowered to 0\n")
    assert levels()["group.version"] == 0
    status, _, err = run(broker, capsys, "features", "upgrade", "--feature", "group.version=1")
    assert (status, err) == (0, "group.version was raised to 1\n")


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("upgrade", "--feature", "group.version=9"), 1, "only supports versions 0-1"),
        (("upgrade", "--feature", "group.version=new"), 2, "a level is a number"),
        (("upgrade", "--release-version", "1.0"), 1, "there is no metadata.version of a release '1.0'"),
        (("downgrade",), 2, "name the feature and the level to lower it to"),
        (("downgrade", "--feature", "metadata.version=25"), 1, "Refusing to perform the requested downgrade"),
    ],
)
def test_levels_that_cannot_be_are_refused(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, says: str
) -> None:
    code, _, err = run(broker, capsys, "features", *words)
    assert code == status
    assert says in err
