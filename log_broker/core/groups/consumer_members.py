"""
The members of a consumer group of the new protocol (KIP-848): what both kinds of its clients need decided.

A decision is made on a draft: it reads the draft, adds records to it, and the draft becomes the group's state when they
are durable. Until then the group decides nothing else about its members, so no answer rests on what could still fail.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from log_broker.core.cluster.image import ClusterImage
from log_broker.core.groups.consumer_assignors import ASSIGNORS, MemberSpec
from log_broker.core.groups.consumer_events import ConsumerGroupSettings, MatchTopics
from log_broker.core.groups.consumer_group_records import (
    ConsumerRecord,
    CurrentAssignment,
    GroupEpoch,
    MemberState,
    RecordKind,
    ResolvedRegex,
    Subscription,
    TopicIdPartitions,
    encode,
)
from log_broker.core.groups.consumer_group_state import ConsumerState, hash_of_topics, partition_counts, topic_ids
from log_broker.core.groups.consumer_reconciliation import reconcile
from log_broker.core.groups.conversion import classic_members
from log_broker.core.groups.protocol import Effect, GroupRecord, Member, Persist
from log_broker.core.groups.timers import Timers
from log_broker.errors import BrokerError, ErrorCode

REGEXES_MAX = 100
"""Of all members of a group: each is matched against every topic whenever the cluster's metadata has changed."""

Outcome = Callable[[ErrorCode, int], list[Effect]]


class GroupHost(Protocol):
    """What the members ask of the group that they belong to."""

    group_id: str

    def persist(self, records: tuple[GroupRecord, ...], outcome: Outcome) -> Persist: ...

    def classic_record(self, members: Sequence[Member], generation: int, now_ms: int) -> GroupRecord:
        """Return the record of a classic group with these members."""
        ...

    def become_classic(
        self, members: Sequence[Member], generation: int, now_ms: int, *, rebalances: bool, waiting: Sequence[Any]
    ) -> list[Effect]:
        """Go on as a classic group, with the events that wait: the record of it is durable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Downgrade:
    """From here on the group is a classic one of these members."""

    members: tuple[Member, ...]
    generation: int
    rebalances: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a request comes to. `after` sets timers once the draft's records are durable."""

    draft: "Draft"
    answer: Any = None
    after: Callable[[int], None] | None = None
    downgrade: Downgrade | None = None


class Draft:
    """A state to decide on; it is copied when the first record is added."""

    def __init__(self, state: ConsumerState) -> None:
        self.state = state
        self.records: list[ConsumerRecord] = []
        self.cluster_version: int | None = None  # of the topics that it was checked against

    def add(self, record: ConsumerRecord) -> None:
        if not self.records:
            self.state = self.state.draft()
        self.records.append(record)
        self.state.replay(record)


class ConsumerMembers:
    """State and timers of the members, and the steps that decisions are made of."""

    def __init__(
        self,
        host: GroupHost,
        cluster: ClusterImage,
        settings: Callable[[], ConsumerGroupSettings],
        match_topics: MatchTopics,
    ) -> None:
        self.state = ConsumerState()
        self._host = host
        self._cluster = cluster
        self._settings = settings
        self._match_topics = match_topics
        self._cluster_version_seen = -1
        self._sessions = Timers()  # by member id: when it is lost unless it is heard of
        self._revocations = Timers()  # by member id: until when it must have given up what it has to
        self._joins = Timers()  # by classic member's id: until when it must have joined again
        self._syncs = Timers()  # by classic member's id: until when it must have asked for its assignment

    # The steps.

    def _settle(
        self, draft: Draft, member_id: str, said: Subscription, owned: TopicIdPartitions | None, now_ms: int
    ) -> None:
        """Take in what a member says of itself and take it one step towards its target."""
        before = draft.state.subscriptions.get(member_id)
        if said != before:
            draft.add(ConsumerRecord(RecordKind.MEMBER, member_id, said))
        resubscribed = before is None or said.topics != before.topics or said.regex != before.regex
        if resubscribed or self._cluster.version != self._cluster_version_seen:
            draft.cluster_version = self._cluster.version
            self._resolve_regexes(draft, now_ms, of=said.regex)
            self._begin_epoch(draft, forced=resubscribed)
        if draft.state.epoch > draft.state.target_epoch:
            self._assign(draft)
        current = draft.state.owned_by(member_id)
        following = reconcile(
            current,
            target=draft.state.target_of(member_id),
            target_epoch=draft.state.target_epoch,
            owners=draft.state.owners,
            owned=owned,
        )
        if following != current:
            draft.add(ConsumerRecord(RecordKind.CURRENT_MEMBER, member_id, following))

    def _begin_epoch(self, draft: Draft, *, forced: bool) -> None:
        """Begin a new epoch if the subscribed topics are others than those of this one, or `forced`."""
        metadata_hash = hash_of_topics(draft.state.subscribed_topics(), self._cluster)
        if forced or metadata_hash != draft.state.metadata_hash:
            epoch = GroupEpoch(epoch=draft.state.epoch + 1, metadata_hash=metadata_hash)
            draft.add(ConsumerRecord(RecordKind.GROUP, "", epoch))

    def _resolve_regexes(self, draft: Draft, now_ms: int, *, of: str | None = None) -> None:
        """Match what has not been matched with the topics of now; only `of`, the sender's own, may be refused."""
        wanted = {subscription.regex for subscription in draft.state.subscriptions.values() if subscription.regex}
        if len(wanted) > REGEXES_MAX and of is not None and of not in draft.state.regexes:
            raise BrokerError(
                ErrorCode.INVALID_REGULAR_EXPRESSION,
                f"The members of group '{self._host.group_id}' may have {REGEXES_MAX} different regular expressions.",
            )
        for regex in sorted(draft.state.regexes.keys() - wanted):
            draft.add(ConsumerRecord(RecordKind.REGEX, regex, None))
        if self._cluster.version == self._cluster_version_seen:
            wanted -= draft.state.regexes.keys()
        names = [name for name, topic in self._cluster.topics.items() if not topic.is_internal]
        for regex in sorted(wanted):
            try:
                topics = self._match_topics(regex, names)
            except BrokerError:
                if regex == of:
                    raise
                topics = frozenset()
            known = draft.state.regexes.get(regex)
            if known is None or known.topics != topics:
                resolved = ResolvedRegex(topics=topics, version=self._cluster.version, timestamp_ms=now_ms)
                draft.add(ConsumerRecord(RecordKind.REGEX, regex, resolved))

    def _assign(self, draft: Draft) -> None:
        state = draft.state
        specs = {
            member_id: MemberSpec(
                topics=topic_ids(state.topics_of(subscription), self._cluster),
                target=state.target_of(member_id),
                instance_id=subscription.instance_id,
            )
            for member_id, subscription in state.subscriptions.items()
        }
        assign = ASSIGNORS[self._preferred_assignor(state)]
        for member_id, places in assign(specs, partition_counts(state.subscribed_topics(), self._cluster)).items():
            if state.target.get(member_id) != places:
                draft.add(ConsumerRecord(RecordKind.TARGET_MEMBER, member_id, places))
        draft.add(ConsumerRecord(RecordKind.TARGET_EPOCH, "", draft.state.epoch))

    def _preferred_assignor(self, state: ConsumerState) -> str:
        """Return the assignor that most members ask for; without a word of theirs, the broker's first."""
        offered = self._settings().assignors
        votes = [subscription.assignor for subscription in state.subscriptions.values()]
        return max(offered, key=votes.count)

    def _replace(self, draft: Draft, old_id: str, new_id: str) -> None:
        """A static member came back under another id: it takes over the target and owns what the old one owned."""
        current = draft.state.owned_by(old_id)
        target = draft.state.target_of(old_id)
        subscription = draft.state.subscriptions[old_id]
        self._forget(draft, old_id)
        draft.add(ConsumerRecord(RecordKind.MEMBER, new_id, subscription))
        draft.add(ConsumerRecord(RecordKind.TARGET_MEMBER, new_id, target))
        rejoined = replace(current, epoch=0, previous_epoch=0)
        draft.add(ConsumerRecord(RecordKind.CURRENT_MEMBER, new_id, rejoined))

    def _forget(self, draft: Draft, member_id: str) -> None:
        for kind in (RecordKind.CURRENT_MEMBER, RecordKind.TARGET_MEMBER, RecordKind.MEMBER):
            draft.add(ConsumerRecord(kind, member_id, None))

    def _remove(self, members: Iterable[str], answer: Any, now_ms: int) -> Decision:
        """Take members out; what is left may be a classic group then."""
        draft = Draft(self.state)
        gone = list(members)
        for member_id in gone:
            self._forget(draft, member_id)

        def after(_: int) -> None:
            for member_id in gone:
                self._forget_timers(member_id)

        if self._may_downgrade(draft.state):
            left = classic_members(draft.state, self._cluster, now_ms)
            downgrade = Downgrade(members=left, generation=draft.state.epoch, rebalances=True)
            return Decision(draft=draft, answer=answer, after=after, downgrade=downgrade)
        draft.cluster_version = self._cluster.version
        self._resolve_regexes(draft, now_ms)
        self._begin_epoch(draft, forced=True)
        return Decision(draft=draft, answer=answer, after=after)

    def _may_downgrade(self, state: ConsumerState) -> bool:
        settings = self._settings()
        return (
            settings.allows_downgrade
            and 0 < len(state.subscriptions) <= settings.classic_members_max
            and all(subscription.classic is not None for subscription in state.subscriptions.values())
        )

    def _check_seat(self, member_id: str, instance_id: str | None) -> None:
        state = self.state
        is_known = member_id in state.subscriptions or instance_id in state.statics
        if not is_known and len(state.subscriptions) >= self._settings().members_max:
            raise BrokerError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {self._settings().members_max} members.",
            )

    def _static_member(self, member_id: str, instance_id: str) -> str:
        """Return the static member, which must be this one; raises BrokerError."""
        known_as = self.state.statics.get(instance_id)
        if known_as is None:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if known_as != member_id:
            raise BrokerError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {known_as}.",
            )
        return known_as

    # Timers.

    def _hear(self, member_id: str, now_ms: int) -> None:
        subscription = self.state.subscriptions.get(member_id)
        if subscription is None:
            return
        classic = subscription.classic
        timeout_ms = self._settings().session_timeout_ms if classic is None else classic.session_timeout_ms
        self._sessions.set(member_id, now_ms + timeout_ms)

    def _watch_revocation(self, member_id: str, before: CurrentAssignment, now_ms: int) -> None:
        """A member that has to give up partitions has its rebalance timeout for it, from when it was first told."""
        current = self.state.owned_by(member_id)
        if current.state is not MemberState.UNREVOKED_PARTITIONS:
            self._revocations.drop(member_id)
        elif current != before:
            self._revocations.set(member_id, now_ms + self.state.subscriptions[member_id].rebalance_timeout_ms)

    def _forget_timers(self, member_id: str) -> None:
        for timers in (self._sessions, self._revocations, self._joins, self._syncs):
            timers.drop(member_id)

    def encoded(self, records: Iterable[ConsumerRecord]) -> tuple[GroupRecord, ...]:
        return tuple(encode(self._host.group_id, record) for record in records)
