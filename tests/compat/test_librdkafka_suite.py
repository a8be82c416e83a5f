"""librdkafka's own integration tests, each under its own name, against three brokers: many ask for three replicas."""

import os
from typing import Any

import librdkafka_tests
import pytest
from compat_cluster import Brokers
from conftest import as_many_as_asked
from librdkafka_tests import Cluster, Outcome
from secured import MUTUAL_TLS, PASSWORD, SECURE, Security, java, librdkafka

LACK = librdkafka_tests.lacking()
IS_ASKED_FOR = os.environ.get("FLUVIAL_COMPAT") == "all"
pytestmark = [
    pytest.mark.compat_long,
    pytest.mark.lone_broker,  # It has three of its own.
    pytest.mark.timeout(2 * librdkafka_tests.SECONDS_MAX),
    pytest.mark.skipif(LACK is not None, reason=LACK or ""),
]
# As the tests' own clusters have it. Topics that are made by being written to have four partitions, members of a new
# group wait for each other, and each broker stands in a rack.
SETTINGS = (
    "num.partitions=4",
    "default.replication.factor=3",
    "group.initial.rebalance.delay.ms=3000",
    "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector",
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """The outcome of every test by its name."""
    folder = tmp_path_factory.mktemp("cluster")
    # Some tests give and take their own user's rights.
    security = Security(folder / "security", closed=SECURE, lenient=True)
    words = tuple(word for setting in SETTINGS for word in ("--set", setting))
    running = as_many_as_asked(folder, words, count=3, security=security)
    assert isinstance(running, Brokers)
    for number, node in enumerate(running.nodes):
        node.words += ("--broker-rack", f"RACK{number}")
    running.start()
    try:
        found = librdkafka_tests.run(_cluster(security, running), tmp_path_factory.mktemp("librdkafka"))
    finally:
        assert running.stop() == 0
    for node in running.nodes:
        assert "Traceback" not in node.log.read_text()
    return found


def _cluster(security: Security, running: Brokers) -> Cluster:
    servers = running.bootstrap_servers
    settings = librdkafka(servers)
    tools = {name: value for name, value in java(servers).items() if name != "bootstrap.servers"}
    if not SECURE:
        return Cluster(settings=settings, java=tools)
    mutual = security.access(servers, MUTUAL_TLS)
    return Cluster(
        settings=settings,
        java=tools,
        again={**settings, "bootstrap.servers": security.servers("SHORT")},
        mutual={"bootstrap.servers": mutual.servers, "ssl.key.password": PASSWORD, **mutual.librdkafka()},
        certificate={"ssl.key.password": PASSWORD, **mutual.own_certificate()},
        forms=security.certificate_in_every_form(),
    )


@pytest.mark.parametrize(
    "name", librdkafka_tests.names(secured=SECURE) if LACK is None and IS_ASKED_FOR else ["every test"]
)
def test_librdkafka(request: pytest.FixtureRequest, name: str) -> None:
    found: dict[str, Outcome] = request.getfixturevalue("outcomes")
    outcome: Any = found.get(name)
    assert outcome is not None, "it came to no end"
    if outcome.is_skipped:
        pytest.skip(outcome.why)
    assert outcome.state == "PASSED", outcome.why
