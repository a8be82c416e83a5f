"""
Who leads which partition: what follows for all of them when a broker comes, goes or leaves, and elections by request.

Each function reads the image and returns records; BrokerError says why an election that was asked for is not held.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator

from log_broker.core.cluster.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from log_broker.core.cluster.leader_choice import first_choice, rank_of_leader
from log_broker.core.cluster.partition_change import Election, Wish, change_partition, election_for
from log_broker.core.cluster.records import (
    BrokerFenced,
    BrokerLeaving,
    BrokerUnfenced,
    BrokerUnregistered,
    MetadataRecord,
    PartitionChanged,
)
from log_broker.errors import BrokerError, ErrorCode

ELECTIONS_MAX = 1000  # of one round of levelling; the next round goes on
SAFE_WHEN_UNCLEAN = "fsync-quorum"  # the durability with which a replica in sync has everything on its disk

PREFERRED = 0  # election types of ElectLeaders
UNCLEAN = 1


def fence(image: ClusterImage, node_id: int) -> list[MetadataRecord]:
    """Decide on a broker that is gone: it leaves every ISR, and others lead. Empty when it is fenced already."""
    if not image.is_alive(node_id):
        return []
    return [*_depart(image, node_id), BrokerFenced(node_id=node_id)]


def leave(image: ClusterImage, node_id: int) -> list[MetadataRecord]:
    """Decide on a broker that is about to stop: it leads nothing from then on, but is there until it is fenced."""
    return [BrokerLeaving(node_id=node_id), *_depart(image, node_id)]


def hand_over(image: ClusterImage, node_id: int, unable: Collection[int]) -> list[PartitionChanged]:
    """
    Decide on a broker whose disk takes no writes: others lead, and it leaves the ISRs that have their minimum then.

    `unable` are all such brokers. Where without them `acks=all` would stop as well, nothing changes: a partition can be
    read as long as anybody has it.
    """

    def may_lead(candidate: int) -> bool:
        return candidate not in unable and image.may_lead(candidate)

    changes: list[PartitionChanged] = []
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            # A leader that is unable itself gives up its leaderships by its own word, as its lease ends with that.
            if node_id not in partition.isr or (partition.leader != node_id and partition.leader in unable):
                continue
            if sum(map(may_lead, partition.isr)) >= topic.min_isr(index):
                change = change_partition(image, topic, index, Wish(isr=_except(partition.isr, node_id)), may_lead)
                changes += [change] if change is not None else []
    return changes


def unfence(image: ClusterImage, node_id: int) -> list[MetadataRecord]:
    """Decide on a broker that is there again: partitions without a leader may have one now."""

    def may_lead(candidate: int) -> bool:
        return candidate == node_id or image.may_lead(candidate)

    records: list[MetadataRecord] = [BrokerUnfenced(node_id=node_id)]
    records += _each(
        image,
        lambda partition: partition.leader == NO_LEADER and node_id in partition.replicas,
        lambda topic, _: Wish(election=election_for(topic)),
        may_lead,
    )
    return records


def forget(image: ClusterImage, node_id: int, *, is_clean: bool, is_wiped: bool) -> list[PartitionChanged]:
    """
    Decide on partitions whose broker's process is another one now: it leaves every ISR, as if it had been fenced.

    Unless the process before it stopped cleanly, records that were only in its memory may be lost: where the topic's
    durability allows that, it is not eligible either, if anybody else is. With an empty directory it never is.
    """

    def wish(topic: TopicImage, partition: PartitionImage) -> Wish:
        others = {*partition.isr, *partition.elr} - {node_id}
        is_doubtful = not is_clean and topic.config.fluvial_durability != SAFE_WHEN_UNCLEAN and others
        lost = (node_id,) if is_wiped or is_doubtful else ()
        return Wish(isr=_except(partition.isr, node_id), lost=lost, election=election_for(topic))

    return list(
        _each(
            image,
            lambda partition: node_id in partition.isr or node_id in partition.elr or partition.leader == node_id,
            wish,
            lambda candidate: candidate != node_id and image.may_lead(candidate),
        )
    )


def unregister(image: ClusterImage, node_id: int) -> BrokerUnregistered:
    """Decide on striking a broker off that will not return."""
    if node_id not in image.brokers:
        raise BrokerError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {node_id} is not currently registered.")
    if image.is_alive(node_id):
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"Broker {node_id} is running; stop it first.")
    kept = sorted(
        {topic.name for topic in image.topics.values() for each in topic.partitions if node_id in each.replicas}
    )
    if kept:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            f"Broker {node_id} has replicas of {', '.join(kept)}; move them to others or delete those topics first.",
        )
    return BrokerUnregistered(node_id=node_id)


def elect(image: ClusterImage, name: str, index: int, election_type: int) -> PartitionChanged:
    """
    Decide on an election that somebody asks for.

    Raises BrokerError: INVALID_REQUEST, UNKNOWN_TOPIC_OR_PARTITION, ELECTION_NOT_NEEDED,
    PREFERRED_LEADER_NOT_AVAILABLE or ELIGIBLE_LEADERS_NOT_AVAILABLE.
    """
    if election_type not in {PREFERRED, UNCLEAN}:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}")
    topic = image.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    partition = topic.partitions[index]
    preferred = first_choice(image, topic, index)
    is_preferred = election_type == PREFERRED
    if partition.leader == preferred if is_preferred else partition.leader != NO_LEADER:
        raise BrokerError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    wish = Wish(election=Election.PREFERRED if is_preferred else Election.UNCLEAN)
    change = change_partition(image, topic, index, wish)
    if change is None and is_preferred:
        raise BrokerError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"The preferred leader {preferred} of {name}-{index} is not up or not in sync.",
        )
    if change is None:
        raise BrokerError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"No replica of {name}-{index} is up.")
    return change


def level(image: ClusterImage, percentage: int, *, elections_max: int = ELECTIONS_MAX) -> list[PartitionChanged]:
    """
    Give leaderships back to the preferred leaders of which more than `percentage` of theirs are elsewhere.

    A preferred leader that is not up or not in sync is left out of it. A leader outside the racks that its topic
    prefers gives way to one in them, however few there are of those.
    """
    theirs: Counter[int] = Counter()
    elsewhere: Counter[int] = Counter()
    preferred = {
        (name, index): first_choice(image, topic, index)
        for name, topic in image.topics.items()
        for index in range(len(topic.partitions))
    }
    for (name, index), node_id in preferred.items():
        theirs[node_id] += 1
        elsewhere[node_id] += image.topics[name].partitions[index].leader != node_id
    uneven = {node_id for node_id, count in elsewhere.items() if count * 100 > percentage * theirs[node_id]}
    changes: list[PartitionChanged] = []
    for (name, index), node_id in preferred.items():
        topic = image.topics[name]
        partition = topic.partitions[index]
        waits = node_id in uneven or rank_of_leader(image, topic, index) > 0
        if len(changes) < elections_max and waits and partition.leader not in {node_id, NO_LEADER}:
            change = change_partition(image, topic, index, Wish(election=Election.PREFERRED))
            changes += [change] if change is not None else []
    return changes


def reconfigured(before: ClusterImage, after: ClusterImage) -> list[PartitionChanged]:
    """
    Decide what other settings of topics mean for their partitions: more may lead, or fewer are eligible.

    The ELR holds all below the high watermark only while that stands still, so it goes when the minimum goes down to
    what the ISR has. When the minimum goes up, each partition gets a new epoch: a leader's wish for a smaller ISR is
    refused then until it has seen that epoch, and so the new minimum, by which it judges its high watermark. Where
    other racks are preferred, leaders move there at once.
    """
    records = []
    for name, topic in after.topics.items():
        old = before.topics.get(name)
        if old is None or old.topic_id != topic.topic_id or old.config == topic.config:
            continue
        for index in range(len(topic.partitions)):
            election = election_for(topic)
            prefers = topic.config.fluvial_leaders_preference
            if prefers != old.config.fluvial_leaders_preference and topic.partitions[index].leader != NO_LEADER:
                election = Election.PREFERRED
            change = change_partition(after, topic, index, Wish(election=election))
            if change is None and topic.min_isr(index) > old.min_isr(index):
                change = PartitionChanged(topic_id=topic.topic_id, partition=index)
            if change is not None:
                records.append(change)
    return records


def leads_any(image: ClusterImage, node_id: int) -> bool:
    """Whether a broker leads a partition."""
    return next(image.led_by(node_id), None) is not None


def _depart(image: ClusterImage, node_id: int) -> Iterator[PartitionChanged]:
    return _each(
        image,
        lambda partition: node_id in partition.isr or partition.leader == node_id,
        lambda topic, partition: Wish(isr=_except(partition.isr, node_id), election=election_for(topic)),
        lambda candidate: candidate != node_id and image.may_lead(candidate),
    )


def _each(
    image: ClusterImage,
    concerned: Callable[[PartitionImage], bool],
    wish: Callable[[TopicImage, PartitionImage], Wish],
    may_lead: Callable[[int], bool],
) -> Iterator[PartitionChanged]:
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if concerned(partition):
                change = change_partition(image, topic, index, wish(topic, partition), may_lead)
                if change is not None:
                    yield change


def _except(isr: tuple[int, ...], node_id: int) -> tuple[int, ...]:
    return tuple(member for member in isr if member != node_id)
