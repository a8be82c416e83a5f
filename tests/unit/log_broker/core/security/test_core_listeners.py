import pytest

from log_broker.config.properties import parse_settings
from log_broker.config.security import SecuritySettings, setting_of
from log_broker.core.security.listeners import Account, Protocol, listeners_of
from log_broker.errors import BrokerError

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="node" password="a\\"b;c" user_x=y;'
TWO = {
    "listeners": "INTERNAL://10.0.0.1:9094,OUTSIDE://:9092",
    "advertised.listeners": "OUTSIDE://broker.example:19092",
    "listener.security.protocol.map": "INTERNAL:SASL_PLAINTEXT,OUTSIDE:SASL_SSL",
    "inter.broker.listener.name": "INTERNAL",
    "listener.name.outside.ssl.keystore.location": "/broker.pem",
    "listener.name.outside.connections.max.reauth.ms": "60000",
    "listener.name.outside.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.internal.scram-sha-512.sasl.jaas.config": JAAS,
}


def of(settings, **changes):
    return listeners_of(SecuritySettings({**settings, **changes}), "127.0.0.1", 9092, None)


def without(name):
    return {each: text for each, text in TWO.items() if each != name}


def test_an_address_alone_is_one_listener_in_plain_text():
    made = listeners_of(SecuritySettings(), "0.0.0.0", 9092, "here")
    assert (made.own.name, made.own.protocol, made.own.host, made.own.port) == (
        "PLAINTEXT",
        Protocol.PLAINTEXT,
        "0.0.0.0",
        9092,
    )
    assert made.own.advertised == ("here", 0)
    assert not made.is_secured
    assert made.own.tls is made.own.sasl is made.account is None


def test_each_listener_has_its_own_settings():
    made = of(TWO)
    internal, outside = made.listeners
    assert (internal.name, internal.protocol.number, internal.host, internal.port) == ("INTERNAL", 2, "10.0.0.1", 9094)
    assert (outside.protocol, outside.host, outside.advertised) == ("SASL_SSL", "", ("broker.example", 19092))
    assert outside.tls.location == "/broker.pem"
    assert outside.sasl.mechanisms == ("PLAIN",)
    assert (outside.sasl.lifetime_ms, internal.sasl.lifetime_ms) == (60000, 0)
    assert internal.sasl.mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512")
    assert made.account == Account(mechanism="SCRAM-SHA-512", name="node", password='a"b;c')
    assert internal.sasl.users == {"x": "y", "node": 'a"b;c'}
    assert outside.sasl.users == {}
    assert made.is_secured


def test_an_address_alone_may_be_secured():
    made = of({"security.inter.broker.protocol": "SASL_PLAINTEXT", "sasl.jaas.config": JAAS})
    assert made.own.protocol is Protocol.SASL_PLAINTEXT
    assert made.own.port == 9092


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"listeners": "PLAINTEXT:9092"}, r"listeners: 'PLAINTEXT:9092' is not NAME://host:port"),
        ({"listeners": "A://h:1"}, "no protocol for listener A"),
        ({"listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"}, "twice"),
        ({"listeners": "PLAINTEXT://h:1", "advertised.listeners": "SSL://h:2"}, "SSL is not among the listeners"),
        ({"listener.security.protocol.map": "A:TLS"}, "A:TLS"),
        (without("inter.broker.listener.name"), "inter.broker.listener.name: is needed"),
        ({**TWO, "inter.broker.listener.name": "X"}, "X is not among"),
        ({**TWO, "security.inter.broker.protocol": "SASL_SSL"}, "leave one out"),
        (
            without("listener.name.outside.ssl.keystore.location"),
            "ssl.keystore.location: is needed for listener OUTSIDE",
        ),
        (without("listener.name.internal.scram-sha-512.sasl.jaas.config"), "sasl.jaas.config: is needed"),
        ({**TWO, "sasl.mechanism.inter.broker.protocol": "PLAIN", "sasl.jaas.config": JAAS}, "PLAIN is not enabled"),
        ({**TWO, "listener.name.outside.ssl.principal.mapping.rules": "RULE:x"}, "ssl.principal.mapping.rules: has no"),
        ({**TWO, "listener.name.outside.sasl.enabled.mechanisms": ""}, "nobody could sign in"),
    ],
)
def test_settings_that_make_no_listener_are_told(settings, told):
    with pytest.raises(BrokerError, match=told):
        of(settings)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("ssl.keystore.type", "JKS", "ssl.keystore.type"),
        ("listener.name.a.ssl.client.auth", "maybe", "listener.name.a.ssl.client.auth"),
        ("listener.name.a.sasl.enabled.mechanisms", "GSSAPI", "GSSAPI"),
        ("listener.name.a.nonsense.b", "x", "Unknown broker config name: listener.name.a.nonsense.b"),
    ],
)
def test_a_setting_is_checked_where_it_is_given(name, text, told):
    with pytest.raises(BrokerError, match=told):
        SecuritySettings({name: text})


def test_no_secret_is_shown():
    settings = SecuritySettings({**TWO, "ssl.key.password": "hidden"})
    made = listeners_of(settings, "h", 1, None)
    for shown in (repr(settings), repr(made), str(settings.shown())):
        assert "hidden" not in shown
        assert 'a"b' not in shown
    assert settings.shown()["listener.name.internal.scram-sha-512.sasl.jaas.config"] is None
    assert settings.shown()["listeners"] == TWO["listeners"]


def test_names_with_a_listener_and_a_mechanism():
    assert setting_of("listener.name.a.ssl.key.password") == "ssl.key.password"
    assert setting_of("listener.name.a.plain.sasl.jaas.config") == "sasl.jaas.config"
    assert setting_of("listener.name.a.log.retention.ms") is None
    assert setting_of("log.retention.ms") is None


def test_a_file_is_read_as_kafkas_tools_read_it():
    text = "# c\n! c\na.b=1\nc : 2\nd 3\nlong=one,\\\n   two\n  e\\:f = g\\u00e9\\\\ \nempty=\n"
    assert parse_settings(text) == {"a.b": "1", "c": "2", "d": "3", "long": "one,two", "e:f": "gé\\ ", "empty": ""}
