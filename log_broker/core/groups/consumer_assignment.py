"""
Who is to read what in a consumer group (KIP-848): its epoch, the target for that, and each member's steps towards it.
"""

from collections.abc import Callable

from log_broker.core.groups.consumer_assignors import ASSIGNORS, MemberSpec
from log_broker.core.groups.consumer_drafts import Draft
from log_broker.core.groups.consumer_events import ConsumerSupport
from log_broker.core.groups.consumer_group_records import (
    ConsumerRecord,
    GroupEpoch,
    RecordKind,
    ResolvedRegex,
    Subscription,
    TopicIdPartitions,
)
from log_broker.core.groups.consumer_group_state import ConsumerState, hash_of_topics, partition_counts, topic_ids
from log_broker.core.groups.consumer_reconciliation import reconcile
from log_broker.errors import BrokerError, ErrorCode

REGEXES_MAX = 100
"""Of all members of a group: each is matched against every topic whenever the cluster's metadata has changed."""


class Assignment:
    """Assigns the topics of the cluster to a group's members."""

    def __init__(self, group_id: str, support: ConsumerSupport) -> None:
        self._group_id = group_id
        self._cluster = support.cluster
        self._settings = support.settings
        self._match_topics = support.match_topics
        self._cluster_version_seen = -1

    def settle(
        self,
        draft: Draft,
        member_id: str,
        said: Subscription,
        owned: TopicIdPartitions | None,
        now_ms: int,
        *,
        may_describe: Callable[[str], bool] | None = None,
        matches: bool = True,
    ) -> None:
        """
        Take in what a member says of itself and take it one step towards its target.

        `owned` is as in `reconcile`; without `matches` no regular expression is matched. Raises BrokerError for one
        that is refused.
        """
        before = draft.state.subscriptions.get(member_id)
        if said != before:
            draft.add(ConsumerRecord(RecordKind.MEMBER, member_id, said))
        resubscribed = before is None or said.topics != before.topics or said.regex != before.regex
        if resubscribed or self._cluster.version != self._cluster_version_seen:
            if matches:
                self._resolve_regexes(draft, now_ms, of=said.regex, may_describe=may_describe)
            if matches or not self._forget_regexes(draft):
                draft.cluster_version = self._cluster.version
            self._check_topics(draft, resubscribed=resubscribed)
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

    def members_gone(self, draft: Draft) -> None:
        """Begin an epoch without them; the next heartbeat of another member has it assigned."""
        # What others subscribe to is matched at a heartbeat of theirs, for it depends on who asks.
        self._forget_regexes(draft)
        self._check_topics(draft, resubscribed=True)

    def accepted(self, draft: Draft) -> None:
        """The draft is the group's state now."""
        if draft.cluster_version is not None:
            self._cluster_version_seen = draft.cluster_version

    def preferred_assignor(self, state: ConsumerState) -> str:
        """Return the assignor that most members ask for; without a word of theirs, the broker's first."""
        offered = self._settings().assignors
        votes = [subscription.assignor for subscription in state.subscriptions.values()]
        return max(offered, key=votes.count)

    def _check_topics(self, draft: Draft, *, resubscribed: bool) -> None:
        """Begin a new epoch if the subscribed topics are others than those of this one, or a subscription is."""
        metadata_hash = hash_of_topics(draft.state.subscribed_topics(), self._cluster)
        if resubscribed or metadata_hash != draft.state.metadata_hash:
            epoch = GroupEpoch(epoch=draft.state.epoch + 1, metadata_hash=metadata_hash)
            draft.add(ConsumerRecord(RecordKind.GROUP, "", epoch))

    def _forget_regexes(self, draft: Draft) -> set[str]:
        """Drop what nobody subscribes to any more; return what somebody does."""
        wanted = {subscription.regex for subscription in draft.state.subscriptions.values() if subscription.regex}
        for regex in sorted(draft.state.regexes.keys() - wanted):
            draft.add(ConsumerRecord(RecordKind.REGEX, regex, None))
        return wanted

    def _resolve_regexes(
        self, draft: Draft, now_ms: int, *, of: str | None, may_describe: Callable[[str], bool] | None
    ) -> None:
        """
        Match what has not been matched with the topics of now; only `of`, the sender's own, may be refused.

        As Kafka does, with the rights of the member whose heartbeat brings it about.
        """
        wanted = self._forget_regexes(draft)
        if len(wanted) > REGEXES_MAX and of is not None and of not in draft.state.regexes:
            raise BrokerError(
                ErrorCode.INVALID_REGULAR_EXPRESSION,
                f"The members of group '{self._group_id}' may have {REGEXES_MAX} different regular expressions.",
            )
        if self._cluster.version == self._cluster_version_seen:
            wanted -= draft.state.regexes.keys()
        names = [name for name, topic in self._cluster.topics.items() if not topic.is_internal] if wanted else []
        if may_describe is not None:
            names = list(filter(may_describe, names))
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
        assign = ASSIGNORS[self.preferred_assignor(state)]
        for member_id, places in assign(specs, partition_counts(state.subscribed_topics(), self._cluster)).items():
            if state.target.get(member_id) != places:
                draft.add(ConsumerRecord(RecordKind.TARGET_MEMBER, member_id, places))
        draft.add(ConsumerRecord(RecordKind.TARGET_EPOCH, "", draft.state.epoch))
