"""Users of the cluster sign in, and may do what ACLs let them: from a stock admin client to a producer."""

import time

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
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

from log_broker.server.embedded import run_embedded

SETTINGS = {
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "sasl.jaas.config": 'x required username="node" password="between" user_admin="first";',
    "connection.failed.authentication.delay.ms": 10,
    "authorizer.class.name": "fluvial",
    "super.users": "User:node;User:admin",
}


@pytest.fixture(scope="module")
def broker():
    with run_embedded(data_dir=None, port=0, validator=None, topics={"t": 1, "u": 1}, settings=SETTINGS) as broker:
        yield broker


def settings_of(broker, name, password, mechanism="SCRAM-SHA-256"):
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": password,
        "log_level": 0,
    }


def is_let_in(broker, *credentials):
    try:
        AdminClient(settings_of(broker, *credentials)).list_topics(timeout=2)
    except KafkaException:
        return False
    return True


def errors_of_produce(broker, topic):
    errors = []
    producer = Producer({**settings_of(broker, "carol", "paper"), "message.timeout.ms": 10000})
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(15)
    return [None if each is None else each.name() for each in errors]


def test_a_user_is_made_has_a_right_and_is_gone(broker):
    admin = AdminClient(settings_of(broker, "admin", "first"))
    assert not is_let_in(broker, "carol", "paper")
    kept = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    made = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("carol", kept, b"paper")])
    made["carol"].result(10)
    for mechanism in ("SCRAM-SHA-256", "PLAIN"):
        assert is_let_in(broker, "carol", "paper", mechanism)
        assert not is_let_in(broker, "carol", "scissors", mechanism)
    assert not is_let_in(broker, "carol", "paper", "SCRAM-SHA-512")

    assert errors_of_produce(broker, "t") == ["TOPIC_AUTHORIZATION_FAILED"]
    for operation in (AclOperation.WRITE, AclOperation.DESCRIBE):
        acl = AclBinding(
            ResourceType.TOPIC,
            "t",
            ResourcePatternType.LITERAL,
            "User:carol",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        admin.create_acls([acl])[acl].result(10)
    assert errors_of_produce(broker, "t") == [None]
    assert errors_of_produce(broker, "u") == ["TOPIC_AUTHORIZATION_FAILED"]

    gone = admin.alter_user_scram_credentials([UserScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_256)])
    gone["carol"].result(10)
    deadline = time.monotonic() + 10
    while is_let_in(broker, "carol", "paper", "PLAIN"):
        assert time.monotonic() < deadline
