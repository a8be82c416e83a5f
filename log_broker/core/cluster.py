"""
The image of the cluster: what a replay of all metadata records gives.

Every broker holds one. Only `replay` changes it; whoever decides something (`controller`) returns records instead.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from log_broker.config import BrokerConfig, TopicConfig
from log_broker.core.cluster_records import (
    BrokerFenced,
    BrokerRegistered,
    BrokersConfigured,
    BrokerUnregistered,
    GroupConfigured,
    MetadataRecord,
    PartitionChanged,
    PartitionsAdded,
    ProducerIdsReserved,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)

METADATA_TOPIC = "__cluster_metadata"
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
EVENTS_TOPIC = "__fluvial_events"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, METADATA_TOPIC, TRANSACTIONS_TOPIC, EVENTS_TOPIC})
NO_LEADER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionImage:
    """
    One partition. `leader_epoch` grows whenever another process begins to lead, `partition_epoch` with every change.

    `replicas` has the preferred leader first; while it is moved it holds those of `adding` and of `removing` as well.
    `isr` are the replicas that hold all below the high watermark. `elr` are those that left the ISR when it was at its
    minimum, and still hold that; `last_known_leader` is whom to ask when nobody does (KIP-966). `recovering` says that
    the leader was elected uncleanly and its log is what is left.
    """

    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    isr: tuple[int, ...] = ()
    partition_epoch: int = 0
    elr: tuple[int, ...] = ()
    last_known_leader: int = NO_LEADER
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    recovering: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """One topic; `config` is what `overrides` give on top of the defaults."""

    name: str
    topic_id: str
    partitions: tuple[PartitionImage, ...]
    overrides: Mapping[str, str]
    config: TopicConfig

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerImage:
    """One broker that has ever registered. `epoch` counts the records before its last registration."""

    node_id: int
    host: str
    port: int
    incarnation: str
    epoch: int
    is_fenced: bool = False
    rack: str | None = None
    is_leaving: bool = False  # a controlled shutdown is under way


@dataclass(slots=True)
class ClusterImage:
    """The whole. `version` counts the records replayed, so equal versions of one log are equal images."""

    defaults: BrokerConfig | None = None
    version: int = 0
    topics: dict[str, TopicImage] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # topic id -> name
    brokers: dict[int, BrokerImage] = field(default_factory=dict)
    broker_overrides: dict[int | None, Mapping[str, str]] = field(default_factory=dict)
    next_producer_id: int = 0
    group_overrides: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def draft(self) -> "ClusterImage":
        """Return a copy to try records on."""
        return ClusterImage(
            self.defaults,
            self.version,
            dict(self.topics),
            dict(self.names),
            dict(self.brokers),
            dict(self.broker_overrides),
            self.next_producer_id,
            dict(self.group_overrides),
        )

    def topic_by_id(self, topic_id: str) -> TopicImage | None:
        name = self.names.get(topic_id)
        return None if name is None else self.topics[name]

    def alive_brokers(self) -> list[BrokerImage]:
        return [broker for _, broker in sorted(self.brokers.items()) if not broker.is_fenced]

    def is_alive(self, node_id: int) -> bool:
        broker = self.brokers.get(node_id)
        return broker is not None and not broker.is_fenced

    def leader_of(self, topic: str, partition: int) -> BrokerImage | None:
        """Return the broker to ask about a partition, None while there is none."""
        image = self.topics.get(topic)
        if image is None or not 0 <= partition < len(image.partitions):
            return None
        leader = image.partitions[partition].leader
        return self.brokers[leader] if self.is_alive(leader) else None

    def led_by(self, node_id: int) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
        """Yield every partition that a broker leads."""
        for topic in self.topics.values():
            for index, partition in enumerate(topic.partitions):
                if partition.leader == node_id:
                    yield topic, index, partition

    def effective_config(self, static: BrokerConfig) -> BrokerConfig:
        """Return a broker's config with what was set on it, or on all brokers, while running."""
        everywhere = self.broker_overrides.get(None, {})
        return static.with_settings({**everywhere, **self.broker_overrides.get(static.node_id, {})})

    def replay(self, record: MetadataRecord) -> None:
        """Take one record in; it has been decided, so nothing is checked."""
        self.version += 1
        match record:
            case TopicCreated():
                topic = TopicImage(
                    name=record.name,
                    topic_id=record.topic_id,
                    partitions=tuple(_partitions(record.replicas)),
                    overrides=record.overrides,
                    config=TopicConfig.from_overrides(record.overrides, self.defaults),
                )
                self.topics[topic.name] = topic
                self.names[topic.topic_id] = topic.name
            case PartitionsAdded():
                topic = self.topics[self.names[record.topic_id]]
                partitions = (*topic.partitions, *_partitions(record.replicas))
                self.topics[topic.name] = replace(topic, partitions=partitions)
            case PartitionChanged():
                topic = self.topics[self.names[record.topic_id]]
                changed = list(topic.partitions)
                changed[record.partition] = _changed(changed[record.partition], record)
                self.topics[topic.name] = replace(topic, partitions=tuple(changed))
            case TopicDeleted():
                del self.topics[self.names.pop(record.topic_id)]
            case TopicConfigured():
                topic = self.topics[self.names[record.topic_id]]
                config = TopicConfig.from_overrides(record.overrides, self.defaults)
                self.topics[topic.name] = replace(topic, overrides=record.overrides, config=config)
            case BrokersConfigured():
                self.broker_overrides[record.node_id] = record.overrides
            case GroupConfigured():
                self.group_overrides[record.group] = record.overrides
                if not record.overrides:
                    del self.group_overrides[record.group]
            case BrokerRegistered():
                self._register(record)
            case BrokerFenced():
                self.brokers[record.node_id] = replace(self.brokers[record.node_id], is_fenced=True)
            case BrokerUnregistered():
                del self.brokers[record.node_id]
                self.broker_overrides.pop(record.node_id, None)
            case ProducerIdsReserved():
                self.next_producer_id = record.end

    def set_defaults(self, defaults: BrokerConfig) -> None:
        """Take other defaults for topics, which the broker's own settings hold."""
        self.defaults = defaults
        for name, topic in self.topics.items():
            config = TopicConfig.from_overrides(topic.overrides, defaults)
            if config != topic.config:
                self.topics[name] = replace(topic, config=config)

    def _register(self, record: BrokerRegistered) -> None:
        self.brokers[record.node_id] = BrokerImage(
            node_id=record.node_id,
            host=record.host,
            port=record.port,
            incarnation=record.incarnation,
            epoch=self.version,
        )
        # After an unclean end a log may be shorter than a reader remembers; the new epoch lets it notice (KIP-320).
        for name in {topic.name for topic, _, _ in self.led_by(record.node_id)}:
            topic = self.topics[name]
            self.topics[name] = replace(topic, partitions=tuple(_next_epochs(topic.partitions, record.node_id)))


def _partitions(replicas: Iterable[tuple[int, ...]]) -> Iterator[PartitionImage]:
    return (PartitionImage(replicas=brokers, leader=brokers[0], isr=brokers) for brokers in replicas)


def _next_epochs(partitions: Iterable[PartitionImage], node_id: int) -> Iterator[PartitionImage]:
    for partition in partitions:
        led = partition.leader == node_id
        yield replace(partition, leader_epoch=partition.leader_epoch + 1) if led else partition


def _changed(partition: PartitionImage, record: PartitionChanged) -> PartitionImage:
    news = {name: value for name in _CHANGEABLE if (value := getattr(record, name)) is not None}
    if record.leader is not None:
        news["leader_epoch"] = partition.leader_epoch + 1
    return replace(partition, partition_epoch=partition.partition_epoch + 1, **news)


_CHANGEABLE = ("leader", "isr", "elr", "last_known_leader", "replicas", "adding", "removing", "recovering")
