"""A controller in a process of its own, and so many fake brokers in this one."""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import IO
from uuid import uuid4

from log_broker.core.cluster.controller import CreateTopic
from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.records import BrokerFenced, MetadataRecord
from log_broker.core.raft.voters import ReplicaKey, Voter
from tests.bench.broker.servers import ROOT, Broker
from tests.bench.metadata.fake_broker import PATIENCE_MS, FakeBroker
from tests.free_ports import free_ports

CONTROLLER_ID = 0
COPIES = 3
PARTITIONS_A_TOPIC = 1_000
STARTING_MAX = 50
PATIENCE_SECONDS = 600.0
CALM_SECONDS = 1.0
CHANGE_SECONDS = 0.1


class Controller(Broker):
    """The only voter of a quorum, and no broker."""

    name = "the controller"

    def launch(self) -> None:
        """Start the process and return when it listens."""
        (self.port,) = free_ports(1)
        with self.log_path.open("ab") as log:
            self._process = self.spawn(log)
        self._await_listening(time.monotonic())

    def spawn(self, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-m", "log_broker", "--data-dir", str(self.data_dir), "--port", str(self.port)]
        words += ["--node-id", str(CONTROLLER_ID), "--process-roles", "controller"]
        words += ["--controller-quorum-voters", f"{CONTROLLER_ID}@{self.address}"]
        words += ["--set", f"broker.session.timeout.ms={PATIENCE_MS}"]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        return subprocess.Popen(words, cwd=ROOT, env=environment, stdout=log, stderr=log)


@contextlib.contextmanager
def controller() -> Iterator[Controller]:
    """Run a controller on a folder that goes with it."""
    with tempfile.TemporaryDirectory(prefix="bench-metadata-") as folder:
        running = Controller(Path(folder))
        try:
            running.launch()
            yield running
        finally:
            running.kill()


class Crowd:
    """The fake brokers, with ids from 1 on."""

    def __init__(self, count: int, node: Controller, port: int) -> None:
        self.image = ClusterImage()
        voter = Voter(key=ReplicaKey(CONTROLLER_ID, ""), host="127.0.0.1", port=node.port)
        self.brokers = [
            FakeBroker(at, self.image, controller=voter, port=port, replayed=self._replayed)
            for at in range(1, count + 1)
        ]
        self._awaited: set[BrokerFenced] = set()
        self._arrivals: list[float] = []
        self._all_arrived = asyncio.Event()

    async def join(self) -> None:
        """Register all brokers, some at a time; return when each of them may lead."""
        starting = asyncio.Semaphore(STARTING_MAX)

        async def start(broker: FakeBroker) -> None:
            async with starting:
                await broker.join()

        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*map(start, self.brokers))

    async def create_topics(self, partitions: int) -> None:
        """Make topics with so many partitions in all, and return when the image has them."""
        copies = min(COPIES, len(self.brokers))
        for first in range(0, partitions, PARTITIONS_A_TOPIC):
            count = min(PARTITIONS_A_TOPIC, partitions - first)
            command = CreateTopic(
                name=f"bench-{first}", topic_id=uuid4().hex, partitions=count, replication_factor=copies
            )
            await self.brokers[0].authority.create_topic(command)

    async def fence(self, *victims: FakeBroker) -> tuple[float, list[float]]:
        """
        Have the controller fence brokers at the same moment and elect other leaders for what they led.

        Return the seconds from the request until all were answered, and until each broker had replayed each, sorted.
        """
        self._awaited, self._arrivals = {BrokerFenced(node_id=victim.node_id) for victim in victims}, []
        self._all_arrived.clear()
        began = time.perf_counter()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*(victim.ask_to_be_fenced() for victim in victims))
            answered = time.perf_counter() - began
            await self._all_arrived.wait()
        self._awaited = set()
        return answered, [arrival - began for arrival in self._arrivals]

    async def settle(self) -> None:
        """Return when every broker is alive again and has replayed all there is."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            for broker in self.brokers:
                while not self.image.may_lead(broker.node_id) or broker.version < self.image.version:
                    await broker.quorum.changes.wait(CHANGE_SECONDS)
        await asyncio.sleep(CALM_SECONDS)

    async def stop(self) -> None:
        await asyncio.gather(*(broker.stop() for broker in self.brokers))

    def _replayed(self, records: Iterable[MetadataRecord]) -> None:
        for _ in self._awaited.intersection(record for record in records if isinstance(record, BrokerFenced)):
            self._arrivals.append(time.perf_counter())
        if self._awaited and len(self._arrivals) == len(self.brokers) * len(self._awaited):
            self._all_arrived.set()


@contextlib.asynccontextmanager
async def crowd(count: int, node: Controller) -> AsyncIterator[Crowd]:
    """Make so many brokers, none of which has joined yet."""
    # The controller holds a connection to each, to see its process end.
    held: set[asyncio.StreamWriter] = set()
    server = await asyncio.start_server(lambda _, writer: held.add(writer), "127.0.0.1", 0, backlog=1024)
    brokers = Crowd(count, node, server.sockets[0].getsockname()[1])
    try:
        yield brokers
    finally:
        await brokers.stop()
        server.close()
        for writer in held:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in held))
