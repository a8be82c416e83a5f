"""
The death of a broker in the middle of the main job, and its return: what the demo shows with `--kill-a-node`.

The victim is a leader of the events' topic, so that the publisher has to find its successors; it dies by SIGKILL once
40 % of the events are in the log, stays away while the rest are published, and comes back when the tables are begun.
"""

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

from confluent_kafka.admin import AdminClient
from rich.console import Console

from fluvial.errors import FluvialError
from fluvial.local.probe import cluster_of
from fluvial.local.start import Layout, start
from fluvial.local.state import NodeSpec, Platform
from fluvial.local.status import node_status

SHARE = 0.4
GONE_SECONDS_MAX = 30.0


class NodeLossError(FluvialError):
    """No node can be killed here so that the job goes on."""


class NodeLoss:
    """Kills one node of a local platform once, and brings it back."""

    def __init__(self, data_dir: Path, topic: str, progress: Console) -> None:
        """`topic` is the one whose leader is to die; raises NodeLossError where no two nodes would be left."""
        platform = Platform.load(data_dir)
        if platform is None or len(platform.nodes) < 3:
            raise NodeLossError("--kill-a-node needs a local platform of three brokers: add --brokers 3")
        self.topic = topic
        self._data_dir = data_dir
        self._platform = platform
        self._progress = progress
        self._victim: NodeSpec | None = None
        self._returning: threading.Thread | None = None

    def at(self, held: int, records: int) -> None:
        """The log holds so many of the topic's records: time to strike, or not yet."""
        if self._victim is None and held >= records * SHARE:
            self._victim = self._leader()
            self._kill(self._victim)

    def bring_back(self) -> None:
        """Start the victim again, in the background; does nothing unless it is dead."""
        if self._victim is not None and self._returning is None:
            self._returning = threading.Thread(target=self._start, args=(self._victim,), name="node-loss")
            self._returning.start()

    def settle(self) -> None:
        """Leave no node dead, whatever has become of the job."""
        self.bring_back()
        if self._returning is not None:
            self._returning.join()

    def _leader(self) -> NodeSpec:
        admin = AdminClient(cluster_of(self._data_dir, self._platform).client())
        found = admin.list_topics(self.topic, timeout=30).topics[self.topic]
        leaders = Counter(partition.leader for partition in found.partitions.values())
        # Where one node alone serves the registry it is spared: the pipelines ask there for schemas.
        asked = [node.id for node in self._platform.nodes if node.registry_port is not None]
        spared = asked[0] if len(asked) == 1 else None
        able = [node for node in self._platform.nodes if leaders[node.id] and node.id != spared]
        if not able:
            raise NodeLossError(f"every partition of {self.topic} is led by node {spared}, which serves the registry")
        return max(able, key=lambda node: leaders[node.id])

    def _kill(self, victim: NodeSpec) -> None:
        pid = node_status(self._data_dir, self._platform, victim).held_by
        if pid is None:
            raise NodeLossError(f"node {victim.id} is down already")
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + GONE_SECONDS_MAX
        while node_status(self._data_dir, self._platform, victim).held_by is not None:
            if time.monotonic() > deadline:
                raise NodeLossError(f"process {pid} outlives SIGKILL")
            time.sleep(0.01)
        self._progress.print(f"  node {victim.id}, a leader of {self.topic}, killed (SIGKILL)")

    def _start(self, victim: NodeSpec) -> None:
        start(self._data_dir, Layout())
        self._progress.print(f"  node {victim.id} is back")
