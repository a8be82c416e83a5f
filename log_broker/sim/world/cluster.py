"""
The brokers of a simulated cluster, and all they stand on: machines, network, connections, time and chance.

What runs in it beside them, clients and checks, is a world's or a test's.
"""

import gc
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.image import ClusterImage
from log_broker.sim.kernel.entropy import WALL_CLOCK_MS, seeded_interpreter
from log_broker.sim.kernel.event_loop import VirtualLoop
from log_broker.sim.kernel.kernel import Action, InvariantError, Kernel
from log_broker.sim.kernel.network import Network
from log_broker.sim.kernel.node import Node
from log_broker.sim.kernel.streams import Streams
from log_broker.sim.world.broker_process import DATA_DIR, PORT, BrokerMachine, BrokerProcess, TracingHandler

CLIENTS_ADDRESS = 100
BROKER_ROLE = frozenset({"broker"})
BOTH_ROLES = frozenset({"broker", "controller"})

ON_ONE_DISK = {"num.recovery.threads.per.data.dir": "1"}  # threads would come to things in an order of their own


class ClientMachine:
    """Where the clients run: a machine that never fails, on a loop of its own."""

    name = "clients"
    address = CLIENTS_ADDRESS
    spy: Callable[[str], None] | None = None

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def do(self, action: Action) -> None:
        self.kernel.events += 1
        action()

    def work(self, job: Action, ended: Callable[[BaseException | None], None]) -> None:
        """What a client leaves to a thread is done at once."""
        try:
            job()
        except Exception as error:
            ended(error)
        else:
            ended(None)


class Cluster:
    """Brokers 0 … n-1, none of which runs before `start`; use it within `running`."""

    def __init__(
        self,
        seed: int,
        *,
        brokers: int,
        settings: Mapping[str, str],
        voters: int | None = None,
        trace_lines_max: int = 0,
    ) -> None:
        """The first `voters` brokers, all by default, elect the controller."""
        self.kernel = Kernel(seed, trace_lines_max=trace_lines_max)
        self.network = Network(self.kernel)
        self.streams = Streams(self.kernel, self.network)
        self.streams.powered = self._powered
        self.settings = {**ON_ONE_DISK, **settings}
        self.machines = {
            address: BrokerMachine(self.kernel, self.network, self.streams, address, self._boot)
            for address in range(brokers)
        }
        self.voters = range(brokers if voters is None else voters)
        self.bootstrap = [f"{machine.host}:{PORT}" for machine in self.machines.values()]
        self.client_loop = VirtualLoop(
            ClientMachine(self.kernel), self.streams, lambda what: self.failed("clients", what)
        )
        self.failures: list[AssertionError] = []
        self._loops = [self.client_loop]
        self._victim: random.Random = self.kernel.stream("victim")

    @property
    def nodes(self) -> Mapping[int, Node]:
        return self.machines

    def start(self) -> None:
        """Start every broker that does not run."""
        for machine in self.machines.values():
            machine.start()

    def wall_ms(self) -> int:
        """The time as the clients have it."""
        return WALL_CLOCK_MS + self.kernel.now_us // 1000

    def leader(self) -> int | None:
        """Return the address of a broker that leads something."""
        leading = [
            address
            for address, machine in self.machines.items()
            if machine.broker is not None and any(runtime.is_leader for runtime in machine.broker.logs.partitions())
        ]
        return self._victim.choice(leading) if leading else None

    def may_lose_disk(self, address: int) -> bool:
        """Whether the promises of the system cover the loss of this disk now."""
        return False

    def disk_lost(self, address: int) -> None:
        """Take note that the disk of a machine is an empty one."""

    def failed(self, who: str, what: str) -> None:
        """Take note that a process did what none must do."""
        self.kernel.trace(who, f"FAILED: {what}")
        self.failures.append(InvariantError("a process raises nothing", f"{who}: {what}"))

    def noted(self, who: str, kind: str, fields: Mapping[str, Any]) -> None:
        """Take note of an event that a broker puts into the cluster's diary."""

    def replayed(self, version_before: int, image: ClusterImage) -> None:
        """Take note that a broker has come to this image by one entry of the metadata log."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Give the interpreter's time, chance and the broker's log to this cluster for as long as it runs."""
        handler = TracingHandler(self.kernel, self.failed)
        logger = logging.getLogger("log_broker")
        logger.addHandler(handler)
        propagates, logger.propagate = logger.propagate, False
        collecting = gc.isenabled()
        gc.disable()  # what a collection finishes off, it would finish off at other times in another run
        try:
            with seeded_interpreter(self.kernel):
                try:
                    yield
                finally:
                    self.streams.hang_up(self.client_loop)
        finally:
            for loop in self._loops:
                if not loop.is_dead:
                    loop.die()
                loop.bury()
            logger.removeHandler(handler)
            logger.propagate = propagates
            if collecting:
                gc.enable()

    def _boot(self, node: Node) -> BrokerProcess:
        assert isinstance(node, BrokerMachine)
        config = BrokerConfig(
            node_id=node.address,
            host=node.host,
            port=PORT,
            data_dir=DATA_DIR,
            process_roles=BOTH_ROLES if node.address in self.voters else BROKER_ROLE,
            controller_quorum_voters=frozenset(f"{number}@{self.bootstrap[number]}" for number in self.voters),
        ).with_settings(self.settings)
        process = BrokerProcess(node, config, self.failed, self.noted, self.replayed)
        self._loops.append(process.loop)
        return process

    def _powered(self, address: int) -> bool:
        machine = self.machines.get(address)
        return machine is None or machine.has_power
