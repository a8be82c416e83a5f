"""
Every client at a secured broker, by each way to sign in: it is let in and works, and with a wrong secret is told so.

`make test` has those that listeners' own tests lack, one each; `make compat` all.
"""

import logging
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import QUICK_GROUPS, as_many_as_asked
from secured import MUTUAL_TLS, WAYS, Security
from secured_clients import CLIENTS, SENT, Visit

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

# What the clients say to a wrong password, and to a certificate that the broker does not know.
REFUSED = re.compile(r"[Aa]uthentication (failed|failure)|Sasl[Aa]uthentication")
ALERTED = re.compile(r"unknown ca|[Cc]ertificate|SSL_HANDSHAKE|SslAuthentication|ALERT|SSLError")
EARLY = {("kafkajs", "SCRAM-SHA-512"), ("kcat", MUTUAL_TLS), ("java", "PLAIN")}
CASES = [
    pytest.param(
        client,
        way,
        id=f"{client}-{way}",
        marks=[
            *([] if (client, way) in EARLY else [pytest.mark.compat_long]),
            *([pytest.mark.spark] if client in ("spark", "java") else []),
        ],
    )
    for client in CLIENTS
    for way in WAYS
]


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> Security:
    return Security(tmp_path_factory.mktemp("security"))


@pytest.fixture(scope="module")
def servers(security: Security, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    running = as_many_as_asked(tmp_path_factory.mktemp("secured"), QUICK_GROUPS, security=security)
    running.start()
    yield running.bootstrap_servers
    assert running.stop() == 0, running.log.read_text()
    assert "Traceback" not in running.log.read_text()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from fluvial.config import Settings
    from fluvial.spark.session import build_session

    settings = Settings(
        warehouse=str(tmp_path_factory.mktemp("warehouse")),
        spark_master="local[2]",
        spark_conf={"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"},
    )
    session = build_session(settings, "secured")
    yield session
    session.stop()


def visit_of(request: pytest.FixtureRequest, security: Security, way: str, folder: Path, *, welcome: bool) -> Visit:
    access = security.access(request.getfixturevalue("servers"), way, welcome=welcome)
    return Visit(request=request, access=access, topic=f"secured-{uuid.uuid4().hex[:8]}", folder=folder)


@pytest.mark.parametrize(("client", "way"), CASES)
def test_it_signs_in_and_works(
    request: pytest.FixtureRequest, security: Security, tmp_path: Path, client: str, way: str
) -> None:
    if (lack := CLIENTS[client].lacking()) is not None:
        pytest.skip(lack)
    assert CLIENTS[client].works(visit_of(request, security, way, tmp_path, welcome=True)) == SENT


@pytest.mark.parametrize(("client", "way"), CASES)
def test_it_is_told_that_it_is_not_let_in(
    request: pytest.FixtureRequest,
    security: Security,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    client: str,
    way: str,
) -> None:
    if (lack := CLIENTS[client].lacking()) is not None:
        pytest.skip(lack)
    with caplog.at_level(logging.INFO):
        said = CLIENTS[client].is_refused(visit_of(request, security, way, tmp_path, welcome=False))
    patterns = [ALERTED if way == MUTUAL_TLS else REFUSED, CLIENTS[client].vague]
    assert any(re.search(each, said + caplog.text) for each in patterns if each is not None), said
