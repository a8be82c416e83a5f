"""Who is taken for a node: by listener and by name, for each way to secure the listeners of nodes."""

import pytest

from log_broker.config.security import SecuritySettings
from log_broker.core.security.listeners import listeners_of
from log_broker.core.security.nodes import NodePrincipals
from log_broker.core.security.principal import ANONYMOUS, Principal
from log_broker.errors import BrokerError

JAAS = 'ScramLoginModule required username="node" password="p";'
TWO = {
    "listeners": "INTERNAL://127.0.0.1:9094,OUTSIDE://0.0.0.0:9092",
    "listener.security.protocol.map": "INTERNAL:SASL_PLAINTEXT,OUTSIDE:SASL_PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
    "sasl.jaas.config": JAAS,
}
NODE, ADA, ADMIN = Principal("node"), Principal("ada"), Principal("admin")


def nodes(settings, *super_users, is_controller=True):
    config = listeners_of(SecuritySettings(settings), "127.0.0.1", 9092, None, is_controller=is_controller)
    return NodePrincipals(config, super_users)


def test_without_security_everybody_may_be_one():
    found = nodes({})
    assert found.is_open
    assert found.come_by("")
    assert found.include("PLAINTEXT", ANONYMOUS)


def test_nodes_that_sign_in_are_known_by_name_and_come_by_their_listener():
    found = nodes(TWO)
    assert not found.is_open
    assert [found.include("INTERNAL", each) for each in (NODE, ADA, ADMIN, ANONYMOUS)] == [True, False, False, False]
    assert not found.include("OUTSIDE", NODE)
    assert not found.include("", NODE)
    assert found.come_by("INTERNAL")
    assert not found.come_by("OUTSIDE")


def test_a_super_user_may_stand_in_for_a_node():
    assert nodes(TWO, "User:admin").include("INTERNAL", ADMIN)


def test_who_reaches_a_plain_listener_of_nodes_beside_a_secured_one_is_a_node():
    plain = {**TWO, "listener.security.protocol.map": "INTERNAL:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT"}
    found = nodes(plain)
    assert not found.is_open
    assert found.include("INTERNAL", ANONYMOUS)
    assert not found.include("OUTSIDE", ANONYMOUS)


def test_certificates_are_all_of_nodes_unless_super_users_are_named(tmp_path):
    pem = {"ssl.keystore.location": str(tmp_path / "a.pem"), "security.inter.broker.protocol": "SSL"}
    required = {**pem, "ssl.client.auth": "required"}
    one, other = Principal("CN=one"), Principal("CN=other")
    assert nodes(required).include("SSL", one)
    assert not nodes(required).include("SSL", ANONYMOUS)
    assert [nodes(required, "User:CN=one").include("SSL", each) for each in (one, other)] == [True, False]
    assert nodes(pem).include("SSL", ANONYMOUS)


def test_controllers_may_have_a_listener_of_their_own():
    three = {
        **TWO,
        "listeners": f"{TWO['listeners']},CONTROLLER://127.0.0.1:9095",
        "listener.security.protocol.map": f"{TWO['listener.security.protocol.map']},CONTROLLER:SASL_PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "listener.name.controller.scram-sha-512.sasl.jaas.config": JAAS.replace("node", "voter"),
    }
    found = nodes(three)
    assert found.include("CONTROLLER", Principal("voter"))
    assert found.include("INTERNAL", NODE)
    assert not found.include("CONTROLLER", ADA)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ("CONTROLLER", "has no protocol for listener CONTROLLER|is not among the listeners"),
        ("INTERNAL", "is the listener between brokers already"),
        ("A,B", "names 2 listeners"),
    ],
)
def test_a_listener_of_controllers_that_cannot_be(names, told):
    with pytest.raises(BrokerError, match=told):
        nodes({**TWO, "controller.listener.names": names})


def test_a_broker_alone_only_connects_to_the_listener_of_controllers():
    settings = {
        **TWO,
        "listener.security.protocol.map": f"{TWO['listener.security.protocol.map']},CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
    }
    config = listeners_of(SecuritySettings(settings), "127.0.0.1", 9092, None)
    assert config.controller is not None
    assert [each.name for each in config.listeners] == ["INTERNAL", "OUTSIDE"]
