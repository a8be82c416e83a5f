"""
A group on its way from the classic protocol to the new one or back, while its clients are exchanged (KIP-848).

What everyone was assigned stays, so that a conversion alone moves no partition.
"""

from collections.abc import Iterable, Sequence

from log_broker.core.cluster.image import ClusterImage
from log_broker.core.groups.classic_group import ClassicGroup
from log_broker.core.groups.consumer_group_records import (
    ClassicMetadata,
    ConsumerRecord,
    CurrentAssignment,
    GroupEpoch,
    RecordKind,
    Subscription,
    TopicIdPartition,
    TopicIdPartitions,
)
from log_broker.core.groups.consumer_group_state import ConsumerState, hash_of_topics, partition_counts
from log_broker.core.groups.consumer_protocol import (
    read_assignment,
    read_subscription,
    write_assignment,
)
from log_broker.core.groups.protocol import GroupRecord, Member, TopicPartition, choose_protocol


def consumer_records(
    members: Iterable[Member], protocol: str, generation: int, cluster: ClusterImage
) -> list[ConsumerRecord]:
    """
    Return the records of a group of the new protocol with these classic members, each owning what it was assigned.

    Raises MalformedSubscriptionError when a member is not one of the consumer protocol.
    """
    records: list[ConsumerRecord] = []
    topics: set[str] = set()
    taken: set[TopicIdPartition] = set()
    for member in members:
        said = read_subscription(member.metadata(protocol))
        topics |= said.topics
        subscription = Subscription(
            instance_id=member.instance_id,
            rack_id=said.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            topics=said.topics,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic=ClassicMetadata(session_timeout_ms=member.session_timeout_ms, protocols=member.protocols),
        )
        # A leader is free to assign a partition twice; here it can have one owner.
        places = to_places(read_assignment(member.assignment), cluster) - taken
        taken |= places
        current = CurrentAssignment(epoch=generation, previous_epoch=generation, assigned=places)
        records += (
            ConsumerRecord(RecordKind.MEMBER, member.member_id, subscription),
            ConsumerRecord(RecordKind.TARGET_MEMBER, member.member_id, places),
            ConsumerRecord(RecordKind.CURRENT_MEMBER, member.member_id, current),
        )
    # In the middle of a rebalance a classic group leaves partitions without an owner: 0 has all assigned again.
    counts = partition_counts(topics, cluster)
    wanted = {(topic_id, number) for topic_id, count in counts.items() for number in range(count)}
    metadata_hash = hash_of_topics(topics, cluster) if taken == wanted else 0
    epoch = GroupEpoch(epoch=generation, metadata_hash=metadata_hash)
    return [
        ConsumerRecord(RecordKind.GROUP, "", epoch),
        ConsumerRecord(RecordKind.TARGET_EPOCH, "", generation),
        *records,
    ]


def classic_members(state: ConsumerState, cluster: ClusterImage, now_ms: int) -> tuple[Member, ...]:
    """
    Return the members of a group in which all speak the classic protocol, assigned what they own, not what they were to
    get: until the next rebalance they read that, and the group may turn back before it.
    """
    members = []
    for member_id, subscription in state.classic_members():
        classic = subscription.classic
        assert classic is not None, "classic_members yields no others"
        members.append(
            Member(
                member_id=member_id,
                instance_id=subscription.instance_id,
                client_id=subscription.client_id,
                client_host=subscription.client_host,
                session_timeout_ms=classic.session_timeout_ms,
                rebalance_timeout_ms=subscription.rebalance_timeout_ms,
                protocols=classic.protocols,
                deadline_ms=now_ms + classic.session_timeout_ms,
            )
        )
    protocol = choose_protocol(members)
    for member in members:
        version = read_subscription(member.metadata(protocol)).version
        current = state.owned_by(member.member_id)
        member.assignment = write_assignment(from_places(current.assigned | current.revoking, cluster), version)
    return tuple(members)


def classic_record(group_id: str, members: Sequence[Member], generation: int, now_ms: int) -> GroupRecord:
    """Return the record of a stable classic group of these members."""
    group = ClassicGroup(group_id)
    group.adopt(members, generation)
    return group.record(now_ms)


def to_places(partitions: Iterable[TopicPartition], cluster: ClusterImage) -> TopicIdPartitions:
    """Name partitions by topic id; those of topics that are gone are left out."""
    return frozenset((cluster.topics[name].topic_id, number) for name, number in partitions if name in cluster.topics)


def from_places(places: Iterable[TopicIdPartition], cluster: ClusterImage) -> frozenset[TopicPartition]:
    """Name partitions by topic; those of topics that are gone are left out."""
    return frozenset((cluster.names[topic_id], number) for topic_id, number in places if topic_id in cluster.names)
