"""A copy of a cluster: nodes with small data in processes of this machine, and what is done to them."""

import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fluvial.cluster.picture import Picture, picture_of
from fluvial.cluster.wire import ClusterLink
from fluvial.errors import FluvialError
from fluvial.free_ports import free_ports
from fluvial.kafka import KafkaCluster
from fluvial.local.child import Child
from fluvial.local.start import Layout, start, terminate
from fluvial.local.state import SECURITY, Platform
from fluvial.rehearsal.plan import Shape

# What a node is told besides the topics' own settings: how soon it counts as gone.
_OF_BROKERS = ("broker.session.timeout.ms", "replica.lag.time.max.ms")
_HEAL_SECONDS = 180.0
_POLL_SECONDS = 0.1
# A limit on the size of files: with it, each write beyond its first byte fails.
_NO_SPACE = 1


class RehearsalError(FluvialError):
    """The copy cannot be made, or does not come back to what it was."""


class ClusterCopy:
    """The processes of a copy in a folder of their own."""

    def __init__(self, folder: Path, platform: Platform, children: Sequence[Child]) -> None:
        self.folder = folder
        self.platform = platform
        self._children = {child.node.id: child for child in children}

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes."""
        return self.platform.bootstrap_servers

    def picture(self, *, without: int | None = None) -> Picture:
        """How the copy stands, as a node tells that is not `without`; raises FluvialError."""
        nodes = [node.address for node in self.platform.nodes if node.id != without]
        with ClusterLink(KafkaCluster(",".join(nodes)), timeout_seconds=5) as link:
            return picture_of(link)

    def create(self, shapes: Sequence[Shape], partitions: int) -> None:
        """Make the topic of each shape, a partition led by each node; raises RehearsalError."""
        from confluent_kafka.admin import AdminClient, NewTopic

        topics = [
            NewTopic(each.name, num_partitions=partitions, replication_factor=each.replicas, config=dict(each.settings))
            for each in shapes
        ]
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        for name, made in admin.create_topics(topics, operation_timeout=30).items():
            try:
                made.result(60)
            except Exception as error:
                raise RehearsalError(f"the copy of a topic, {name}, cannot be made: {error}") from error

    def kill(self, node: int) -> None:
        """SIGKILL."""
        process = self._children[node].process
        process.kill()
        process.wait()

    def cut_off(self, node: int) -> None:
        """Let a node neither hear nor say anything from now on."""
        self._children[node].process.send_signal(signal.SIGSTOP)

    def let_go_on(self, node: int) -> None:
        """End `cut_off`."""
        self._children[node].process.send_signal(signal.SIGCONT)

    def fill_disk(self, node: int) -> None:
        """Let each write of a node fail."""
        self._limit_files(node, _NO_SPACE)

    def free_disk(self, node: int) -> None:
        """End `fill_disk`."""
        self._limit_files(node, None)

    def _limit_files(self, node: int, size: int | None) -> None:
        pid = self._children[node].process.pid
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most if size is None else size, most))

    def lose_partitions(self, node: int, shapes: Sequence[Shape]) -> None:
        """Remove what a node that is down has stored of the topics."""
        home = self.folder / f"node-{node}"
        for shape in shapes:
            for each in home.glob(f"{shape.name}-*"):
                shutil.rmtree(each)

    def restore(self) -> None:
        """Start what is down, and wait until every replica is in sync; raises FluvialError."""
        running = start(self.folder, Layout())
        self._children |= {child.node.id: child for child in running.started}
        until(self._is_whole, "every replica in sync again")

    def end(self) -> None:
        """Stop all processes."""
        children = list(self._children.values())
        for child in children:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGCONT)
        terminate(children)

    def _is_whole(self) -> bool:
        found = self.picture()
        return len(found.brokers) == len(self.platform.nodes) and not any(
            each.is_under_replicated or each.is_offline for each in found.partitions.values()
        )


def until(condition: Callable[[], bool], what: str, seconds: float = _HEAL_SECONDS) -> None:
    """Wait for a condition, which may raise what passes; raises RehearsalError after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        why = ""
        try:
            if condition():
                return
        except (FluvialError, OSError) as error:
            why = f" ({error})"
        if time.monotonic() > deadline:
            raise RehearsalError(f"the copy has not come to {what} within {seconds:.0f} s{why}")
        time.sleep(_POLL_SECONDS)


@contextmanager
def copy_of(brokers: int, settings: Mapping[str, str]) -> Iterator[ClusterCopy]:
    """Start so many nodes with what of a broker's `settings` decides a failover; all is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="fluvial-rehearsal-") as made:
        folder = Path(made)
        (folder / SECURITY).mkdir(mode=0o700)
        lines = [f"{name}={settings[name]}\n" for name in _OF_BROKERS if name in settings]
        (folder / SECURITY / "server.properties").write_text("".join(lines))
        try:
            port = free_ports("127.0.0.1", 2 * brokers)
        except OSError as error:
            raise RehearsalError(str(error.strerror)) from error
        running = start(folder, Layout(brokers=brokers, port=port, registry_port=port + brokers))
        copy = ClusterCopy(folder, running.platform, running.started)
        try:
            yield copy
        finally:
            copy.end()
