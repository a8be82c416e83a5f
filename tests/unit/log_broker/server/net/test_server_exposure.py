"""Which listeners are open to the network: those beyond loopback that ask nobody who they are."""

from pathlib import Path

import pytest

from log_broker.config.broker import BrokerConfig
from log_broker.errors import BrokerError
from log_broker.server.net.exposure import check_exposure, exposed_hosts

JAAS = 'ScramLoginModule required username="node" password="p";'
PEM = {"ssl.keystore.location": "node.pem"}


def config_of(host="127.0.0.1", **settings):
    texts = {name.replace("__", "."): text for name, text in settings.items()}
    return BrokerConfig(data_dir=Path("unused"), host=host).with_settings(texts)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.9.1"])
def test_loopback_is_open_to_nobody(host):
    assert exposed_hosts(config_of(host)) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "10.0.0.5", "kafka-1", "127.0.0.1.example"])
def test_any_other_address_asks_for_a_flag(host):
    with pytest.raises(BrokerError, match="--allow-plaintext"):
        check_exposure(config_of(host), allow_plaintext=False)
    assert check_exposure(config_of(host), allow_plaintext=True) == [host]


def test_who_signs_in_or_shows_a_certificate_is_known():
    sasl = {"security__inter__broker__protocol": "SASL_PLAINTEXT", "sasl__jaas__config": JAAS}
    assert check_exposure(config_of("10.0.0.5", **sasl), allow_plaintext=False) == []
    tls = config_of("10.0.0.5").with_settings({**PEM, "security.inter.broker.protocol": "SSL"})
    assert exposed_hosts(tls) == ["10.0.0.5"], "encrypted, and everybody gets in"
    assert exposed_hosts(tls.with_settings({"ssl.client.auth": "required"})) == []


def test_each_listener_is_looked_at():
    two = {
        "listeners": "INTERNAL://10.0.0.1:9094,OUTSIDE://0.0.0.0:9092",
        "listener.security.protocol.map": "INTERNAL:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "sasl.jaas.config": JAAS,
    }
    assert exposed_hosts(config_of().with_settings(two)) == ["10.0.0.1"]
