"""
The two kinds of a group: classic (`GroupMembers`) and, when it has a `consumer`, of the new protocol (KIP-848).

    classic, EMPTY ────────────────── a member of the new protocol joins ──▶ consumer
    classic, with members ─────────── the same, where the policy upgrades ──▶ consumer, with classic members in it
    consumer, without members ─────── a classic member joins ──▶ classic
    consumer, all members classic ─── the last other one has gone, where the policy downgrades ──▶ classic, rebalancing

Committed offsets belong to the group, whatever its kind.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from log_broker.core.cluster.image import ClusterImage
from log_broker.core.groups.consumer_events import (
    ConsumerGroupSettings,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    MatchTopics,
)
from log_broker.core.groups.consumer_group import ConsumerGroup, MemberEvent, refusal_answer
from log_broker.core.groups.consumer_group_records import ConsumerRecord
from log_broker.core.groups.consumer_group_state import ConsumerGroupState
from log_broker.core.groups.consumer_protocol import CONSUMER_PROTOCOL, MalformedSubscriptionError
from log_broker.core.groups.conversion import consumer_records
from log_broker.core.groups.members import GroupMembers, GroupState, Outcome, ignore_outcome
from log_broker.core.groups.protocol import (
    Effect,
    GroupRecord,
    Heartbeat,
    Join,
    JoinAnswer,
    Leave,
    Member,
    Persist,
    Reply,
    Sync,
    SyncAnswer,
    choose_protocol,
    to_retry,
)
from log_broker.core.groups.records import encode_group_key
from log_broker.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSupport:
    """What a group of the new protocol needs to know of the world around it."""

    cluster: ClusterImage
    settings: Callable[[], ConsumerGroupSettings]
    match_topics: MatchTopics


class GroupKinds(GroupMembers):
    """Hands member events to the kind that the group is of, and turns one kind into the other."""

    def __init__(
        self,
        group_id: str,
        *,
        initial_delay_ms: int = 0,
        members_max: int = 2**31 - 1,
        support: ConsumerSupport | None = None,
    ) -> None:
        super().__init__(group_id, initial_delay_ms=initial_delay_ms, members_max=members_max)
        self.consumer: ConsumerGroup | None = None
        self._support = support

    @property
    def kind(self) -> str:
        """The type that ListGroups reports."""
        return "classic" if self.consumer is None else "consumer"

    @property
    def state_name(self) -> str:
        return self.state.value if self.consumer is None else self.consumer.state.state.value

    @property
    def has_no_members(self) -> bool:
        if self.consumer is None:
            return self.state is GroupState.EMPTY
        return self.consumer.state.state is ConsumerGroupState.EMPTY and not self.consumer.is_busy

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that members read, None when that cannot be known."""
        if self.consumer is not None:
            return self.consumer.state.subscribed_topics()
        return self._subscribed_topics()

    def replay_consumer(self, record: ConsumerRecord) -> None:
        """Take in a record of the new protocol, at load; a tombstone of what is not there says nothing."""
        if self.consumer is None:
            if record.value is None:
                return
            self.consumer = self._new_consumer()
        self.consumer.state.replay(record)

    def loaded(self, now_ms: int) -> None:
        """All records have been replayed."""
        if self.consumer is None:
            return
        state = self.consumer.state
        if (
            state.is_ended
            or (state.epoch == 0 and not state.subscriptions)
            or (self.members and not state.subscriptions)
        ):
            self.consumer = None
        else:
            self.consumer.loaded(now_ms)

    def next_deadline_ms(self) -> int | None:
        return super().next_deadline_ms() if self.consumer is None else self.consumer.next_deadline_ms()

    def tick(self, now_ms: int) -> Sequence[Effect]:
        return super().tick(now_ms) if self.consumer is None else self.consumer.tick(now_ms)

    # Member events.

    def _member_event(self, event: MemberEvent, now_ms: int) -> Sequence[Effect]:  # noqa: PLR0911 one for each event
        if self.consumer is not None and isinstance(event, Join) and not event.member_id and self.has_no_members:
            return [self._end_consumer(), *self._join(event, now_ms)]
        if self.consumer is not None and self.state is not GroupState.DEAD:
            effects = self.consumer.handle(event, now_ms)
            self._drop_blank()
            return effects
        match event:
            case ConsumerHeartbeat():
                return self._first_heartbeat(event, now_ms)
            case Join():
                return self._join(event, now_ms)
            case Sync():
                return self._sync(event, now_ms)
            case Heartbeat():
                return self._heartbeat(event, now_ms)
            case Leave():
                return self._leave(event, now_ms)

    def _first_heartbeat(self, event: ConsumerHeartbeat, now_ms: int) -> Sequence[Effect]:
        """A member of the new protocol comes to a group that is not of it."""
        if self.state is GroupState.DEAD:
            return [_refusal(event, ErrorCode.COORDINATOR_NOT_AVAILABLE, "The group is being deleted.")]
        if event.member_epoch != 0 or self._support is None:
            message = f"Group {self.group_id} is not a consumer group."
            return [_refusal(event, ErrorCode.GROUP_ID_NOT_FOUND, message)]
        if self.state is not GroupState.EMPTY:
            return self._upgrade(event, self._support, now_ms)
        for member_id in list(self._invited):
            self._uninvite(member_id)
        self.consumer = self._new_consumer(self.classic_tombstones())
        effects = self.consumer.handle(event, now_ms)
        self._drop_blank()
        return effects

    def _drop_blank(self) -> None:
        if self.consumer is not None and self.consumer.is_blank:
            self.consumer = None

    def _new_consumer(self, first_records: Sequence[GroupRecord] = ()) -> ConsumerGroup:
        assert self._support is not None, "a group that is only classic meets no records of the new protocol"
        support = self._support
        return ConsumerGroup(self, support.cluster, support.settings, support.match_topics, first_records)

    def _end_consumer(self) -> Persist:
        assert self.consumer is not None, "there is a group of the new protocol to end"
        records = self.consumer.encoded(self.consumer.state.tombstones())
        self.consumer = None
        self.end()
        return self._persist(records, ignore_outcome)

    # From classic to consumer and back.

    def _upgrade(self, event: ConsumerHeartbeat, support: ConsumerSupport, now_ms: int) -> Sequence[Effect]:
        settings = support.settings()
        members = list(self.members.values())
        if (
            not settings.allows_upgrade
            or self.protocol_type != CONSUMER_PROTOCOL
            or not 0 < len(members) <= settings.members_max
        ):
            message = f"Group {self.group_id} is not a consumer group."
            return [_refusal(event, ErrorCode.GROUP_ID_NOT_FOUND, message)]
        protocol = self.protocol or choose_protocol(members)
        try:
            records = consumer_records(members, protocol, self.generation, support.cluster)
        except MalformedSubscriptionError as error:
            message = f"Cannot upgrade the classic group {self.group_id}: {error}."
            return [_refusal(event, ErrorCode.GROUP_ID_NOT_FOUND, message)]
        effects: list[Effect] = []
        for member in members:
            self._send_back(member, effects)
        was = (self.generation, self.protocol, self.leader, self.statics, self._is_stored)
        self.consumer = self._new_consumer(self.classic_tombstones())
        self.end()

        def failed(error: ErrorCode, at_ms: int, waiting: Sequence[MemberEvent]) -> list[Effect]:
            self.consumer = None
            self.generation, self.protocol, self.leader, self.statics, self._is_stored = was
            self._roster.replace_all(members)
            self.protocol_type = CONSUMER_PROTOCOL
            effects: list[Effect] = []
            for late in waiting:
                effects.append(Reply(late.token, refusal_answer(late, to_retry(error), error.name)))
            self.state = GroupState.STABLE
            self._disturb(at_ms, effects)
            return effects

        return effects + self.consumer.take_over(records, event, failed, now_ms)

    def _send_back(self, member: Member, effects: list[Effect]) -> None:
        """Answer what a member waits for: it is to join again."""
        if member.join_token is not None:
            answer = JoinAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
            effects.append(Reply(member.join_token, answer))
        if member.sync_token is not None:
            effects.append(Reply(member.sync_token, SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS)))
        self._roster.wait_with_join(member, None)
        self._roster.wait_with_sync(member, None)

    # What `ConsumerGroup` asks of its host.

    def persist(self, records: tuple[GroupRecord, ...], outcome: Outcome) -> Persist:
        return self._persist(records, outcome, is_step=True)

    def classic_record(self, members: Sequence[Member], generation: int, now_ms: int) -> GroupRecord:
        group = GroupMembers(self.group_id)
        group.adopt(members, generation)
        return group.stored_record(now_ms)

    def become_classic(
        self,
        members: Sequence[Member],
        generation: int,
        now_ms: int,
        *,
        rebalances: bool,
        waiting: Sequence[MemberEvent],
    ) -> list[Effect]:
        self.consumer = None
        self.end()
        self.adopt(members, generation)
        self._is_stored = True
        effects: list[Effect] = []
        if rebalances:
            self._disturb(now_ms, effects)
        for event in waiting:
            effects += self._member_event(event, now_ms)
        return effects

    def tombstones(self) -> tuple[GroupRecord, ...]:
        """Return the records that end the group, its offsets left out."""
        if self.consumer is not None:
            return self.consumer.encoded(self.consumer.state.tombstones())
        return ((encode_group_key(self.group_id), None),)

    def classic_tombstones(self) -> tuple[GroupRecord, ...]:
        return ((encode_group_key(self.group_id), None),) if self._is_stored else ()


def _refusal(event: ConsumerHeartbeat, error: ErrorCode, message: str) -> Reply:
    return Reply(event.token, ConsumerHeartbeatAnswer(error=error, message=message, member_id=event.member_id))
