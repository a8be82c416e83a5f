"""Three nodes that reach each other by TLS, by sign-in and by both; and one that is refused."""

import asyncio
import logging

import pytest
from certificates import Authority
from confluent_kafka import Producer
from node_cluster import cluster_of, eventually

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="node" password="{}";'
# Handshakes of all nodes share one event loop with everything else here.
PATIENT = {
    "controller.quorum.election.timeout.ms": "1500",
    "controller.quorum.election.backoff.max.ms": "500",
    "controller.quorum.fetch.timeout.ms": "4000",
    "controller.quorum.request.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
}
SSL_SETTINGS = ("ssl.keystore.location", "ssl.truststore.location")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


def settings_of(authority, protocol, mechanism=""):
    settings = {
        **PATIENT,
        "security.inter.broker.protocol": protocol,
        "connection.failed.authentication.delay.ms": "10",
    }
    if "SSL" in protocol:
        settings |= dict(zip(SSL_SETTINGS, (str(authority.issue("node")), str(authority.path)), strict=True))
        settings["ssl.client.auth"] = "required" if protocol == "SSL" else "none"
    if "SASL" in protocol:
        settings |= {
            "sasl.enabled.mechanisms": mechanism,
            "sasl.mechanism.inter.broker.protocol": mechanism,
            "sasl.jaas.config": JAAS.format("between"),
        }
    return settings


def client_of(authority, servers, protocol, mechanism):
    path = str(authority.folder / "node.pem")
    settings = {"bootstrap.servers": servers, "security.protocol": protocol, "acks": "all"}
    if "SSL" in protocol:
        settings |= {"ssl.ca.location": str(authority.path)}
        settings |= {"ssl.certificate.location": path, "ssl.key.location": path}
    if "SASL" in protocol:
        settings |= {"sasl.mechanism": mechanism, "sasl.username": "node", "sasl.password": "between"}
    return Producer(settings)


@pytest.mark.parametrize(
    ("protocol", "mechanism"), [("SSL", ""), ("SASL_SSL", "SCRAM-SHA-512"), ("SASL_PLAINTEXT", "PLAIN")]
)
async def test_nodes_reach_each_other_and_copy(tmp_path, authority, protocol, mechanism):
    async with cluster_of(tmp_path, 3, settings_of(authority, protocol, mechanism)) as cluster:
        nodes = list(cluster.nodes.values())
        assert nodes[0].listeners.is_secured
        producer = client_of(authority, f"127.0.0.1:{cluster.ports[0]}", protocol, mechanism)
        for number in range(100):
            producer.produce("copied", str(number))
        assert await asyncio.to_thread(producer.flush, 30) == 0
        assert all(node.logs.get("copied", 0) is not None for node in nodes)
        callers = {str(each.principal) for node in nodes for each in node.connections}
        assert callers == {"User:CN=node,C=DE" if protocol == "SSL" else "User:node"}


async def test_a_node_with_another_password_is_refused_and_says_so(tmp_path, authority, caplog):
    settings = settings_of(authority, "SASL_PLAINTEXT", "SCRAM-SHA-256")
    async with cluster_of(tmp_path, 3, settings) as cluster:
        await cluster.stop(2)
        cluster.settings["sasl.jaas.config"] = JAAS.format("other")
        wrong = cluster.node(2)
        starting = asyncio.create_task(wrong.start())
        with caplog.at_level(logging.WARNING):
            await eventually(lambda: "this node is refused by the one at" in caplog.text)
        assert "SASL_AUTHENTICATION_FAILED" in caplog.text
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


async def test_a_node_of_another_authority_is_refused_and_says_so(tmp_path, authority, caplog):
    (tmp_path / "other").mkdir()
    other = settings_of(Authority(tmp_path / "other"), "SSL")
    async with cluster_of(tmp_path, 3, settings_of(authority, "SSL")) as cluster:
        await cluster.stop(2)
        cluster.settings.update(other)
        stranger = cluster.node(2)
        starting = asyncio.create_task(stranger.start())
        with caplog.at_level(logging.WARNING):
            await eventually(lambda: "this node is refused by the one at" in caplog.text)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        assert len(list(cluster.nodes[0].cluster.alive_brokers())) == 2
