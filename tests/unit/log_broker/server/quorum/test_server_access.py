"""ACLs and users in the metadata log: served to stock clients, kept over restarts, the same on all nodes."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from node_client import client_of
from node_cluster import cluster_of, eventually

import log_broker
from log_broker.core.cluster.access_changes import derived
from log_broker.core.security import acls
from log_broker.core.security.credentials import ScramMechanism as Kept
from log_broker.core.security.principal import Principal
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.node import Node
from log_broker.server.quorum.first_users import first_users
from log_broker.wire.apis import ApiKey

SETTINGS = {"authorizer.class.name": "fluvial", "super.users": "User:ANONYMOUS"}
ANY = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)
SALTED = {"mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"p" * 32}


def binding(name: str, operation: AclOperation = AclOperation.READ, *, prefixed: bool = False) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    return AclBinding(ResourceType.TOPIC, name, pattern, "User:ada", "*", operation, AclPermissionType.ALLOW)


def test_a_stock_client_makes_and_ends_acls_which_outlast_a_restart(tmp_path: Path) -> None:
    with log_broker.embedded(data_dir=tmp_path, config=SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for made in admin.create_acls([binding("orders"), binding("pay", prefixed=True)]).values():
            made.result(10)
        wrong = AclBinding(
            ResourceType.BROKER, "other", ResourcePatternType.LITERAL, "User:ada", "*", AclOperation.ALTER,
            AclPermissionType.ALLOW,
        )  # fmt: skip
        with pytest.raises(KafkaException) as refused:
            next(iter(admin.create_acls([wrong]).values())).result(10)
        assert refused.value.args[0].code() == KafkaError.INVALID_REQUEST
    with log_broker.embedded(data_dir=tmp_path, config=SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        assert set(admin.describe_acls(ANY).result(10)) == {binding("orders"), binding("pay", prefixed=True)}
        matching = AclBindingFilter(
            ResourceType.TOPIC, "payments", ResourcePatternType.MATCH, None, None, AclOperation.ANY,
            AclPermissionType.ANY,
        )  # fmt: skip
        assert set(admin.describe_acls(matching).result(10)) == {binding("pay", prefixed=True)}
        (gone,) = admin.delete_acls([matching]).values()
        assert set(gone.result(10)) == {binding("pay", prefixed=True)}
        assert set(admin.describe_acls(ANY).result(10)) == {binding("orders")}


def test_a_stock_client_gives_users_passwords_which_outlast_a_restart(tmp_path: Path) -> None:
    with log_broker.embedded(data_dir=tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
        for altered in admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("ada", info, b"secret"), UserScramCredentialUpsertion("bob", info, b"other")]
        ).values():
            altered.result(10)
    with log_broker.embedded(data_dir=tmp_path) as broker:
        kept = broker.node.cluster.access.scram["ada"][Kept.SHA_512]
        assert (kept.iterations, len(kept.stored_key)) == (8192, 64)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        deletion = UserScramCredentialDeletion("bob", ScramMechanism.SCRAM_SHA_512)
        admin.alter_user_scram_credentials([deletion])["bob"].result(10)
        described = admin.describe_user_scram_credentials().result(10)
        assert {name: user.scram_credential_infos[0].iterations for name, user in described.items()} == {"ada": 8192}
        with pytest.raises(KafkaException) as unknown:
            admin.alter_user_scram_credentials([deletion])["bob"].result(10)
        assert unknown.value.args[0].code() == KafkaError.RESOURCE_NOT_FOUND
    leaked = [path for path in tmp_path.rglob("*") if path.is_file() and b"secret" in path.read_bytes()]
    assert leaked == []


async def test_all_nodes_decide_alike_also_one_that_begins_with_a_snapshot(tmp_path: Path) -> None:
    ada = Principal("ada")

    def may(node: Node, topic: str) -> bool:
        assert node.authorizer is not None
        return node.authorizer.allows(ada, "h", acls.Operation.READ, acls.ResourceType.TOPIC, topic)

    async with cluster_of(tmp_path, 3, {**SETTINGS, "fluvial.metadata.snapshot.entries": "5"}) as cluster:
        follower = next(node for node in cluster.nodes.values() if not node.is_controller)
        async with client_of(follower) as client:
            for topic in ("orders", "payments"):
                answer = await client.ask(ApiKey.CREATE_ACLS, {"creations": (_creation(topic),)}, version=3)
                assert [each.error_code for each in answer.results] == [ErrorCode.NONE]
            altered = {"deletions": (), "upsertions": ({"name": "ada", **SALTED},)}
            answer = await client.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, altered, version=0)
            assert answer.results[0].error_code == ErrorCode.NONE
        nodes = cluster.nodes.values()
        await eventually(lambda: all(may(node, "orders") and may(node, "payments") for node in nodes))
        assert not any(may(node, "refunds") for node in nodes)
        last = follower.static_config.node_id
        await cluster.stop(last)
        leader = await cluster.has_controller()
        async with client_of(leader) as client:
            for number in range(10):  # more than what a snapshot is taken after
                await client.ask(ApiKey.CREATE_ACLS, {"creations": (_creation(f"t{number}"),)}, version=3)
        await cluster.start(last)
        again = cluster.nodes[last]
        await eventually(lambda: may(again, "orders") and may(again, "t9"))
        assert again.cluster.access == leader.cluster.access


def _creation(topic: str) -> dict[str, Any]:
    return {
        "resource_type": 2,
        "resource_name": topic,
        "resource_pattern_type": 3,
        "principal": "User:ada",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }


def test_a_new_cluster_begins_with_the_users_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("# the first\nSCRAM-SHA-512=[name=admin,password=top secret=1,iterations=8192]\n\n")
    settings = {"fluvial.first.users": str(file)}
    with log_broker.embedded(data_dir=tmp_path / "data", config=settings) as broker:
        kept = broker.node.cluster.access.scram["admin"][Kept.SHA_512]
        salted = hashlib.pbkdf2_hmac("sha512", b"top secret=1", kept.salt, 8192)
        assert kept == derived(Kept.SHA_512, salt=kept.salt, salted_password=salted, iterations=8192)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        deletion = UserScramCredentialDeletion("admin", ScramMechanism.SCRAM_SHA_512)
        admin.alter_user_scram_credentials([deletion])["admin"].result(10)
    with log_broker.embedded(data_dir=tmp_path / "data", config=settings) as broker:
        assert broker.node.cluster.access.scram == {}, "only a new cluster"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("admin:secret", "write SCRAM-SHA-512"),
        ("SCRAM-SHA-1=[name=a,password=secret]", "write SCRAM-SHA-512"),
        ("SCRAM-SHA-256=[name=a]", "write SCRAM-SHA-512"),
        ("SCRAM-SHA-256=[name=a,password=secret,age=3]", "write SCRAM-SHA-512"),
        ("SCRAM-SHA-256=[name=a,password=secret,iterations=4095]", "must lie in 4096"),
        ("SCRAM-SHA-256=[name=a,password=secret,salt=?]", "base64"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=c2VjcmV0]", "needs the salt"),
        ("SCRAM-SHA-256=[name=a,password=secret]\nSCRAM-SHA-256=[name=a,password=secret]", "twice"),
    ],
)
def test_first_users_that_cannot_be(tmp_path: Path, line: str, why: str) -> None:
    file = tmp_path / "users"
    file.write_text(line)
    with pytest.raises(BrokerError, match=why) as refused:
        first_users(str(file))
    assert "secret" not in str(refused.value)
    with pytest.raises(BrokerError, match="cannot be read"):
        first_users(str(tmp_path / "none"))
