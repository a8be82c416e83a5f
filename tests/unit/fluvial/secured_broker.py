"""A broker in this process with users of its own, for what asks a cluster who somebody is."""

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

import log_broker
from fluvial.kafka import KafkaCluster
from log_broker.server.embedded import EmbeddedBroker

PASSWORDS = {"ada": "ada's", "eye": "eye's", "bob": "bob's"}
"""The administrator, one who may look at the cluster, and one who may do nothing with it."""

SETTINGS = {
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
    "sasl.jaas.config": 'x required username="node" password="between" '
    + " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    + ";",
    "authorizer.class.name": "fluvial",
    "super.users": "User:node;User:ada",
    "connection.failed.authentication.delay.ms": "10",
}


@contextmanager
def secured_broker() -> Iterator[tuple[EmbeddedBroker, KafkaCluster]]:
    """Run it; gives it and the cluster as its administrator reaches it."""
    with log_broker.embedded(config=SETTINGS) as broker:
        cluster = cluster_at(broker.bootstrap_servers)
        admin = AdminClient(cluster.client())
        may_look = AclBinding(
            ResourceType.BROKER,
            "kafka-cluster",
            ResourcePatternType.LITERAL,
            "User:eye",
            "*",
            AclOperation.DESCRIBE,
            AclPermissionType.ALLOW,
        )
        for made in admin.create_acls([may_look]).values():
            made.result(30)
        yield broker, cluster


def cluster_at(servers: str, name: str = "ada") -> KafkaCluster:
    """The cluster at some addresses, reached as one of the users."""
    return KafkaCluster.with_properties(
        servers,
        **{
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": name,
            "sasl.password": PASSWORDS[name],
        },
    )
