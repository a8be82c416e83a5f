"""`fluvial acl` and `fluvial user` against a broker with an authorizer, as a user of a shell sees them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_cli_groups import Shell

import log_broker
from log_broker.core.security.credentials import ScramMechanism
from log_broker.server.embedded import EmbeddedBroker

SETTINGS = {"authorizer.class.name": "fluvial", "super.users": "User:ANONYMOUS"}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with log_broker.embedded(topics=["orders"], config=SETTINGS) as running:
        yield running


@pytest.fixture
def shell(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(broker, capsys.readouterr)


def test_acls_are_added_listed_and_removed(shell: Shell) -> None:
    status, out, err = shell.run(
        "acl", "add", "User:ada", "--topic", "ord", "--prefixed", "--operation", "read", "--operation", "describe",
        "--cluster",
    )  # fmt: skip
    assert (status, out) == (0, "")
    assert "added: User:ada may read topic ord*\n" in err
    assert "added: User:ada may describe cluster kafka-cluster\n" in err
    shell.ok("acl", "add", "User:*", "--topic", "orders", "--operation", "write", "--deny", "--host", "10.0.0.1")
    listed = shell.json("acl", "list", "--topic", "orders")
    assert {(each["name"], each["pattern"], each["permission"]) for each in listed} == {
        ("ord", "prefixed", "allow"),
        ("orders", "literal", "deny"),
    }
    assert len(shell.json("acl", "list")) == 5
    assert {each["principal"] for each in shell.json("acl", "list", "--principal", "User:ada")} == {"User:ada"}
    assert "kafka-cluster" in shell.ok("acl", "list", "--cluster")
    _, _, err = shell.run("acl", "remove", "User:ada", "--topic", "ord", "--prefixed", "--operation", "read")
    assert err == "removed: User:ada may read topic ord*\n"
    shell.ok("acl", "remove", "User:ada", "--topic", "ord", "--prefixed", "--cluster")
    shell.ok("acl", "remove", "User:*", "--topic", "orders", "--deny")
    assert shell.json("acl", "list") == []


def test_acls_that_cannot_be(shell: Shell) -> None:
    assert "no ACL is like that" in shell.refused("acl", "remove", "User:ada", "--topic", "orders")
    assert "is no principal" in shell.refused("acl", "add", "ada", "--topic", "x", "--operation", "read", status=2)
    assert "name what" in shell.refused("acl", "add", "User:ada", "--operation", "read", status=2)
    assert "--operation" in shell.refused("acl", "add", "User:ada", "--topic", "x", status=2)


def test_users_are_added_listed_changed_and_removed(
    shell: Shell, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ADA_PASSWORD", "first-secret")
    (tmp_path / "password").write_text("second-secret\n")
    shell.ok("user", "add", "ada", "--credentials", "env:ADA_PASSWORD")
    assert shell.json("user", "list") == [{"user": "ada", "mechanism": "SCRAM-SHA-512", "iterations": 8192}]
    before = broker.node.cluster.access.scram["ada"][ScramMechanism.SHA_512]
    assert "is there already" in shell.refused("user", "add", "ada", "--credentials", "env:ADA_PASSWORD")
    shell.ok("user", "set-password", "ada", "--credentials", f"file:{tmp_path / 'password'}")
    after = broker.node.cluster.access.scram["ada"][ScramMechanism.SHA_512]
    assert after.stored_key != before.stored_key
    assert after.iterations == before.iterations
    _, _, err = shell.run("user", "remove", "ada")
    assert err.startswith("user ada removed")
    assert shell.json("user", "list") == []


def test_users_that_cannot_be(shell: Shell) -> None:
    assert "no user 'bob'" in shell.refused("user", "set-password", "bob", "--credentials", "env:HOME")
    assert "no user 'bob'" in shell.refused("user", "remove", "bob")
    assert "no terminal" in shell.refused("user", "add", "bob", status=2)
    assert "the variable NO_SUCH is not set" in shell.refused("user", "add", "bob", "--credentials", "env:NO_SUCH")
    assert "iterations" in shell.refused("user", "add", "bob", "--iterations", "1000", status=2)
