"""Where an HTTP server beside a cluster may listen, and what it then asks of those who come."""

from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from secured_broker import cluster_at

from fluvial.config import Settings
from fluvial.http_exposure import Exposure, ExposureError
from fluvial.kafka import KafkaCluster

PLAIN = Settings(local=False)
WITH_USERS = Settings(local=False, kafka_properties=cluster_at("127.0.0.1:9092").properties)
BY_CERTIFICATE = Settings(
    local=False, kafka_properties=KafkaCluster.with_properties("", **{"security.protocol": "SSL"}).properties
)


def exposure_of(settings: Settings, **named: Any) -> Exposure:
    return Exposure.of(settings, does="it starts runs for whoever asks", **named)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return Authority(tmp_path).issue("page")


@pytest.mark.parametrize("settings", [PLAIN, WITH_USERS, BY_CERTIFICATE], ids=["plain", "users", "certificates"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_on_this_machine_alone_everybody_may(settings: Settings, host: str) -> None:
    exposure = exposure_of(settings, host=host, certificate=None, allow_plaintext=False)
    assert exposure == Exposure(host=host)
    assert not exposure.is_open
    assert exposure.url(3000) == f"http://{host}:3000"


def test_with_a_certificate_users_are_asked_for_here_too(certificate: Path) -> None:
    exposure = exposure_of(WITH_USERS, host="127.0.0.1", certificate=certificate, allow_plaintext=False)
    assert exposure == Exposure(certificate=certificate, asks=True)
    assert exposure.url(3000) == "https://127.0.0.1:3000"


def test_beyond_this_machine_it_asks_for_users_by_https(certificate: Path) -> None:
    exposure = exposure_of(WITH_USERS, host="0.0.0.0", certificate=certificate, allow_plaintext=False)
    assert (exposure.asks, exposure.is_open, exposure.url(3000)) == (True, False, "https://localhost:3000")
    with pytest.raises(ExposureError, match=r"passwords would go there in plain text: .*--certificate"):
        exposure_of(WITH_USERS, host="0.0.0.0", certificate=None, allow_plaintext=False)
    behind_a_proxy = exposure_of(WITH_USERS, host="0.0.0.0", certificate=None, allow_plaintext=True)
    assert behind_a_proxy.asks


@pytest.mark.parametrize("settings", [PLAIN, BY_CERTIFICATE], ids=["plain", "certificates"])
def test_without_users_it_is_opened_to_the_network_only_if_that_is_meant(settings: Settings, certificate: Path) -> None:
    with pytest.raises(ExposureError, match=r"other machines reach 0\.0\.0\.0, it starts runs .*--allow-plaintext"):
        exposure_of(settings, host="0.0.0.0", certificate=certificate, allow_plaintext=False)
    assert exposure_of(settings, host="0.0.0.0", certificate=None, allow_plaintext=True).is_open


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    locked = Authority(tmp_path).issue("locked", password="x")
    (tmp_path / "rubbish.pem").write_text("rubbish")
    for file in (tmp_path / "none.pem", tmp_path / "rubbish.pem", locked, tmp_path):
        with pytest.raises(ExposureError, match=f"--certificate {file}: .*; write the path of a PEM file"):
            exposure_of(PLAIN, host="127.0.0.1", certificate=file, allow_plaintext=False)
    for host in ("no such host", "8.8.8.8", "x" * 70, "é" * 70, ""):
        with pytest.raises(ExposureError, match="--host"):
            exposure_of(PLAIN, host=host, certificate=None, allow_plaintext=True)


@pytest.mark.parametrize("exposure", [Exposure(), Exposure(host="::1", certificate=Path("/x.pem"), asks=True)])
def test_the_web_server_is_told_what_was_decided(exposure: Exposure) -> None:
    assert Exposure.from_environment(exposure.environment) == exposure
    assert Exposure.from_environment({}) == Exposure()
