"""Only the owner of a contract produces to its topic unless it lets others, and loosens what it demands."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from fluvial.registry.client import RegistryClient
from fluvial.testing import EmbeddedPlatform, embedded_platform

PASSWORDS = {"shop": "the shop's password", "other": "another one's", "admin": "the admin's own"}
USERS = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
SETTINGS = {
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.jaas.config": f'x required username="node" password="between" {USERS};',
    "authorizer.class.name": "fluvial",
    "super.users": "User:node;User:admin",
    "allow.everyone.if.no.acl.found": "true",
}
OWNED, FREE, OPEN = "orders", "visits", "notes"
VALIDATION = "fluvial.value.schema.validation"


@pytest.fixture(scope="module")
def platform() -> Iterator[EmbeddedPlatform]:
    with embedded_platform(topics={OWNED: 1, FREE: 1, OPEN: 1}, config=SETTINGS) as running:
        with RegistryClient(running.registry_url) as anyone:
            shop = anyone.acting_as("shop", PASSWORDS["shop"])
            shop.introduce("shop", "orders@shop.example")
            shop.give(f"{OWNED}-value", "shop")
            shop.give(f"{OPEN}-value", "shop")
        assert changed(running, "shop", OPEN, "fluvial.producers", "any") is None
        yield running


def client_settings(platform: EmbeddedPlatform, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": platform.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORDS[user],
        "log_level": 0,
    }


def changed(platform: EmbeddedPlatform, user: str, topic: str, name: str, value: str) -> str | None:
    """The name of the error with which a setting of a topic was not changed."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient(client_settings(platform, user))
    (future,) = admin.incremental_alter_configs([resource]).values()
    return error_of(future)


def replaced(platform: EmbeddedPlatform, user: str, topic: str) -> str | None:
    """The name of the error with which all settings of a topic were not replaced by the defaults."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient(client_settings(platform, user))
    with pytest.deprecated_call():
        (future,) = admin.alter_configs([resource]).values()
    return error_of(future)


def error_of(future: Any) -> str | None:
    try:
        future.result(10)
    except KafkaException as error:
        return str(error.args[0].name())
    return None


def produced(platform: EmbeddedPlatform, user: str, topic: str, *, records: int = 1, **more: Any) -> set[str | None]:
    """The names of the errors with which records were not taken, None for those that were."""
    errors: set[str | None] = set()
    producer = Producer({**client_settings(platform, user), "message.timeout.ms": 10_000, **more})
    for number in range(records):
        producer.produce(
            topic, str(number), on_delivery=lambda error, _: errors.add(None if error is None else error.name())
        )
    assert producer.flush(20) == 0
    return errors


@pytest.mark.parametrize("more", [{}, {"enable.idempotence": True}, {"acks": 1}], ids=["plain", "idempotent", "acks=1"])
def test_only_the_owner_and_super_users_produce(platform: EmbeddedPlatform, more: dict[str, Any]) -> None:
    assert produced(platform, "shop", OWNED, records=3, **more) == {None}
    assert produced(platform, "admin", OWNED, **more) == {None}
    assert produced(platform, "other", OWNED, records=3, **more) == {"TOPIC_AUTHORIZATION_FAILED"}
    assert produced(platform, "other", FREE, **more) == {None}, "nobody owns it"
    assert produced(platform, "other", OPEN, **more) == {None}, "its owner lets others"


def test_a_transaction_of_another_is_refused_as_well(platform: EmbeddedPlatform) -> None:
    for user, outcome in (("shop", {None}), ("other", {"TOPIC_AUTHORIZATION_FAILED"})):
        errors: set[str | None] = set()
        producer = Producer({**client_settings(platform, user), "transactional.id": f"of {user}"})
        producer.init_transactions(10)
        producer.begin_transaction()
        producer.produce(OWNED, b"x", on_delivery=lambda e, _, seen=errors: seen.add(None if e is None else e.name()))
        producer.flush(10)
        producer.abort_transaction(10)
        assert errors == outcome


def test_what_records_must_be_is_the_owners_to_say(platform: EmbeddedPlatform) -> None:
    refused = "TOPIC_AUTHORIZATION_FAILED"
    assert changed(platform, "other", OWNED, VALIDATION, "none") == refused
    assert changed(platform, "other", OWNED, "confluent.value.schema.validation", "false") == refused
    assert changed(platform, "other", OWNED, "fluvial.producers", "any") == refused
    assert replaced(platform, "other", OWNED) == refused
    assert changed(platform, "other", OWNED, "retention.ms", "86400000") is None
    assert changed(platform, "shop", OWNED, VALIDATION, "none") is None
    assert changed(platform, "other", FREE, VALIDATION, "none") is None
