"""
A cluster of real processes on one machine, every link between them in our hands.

Three or five brokers, which are voters of the metadata quorum as well (combined), or have three voters of their own;
ours, or Apache Kafka's.
"""

import hashlib
import random
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos_links import Links
from chaos_nodes import BEHIND_PROXY, PROXY, QUICK, KafkaNode, NodeProcess, OurNode, Voter
from chaos_security import MANNER, Security, speak_plainly
from chaos_wire import OBSERVER, ask
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

KINDS: dict[str, type[NodeProcess]] = {"ours": OurNode, "kafka": KafkaNode}
METADATA, DESCRIBE_QUORUM = 3, 55
SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """What a node says of a partition; leader -1 is none."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: frozenset[int]


class Cluster:
    """All nodes of one cluster, and the links between them. `start` before use, `close` in the end."""

    def __init__(
        self,
        folder: Path,
        *,
        kind: str = "ours",
        brokers: int = 3,
        separate_voters: int = 0,
        settings: Mapping[str, str] | None = None,
        secure: bool = False,
    ) -> None:
        """Nodes 1, 2, … are the brokers; separate voters are 101, 102, …; only ours can be secured."""
        self.kind = kind
        self.folder = folder
        make = KINDS[kind]
        roles = dict.fromkeys(range(1, brokers + 1), "broker" if separate_voters else "broker,controller")
        roles.update(dict.fromkeys(range(101, 101 + separate_voters), "controller"))
        ports = free_ports(2 * len(roles))
        self.nodes: dict[int, NodeProcess] = {
            number: make(folder / f"node-{number}", number, role, (ports.pop(), ports.pop()))
            for number, role in roles.items()
        }
        voters = tuple(
            Voter(node_id=node.node_id, port=node.quorum_port)
            for node in self.nodes.values()
            if "controller" in node.roles
        )
        for node in self.nodes.values():
            node.voters = voters
            node.settings = {**QUICK, **(settings or {})}
        unknown = [node for node in self.nodes.values() if node.address is None]
        self.links = Links(
            lambda: {node.pid: node.name for node in unknown if node.is_running},
            {node.address: node.name for node in self.nodes.values() if node.address is not None},
            is_readable=not secure,
        )
        self._security = self._secured() if secure else None
        for node in self.nodes.values():
            for port in node.proxied_ports:
                self.links.proxy((PROXY, port), node.name, (BEHIND_PROXY, port))

    def start(self) -> "Cluster":
        """Start every node and wait until all brokers can be worked with."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: node.prepare(), self.nodes.values()))
        for node in self.nodes.values():
            node.start()
        self.await_brokers(self.brokers)
        if self._security is not None:
            self._security.allow(self.admin())
        return self

    def close(self) -> None:
        """End everything and remove the data."""
        for node in self.nodes.values():
            node.kill()
        self.links.close()
        speak_plainly()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _secured(self) -> Security:
        security = Security(self.folder / "security", PROXY)
        for node in self.nodes.values():
            assert isinstance(node, OurNode), "only ours can be secured"
            node.config_file = security.node_file(node.folder / "server.properties")
        security.take_over()
        return security

    # The nodes.

    @property
    def brokers(self) -> list[int]:
        return [number for number, node in self.nodes.items() if node.is_broker]

    @property
    def voters(self) -> list[int]:
        return [number for number, node in self.nodes.items() if "controller" in node.roles]

    def node(self, number: int) -> NodeProcess:
        return self.nodes[number]

    def others(self, *numbers: int) -> list[int]:
        """The brokers that are none of these."""
        return [number for number in self.brokers if number not in numbers]

    def names(self, numbers: Iterable[int]) -> list[str]:
        return [self.nodes[number].name for number in numbers]

    def isolate(self, *numbers: int, both_ways: bool = True) -> None:
        """Cut some nodes from all other nodes; clients still reach them."""
        rest = [number for number in self.nodes if number not in numbers]
        self.links.cut(self.names(numbers), self.names(rest), both_ways=both_ways)

    def kill(self, *numbers: int) -> None:
        """SIGKILL nodes; what waits on cut links from them is gone as well, as if the machine had died."""
        for number in numbers:
            self.nodes[number].kill()
        for number in numbers:
            self.links.break_connections(source=self.nodes[number].name)
            self.links.break_connections(target=self.nodes[number].name)

    def restart(self, *numbers: int) -> None:
        """Start nodes that were killed or stopped, and wait until they take part again."""
        for number in numbers:
            self.nodes[number].start()
        self.await_brokers([number for number in numbers if self.nodes[number].is_broker])

    # What can be asked, by a client that no fault touches.

    @property
    def bootstrap(self) -> str:
        """Every broker's address, by way of its proxy."""
        return self.addresses(self.brokers)

    def addresses(self, numbers: Iterable[int]) -> str:
        return ",".join(f"{PROXY}:{self.nodes[number].port}" for number in numbers)

    def admin(self, **more: Any) -> AdminClient:
        return AdminClient(
            {"bootstrap.servers": self.bootstrap, "client.id": OBSERVER, "log_level": 0, **MANNER.observer, **more}
        )

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replicas: int = 3,
        placed: list[list[int]] | None = None,
        seconds: float = SECONDS_MAX,
        **config: str,
    ) -> None:
        """
        Create a topic and wait until all its partitions have leaders; `placed` lists each partition's replicas, the
        preferred leader first.
        """
        config = {key.replace("_", "."): value for key, value in config.items()}
        if placed is None:
            topic = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=config)
        else:
            topic = NewTopic(name, num_partitions=len(placed), replica_assignment=placed, config=config)
        admin = self.admin()
        deadline = time.monotonic() + seconds
        while True:
            try:
                admin.create_topics([topic], request_timeout=seconds / 6)[name].result(seconds / 3)
                break
            except KafkaException as error:
                code = error.args[0].code()
                # A creation that was not answered may have been done: names are not used twice.
                if code == KafkaError.TOPIC_ALREADY_EXISTS:
                    break
                passing = error.args[0].retriable() or code in {KafkaError._TIMED_OUT, KafkaError._TRANSPORT}
                if not passing or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        count = len(placed) if placed is not None else partitions

        def all_led() -> bool:
            (found,) = self.metadata(None, [name]).topics
            return len(found.partitions) == count and all(each.leader_id >= 0 for each in found.partitions)

        self.eventually(all_led, f"{name} has leaders", seconds)

    def metadata(self, asking: int | None = None, topics: list[str] | None = None) -> Any:
        """Metadata as one broker tells it, any that answers unless one is named. Raises OSError."""
        values = {
            "topics": None if topics is None else [{"name": name} for name in topics],
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        }
        for number in self.brokers if asking is None else [asking]:
            if asking is not None or self.nodes[number].is_running:
                with suppress(OSError):
                    return ask((BEHIND_PROXY, self.nodes[number].port), METADATA, 9, values)
        raise ConnectionRefusedError("no broker answers")

    def partition(self, topic: str, index: int = 0, *, asking: int | None = None) -> Partition:
        """A partition as one broker sees it; one without a leader where it is not known yet."""
        for found in self.metadata(asking, [topic]).topics:
            for each in found.partitions:
                if each.partition_index == index:
                    return Partition(
                        leader=each.leader_id,
                        leader_epoch=each.leader_epoch,
                        replicas=tuple(each.replica_nodes),
                        isr=frozenset(each.isr_nodes),
                    )
        return Partition(leader=-1, leader_epoch=-1, replicas=(), isr=frozenset())

    def leader(self, topic: str, index: int = 0) -> int:
        """The leader that a majority of the running brokers knows of; -1 while there is none."""
        return self.partition(topic, index, asking=self._well_informed()).leader

    def isr(self, topic: str, index: int = 0) -> frozenset[int]:
        return self.partition(topic, index, asking=self._well_informed()).isr

    def controller(self) -> int:
        """The active controller, as any broker's quorum tells; -1 while there is none."""
        values = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
        for number in self.brokers:
            if self.nodes[number].is_running:
                with suppress(OSError, IndexError):
                    answer = ask((BEHIND_PROXY, self.nodes[number].port), DESCRIBE_QUORUM, 0, values)
                    if answer.error_code == 0:
                        return int(answer.topics[0].partitions[0].leader_id)
        return -1

    def await_brokers(self, numbers: Iterable[int]) -> None:
        """Wait until these brokers serve, and each knows of every one of them."""
        wanted = set(numbers)

        def all_know_all() -> bool:
            return all(wanted <= {each.node_id for each in self.metadata(number).brokers} for number in wanted)

        self.eventually(all_know_all, f"brokers {sorted(wanted)} serve")

    def await_leader(self, topic: str, among: Iterable[int], index: int = 0) -> int:
        """Wait until one of `among` leads; return it."""
        wanted = set(among)
        self.eventually(lambda: self.leader(topic, index) in wanted, f"{topic}-{index} is led by one of {wanted}")
        return self.leader(topic, index)

    def await_isr(self, topic: str, isr: Iterable[int], index: int = 0) -> None:
        wanted = frozenset(isr)
        self.eventually(
            lambda: self.isr(topic, index) == wanted, f"the in-sync replicas of {topic}-{index} are {set(wanted)}"
        )

    def eventually(self, condition: Callable[[], bool], what: str, seconds: float = SECONDS_MAX) -> None:
        """Wait for something; a node that has died by itself fails it at once."""
        deadline = time.monotonic() + seconds
        while True:
            with suppress(OSError, KafkaException):
                if condition():
                    return
            for node in self.nodes.values():
                died = node.died()
                assert died is None, died
            assert time.monotonic() < deadline, f"it did not come true that {what}\n{self.report()}"
            time.sleep(0.1)

    def digest(self, number: int, topic: str, index: int = 0) -> str:
        """What lies on a node's disk of a partition."""
        folder = self.nodes[number].partition_dir(topic, index)
        total = hashlib.sha256()
        for path in sorted(folder.glob("*.log")):
            total.update(path.read_bytes())
        return total.hexdigest()

    def await_equal_logs(self, topic: str, index: int = 0) -> None:
        """Wait until every replica of a partition holds the same bytes."""
        replicas = self.partition(topic, index).replicas
        self.eventually(
            lambda: len({self.digest(number, topic, index) for number in replicas}) == 1,
            f"the replicas {replicas} of {topic}-{index} are equal",
        )

    def report(self) -> str:
        """The ends of the nodes' logs, for who has to find out what went wrong."""
        return "\n".join(f"--- node {node.name}\n{node.log_text()[-1500:]}" for node in self.nodes.values())

    def _well_informed(self) -> int:
        """A running broker of the largest group that agrees: one that a cut has left behind knows old things."""
        answers: dict[Any, list[int]] = {}
        for number in self.brokers:
            if self.nodes[number].is_running:
                with suppress(OSError):
                    told = self.metadata(number)
                    leaders = tuple(
                        (topic.name, each.partition_index, each.leader_epoch)
                        for topic in sorted(told.topics, key=lambda topic: str(topic.name))
                        for each in topic.partitions
                    )
                    answers.setdefault(leaders, []).append(number)
        if not answers:
            raise ConnectionRefusedError("no broker answers")
        # Of as many on each side the one that has seen higher epochs.
        return max(answers.items(), key=lambda item: (len(item[1]), sum(epoch for *_, epoch in item[0])))[1][0]


def free_ports(count: int) -> list[int]:
    """Ports that are free on both addresses, below those that the system gives to outgoing connections."""
    found: list[int] = []
    probes: list[socket.socket] = []
    while len(found) < count:
        with suppress(OSError):
            first = socket.create_server((BEHIND_PROXY, random.randrange(15_000, 32_000)))
            probes.append(first)
            port = first.getsockname()[1]
            probes.append(socket.create_server((PROXY, port)))
            found.append(port)
    for probe in probes:
        probe.close()
    return found
