"""A cluster's image with a controller that commits at once, for tests of what controllers decide."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster import controller, elections
from log_broker.core.cluster.broker_registry import BrokerRegistry, Heartbeat, HeartbeatAnswer, Registration
from log_broker.core.cluster.checks import check_image, check_step
from log_broker.core.cluster.controller import Alteration, CreateTopic, Operation
from log_broker.core.cluster.image import ClusterImage, PartitionImage, TopicImage
from log_broker.core.cluster.isr_changes import IsrMember, IsrWish, alter_partition
from log_broker.core.cluster.reassignments import reassign
from log_broker.core.cluster.records import MetadataRecord, decode, encode

CONFIG = BrokerConfig(data_dir=Path("nowhere"), num_partitions=2)
SESSION_MS = 100


class ClusterDriver:
    """`image` is what all that was committed gives; each commit is checked against what must always hold."""

    def __init__(self, *brokers: int, racks: Iterable[str | None] = (), config: BrokerConfig = CONFIG) -> None:
        self.image = ClusterImage(defaults=config)
        self.config = config
        self.now_ms = 0
        self.lead()
        names = list(racks) or [None] * len(brokers)
        for node_id, rack in zip(brokers, names, strict=True):
            self.start(node_id, rack=rack)

    def lead(self) -> None:
        """Have another controller lead."""
        self.registry = BrokerRegistry(self.image, self.now_ms, session_ms=SESSION_MS)

    def commit(self, records: Iterable[MetadataRecord | None]) -> None:
        before = self.image.draft()
        for record in records:
            if record is not None:
                self.image.replay(decode(encode(record)))
        wrong = [*check_step(before, self.image), *check_image(self.image)]
        assert not wrong, wrong

    def register(self, node_id: int, incarnation: str = "first", **fields: Any) -> int:
        wanted = Registration(node_id, "host", 9092 + node_id, incarnation, **fields)
        self.commit(self.registry.register(self.image, wanted, self.now_ms))
        return self.image.brokers[node_id].epoch

    def beat(self, node_id: int, epoch: int | None = None, **fields: Any) -> HeartbeatAnswer:
        if epoch is None:
            epoch = self.image.brokers[node_id].epoch
        replayed = fields.pop("replayed", self.image.version)
        answer = self.registry.heartbeat(self.image, Heartbeat(node_id, epoch, replayed, **fields), self.now_ms)
        self.commit(answer.records)
        return answer

    def start(self, node_id: int, incarnation: str = "first", **fields: Any) -> int:
        """Have a broker register and be unfenced."""
        epoch = self.register(node_id, incarnation, **fields)
        self.beat(node_id, epoch)
        return epoch

    def fence(self, node_id: int) -> None:
        self.commit(elections.fence(self.image, node_id))

    def expire(self) -> list[int]:
        """Fence whoever's session is over; return who that is."""
        before = {broker.node_id for broker in self.image.alive_brokers()}
        self.commit(self.registry.expired(self.image.draft(), self.now_ms))
        return sorted(before - {broker.node_id for broker in self.image.alive_brokers()})

    def create(self, name: str = "t", **fields: Any) -> TopicImage:
        command = CreateTopic(name=name, topic_id=f"{self.image.version:032x}", **fields)
        self.commit([controller.create_topic(self.image, command, self.config)])
        return self.image.topics[name]

    def add_partitions(self, name: str, count: int, assignments: list[tuple[int, ...]] | None = None) -> None:
        self.commit([controller.add_partitions(self.image, self.image.topics[name], count, assignments)])

    def elect(self, election_type: int, index: int = 0, name: str = "t") -> PartitionImage:
        self.commit([elections.elect(self.image, name, index, election_type)])
        return self.partition(index, name)

    def reassign(self, target: tuple[int, ...] | None, index: int = 0, name: str = "t") -> PartitionImage:
        self.commit([reassign(self.image, name, index, target)])
        return self.partition(index, name)

    def configure(self, name: str, **settings: str) -> None:
        """Set a topic's configs, `min_insync_replicas="1"`."""
        alterations = [Alteration(key.replace("_", "."), Operation.SET, text) for key, text in settings.items()]
        after = self.image.draft()
        record = controller.configure_topic(self.image, self.image.topics[name], alterations)
        after.replay(record)
        self.commit([record, *elections.reconfigured(self.image, after)])

    def partition(self, index: int = 0, name: str = "t") -> PartitionImage:
        return self.image.topics[name].partitions[index]

    def want_isr(self, *members: int, index: int = 0, name: str = "t", **fields: Any) -> PartitionImage:
        """Have the leader of a partition ask for an ISR; returns what the partition is then."""
        now = self.partition(index, name)
        given = {
            "leader_epoch": now.leader_epoch,
            "partition_epoch": now.partition_epoch,
            "isr": tuple(IsrMember(node_id) for node_id in members),
            **fields,
        }
        node_id = given.pop("node_id", now.leader)
        topic_id = given.pop("topic_id", self.image.topics[name].topic_id)
        wish = IsrWish(topic_id=topic_id, partition=given.pop("asked", index), **given)
        self.commit([alter_partition(self.image, node_id, wish)])
        return self.partition(index, name)
