"""How a cluster stands: its brokers, its partitions, its quorum and what is being moved, as it tells any client."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from fluvial.cluster.wire import ClusterLink, RefusedError
from log_broker.errors import ErrorCode
from log_broker.wire.apis import ApiKey

METADATA_TOPIC = "__cluster_metadata"
_LIST_TIMEOUT_MS = 10_000


class TopicPartition(NamedTuple):
    """A partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker that is alive."""

    node_id: int
    host: str
    port: int
    rack: str | None

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition; a leader of -1 is none. `replicas` has the preferred leader first."""

    tp: TopicPartition
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]
    is_internal: bool = False

    @property
    def is_offline(self) -> bool:
        return self.leader < 0

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A reassignment under way: `replicas` are all that hold the partition meanwhile."""

    tp: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas at its end."""
        return tuple(node for node in self.replicas if node not in self.removing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """The voters and observers of the metadata, each with how many records it lacks that the leader has."""

    leader: int
    epoch: int
    voters: Mapping[int, int]
    observers: Mapping[int, int]
    directories: Mapping[int, UUID | None] = field(default_factory=dict)
    """The id of the disk on which each keeps the metadata, where the cluster tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirs:
    """What a broker stores: bytes of each replica, and of its disks, None where it does not say."""

    sizes: Mapping[TopicPartition, int]
    total_bytes: int | None
    usable_bytes: int | None
    failed: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return sum(self.sizes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The whole at one moment."""

    cluster_id: str | None
    brokers: Mapping[int, Broker]
    partitions: Mapping[TopicPartition, Partition]
    moves: Mapping[TopicPartition, Move] = field(default_factory=dict)
    quorum: Quorum | None = None

    def replicas_of(self, tp: TopicPartition) -> tuple[int, ...]:
        """Where a partition is, or where it is on its way to."""
        return self.moves[tp].target if tp in self.moves else self.partitions[tp].replicas

    @property
    def racks(self) -> dict[int, str | None]:
        return {broker.node_id: broker.rack for broker in self.brokers.values()}


def picture_of(cluster: ClusterLink) -> Picture:
    """Ask for everything but the disks; raises WireError or RefusedError."""
    asked = {"topics": None, "allow_auto_topic_creation": False}
    answer = cluster.ask(
        ApiKey.METADATA,
        {**asked, "include_cluster_authorized_operations": False, "include_topic_authorized_operations": False},
    )
    brokers = {
        each.node_id: Broker(node_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
        for each in answer.brokers
    }
    cluster.learn(broker.address for broker in brokers.values())
    return Picture(
        cluster_id=answer.cluster_id,
        brokers=dict(sorted(brokers.items())),
        partitions={each.tp: each for each in sorted(_partitions(answer.topics), key=lambda each: each.tp)},
        moves=moves_of(cluster),
        quorum=quorum_of(cluster),
    )


def moves_of(cluster: ClusterLink) -> dict[TopicPartition, Move]:
    """Return every reassignment under way; raises WireError or RefusedError."""
    answer = cluster.settled(
        "list the moves under way",
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        {"timeout": _LIST_TIMEOUT_MS, "topics": None},
    )
    return {
        tp: Move(
            tp=tp,
            replicas=tuple(each.replicas),
            adding=tuple(each.adding_replicas),
            removing=tuple(each.removing_replicas),
        )
        for topic in answer.topics
        for each in topic.partitions
        for tp in (TopicPartition(topic.name, each.partition_index),)
    }


def log_dirs_of(cluster: ClusterLink, broker: Broker) -> LogDirs | None:
    """Ask a broker what it stores; None when it does not answer. Raises WireError."""
    try:
        answer = cluster.ask_at(broker.address, ApiKey.DESCRIBE_LOG_DIRS, {"topics": None})
    except OSError:
        return None
    sound = [each for each in answer.results if each.error_code == ErrorCode.NONE]
    sizes = {
        TopicPartition(topic.name, each.partition_index): each.partition_size
        for directory in sound
        for topic in directory.topics
        for each in topic.partitions
    }
    return LogDirs(
        sizes=sizes,
        total_bytes=_sum(getattr(each, "total_bytes", -1) for each in sound),
        usable_bytes=_sum(getattr(each, "usable_bytes", -1) for each in sound),
        failed=tuple(each.log_dir for each in answer.results if each.error_code == ErrorCode.KAFKA_STORAGE_ERROR),
    )


def _sum(values: Iterable[int]) -> int | None:
    known = list(values)
    return sum(known) if known and min(known) >= 0 else None


def _partitions(topics: Iterable[Any]) -> Iterator[Partition]:
    for topic in topics:
        for each in topic.partitions:
            yield Partition(
                tp=TopicPartition(topic.name, each.partition_index),
                leader=each.leader_id,
                leader_epoch=each.leader_epoch,
                replicas=tuple(each.replica_nodes),
                isr=tuple(each.isr_nodes),
                offline=tuple(each.offline_replicas),
                is_internal=topic.is_internal,
            )


def quorum_of(cluster: ClusterLink) -> Quorum | None:
    """Return who votes; None where the cluster has no quorum that answers now, or does not speak of it."""
    wanted = {"topic_name": METADATA_TOPIC, "partitions": ({"partition_index": 0},)}
    try:
        answer = cluster.settled("describe the quorum", ApiKey.DESCRIBE_QUORUM, {"topics": (wanted,)})
        (partition,) = answer.topics[0].partitions
    except (RefusedError, ValueError, IndexError):
        return None
    if partition.error_code:
        return None
    ends = {each.replica_id: each.log_end_offset for each in (*partition.current_voters, *partition.observers)}
    end = ends.get(partition.leader_id, partition.high_watermark)

    def lags(replicas: Iterable[Any]) -> dict[int, int]:
        return {each.replica_id: max(end - each.log_end_offset, 0) for each in replicas}

    return Quorum(
        leader=partition.leader_id,
        epoch=partition.leader_epoch,
        voters=lags(partition.current_voters),
        observers=lags(partition.observers),
        directories={
            each.replica_id: getattr(each, "replica_directory_id", None)
            for each in (*partition.current_voters, *partition.observers)
        },
    )
