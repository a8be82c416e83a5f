"""
What is known of a consumer group of the new protocol (KIP-848): the replay of its records, and questions about it.

    group epoch ──a member's subscription or a topic changed──▶ +1
    target      ──computed for the group epoch──▶ who is to own what
    member      ──reconciled, one after another──▶ owns its target, at the target's epoch
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b

from log_broker.core.cluster.image import ClusterImage
from log_broker.core.groups.consumer_group_records import (
    NO_PARTITIONS,
    ConsumerRecord,
    CurrentAssignment,
    GroupEpoch,
    MemberState,
    RecordKind,
    ResolvedRegex,
    Subscription,
    TopicIdPartition,
    TopicIdPartitions,
)

_NOTHING_OWNED = CurrentAssignment()


class ConsumerGroupState(Enum):
    """Under the names that ConsumerGroupDescribe and ListGroups report."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True)
class ConsumerState:
    """
    The group. Only `replay` changes it.

    Always: `owners` has exactly the partitions that some member is assigned or has to give up, and each has one owner.
    """

    epoch: int = 0
    metadata_hash: int = 0
    target_epoch: int = 0
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    current: dict[str, CurrentAssignment] = field(default_factory=dict)
    target: dict[str, TopicIdPartitions] = field(default_factory=dict)
    regexes: dict[str, ResolvedRegex] = field(default_factory=dict)
    statics: dict[str, str] = field(default_factory=dict)  # instance id -> member id
    owners: dict[TopicIdPartition, str] = field(default_factory=dict)
    is_ended: bool = False

    def draft(self) -> "ConsumerState":
        """Return a copy to try records on."""
        return ConsumerState(
            self.epoch,
            self.metadata_hash,
            self.target_epoch,
            dict(self.subscriptions),
            dict(self.current),
            dict(self.target),
            dict(self.regexes),
            dict(self.statics),
            dict(self.owners),
            self.is_ended,
        )

    def replay(self, record: ConsumerRecord) -> None:
        """Take one record in; it has been decided, so nothing is checked."""
        name = record.name
        match record.kind, record.value:
            case RecordKind.GROUP, GroupEpoch(epoch=epoch, metadata_hash=metadata_hash):
                self.epoch = epoch
                self.metadata_hash = metadata_hash
                self.is_ended = False
            case RecordKind.GROUP, None:
                self.is_ended = True
            case RecordKind.MEMBER, Subscription() as subscription:
                self._forget_instance(name)
                self.subscriptions[name] = subscription
                if subscription.instance_id is not None:
                    self.statics[subscription.instance_id] = name
            case RecordKind.MEMBER, None:
                self._forget_instance(name)
                self.subscriptions.pop(name, None)
                self._own(name, None)
            case RecordKind.TARGET_EPOCH, epoch:
                self.target_epoch = epoch if isinstance(epoch, int) else 0
            case RecordKind.TARGET_MEMBER, frozenset() as places:
                self.target[name] = places
            case RecordKind.TARGET_MEMBER, None:
                self.target.pop(name, None)
            case RecordKind.CURRENT_MEMBER, (CurrentAssignment() | None) as current:
                self._own(name, current)
            case RecordKind.REGEX, ResolvedRegex() as resolved:
                self.regexes[name] = resolved
            case RecordKind.REGEX, None:
                self.regexes.pop(name, None)

    def _forget_instance(self, member_id: str) -> None:
        old = self.subscriptions.get(member_id)
        if old is not None and old.instance_id is not None and self.statics.get(old.instance_id) == member_id:
            del self.statics[old.instance_id]

    def _own(self, member_id: str, current: CurrentAssignment | None) -> None:
        old = self.current.pop(member_id, None)
        if old is not None:
            for place in old.assigned | old.revoking:
                if self.owners.get(place) == member_id:
                    del self.owners[place]
        if current is not None:
            self.current[member_id] = current
            for place in current.assigned | current.revoking:
                self.owners[place] = member_id

    # Questions.

    @property
    def state(self) -> ConsumerGroupState:
        if self.is_ended:
            return ConsumerGroupState.DEAD
        if not self.subscriptions:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(is_reconciled(self.owned_by(member_id), self.target_epoch) for member_id in self.subscriptions):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def owned_by(self, member_id: str) -> CurrentAssignment:
        return self.current.get(member_id, _NOTHING_OWNED)

    def target_of(self, member_id: str) -> TopicIdPartitions:
        return self.target.get(member_id, NO_PARTITIONS)

    def topics_of(self, subscription: Subscription) -> frozenset[str]:
        """Return the names that a member reads, those its regular expression stands for among them."""
        if not subscription.regex:
            return subscription.topics
        resolved = self.regexes.get(subscription.regex)
        return subscription.topics if resolved is None else subscription.topics | resolved.topics

    def subscribed_topics(self) -> frozenset[str]:
        topics: frozenset[str] = frozenset()
        return topics.union(*(self.topics_of(subscription) for subscription in self.subscriptions.values()))

    def classic_members(self) -> Iterator[tuple[str, Subscription]]:
        """Yield the members that speak the classic protocol."""
        return (
            (member_id, subscription)
            for member_id, subscription in self.subscriptions.items()
            if subscription.classic is not None
        )

    def waits_for_others(self, member_id: str) -> bool:
        """Whether something of a member's target is still owned by someone else."""
        missing = self.target_of(member_id) - self.owned_by(member_id).assigned
        return any(place in self.owners for place in missing)

    def tombstones(self) -> list[ConsumerRecord]:
        """Return the records that end the group."""
        return [
            *(ConsumerRecord(RecordKind.CURRENT_MEMBER, member_id, None) for member_id in self.current),
            *(ConsumerRecord(RecordKind.TARGET_MEMBER, member_id, None) for member_id in self.target),
            ConsumerRecord(RecordKind.TARGET_EPOCH, "", None),
            *(ConsumerRecord(RecordKind.MEMBER, member_id, None) for member_id in self.subscriptions),
            *(ConsumerRecord(RecordKind.REGEX, regex, None) for regex in self.regexes),
            ConsumerRecord(RecordKind.GROUP, "", None),
        ]


def is_reconciled(current: CurrentAssignment, target_epoch: int) -> bool:
    """Whether a member owns its target and knows it."""
    return current.state is MemberState.STABLE and current.epoch == target_epoch


def hash_of_topics(topics: Iterable[str], cluster: ClusterImage) -> int:
    """
    Return a number that changes when one of the topics comes, goes or gets more partitions; 0 for none.

    Kafka hashes otherwise: a coordinator that takes over from the other kind assigns once more and goes on.
    """
    known = [cluster.topics[name] for name in sorted(topics) if name in cluster.topics]
    if not known:
        return 0
    digest = blake2b(digest_size=8)
    for topic in known:
        digest.update(f"{topic.name}\0{topic.topic_id}\0{len(topic.partitions)}\0".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)


def topic_ids(topics: Iterable[str], cluster: ClusterImage) -> frozenset[str]:
    """Return the ids of those topics that exist."""
    return frozenset(cluster.topics[name].topic_id for name in topics if name in cluster.topics)


def partition_counts(topics: Iterable[str], cluster: ClusterImage) -> Mapping[str, int]:
    """Return by topic id how many partitions each topic has, of those that exist."""
    known = (cluster.topics[name] for name in topics if name in cluster.topics)
    return {topic.topic_id: len(topic.partitions) for topic in known}
