"""
Moving partitions between brokers while they are in use (KIP-455).

A move adds the new replicas beside the old ones, waits until all that shall stay are in the ISR, and then takes the
old ones away; that last step is part of every change of a partition (`partition_change`). What a move that is under way
began with is kept for a cancel: replicas without `adding`. A replica that one move was adding and the next one does not
want is in `adding` and in `removing`.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from log_broker.core.cluster.image import ClusterImage, PartitionImage, TopicImage
from log_broker.core.cluster.partition_change import Election, Wish, change_partition, election_for
from log_broker.core.cluster.records import PartitionChanged
from log_broker.core.cluster.replication_policy import check_factor
from log_broker.errors import BrokerError, ErrorCode


class Move(NamedTuple):
    """A partition that is on its way."""

    topic: str
    partition: int
    image: PartitionImage


def reassign(
    image: ClusterImage,
    name: str,
    index: int,
    target: Sequence[int] | None,
    *,
    may_change_factor: bool = True,
    least_factor: int = 1,
) -> PartitionChanged | None:
    """
    Decide on the replicas that a partition shall have, or with None on the end of its move; None when it is so.

    Raises BrokerError: UNKNOWN_TOPIC_OR_PARTITION, NO_REASSIGNMENT_IN_PROGRESS, INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR where that must not change and would, and POLICY_VIOLATION where it would be lowered
    below `least_factor`.
    """
    topic = image.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {name}-{index}.")
    if target is None:
        return _cancel(image, topic, index)
    check_replicas(image, target)
    partition = topic.partitions[index]
    original = tuple(node_id for node_id in partition.replicas if node_id not in partition.adding)
    if not may_change_factor and len(target) != len(original):
        raise BrokerError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{name}-{index} has {len(original)} replicas; {len(target)} would change its replication factor.",
        )
    if len(target) < len(original):  # with as few as it has, it may move
        check_factor(f"{name}-{index}", len(target), least_factor)
    removing = tuple(node_id for node_id in partition.replicas if node_id not in target)
    replicas = (*target, *removing)
    adding = tuple(node_id for node_id in replicas if node_id not in original)
    wish = Wish(replicas=replicas, adding=adding, removing=removing, election=election_for(topic))
    return change_partition(image, topic, index, wish)


def moves(image: ClusterImage, names: Iterable[str] | None = None) -> list[Move]:
    """Return the partitions that are on their way, of the topics named or of all."""
    topics = image.topics.values() if names is None else [image.topics[name] for name in names if name in image.topics]
    return [
        Move(topic.name, index, partition)
        for topic in topics
        for index, partition in enumerate(topic.partitions)
        if partition.is_moving
    ]


def check_replicas(image: ClusterImage, replicas: Sequence[int], *, factor: int | None = None) -> None:
    """Raise BrokerError(INVALID_REPLICA_ASSIGNMENT) for replicas that cannot be those of one partition."""
    unknown = [node_id for node_id in replicas if node_id not in image.brokers]
    if not replicas:
        reason = "includes an empty replica list"
    elif len(set(replicas)) < len(replicas):
        reason = f"includes a broker more than once: {list(replicas)}"
    elif unknown:
        reason = f"includes brokers that are not registered: {unknown}"
    elif factor is not None and len(replicas) != factor:
        reason = f"gives one partition {len(replicas)} replicas and another one {factor}"
    else:
        return
    raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment {reason}.")


def _cancel(image: ClusterImage, topic: TopicImage, index: int) -> PartitionChanged | None:
    partition = topic.partitions[index]
    if not partition.is_moving:
        raise BrokerError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    isr, elr, original = (
        tuple(node_id for node_id in members if node_id not in partition.adding)
        for members in (partition.isr, partition.elr, partition.replicas)
    )
    election = election_for(topic)
    # Going back must not cost a leader, nor the only replica that has all.
    has_leader = any(map(image.may_lead, isr or elr)) or not partition.isr
    if election is not Election.UNCLEAN and not (has_leader and (isr or elr)):
        raise BrokerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Only new replicas of {topic.name}-{index} are in sync; to go back would need an unclean election.",
        )
    wish = Wish(isr=isr, replicas=original, adding=(), removing=(), election=election)
    return change_partition(image, topic, index, wish)
