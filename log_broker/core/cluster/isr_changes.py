"""
The ISR as its leader wants it: whether the controller grants that (AlterPartition, KIP-497, KIP-841, KIP-903).
"""

from collections.abc import Collection
from typing import NamedTuple

from log_broker.core.cluster.broker_registry import UNKNOWN_EPOCH
from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.partition_change import Wish, change_partition, election_for
from log_broker.core.cluster.records import PartitionChanged
from log_broker.errors import BrokerError, ErrorCode


class IsrMember(NamedTuple):
    """A replica that shall be in the ISR, and under which broker epoch its leader saw it catch up."""

    node_id: int
    broker_epoch: int = UNKNOWN_EPOCH


class IsrWish(NamedTuple):
    """What a leader asks for, under the epochs that it knows."""

    topic_id: str
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]
    is_recovering: bool = False


def alter_partition(image: ClusterImage, node_id: int, wish: IsrWish) -> PartitionChanged | None:
    """
    Decide on the ISR that broker `node_id` asks for, whose broker epoch has been checked; None when it is so already.

    Raises BrokerError. UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, NOT_CONTROLLER for epochs that are ahead of this
    image, FENCED_LEADER_EPOCH, INVALID_UPDATE_VERSION for a partition epoch that is over, INVALID_REQUEST,
    INELIGIBLE_REPLICA for a member that is fenced, is leaving or is another process than the leader saw.

    The change may complete a move of replicas, and that may give the partition another leader; the one that asked is
    then to be told NEW_LEADER_ELECTED.
    """
    topic = image.topic_by_id(wish.topic_id)
    if topic is None:
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_ID)
    if not 0 <= wish.partition < len(topic.partitions):
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition = topic.partitions[wish.partition]
    if wish.leader_epoch > partition.leader_epoch or wish.partition_epoch > partition.partition_epoch:
        raise BrokerError(ErrorCode.NOT_CONTROLLER, "The epochs of the request are ahead of this controller's.")
    if wish.leader_epoch < partition.leader_epoch:
        raise BrokerError(ErrorCode.FENCED_LEADER_EPOCH, f"The leader epoch is {partition.leader_epoch}.")
    if node_id != partition.leader:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"The leader is {partition.leader}.")
    if wish.partition_epoch < partition.partition_epoch:
        raise BrokerError(ErrorCode.INVALID_UPDATE_VERSION, f"The partition epoch is {partition.partition_epoch}.")
    members = tuple(member.node_id for member in wish.isr)
    if len(set(members)) < len(members) or not set(members) <= set(partition.replicas) or node_id not in members:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "The ISR has a broker twice, a stranger or not the leader in it.")
    if wish.is_recovering and (len(members) > 1 or not partition.recovering):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "A leader that recovers is the ISR alone, and began as such.")
    for member in wish.isr:
        _check_eligible(image, member)
    change = Wish(isr=members, recovering=wish.is_recovering, election=election_for(topic))
    return change_partition(image, topic, wish.partition, change)


def without_unable(image: ClusterImage, wish: IsrWish, unable: Collection[int]) -> IsrWish:
    """
    Return a wish without those whose disk takes no writes, unless they are in the ISR.

    Raises BrokerError(INELIGIBLE_REPLICA) where the wish is for nothing else.
    """
    topic = image.topic_by_id(wish.topic_id)
    if not unable or topic is None or not 0 <= wish.partition < len(topic.partitions):
        return wish
    now = topic.partitions[wish.partition].isr
    able = tuple(member for member in wish.isr if member.node_id in now or member.node_id not in unable)
    if len(able) < len(wish.isr) and {member.node_id for member in able} == set(now):
        raise BrokerError(ErrorCode.INELIGIBLE_REPLICA, "The disk of who shall come into the ISR takes no writes.")
    return wish._replace(isr=able)


def _check_eligible(image: ClusterImage, member: IsrMember) -> None:
    broker = image.brokers.get(member.node_id)
    if broker is None:
        reason = "is not registered"
    elif broker.is_leaving:
        reason = "is shutting down"
    elif broker.is_fenced:
        reason = "is fenced"
    elif member.broker_epoch not in {UNKNOWN_EPOCH, broker.epoch}:
        reason = f"has broker epoch {broker.epoch}, not {member.broker_epoch}"
    else:
        return
    raise BrokerError(ErrorCode.INELIGIBLE_REPLICA, f"Broker {member.node_id} {reason}.")
