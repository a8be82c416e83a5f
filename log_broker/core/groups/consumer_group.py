"""
The consumer group of the new protocol (KIP-848): one event at a time, in order, each when the one before is durable.

A member that changes nothing costs a look at a few maps; only changes are written. Time alone takes out members whose
session has ended, who did not give up in time what they had to, or (classic ones) did not join or sync in time.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from log_broker.core.groups.consumer_assignment import Assignment
from log_broker.core.groups.consumer_classic_members import ClassicMembers
from log_broker.core.groups.consumer_drafts import Decision, Downgrade, Draft
from log_broker.core.groups.consumer_events import ConsumerHeartbeat, ConsumerHeartbeatAnswer, ConsumerSupport
from log_broker.core.groups.consumer_group_records import ConsumerRecord, CurrentAssignment, encode
from log_broker.core.groups.consumer_group_state import ConsumerState
from log_broker.core.groups.consumer_heartbeats import ConsumerHeartbeats
from log_broker.core.groups.consumer_members import Membership
from log_broker.core.groups.consumer_timers import MemberTimers
from log_broker.core.groups.conversion import classic_record
from log_broker.core.groups.protocol import (
    Effect,
    GroupRecord,
    Heartbeat,
    Join,
    JoinAnswer,
    Leave,
    LeaveAnswer,
    Reply,
    Sync,
    SyncAnswer,
    to_retry,
)
from log_broker.core.groups.writes import PendingWrites
from log_broker.errors import BrokerError, ErrorCode

MemberEvent = ConsumerHeartbeat | Join | Sync | Heartbeat | Leave
TakeOverFailed = Callable[[ErrorCode, int, Sequence[MemberEvent]], list[Effect]]
Downgraded = Callable[[Downgrade, Sequence[MemberEvent], int], list[Effect]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire:
    """Take out whoever is overdue."""


class ConsumerGroup:
    """
    The machine. `first_records` are written with its first own ones: they end what the group was before.

    `downgraded` is called once it is durable that the group is a classic one, with the events that still wait and the
    time; this group is asked nothing any more.
    """

    def __init__(
        self,
        group_id: str,
        support: ConsumerSupport,
        writes: PendingWrites,
        downgraded: Downgraded,
        first_records: tuple[GroupRecord, ...] = (),
    ) -> None:
        self.state = ConsumerState()
        self._group_id = group_id
        self._settings = support.settings
        self._writes = writes
        self._downgraded = downgraded
        self._first_records = first_records
        self._timers = MemberTimers(support.settings)
        self._assignment = Assignment(group_id, support)
        self._membership = Membership(support, self._assignment, self._timers)
        self._heartbeats = ConsumerHeartbeats(self._membership, self._assignment, self._timers)
        self._classic = ClassicMembers(support.cluster, self._membership, self._assignment, self._timers)
        self._queue: deque[MemberEvent | Expire] = deque()
        self._is_writing = False
        self._take_over_failed: TakeOverFailed | None = None

    @property
    def is_blank(self) -> bool:
        """Whether nothing has ever been written of it, and nothing is about to be."""
        return self.state.epoch == 0 and not (self.state.subscriptions or self.is_busy)

    @property
    def assignor(self) -> str:
        """The assignor by which the group's next target will be computed."""
        return self._assignment.preferred_assignor(self.state)

    @property
    def is_busy(self) -> bool:
        return self._is_writing or bool(self._queue)

    def loaded(self, now_ms: int) -> None:
        """All records have been replayed: everyone has a whole session, and time to give up what it has to."""
        for member_id in self.state.subscriptions:
            self._timers.hear(self.state, member_id, now_ms)
            self._timers.watch_revocation(self.state, member_id, CurrentAssignment(), now_ms)

    def take_over(
        self, records: Sequence[ConsumerRecord], event: ConsumerHeartbeat, failed: TakeOverFailed, now_ms: int
    ) -> list[Effect]:
        """
        Begin with the members of a classic group, which `records` describe, and the event that called for it.

        When that cannot be stored, `failed` is called with the error, the time and the events that have come since.
        """
        draft = Draft(self.state)
        for record in records:
            draft.add(record)

        def after(at_ms: int) -> None:
            for member_id in draft.state.subscriptions:
                self._timers.hear(draft.state, member_id, at_ms)

        self._queue.append(event)
        self._take_over_failed = failed
        return self._carry_out(Expire(), draft, Decision(after=after), now_ms)

    def handle(self, event: MemberEvent, now_ms: int) -> list[Effect]:
        self._queue.append(event)
        return self._drain(now_ms)

    def next_deadline_ms(self) -> int | None:
        return None if self._is_writing else self._timers.earliest_ms()

    def tick(self, now_ms: int) -> list[Effect]:
        deadline = self.next_deadline_ms()
        if deadline is None or deadline > now_ms:
            return []
        self._queue.append(Expire())
        return self._drain(now_ms)

    def check_commit(self, member_id: str, instance_id: str | None, epoch: int, *, knows_epochs: bool) -> ErrorCode:
        """Say whether someone may commit offsets; `knows_epochs` says that its request can carry a member epoch."""
        if epoch < 0 and not self.state.subscriptions:
            return ErrorCode.NONE
        subscription = self.state.subscriptions.get(member_id)
        if subscription is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if instance_id is not None and self.state.statics.get(instance_id) not in {None, member_id}:
            return ErrorCode.FENCED_INSTANCE_ID
        if subscription.classic is None and not knows_epochs:
            return ErrorCode.UNSUPPORTED_VERSION
        return self._check_epoch_of(member_id, epoch)

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Say whether someone may ask for offsets: anyone who names no member may."""
        if not member_id and epoch < 0:
            return ErrorCode.NONE
        if member_id not in self.state.subscriptions:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return self._check_epoch_of(member_id, epoch)

    def _check_epoch_of(self, member_id: str, epoch: int) -> ErrorCode:
        if epoch == self.state.owned_by(member_id).epoch:
            return ErrorCode.NONE
        is_classic = self.state.subscriptions[member_id].classic is not None
        return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH

    def tombstones(self) -> tuple[GroupRecord, ...]:
        """Return the records that end the group."""
        return self._encoded(self.state.tombstones())

    # The queue.

    def _drain(self, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        while self._queue and not self._is_writing:
            event = self._queue.popleft()
            draft = Draft(self.state)
            try:
                decision = self._decide(draft, event, now_ms)
            except BrokerError as error:
                effects += _refused(event, error.code, str(error))
                continue
            effects += self._carry_out(event, draft, decision, now_ms)
        return effects

    def _decide(self, draft: Draft, event: MemberEvent | Expire, now_ms: int) -> Decision:
        match event:
            case ConsumerHeartbeat():
                return self._heartbeats.decide(draft, event, self._settings(), now_ms)
            case Expire():
                return self._expire(draft, now_ms)
            case _:
                return self._classic.decide(draft, event, now_ms)

    def _expire(self, draft: Draft, now_ms: int) -> Decision:
        lost = []
        for member_id in self._timers.due(now_ms):
            if member_id in draft.state.subscriptions:
                lost.append(member_id)
            else:
                self._timers.forget(member_id)
        return self._membership.remove(draft, lost, now_ms) if lost else Decision()

    def _carry_out(self, event: MemberEvent | Expire, draft: Draft, decision: Decision, now_ms: int) -> list[Effect]:
        """Write what was decided, then make it so and answer; at once when there is nothing to write."""
        if not draft.records:
            return self._done(event, draft, decision, now_ms)

        def outcome(error: ErrorCode, at_ms: int) -> list[Effect]:
            self._is_writing = False
            if error is not ErrorCode.NONE:
                return self._failed(event, error, at_ms)
            self._first_records = ()
            self._take_over_failed = None
            effects = self._done(event, draft, decision, at_ms)
            if decision.downgrade is None:
                return effects + self._drain(at_ms)
            return effects + self._downgraded(decision.downgrade, self._waiting(), at_ms)

        self._is_writing = True
        records = self._first_records + self._encoded(draft.records)
        if decision.downgrade is not None:
            ended = self._encoded(draft.state.tombstones())
            gone = tuple(record for record in self._encoded(draft.records) if record[1] is None)
            classic = classic_record(self._group_id, decision.downgrade.members, decision.downgrade.generation, now_ms)
            records = (*self._first_records, *gone, *ended, classic)
        return [self._writes.persist(records, outcome, is_step=True)]

    def _done(self, event: MemberEvent | Expire, draft: Draft, decision: Decision, now_ms: int) -> list[Effect]:
        self.state = draft.state
        self._assignment.accepted(draft)
        if decision.after is not None:
            decision.after(now_ms)
        return [] if isinstance(event, Expire) else [Reply(event.token, decision.answer)]

    def _failed(self, event: MemberEvent | Expire, error: ErrorCode, now_ms: int) -> list[Effect]:
        """What was decided could not be stored: it never was."""
        if self._take_over_failed is not None:
            return self._take_over_failed(error, now_ms, self._waiting())
        if isinstance(event, Expire):
            self._timers.postpone(now_ms)
        elif isinstance(event, ConsumerHeartbeat):
            self._timers.hear(self.state, event.member_id, now_ms)  # it is alive, whatever the disk is
        return [*_refused(event, to_retry(error), error.name), *self._drain(now_ms)]

    def _waiting(self) -> list[MemberEvent]:
        return [event for event in self._queue if not isinstance(event, Expire)]

    def _encoded(self, records: Sequence[ConsumerRecord]) -> tuple[GroupRecord, ...]:
        return tuple(encode(self._group_id, record) for record in records)


def _refused(event: MemberEvent | Expire, error: ErrorCode, message: str) -> list[Effect]:
    return [] if isinstance(event, Expire) else [Reply(event.token, refusal_answer(event, error, message))]


def refusal_answer(event: MemberEvent, error: ErrorCode, message: str) -> Any:
    """Return the answer of its kind that says only `error`."""
    match event:
        case ConsumerHeartbeat():
            return ConsumerHeartbeatAnswer(error=error, message=message, member_id=event.member_id)
        case Join():
            return JoinAnswer(error=error, member_id=event.member_id)
        case Sync():
            return SyncAnswer(error=error)
        case Heartbeat():
            return error
        case Leave():
            return tuple(LeaveAnswer(member_id, instance_id, error) for member_id, instance_id in event.members)
