"""Several nodes in one loop, over real sockets: a metadata quorum whose nodes a test stops, kills and starts again."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.features import SUPPORTED, Ranges
from log_broker.server.node import Node
from log_broker.storage.checkpoints import CLEAN_SHUTDOWN_FILE
from tests.free_ports import free_ports

# Elections within about a second, and none because a busy machine held up a loop for half of one.
QUICK = {
    "controller.quorum.election.timeout.ms": "250",
    "controller.quorum.election.backoff.max.ms": "50",
    "controller.quorum.fetch.timeout.ms": "1000",
    "controller.quorum.request.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "100",
}


async def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return when the condition holds; TimeoutError if it does not come to."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.005)


class NodeCluster:
    """The nodes by their ids; those that run are in `nodes`."""

    def __init__(
        self,
        data_dir: Path,
        count: int,
        settings: Mapping[str, str],
        *,
        features: Ranges = SUPPORTED,
        racks: Sequence[str] = (),
    ) -> None:
        self.features = features  # of the release that nodes are started with from now on
        self._racks = dict(enumerate(racks))
        self._data_dir = data_dir
        self.ports = free_ports(count)
        self.settings = {**QUICK, **settings}
        self.nodes: dict[int, Node] = {}
        self._isolated: set[int] = set()

    @property
    def voters(self) -> str:
        return ",".join(f"{node_id}@127.0.0.1:{port}" for node_id, port in enumerate(self.ports))

    def directory(self, node_id: int) -> Path:
        return self._data_dir / f"n{node_id}"

    def node(self, node_id: int, **settings: str) -> Node:
        """Make a node, which is not started yet."""
        port = self.ports[node_id] if node_id < len(self.ports) else 0
        config = BrokerConfig(data_dir=self.directory(node_id), node_id=node_id, port=port)
        named = {"broker.rack": self._racks.get(node_id, "")}
        named |= {name.replace("_", "."): text for name, text in settings.items()}
        config = config.with_settings({"controller.quorum.voters": self.voters, **self.settings, **named})
        return Node(config, features=self.features)

    async def start(self, *node_ids: int) -> None:
        """Start nodes at the same time."""
        fresh = {node_id: self.node(node_id) for node_id in node_ids}
        async with asyncio.timeout(30):
            await asyncio.gather(*(node.start() for node in fresh.values()))
        self.nodes.update(fresh)
        for node in fresh.values():
            self._cut(node)

    async def stop(self, *node_ids: int) -> None:
        """Stop nodes in order."""
        await asyncio.gather(*(self.nodes.pop(node_id).stop() for node_id in node_ids))

    def isolate(self, *node_ids: int) -> None:
        """Cut nodes off from all others, though not from their clients."""
        self._isolated.update(node_ids)
        for node in self.nodes.values():
            node.peers.close()
            node.quorum.others.peers.close()

    def heal(self) -> None:
        """Let all nodes reach each other again."""
        self._isolated.clear()

    async def kill(self, *node_ids: int) -> None:
        """End nodes without a word to the others, and without the mark of those that stop in order."""
        self.isolate(*node_ids)
        for node_id in node_ids:
            if (lifecycle := self.nodes[node_id].lifecycle) is not None:
                await lifecycle.stop()
        await self.stop(*node_ids)
        for node_id in node_ids:
            (self.directory(node_id) / CLEAN_SHUTDOWN_FILE).unlink(missing_ok=True)
        self._isolated.difference_update(node_ids)

    def _cut(self, node: Node) -> None:
        """Have a node's links go through `isolate`."""
        for peers in (node.peers, node.quorum.others.peers):
            known = peers._address_of

            def address_of(to: int, known: Callable[[int], str | None] = known) -> str | None:
                return None if {to, node.config.node_id} & self._isolated else known(to)

            peers._address_of = address_of

    @property
    def controller(self) -> Node:
        """The active controller of those that run."""
        return next(node for node in self.nodes.values() if node.is_controller)

    async def has_controller(self) -> Node:
        """Wait for an active controller that all nodes know which are not cut off, and return it."""
        found: list[Node] = []

        def agree() -> bool:
            reachable = [node for node_id, node in self.nodes.items() if node_id not in self._isolated]
            found[:] = [node for node in reachable if node.is_controller]
            known = {node.authority.controller_id for node in reachable}
            return len(found) == 1 and known == {found[0].config.node_id}

        await eventually(agree)
        return found[0]


@asynccontextmanager
async def cluster_of(
    data_dir: Path,
    count: int,
    settings: Mapping[str, str] | None = None,
    *,
    brokers: int | None = None,
    features: Ranges = SUPPORTED,
    racks: Sequence[str] = (),
) -> AsyncIterator[NodeCluster]:
    """Run a cluster of so many nodes that know each other, all of them voters and, unless told, brokers."""
    cluster = NodeCluster(data_dir, count, settings or {}, features=features, racks=racks)
    alive = count if brokers is None else brokers
    try:
        await cluster.start(*range(count))
        await cluster.has_controller()
        await eventually(lambda: all(len(node.cluster.alive_brokers()) == alive for node in cluster.nodes.values()))
        yield cluster
    finally:
        await cluster.stop(*cluster.nodes)
