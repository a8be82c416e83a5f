"""A broker whose process has ended is fenced at once; one that only hangs, or was never reached, is not."""

import asyncio
import socket
from pathlib import Path

import pytest
from node_cluster import NodeCluster, cluster_of, eventually

from log_broker.core.cluster.events import Fencing
from log_broker.core.cluster.image import BrokerImage
from log_broker.server.node import Node
from log_broker.server.quorum import liveness
from log_broker.server.quorum.liveness import Liveness

# Nobody is fenced for being silent within a test.
PATIENT = {"broker.session.timeout.ms": "600000"}


def broker(port: int, epoch: int = 1) -> BrokerImage:
    return BrokerImage(node_id=1, host="127.0.0.1", port=port, incarnation="a", epoch=epoch)


class Listener:
    """Something that accepts connections at a port until it is closed, as a process does until it dies."""

    def __init__(self) -> None:
        self.accepted: list[asyncio.StreamWriter] = []

    async def open(self, port: int = 0) -> int:
        async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.accepted.append(writer)

        self._server = await asyncio.start_server(accept, "127.0.0.1", port)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    def hang_up(self) -> None:
        for writer in self.accepted:
            writer.close()
        self.accepted.clear()

    def die(self) -> None:
        self._server.close()
        self.hang_up()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    monkeypatch.setattr(liveness, "RETRY_SECONDS", 0.01)
    return []


async def test_a_connection_that_breaks_and_is_refused_is_an_end(told: list[tuple[int, bool]]) -> None:
    listener = Listener()
    port = await listener.open()
    watching = Liveness(lambda node_id, certain: told.append((node_id, certain)))
    watching.watch([broker(port)])
    await eventually(lambda: len(listener.accepted) == 1)
    # Hung up on, but somebody listens: it is connected to again and nothing is said.
    listener.hang_up()
    await eventually(lambda: len(listener.accepted) == 1)
    assert told == []
    listener.die()
    await eventually(lambda: bool(told))
    assert told[0] == (1, True)
    assert watching.gone == [1]
    # Whoever listens there again is not gone.
    again = Listener()
    await again.open(port)
    await eventually(lambda: watching.gone == [] and len(again.accepted) == 1)
    watching.stop()
    again.die()


async def test_an_address_that_refuses_from_the_start_is_no_certain_end(told: list[tuple[int, bool]]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        watching = Liveness(lambda node_id, certain: told.append((node_id, certain)))
        watching.watch([broker(unused.getsockname()[1])])
        await eventually(lambda: len(told) > 1)
        assert set(told) == {(1, False)}
        watching.stop()


async def test_who_is_not_watched_any_more_is_let_go_of(told: list[tuple[int, bool]]) -> None:
    listener = Listener()
    port = await listener.open()
    watching = Liveness(lambda node_id, certain: told.append((node_id, certain)))
    watching.watch([broker(port)])
    await eventually(lambda: len(listener.accepted) == 1)
    watching.watch([])
    listener.die()
    await asyncio.sleep(0.05)
    assert told == []


async def kill(cluster: NodeCluster, node_id: int) -> Node:
    """Have a node end as a process does that is killed: its sockets are closed and nothing is said."""
    node = cluster.nodes.pop(node_id)
    assert node.lifecycle is not None
    await node.lifecycle.stop()
    node.lifecycle = None  # who is dead does not take leave
    await node.quorum.stop()
    server = node.listeners.own.server
    assert isinstance(server, asyncio.Server)
    await node.machine.unlisten(server)
    for connection in list(node.connections):
        connection.close()
    return node


async def test_a_killed_broker_is_fenced_long_before_its_session_ends(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3, PATIENT) as cluster:
        controller = await cluster.has_controller()
        victim_id = next(node_id for node_id in cluster.nodes if node_id != controller.config.node_id)
        node = await kill(cluster, victim_id)
        try:
            await eventually(lambda: not controller.cluster.is_alive(victim_id))
            assert controller.controller is not None
            assert controller.controller.fenced_because(victim_id) is Fencing.ENDED
        finally:
            await node.stop()


async def test_the_next_controller_fences_the_one_that_died(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3, PATIENT) as cluster:
        former = (await cluster.has_controller()).config.node_id
        await eventually(
            lambda: all(former in watched(node) for node in cluster.nodes.values() if not node.is_controller)
        )
        node = await kill(cluster, former)
        try:
            await eventually(lambda: any(each.is_controller for each in cluster.nodes.values()))
            controller = cluster.controller
            await eventually(lambda: not controller.cluster.is_alive(former))
            assert controller.controller is not None
            assert controller.controller.fenced_because(former) is Fencing.ENDED
        finally:
            await node.stop()


def watched(node: Node) -> list[int]:
    return [address.node_id for address in node.liveness._watches]
