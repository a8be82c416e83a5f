"""
The two kinds of a group: classic and, when it has a `consumer`, of the new protocol (KIP-848).

    classic, EMPTY ────────────────── a member of the new protocol joins ──▶ consumer
    classic, with members ─────────── the same, where the policy upgrades ──▶ consumer, with classic members in it
    consumer, without members ─────── a classic member joins ──▶ classic
    consumer, all members classic ─── the last other one has gone, where the policy downgrades ──▶ classic, rebalancing

Committed offsets belong to the group, whatever its kind.
"""

from collections.abc import Sequence

from log_broker.core.groups.classic_group import ClassicGroup, GroupState
from log_broker.core.groups.classic_protocol import ClassicProtocol
from log_broker.core.groups.consumer_drafts import Downgrade
from log_broker.core.groups.consumer_events import ConsumerHeartbeat, ConsumerSupport
from log_broker.core.groups.consumer_group import ConsumerGroup, MemberEvent, refusal_answer
from log_broker.core.groups.consumer_group_records import ConsumerRecord
from log_broker.core.groups.consumer_group_state import ConsumerGroupState
from log_broker.core.groups.consumer_protocol import CONSUMER_PROTOCOL, MalformedSubscriptionError
from log_broker.core.groups.conversion import consumer_records
from log_broker.core.groups.protocol import Effect, GroupRecord, Join, Reply, choose_protocol, to_retry
from log_broker.core.groups.writes import PendingWrites
from log_broker.errors import ErrorCode


class GroupKinds:
    """Hands member events to the kind that the group is of, and turns one kind into the other."""

    def __init__(
        self, classic: ClassicGroup, protocol: ClassicProtocol, writes: PendingWrites, support: ConsumerSupport | None
    ) -> None:
        self.consumer: ConsumerGroup | None = None
        self._classic = classic
        self._protocol = protocol
        self._writes = writes
        self._support = support

    @property
    def has_no_members(self) -> bool:
        if self.consumer is None:
            return self._classic.state is GroupState.EMPTY
        return self.consumer.state.state is ConsumerGroupState.EMPTY and not self.consumer.is_busy

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that members read, None when that cannot be known."""
        if self.consumer is not None:
            return self.consumer.state.subscribed_topics()
        return self._classic.subscribed_topics()

    def tombstones(self) -> tuple[GroupRecord, ...]:
        """Return the records that end the group, its offsets left out."""
        return (self._classic.tombstone(),) if self.consumer is None else self.consumer.tombstones()

    def replay(self, record: ConsumerRecord) -> None:
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
        is_blank = state.epoch == 0 and not state.subscriptions
        if state.is_ended or is_blank or (self._classic.members and not state.subscriptions):
            self.consumer = None
        else:
            self.consumer.loaded(now_ms)

    def handle(self, event: MemberEvent, now_ms: int) -> Sequence[Effect]:
        """Take an event of a member; its kind is that of the group, or the group may become of its kind."""
        if self.consumer is not None and self._classic.state is not GroupState.DEAD:
            if isinstance(event, Join) and not event.member_id and self.has_no_members:
                return [self._end_consumer(), *self._protocol.handle(event, now_ms)]
            effects = self.consumer.handle(event, now_ms)
            self._drop_blank()
            return effects
        if isinstance(event, ConsumerHeartbeat):
            return self._first_heartbeat(event, now_ms)
        return self._protocol.handle(event, now_ms)

    def _first_heartbeat(self, beat: ConsumerHeartbeat, now_ms: int) -> Sequence[Effect]:
        """A member of the new protocol comes to a group that is not of it."""
        classic = self._classic
        if classic.state is GroupState.DEAD:
            return [_refusal(beat, ErrorCode.COORDINATOR_NOT_AVAILABLE, "The group is being deleted.")]
        if beat.member_epoch != 0 or self._support is None:
            return [_not_consumer(beat, classic.group_id)]
        if classic.state is not GroupState.EMPTY:
            return self._upgrade(beat, self._support, now_ms)
        for member_id in list(classic.roster.invited):
            classic.roster.uninvite(member_id)
        self.consumer = self._new_consumer(classic.tombstones())
        effects = self.consumer.handle(beat, now_ms)
        self._drop_blank()
        return effects

    def _drop_blank(self) -> None:
        if self.consumer is not None and self.consumer.is_blank:
            self.consumer = None

    def _new_consumer(self, first_records: tuple[GroupRecord, ...] = ()) -> ConsumerGroup:
        assert self._support is not None, "a group that is only classic meets no records of the new protocol"
        return ConsumerGroup(self._classic.group_id, self._support, self._writes, self._downgraded, first_records)

    def _end_consumer(self) -> Effect:
        assert self.consumer is not None, "there is a group of the new protocol to end"
        records = self.consumer.tombstones()
        self.consumer = None
        self._classic.end()
        return self._writes.persist(records)

    # From classic to consumer and back.

    def _upgrade(self, beat: ConsumerHeartbeat, support: ConsumerSupport, now_ms: int) -> Sequence[Effect]:
        classic = self._classic
        settings = support.settings()
        members = list(classic.members.values())
        if (
            not settings.allows_upgrade
            or classic.protocol_type != CONSUMER_PROTOCOL
            or not 0 < len(members) <= settings.members_max
        ):
            return [_not_consumer(beat, classic.group_id)]
        protocol = classic.protocol or choose_protocol(members)
        try:
            records = consumer_records(members, protocol, classic.generation, support.cluster)
        except MalformedSubscriptionError as error:
            message = f"Cannot upgrade the classic group {classic.group_id}: {error}."
            return [_refusal(beat, ErrorCode.GROUP_ID_NOT_FOUND, message)]
        effects: list[Effect] = []
        for member in members:
            effects += classic.send_back(member)
        generation = classic.generation
        was = (classic.protocol, classic.leader, classic.is_stored)
        self.consumer = self._new_consumer(classic.tombstones())
        classic.end()

        def failed(error: ErrorCode, at_ms: int, waiting: Sequence[MemberEvent]) -> list[Effect]:
            self.consumer = None
            classic.adopt(members, generation)
            classic.protocol, classic.leader, classic.is_stored = was
            effects: list[Effect] = [_refusal(late, to_retry(error), error.name) for late in waiting]
            self._protocol.rebalances.members_changed(at_ms, effects)
            return effects

        return effects + self.consumer.take_over(records, beat, failed, now_ms)

    def _downgraded(self, downgrade: Downgrade, waiting: Sequence[MemberEvent], now_ms: int) -> list[Effect]:
        """Go on as a classic group, with the events that wait: the record of it is durable."""
        self.consumer = None
        self._classic.end()
        self._classic.adopt(downgrade.members, downgrade.generation)
        self._classic.is_stored = True
        effects: list[Effect] = []
        if downgrade.rebalances:
            self._protocol.rebalances.members_changed(now_ms, effects)
        for event in waiting:
            effects += self.handle(event, now_ms)
        return effects


def _refusal(event: MemberEvent, error: ErrorCode, message: str) -> Reply:
    return Reply(event.token, refusal_answer(event, error, message))


def _not_consumer(beat: ConsumerHeartbeat, group_id: str) -> Reply:
    return _refusal(beat, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
