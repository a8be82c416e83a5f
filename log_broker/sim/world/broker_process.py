"""
A broker of production as a simulated process: the whole node, on a virtual loop, a simulated network and disk.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.image import ClusterImage
from log_broker.errors import BrokerError
from log_broker.server.node import Node as BrokerNode
from log_broker.server.process.machine import Claim, Pool
from log_broker.server.process.sync_pool import THREADS
from log_broker.sim.checks.cost_checks import check_turn
from log_broker.sim.kernel.entropy import WALL_CLOCK_MS
from log_broker.sim.kernel.event_loop import VirtualLoop
from log_broker.sim.kernel.kernel import Action, Kernel
from log_broker.sim.kernel.network import Message, Network
from log_broker.sim.kernel.node import Node
from log_broker.sim.kernel.streams import Streams
from log_broker.storage.files import FileSystem

PORT = 9092
DATA_DIR = Path("/data")
RESTART_US = 300_000  # after a process has ended by itself, as a supervisor would have it


class Unlocked:
    """The claim on a data directory where one process at a time runs on a machine."""

    def acquire(self) -> None:
        """Nobody else is there."""

    def release(self) -> None:
        """Nothing was taken."""


class DiskPool:
    """The threads that wait for the disk."""

    def __init__(self, machine: "BrokerMachine") -> None:
        self._machine = machine

    def submit(self, work: Action, done: Callable[[BaseException | None], None]) -> None:
        loop = self._machine.loop()
        self._machine.work(work, lambda error: loop.run(done, error))

    def close(self) -> None:
        """The work that was handed in is done."""


class Listener:
    """What `bind` returns, as much of a socket as a server asks for."""

    def __init__(self, host: str, port: int) -> None:
        self._name = host, port

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def close(self) -> None:
        """Nothing to give back."""


class BrokerMachine(Node):
    """A machine with a broker on it; also what the broker asks of its machine (`server.machine`)."""

    def __init__(
        self,
        kernel: Kernel,
        network: Network,
        streams: Streams,
        address: int,
        boot: Callable[[Node], "BrokerProcess"],
    ) -> None:
        super().__init__(kernel, network, address, boot)
        self.host = f"10.0.0.{address}"
        self.streams = streams
        self.has_power = True
        self.power_cuts = 0  # of those that a process was running in
        streams.add_host(self.host, address)
        self._wall_ms = WALL_CLOCK_MS
        self.disk.files.clock_ms = self.wall_ms
        self.disk.threads = THREADS

    @property
    def broker(self) -> BrokerNode | None:
        """The node that runs here, if one does; it may not serve yet."""
        process = self.broker_process
        return None if process is None else process.broker

    @property
    def broker_process(self) -> "BrokerProcess | None":
        return cast("BrokerProcess | None", self.process)

    def loop(self) -> VirtualLoop:
        process = self.broker_process
        assert process is not None
        return process.loop

    def start(self) -> None:
        self.has_power = True
        super().start()

    def stop(self, how: str, leave: Action) -> None:
        process = self.broker_process
        self.has_power = leave in (self.disk.kill, self.disk.abandon)
        super().stop(how, leave)
        if process is not None:
            self.power_cuts += not self.has_power
            process.ended(power_lost=not self.has_power)

    def jump_clock(self, by_us: int) -> None:
        """Only the clock on the wall leaps: a loop's time is the system's monotonic one."""
        self._wall_ms += by_us // 1000

    def wall_ms(self) -> int:
        return self._wall_ms + self.kernel.now_us // 1000

    # As the machine of `server.machine`

    @property
    def files(self) -> FileSystem:
        return self.disk.files

    def claim(self, data_dir: Path) -> Claim:
        return Unlocked()

    def pool(self, loop: asyncio.AbstractEventLoop) -> Pool:
        return DiskPool(self)

    def bind(self, host: str, port: int) -> Any:
        return Listener(host, port)

    def cpu_seconds(self) -> None:
        """Time is the kernel's here."""

    async def unlisten(self, server: asyncio.Server) -> None:
        server.close()


class BrokerProcess:
    """One process: its loop, and the node that runs in it."""

    def __init__(
        self,
        machine: BrokerMachine,
        config: BrokerConfig,
        failed: Callable[[str, str], None],
        noted: Callable[[str, str, Mapping[str, Any]], None],
        replayed: Callable[[int, ClusterImage], None],
    ) -> None:
        """
        `failed` is told of what must not be, `noted` of what the broker puts into the cluster's diary.

        `replayed` is told of each entry of the metadata log: the version of the image before it, and the image.
        """
        self.machine = machine
        self._noted = noted
        self._replayed = replayed
        self.broker: BrokerNode | None = None
        self.serves = False
        self._config = config
        self._failed = failed
        self.loop = VirtualLoop(machine, machine.streams, lambda what: failed(machine.name, what))

    def start(self) -> None:
        self.loop.run(lambda: self.loop.create_task(self._serve()))

    def receive(self, message: Message) -> None:
        raise AssertionError("brokers speak over streams")

    def tick(self) -> None:
        """Its loop has timers of its own."""

    def ended(self, *, power_lost: bool) -> None:
        self.serves = False
        self.loop.die()
        self.machine.streams.process_ended(self.loop, power_lost=power_lost)

    def shut_down(self) -> None:
        """Stop as an operator asks a broker to: it takes leave first."""
        if self.serves:
            self.serves = False
            self.loop.run(lambda: self.loop.create_task(self._shut_down()))

    async def _serve(self) -> None:
        machine = self.machine
        try:
            self.broker = broker = BrokerNode(self._config, clock_ms=machine.wall_ms, machine=machine)
            self._listen_to(broker)
            self._watch_image_of(broker)
            await broker.start()
        except Exception as error:
            if self.loop.is_dead:
                return
            machine.kernel.trace(machine.name, f"could not start: {error!r}")
            if not isinstance(error, OSError | BrokerError) and not isinstance(error.__cause__, OSError):
                self._failed(machine.name, f"could not start: {error!r}")
            machine.stop(f"ends: {error}", machine.disk.abandon)
            machine.kernel.after(RESTART_US, machine.start)
            return
        self.serves = True
        self.loop.turn_took = partial(check_turn, machine.name)
        machine.kernel.trace(machine.name, "serves")

    def _listen_to(self, broker: BrokerNode) -> None:
        """Hear of every event as it is noted: the diary itself is best effort."""
        note = broker.events.note

        def heard(kind: str, text: str, **fields: Any) -> None:
            self._noted(self.machine.name, kind, fields)
            note(kind, text, **fields)

        broker.events.note = heard  # type: ignore[method-assign]

    def _watch_image_of(self, broker: BrokerNode) -> None:
        replay = broker.authority.replay

        def watched(value: bytes) -> None:
            version_before = broker.cluster.version
            replay(value)
            self._replayed(version_before, broker.cluster)

        broker.authority.replay = watched  # type: ignore[method-assign]

    async def _shut_down(self) -> None:
        machine = self.machine
        machine.kernel.trace(machine.name, "shuts down")
        assert self.broker is not None
        await self.broker.stop()
        machine.stop("has shut down", machine.disk.abandon)


class TracingHandler(logging.Handler):
    """Writes what brokers log into the story of the run; an assertion among it, which they go on from, is a failure."""

    def __init__(self, kernel: Kernel, failed: Callable[[str, str], None]) -> None:
        super().__init__(logging.WARNING)
        self._kernel = kernel
        self._failed = failed

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        is_broken = isinstance(error, AssertionError)
        if not self._kernel.tracing and not is_broken:
            return
        loop = asyncio._get_running_loop()
        who = loop.host.name if isinstance(loop, VirtualLoop) else "?"
        text = record.getMessage() if error is None else f"{record.getMessage()}: {error!r}"
        if is_broken:
            self._failed(who, text)
        else:
            self._kernel.trace(who, f"{record.levelname.lower()}: {text}")
