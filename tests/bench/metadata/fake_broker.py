"""
Brokers without logs: each registers, sends heartbeats and replays the metadata log as a real one does.

Standing, requests to the controller and the replica of the metadata quorum are the product's own classes over the wire.
What a thousand processes would have each for itself is shared, or it would be this process that is measured: the
observers' disks are memory, a record is decoded once, and one image stands for all, each broker knowing how far it is.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.features import SUPPORTED
from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.records import MetadataRecord, decode_all
from log_broker.core.cluster.snapshot import decode_image
from log_broker.core.raft.lease import Lease
from log_broker.core.raft.replica import RaftConfig
from log_broker.core.raft.voters import ReplicaKey, Voter, VoterSet
from log_broker.server.net.dialing import PLAIN_DIALER
from log_broker.server.net.peers import Peers
from log_broker.server.quorum.authority import Authority
from log_broker.server.quorum.lifecycle import HEARTBEAT_VERSION, BrokerLifecycle
from log_broker.server.quorum.quorum import Quorum, QuorumReplica
from log_broker.storage.memory_files import MemoryFileSystem
from log_broker.wire.apis import ApiKey

# A process that is a thousand brokers is late at times, more so where the machine has other work; it is not to lose
# its sessions and its leader by that.
PATIENCE_MS = 60_000
# A thousand logs in one process: each is cut soon, and no snapshot is ever read back.
_OBSERVER = RaftConfig(
    fetch_timeout_ms=PATIENCE_MS, request_timeout_ms=PATIENCE_MS, snapshot_entries=200, snapshot_trailing_entries=0
)

decoded = lru_cache(maxsize=10_000)(decode_all)


class _NoDisk:
    """Work for the disk is done at once: there is none."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def submit(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        work()
        self._loop.call_soon(done, None)

    def close(self) -> None:
        """Nothing to give back."""


class FakeBroker:
    """What the product's classes ask of a node that is a broker, without its logs, its clients and its disk."""

    features = SUPPORTED
    advertised_host = "127.0.0.1"

    def __init__(
        self,
        node_id: int,
        image: ClusterImage,
        *,
        controller: Voter,
        port: int,
        replayed: Callable[[Iterable[MetadataRecord]], None],
    ) -> None:
        """`image` is all brokers' together; `port` is where somebody listens, `replayed` is told what came."""
        self.node_id = node_id
        self.port = port
        self.told_listeners = (("PLAINTEXT", self.advertised_host, port, 0),)
        self.directory_id = uuid4().hex
        self.loop = asyncio.get_running_loop()
        # Of no process before this one, and a disk that nothing is written to.
        self.logs = SimpleNamespace(stopped_epoch=-1, disk=SimpleNamespace(takes_writes=True))
        self.config = self.static_config = BrokerConfig(
            data_dir=Path("none"), node_id=node_id, broker_session_timeout_ms=PATIENCE_MS
        )
        self.lease = Lease(
            lambda: int(self.loop.time() * 1000), session_timeout_ms=self.config.broker_session_timeout_ms
        )
        self._image = image
        self.version = 0  # how far this one has replayed
        self._replayed = replayed
        self.quorum = Quorum(
            QuorumReplica(ReplicaKey(node_id, self.directory_id), Path("quorum"), self.advertised_host, port),
            _OBSERVER,
            VoterSet([controller]),
            self,
            files=MemoryFileSystem(),
            pool=_NoDisk(self.loop),
            cluster_id=lambda: self.cluster_id or None,
            broker_address=lambda _node_id: None,
            unix_s=lambda: int(time.time()),
            dialer=PLAIN_DIALER,
        )
        self.peers = self.controllers = Peers(self.quorum.others.address_of)
        self.authority = Authority(cast(Any, self))
        self.authority.answer_seconds_max = PATIENCE_MS / 1000
        self.authority.follow(self.quorum)
        self.lifecycle = BrokerLifecycle(cast(Any, self))

    @property
    def cluster(self) -> ClusterImage:
        return replace(self._image, version=self.version)

    @property
    def cluster_id(self) -> str:
        return self._image.cluster_id

    async def join(self) -> None:
        """Register and return when the controller counts this broker among those that may lead."""
        self.quorum.start()
        while not self.cluster_id:
            await self.quorum.changes.wait(1.0)
        await self.lifecycle.register()
        await self.lifecycle.come_alive()

    async def ask_to_be_fenced(self) -> None:
        """Give up all leaderships at once; return when that is committed. Its next heartbeat registers it again."""
        values = {
            "broker_id": self.node_id,
            "broker_epoch": self.lifecycle.epoch,
            "current_metadata_offset": self.version,
            "want_fence": True,
            "want_shut_down": False,
        }
        answer = await self.authority.ask_controller(ApiKey.BROKER_HEARTBEAT, HEARTBEAT_VERSION, values)
        if answer.error_code or not answer.is_fenced:
            raise RuntimeError(f"broker {self.node_id} was not fenced: error {answer.error_code}")

    async def stop(self) -> None:
        await self.lifecycle.stop()
        self.peers.close()
        await self.quorum.stop()

    # What the quorum tells.

    def replay(self, value: bytes) -> None:
        records = decoded(value)
        for record in records:
            self.version += 1
            if self.version > self._image.version:
                self._image.replay(record)
        self._replayed(records)

    def replayed(self) -> None:
        """Nothing here follows from the image."""

    def snapshot(self) -> bytes:
        return b""

    def load(self, snapshot: bytes) -> None:
        image = decode_image(snapshot, self._image.defaults)
        self.version = image.version
        if image.version > self._image.version:
            self._image.become(image)

    def began(self, epoch: int) -> None:
        raise AssertionError("an observer leads nothing")

    def ended(self) -> None:
        """An observer leads nothing."""
