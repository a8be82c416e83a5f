"""
The image of the cluster: what a replay of all metadata records gives.

Every broker holds one. Only `replay` changes it; whoever decides something (`controller`) returns records instead.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace

from log_broker.config.broker import BrokerConfig, TopicConfig
from log_broker.core.cluster.access_image import AccessImage
from log_broker.core.cluster.features import LEVELS_UNTOLD, ToldRanges
from log_broker.core.cluster.records import (
    AccessControlEntryRecord,
    BrokerFenced,
    BrokerLeaving,
    BrokerRegistered,
    BrokersConfigured,
    BrokerUnfenced,
    BrokerUnregistered,
    ClusterNamed,
    FeatureLevelSet,
    GroupConfigured,
    MetadataRecord,
    PartitionChanged,
    PartitionsAdded,
    ProducerIdsReserved,
    RemoveAccessControlEntryRecord,
    RemoveUserScramCredentialRecord,
    ToldListeners,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
    UserScramCredentialRecord,
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

    @property
    def factor(self) -> int:
        """How many replicas it is meant to have; those that are only being added do not count yet."""
        return len(self.replicas) - len(self.adding)

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)


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

    def min_isr(self, index: int) -> int:
        """
        Return how many in-sync replicas a partition needs for acks=all and for its high watermark to move (KIP-966).

        A partition that has fewer replicas than `min.insync.replicas` needs all of them.
        """
        return min(self.config.min_insync_replicas, self.partitions[index].factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerImage:
    """
    One broker that has ever registered. `epoch` counts the records up to its last registration, that one included.

    A broker epoch spans one time of life: it begins fenced, is unfenced once, and ends with the next fencing.
    """

    node_id: int
    host: str
    port: int
    incarnation: str
    epoch: int
    is_fenced: bool = False
    rack: str | None = None
    is_leaving: bool = False  # a controlled shutdown is under way
    has_ended: bool = False  # it was fenced after it had registered; only a new registration brings it back
    directory: str = ""
    features: ToldRanges | None = None  # what it supports, None where the log does not tell
    listeners: ToldListeners | None = None  # all that it has; None where `host` and `port` are all that is known

    def endpoint(self, listener: str) -> tuple[str, int] | None:
        """
        Return where clients of a listener reach it, None where it has no such listener.

        No name is that of the listener by which nodes reach each other.
        """
        if self.listeners is None or not listener:
            return self.host, self.port
        return next(((host, port) for name, host, port, _ in self.listeners if name == listener), None)

    @property
    def may_lead(self) -> bool:
        """Whether it may lead partitions and be in ISRs."""
        return not self.is_fenced and not self.is_leaving


@dataclass(slots=True)
class ClusterImage:
    """
    The whole. `version` counts the records replayed, so equal versions of one log are equal images.

    `static` is what the process of this image was started with, where there is one: what is set for all brokers goes
    on top of that and gives `defaults`, with the very record, for decisions on what follows it in the log.
    """

    defaults: BrokerConfig | None = None
    version: int = 0
    topics: dict[str, TopicImage] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # topic id -> name
    brokers: dict[int, BrokerImage] = field(default_factory=dict)
    broker_overrides: dict[int | None, Mapping[str, str]] = field(default_factory=dict)
    next_producer_id: int = 0
    group_overrides: dict[str, Mapping[str, str]] = field(default_factory=dict)
    cluster_id: str = ""
    levels_set: dict[str, int] = field(default_factory=dict)  # feature -> level, of those that a record has set
    levels_version: int = 0  # up to which record that is
    static: BrokerConfig | None = None
    access: AccessImage = field(default_factory=AccessImage)

    @property
    def levels(self) -> dict[str, int]:
        """The levels that the cluster is at."""
        return {**LEVELS_UNTOLD, **self.levels_set}

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
            self.cluster_id,
            dict(self.levels_set),
            self.levels_version,
            self.static,
            self.access.shared(),
        )

    def topic_by_id(self, topic_id: str) -> TopicImage | None:
        name = self.names.get(topic_id)
        return None if name is None else self.topics[name]

    def alive_brokers(self) -> list[BrokerImage]:
        return [broker for _, broker in sorted(self.brokers.items()) if not broker.is_fenced]

    def is_alive(self, node_id: int) -> bool:
        broker = self.brokers.get(node_id)
        return broker is not None and not broker.is_fenced

    def may_lead(self, node_id: int) -> bool:
        broker = self.brokers.get(node_id)
        return broker is not None and broker.may_lead

    def offline_replicas(self, partition: PartitionImage) -> tuple[int, ...]:
        """Return the replicas of a partition whose brokers are not there."""
        return tuple(node_id for node_id in partition.replicas if not self.is_alive(node_id))

    def has_partition(self, topic: str, partition: int) -> bool:
        """Whether the cluster has such a partition, wherever it is led."""
        image = self.topics.get(topic)
        return image is not None and 0 <= partition < len(image.partitions)

    def leader_of(self, topic: str, partition: int) -> BrokerImage | None:
        """Return the broker to ask about a partition, None while there is none."""
        if not self.has_partition(topic, partition):
            return None
        leader = self.topics[topic].partitions[partition].leader
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
                    partitions=tuple(self._new_partitions(record.replicas)),
                    overrides=record.overrides,
                    config=TopicConfig.from_overrides(record.overrides, self.defaults),
                )
                self.topics[topic.name] = topic
                self.names[topic.topic_id] = topic.name
            case PartitionsAdded():
                topic = self.topics[self.names[record.topic_id]]
                partitions = (*topic.partitions, *self._new_partitions(record.replicas))
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
                if self.static is not None:
                    self.set_defaults(self.effective_config(self.static))
            case GroupConfigured():
                self.group_overrides[record.group] = record.overrides
                if not record.overrides:
                    del self.group_overrides[record.group]
            case BrokerRegistered() | BrokerUnfenced() | BrokerLeaving() | BrokerFenced() | BrokerUnregistered():
                self._replay_broker(record)
            case ClusterNamed() | ProducerIdsReserved() | FeatureLevelSet():
                self._replay_cluster(record)
            case (
                AccessControlEntryRecord()
                | RemoveAccessControlEntryRecord()
                | UserScramCredentialRecord()
                | RemoveUserScramCredentialRecord()
            ):
                self.access = self.access.after(record)

    def become(self, other: "ClusterImage") -> None:
        """Be what another image is, as after the replay of all its records."""
        static = self.static
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))
        self.static = static
        if static is not None:
            self.set_defaults(self.effective_config(static))

    def set_defaults(self, defaults: BrokerConfig) -> None:
        """Take other defaults for topics, which the broker's own settings hold."""
        self.defaults = defaults
        for name, topic in self.topics.items():
            config = TopicConfig.from_overrides(topic.overrides, defaults)
            if config != topic.config:
                self.topics[name] = replace(topic, config=config)

    def _replay_cluster(self, record: ClusterNamed | ProducerIdsReserved | FeatureLevelSet) -> None:
        match record:
            case ClusterNamed():
                self.cluster_id = record.cluster_id
            case ProducerIdsReserved():
                self.next_producer_id = record.end
            case FeatureLevelSet():
                self.levels_set[record.feature] = record.level
                self.levels_version = self.version

    def _replay_broker(
        self, record: BrokerRegistered | BrokerUnfenced | BrokerLeaving | BrokerFenced | BrokerUnregistered
    ) -> None:
        node_id = record.node_id
        match record:
            case BrokerRegistered():
                self.brokers[node_id] = BrokerImage(
                    node_id=node_id,
                    host=record.host,
                    port=record.port,
                    incarnation=record.incarnation,
                    epoch=self.version,
                    is_fenced=True,
                    rack=record.rack,
                    directory=record.directory,
                    features=record.features,
                    listeners=record.listeners,
                )
            case BrokerUnfenced():
                self.brokers[node_id] = replace(self.brokers[node_id], is_fenced=False)
            case BrokerLeaving():
                self.brokers[node_id] = replace(self.brokers[node_id], is_leaving=True)
            case BrokerFenced():
                broker = self.brokers[node_id]
                self.brokers[node_id] = replace(broker, is_fenced=True, is_leaving=False, has_ended=True)
            case BrokerUnregistered():
                del self.brokers[node_id]
                self.broker_overrides.pop(node_id, None)

    def _new_partitions(self, replicas: Iterable[tuple[int, ...]]) -> Iterator[PartitionImage]:
        for brokers in replicas:
            # One is up at least, or the partition would not have been made; logs that know no unfencing name just one.
            isr = tuple(filter(self.may_lead, brokers)) or brokers
            yield PartitionImage(replicas=brokers, leader=isr[0], isr=isr)


def _changed(partition: PartitionImage, record: PartitionChanged) -> PartitionImage:
    changes = {name: value for name in _CHANGEABLE if (value := getattr(record, name)) is not None}
    if record.leader is not None:
        changes["leader_epoch"] = partition.leader_epoch + 1
    return replace(partition, partition_epoch=partition.partition_epoch + 1, **changes)


_CHANGEABLE = ("leader", "isr", "elr", "last_known_leader", "replicas", "adding", "removing", "recovering")
