"""Three nodes that reach each other by TLS, by sign-in and by both; and who is refused, as a client or as a node."""

import asyncio
import logging
from uuid import UUID

import pytest
from certificates import Authority
from confluent_kafka import Producer
from node_cluster import NodeCluster, cluster_of, eventually

from log_broker.config.broker import BrokerConfig
from log_broker.core.security.listeners import Account
from log_broker.errors import ErrorCode
from log_broker.server.net.dialing import SecureDialer
from log_broker.server.net.dispatch import dispatch_while_starting
from log_broker.server.net.peers import PeerLink
from log_broker.server.node import Node
from log_broker.wire.apis import ApiKey
from tests.free_ports import free_ports

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
        left = await stop_and_see_it_leave(cluster, 2)
        cluster.settings["sasl.jaas.config"] = JAAS.format("other")
        wrong = cluster.node(2)
        starting = asyncio.create_task(wrong.start())
        with caplog.at_level(logging.WARNING):
            await eventually(lambda: is_refused(cluster, caplog.text))
        assert "SASL_AUTHENTICATION_FAILED" in caplog.text
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        assert cluster.nodes[0].cluster.brokers[2] == left, "nobody registered in its place"


async def test_a_node_of_another_authority_is_refused_and_says_so(tmp_path, authority, caplog):
    (tmp_path / "other").mkdir()
    other = settings_of(Authority(tmp_path / "other"), "SSL")
    async with cluster_of(tmp_path, 3, settings_of(authority, "SSL")) as cluster:
        left = await stop_and_see_it_leave(cluster, 2)
        cluster.settings.update(other)
        stranger = cluster.node(2)
        starting = asyncio.create_task(stranger.start())
        with caplog.at_level(logging.WARNING):
            await eventually(lambda: is_refused(cluster, caplog.text))
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        assert cluster.nodes[0].cluster.brokers[2] == left, "nobody registered in its place"


async def stop_and_see_it_leave(cluster, node_id):
    """Return what node 0 knows of a node that has left: it learns of a departure later than it happens."""
    await cluster.stop(node_id)
    await eventually(lambda: not cluster.nodes[0].cluster.is_alive(node_id))
    return cluster.nodes[0].cluster.brokers[node_id]


def is_refused(cluster, text):
    """Whether a node said that nodes 0 or 1 refuse it; they log here too, and are refused by whom they refuse."""
    return any(f"this node is refused by the one at 127.0.0.1:{port}:" in text for port in cluster.ports[:2])


VOTE = {
    "cluster_id": None,
    "voter_id": 0,
    "topics": (
        {
            "topic_name": "__cluster_metadata",
            "partitions": (
                {
                    "partition_index": 0,
                    "replica_epoch": 1000,
                    "replica_id": 9,
                    "replica_directory_id": UUID(int=1),
                    "voter_directory_id": UUID(int=0),
                    "last_offset_epoch": 1000,
                    "last_offset": 10**9,
                    "pre_vote": False,
                },
            ),
        },
    ),
}


def link_of(port, name, password):
    account = Account(mechanism="SCRAM-SHA-256", name=name, password=password)
    dialer = SecureDialer(None, account, asyncio.get_running_loop().time)
    # Named as nodes name themselves: by that alone nobody is let through.
    return PeerLink(f"127.0.0.1:{port}", client_id="broker", dialer=dialer)


async def test_quorum_requests_of_a_user_that_is_no_node_are_refused(tmp_path, authority, caplog):
    settings = settings_of(authority, "SASL_PLAINTEXT", "SCRAM-SHA-256")
    settings["sasl.jaas.config"] = JAAS.format("between").replace(";", ' user_ada="secret";')
    async with cluster_of(tmp_path, 1, settings) as cluster:
        (node,) = cluster.nodes.values()
        epoch = node.quorum.epoch
        ada, own = link_of(cluster.ports[0], "ada", "secret"), link_of(cluster.ports[0], "node", "between")
        try:
            refused = await ada.ask(ApiKey.VOTE, 2, {**VOTE, "cluster_id": node.cluster_id})
            assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert node.quorum.epoch == epoch
            # The quorum itself looks at what a node asks: here it is told of another cluster.
            taken = await own.ask(ApiKey.VOTE, 2, {**VOTE, "cluster_id": "another"})
            assert taken.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        finally:
            ada.end()
            own.end()


async def test_a_voter_that_signs_in_as_another_user_is_refused_and_says_so(tmp_path, authority, caplog):
    settings = settings_of(authority, "SASL_PLAINTEXT", "SCRAM-SHA-256")
    settings["sasl.jaas.config"] = JAAS.format("between").replace(";", ' user_ada="secret";')
    async with cluster_of(tmp_path, 3, settings) as cluster:
        left = await stop_and_see_it_leave(cluster, 2)
        cluster.settings["sasl.jaas.config"] = JAAS.replace("node", "ada").format("secret")
        wrong = cluster.node(2)
        starting = asyncio.create_task(wrong.start())
        with caplog.at_level(logging.WARNING):
            await eventually(lambda: "this node is refused by node" in caplog.text)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        assert cluster.nodes[0].cluster.brokers[2] == left, "nobody registered in its place"


async def test_clients_wait_for_a_node_that_starts_whatever_they_call_themselves(tmp_path, authority):
    settings = settings_of(authority, "SASL_PLAINTEXT", "SCRAM-SHA-256")
    settings["sasl.jaas.config"] = JAAS.format("between").replace(";", ' user_ada="secret";')
    async with cluster_of(tmp_path, 1, settings) as cluster:
        (node,) = cluster.nodes.values()
        node.is_serving = False
        node.dispatch = dispatch_while_starting
        ada, own = link_of(cluster.ports[0], "ada", "secret"), link_of(cluster.ports[0], "node", "between")
        try:
            asked = asyncio.create_task(ada.ask(ApiKey.LIST_GROUPS, 0, {}))
            await eventually(lambda: len(node._held) == 1)
            assert (await own.ask(ApiKey.LIST_GROUPS, 0, {})).error_code == ErrorCode.NONE
            assert not asked.done()
            node._serve()
            assert (await asked).error_code == ErrorCode.NONE
        finally:
            ada.end()
            own.end()


@pytest.mark.parametrize("between", ["PLAINTEXT", "SASL_PLAINTEXT"])
async def test_controllers_with_a_listener_of_their_own_are_reached_by_it(tmp_path, between):
    extra = free_ports(6)
    cluster = NodeCluster(tmp_path, 3, {**PATIENT, "connection.failed.authentication.delay.ms": "10"})
    voters = ",".join(f"{node_id}@127.0.0.1:{port}" for node_id, port in enumerate(extra[3:]))

    def node(node_id):
        addresses = f"BETWEEN://127.0.0.1:{cluster.ports[node_id]},CONTROLLER://127.0.0.1:{extra[3 + node_id]}"
        settings = {
            "listeners": addresses,
            "listener.security.protocol.map": f"BETWEEN:{between},CONTROLLER:SASL_PLAINTEXT",
            "inter.broker.listener.name": "BETWEEN",
            "controller.listener.names": "CONTROLLER",
            "sasl.jaas.config": JAAS.format("between"),
            "listener.name.controller.scram-sha-512.sasl.jaas.config": JAAS.replace("node", "voter").format("v"),
            "controller.quorum.voters": voters,
        }
        config = BrokerConfig(data_dir=cluster.directory(node_id), node_id=node_id)
        return Node(config.with_settings({**cluster.settings, **settings}))

    nodes = [node(each) for each in range(3)]
    try:
        await asyncio.gather(*(each.start() for each in nodes))
        await eventually(lambda: all(len(list(each.cluster.alive_brokers())) == 3 for each in nodes))
        found = {
            (each.listener, str(each.principal))
            for node in nodes
            for each in node.connections
            if each.is_closed is False
        }
        assert ("CONTROLLER", "User:voter") in found
        assert ("CONTROLLER", "User:ANONYMOUS") not in found
        assert {voter.port for voter in nodes[0].quorum.voters} == set(extra[3:])
        assert nodes[0].cluster.brokers[1].port == cluster.ports[1]
    finally:
        await asyncio.gather(*(each.stop() for each in nodes))


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
async def test_connections_that_have_not_signed_in_count_for_their_address(tmp_path, authority, protocol):
    settings = settings_of(authority, protocol, "SCRAM-SHA-256") | {"max.connections.per.ip": "3"}
    async with cluster_of(tmp_path, 1, settings) as cluster:
        (node,) = cluster.nodes.values()
        opened = []
        try:
            for _ in range(4):
                opened.append(await asyncio.open_connection("127.0.0.1", cluster.ports[0]))
            assert await opened[3][0].read() == b"", "the fourth is closed"
            assert len(node.listeners._half_open) == 3
            opened[0][1].close()
            await eventually(lambda: len(node.listeners._half_open) == 2)
            opened.append(await asyncio.open_connection("127.0.0.1", cluster.ports[0]))
            await eventually(lambda: len(node.listeners._half_open) == 3)
        finally:
            for _, writer in opened:
                writer.close()
