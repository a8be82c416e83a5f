"""
The consumer group of the new protocol (KIP-848): one event at a time, in order, each when the one before is durable.

A member that changes nothing costs a look at a few maps; only changes are written. Time alone takes out members whose
session has ended, who did not give up in time what they had to, or (classic ones) did not join or sync in time.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from log_broker.core.cluster.image import ClusterImage
from log_broker.core.groups.consumer_classic_members import ClassicSide, refusal_of
from log_broker.core.groups.consumer_events import (
    ConsumerGroupSettings,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    MatchTopics,
)
from log_broker.core.groups.consumer_group_records import (
    LEFT_EPOCH,
    NO_PARTITIONS,
    STATIC_LEFT_EPOCH,
    ConsumerRecord,
    CurrentAssignment,
    RecordKind,
    Subscription,
)
from log_broker.core.groups.consumer_members import Decision, Downgrade, Draft, GroupHost
from log_broker.core.groups.protocol import Effect, GroupRecord, Heartbeat, Join, Leave, Reply, Sync, to_retry
from log_broker.errors import BrokerError, ErrorCode

RETRY_MS = 1_000

MemberEvent = ConsumerHeartbeat | Join | Sync | Heartbeat | Leave
TakeOverFailed = Callable[[ErrorCode, int, Sequence[MemberEvent]], list[Effect]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire:
    """Take out whoever is overdue."""


class ConsumerGroup(ClassicSide):
    """The machine. `first_records` are written with its first own ones: they end what the group was before."""

    def __init__(
        self,
        host: GroupHost,
        cluster: ClusterImage,
        settings: Callable[[], ConsumerGroupSettings],
        match_topics: MatchTopics,
        first_records: Sequence[GroupRecord] = (),
    ) -> None:
        super().__init__(host, cluster, settings, match_topics)
        self._first_records = tuple(first_records)
        self._queue: deque[MemberEvent | Expire] = deque()
        self._is_writing = False
        self._take_over_failed: TakeOverFailed | None = None

    @property
    def is_blank(self) -> bool:
        """Whether nothing has ever been written of it, and nothing is about to be."""
        return self.state.epoch == 0 and not (self.state.subscriptions or self._is_writing or self._queue)

    @property
    def assignor(self) -> str:
        """The assignor by which the group's next target will be computed."""
        return self._preferred_assignor(self.state)

    @property
    def is_busy(self) -> bool:
        return self._is_writing or bool(self._queue)

    def loaded(self, now_ms: int) -> None:
        """All records have been replayed: everyone has a whole session, and time to give up what it has to."""
        for member_id in self.state.subscriptions:
            self._hear(member_id, now_ms)
            self._watch_revocation(member_id, CurrentAssignment(), now_ms)

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
        members = list(draft.state.subscriptions)

        def after(at_ms: int) -> None:
            for member_id in members:
                self._hear(member_id, at_ms)

        self._queue.append(event)
        self._take_over_failed = failed
        return self._carry_out(None, Decision(draft=draft, after=after), now_ms)

    def handle(self, event: MemberEvent, now_ms: int) -> list[Effect]:
        self._queue.append(event)
        return self._drain(now_ms)

    def next_deadline_ms(self) -> int | None:
        if self._is_writing:
            return None
        timers = (self._sessions, self._revocations, self._joins, self._syncs)
        return min((at for each in timers if (at := each.earliest_ms()) is not None), default=None)

    def tick(self, now_ms: int) -> list[Effect]:
        deadline = self.next_deadline_ms()
        if deadline is None or deadline > now_ms:
            return []
        self._queue.append(Expire())
        return self._drain(now_ms)

    def check_commit(
        self, member_id: str, instance_id: str | None, epoch: int, *, knows_epochs: bool, is_transactional: bool = False
    ) -> ErrorCode:
        """Say whether someone may commit offsets; `knows_epochs` says that its request can carry a member epoch."""
        if epoch < 0 and not self.state.subscriptions:
            return ErrorCode.NONE
        subscription = self.state.subscriptions.get(member_id)
        if subscription is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if instance_id is not None and self.state.statics.get(instance_id) not in {None, member_id}:
            return ErrorCode.FENCED_INSTANCE_ID
        if subscription.classic is None and not knows_epochs and not is_transactional:
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

    # The queue.

    def _drain(self, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        while self._queue and not self._is_writing:
            event = self._queue.popleft()
            try:
                decision = self._decide(event, now_ms)
            except BrokerError as error:
                if not isinstance(event, Expire):
                    effects.append(Reply(event.token, refusal_answer(event, error.code, str(error))))
                continue
            token = None if isinstance(event, Expire) else (event.token, event)
            effects += self._carry_out(token, decision, now_ms)
        return effects

    def _decide(self, event: MemberEvent | Expire, now_ms: int) -> Decision:
        match event:
            case ConsumerHeartbeat():
                return self._decide_heartbeat(event, now_ms)
            case Join():
                return self._decide_join(event, now_ms)
            case Sync():
                return self._decide_sync(event)
            case Heartbeat():
                return self._decide_classic_heartbeat(event, now_ms)
            case Leave():
                return self._decide_classic_leave(event, now_ms)
            case Expire():
                return self._decide_expiry(now_ms)

    def _carry_out(self, asked: tuple[Any, MemberEvent] | None, decision: Decision, now_ms: int) -> list[Effect]:
        """Write what was decided, then make it so and answer; at once when there is nothing to write."""
        draft = decision.draft

        def done(at_ms: int) -> list[Effect]:
            self.state = draft.state
            if draft.cluster_version is not None:
                self._cluster_version_seen = draft.cluster_version
            if decision.after is not None:
                decision.after(at_ms)
            return [] if asked is None else [Reply(asked[0], decision.answer)]

        if not draft.records:
            return done(now_ms)

        def outcome(error: ErrorCode, at_ms: int) -> list[Effect]:
            self._is_writing = False
            if error is not ErrorCode.NONE:
                if self._take_over_failed is not None:
                    waiting = [late for late in self._queue if not isinstance(late, Expire)]
                    return self._take_over_failed(error, at_ms, waiting)
                if asked is None:
                    self._postpone(at_ms)
                elif isinstance(asked[1], ConsumerHeartbeat):
                    self._hear(asked[1].member_id, at_ms)  # it is alive, whatever the disk is
                refused = (
                    [] if asked is None else [Reply(asked[0], refusal_answer(asked[1], to_retry(error), error.name))]
                )
                return [*refused, *self._drain(at_ms)]
            self._first_records = ()
            self._take_over_failed = None
            effects = done(at_ms)
            if decision.downgrade is None:
                return effects + self._drain(at_ms)
            return effects + self._hand_over(decision.downgrade, at_ms)

        self._is_writing = True
        records = self._first_records + self.encoded(draft.records)
        if decision.downgrade is not None:
            ended = self.encoded(draft.state.tombstones())
            gone = tuple(record for record in self.encoded(draft.records) if record[1] is None)
            classic = self._host.classic_record(decision.downgrade.members, decision.downgrade.generation, now_ms)
            records = (*self._first_records, *gone, *ended, classic)
        return [self._host.persist(records, outcome)]

    def _hand_over(self, downgrade: Downgrade, now_ms: int) -> list[Effect]:
        """The group is a classic one from here on; who still waits is answered by that."""
        waiting = [event for event in self._queue if not isinstance(event, Expire)]
        return self._host.become_classic(
            downgrade.members, downgrade.generation, now_ms, rebalances=downgrade.rebalances, waiting=waiting
        )

    def _postpone(self, now_ms: int) -> None:
        """What is overdue could not be stored: try again, but not at once."""
        for timers in (self._sessions, self._revocations, self._joins, self._syncs):
            for member_id in timers.due(now_ms + RETRY_MS):
                timers.set(member_id, now_ms + RETRY_MS)

    # The decisions about members of the new protocol.

    def _decide_heartbeat(self, beat: ConsumerHeartbeat, now_ms: int) -> Decision:
        self._check_form(beat)
        if beat.member_epoch in {LEFT_EPOCH, STATIC_LEFT_EPOCH}:
            return self._decide_leave(beat, now_ms)
        self._check_seat(beat.member_id, beat.instance_id)
        draft = Draft(self.state)
        member_id, replaced = self._identify(beat, draft)
        before = draft.state.owned_by(member_id)
        known = draft.state.subscriptions.get(member_id, Subscription())
        said = _updated(known, beat)
        self._settle(draft, member_id, said, beat.owned, now_ms)
        current = draft.state.owned_by(member_id)
        whole = beat.member_epoch == 0 or (
            beat.rebalance_timeout_ms != -1 and beat.topics is not None and beat.owned is not None
        )
        answer = ConsumerHeartbeatAnswer(
            member_id=member_id,
            member_epoch=current.epoch,
            heartbeat_interval_ms=self._settings().heartbeat_interval_ms,
            assignment=current.assigned if whole or current.assigned != before.assigned else None,
        )

        def after(at_ms: int) -> None:
            if replaced is not None:
                self._forget_timers(replaced)
            self._joins.drop(member_id)
            self._syncs.drop(member_id)
            self._hear(member_id, at_ms)
            self._watch_revocation(member_id, before, at_ms)

        return Decision(draft=draft, answer=answer, after=after)

    def _check_form(self, beat: ConsumerHeartbeat) -> None:
        """Refuse what no client may send, whatever the group's state."""
        for text, what in ((beat.instance_id, "InstanceId"), (beat.rack_id, "RackId")):
            if text is not None and not text.strip():
                raise BrokerError(ErrorCode.INVALID_REQUEST, f"{what} can't be empty.")
        if not beat.member_id.strip() and (beat.names_itself or beat.member_epoch != 0):
            raise BrokerError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
        if beat.member_epoch < STATIC_LEFT_EPOCH:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"MemberEpoch is {beat.member_epoch}, but must be -2 or more.")
        if beat.member_epoch == STATIC_LEFT_EPOCH and beat.instance_id is None:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
        if beat.member_epoch == 0:
            if beat.rebalance_timeout_ms == -1:
                raise BrokerError(ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
            if beat.owned is None or beat.owned:
                raise BrokerError(ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
            if beat.topics is None and beat.regex is None:
                raise BrokerError(
                    ErrorCode.INVALID_REQUEST, "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null."
                )
        if beat.assignor is not None and beat.assignor not in self._settings().assignors:
            raise BrokerError(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {beat.assignor} is not supported. "
                f"Supported assignors: {', '.join(self._settings().assignors)}.",
            )

    def _identify(self, beat: ConsumerHeartbeat, draft: Draft) -> tuple[str, str | None]:
        """Return the id of the member and that of the one whose place it takes; raises BrokerError."""
        member_id = beat.member_id or beat.fresh_id
        if beat.instance_id is None:
            if member_id in self.state.subscriptions:
                self._check_member_epoch(member_id, beat)
            elif beat.member_epoch != 0:
                raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of the group.")
            return member_id, None
        if beat.member_epoch != 0:
            self._static_member(member_id, beat.instance_id)
            self._check_member_epoch(member_id, beat)
            return member_id, None
        old_id = self.state.statics.get(beat.instance_id)
        if old_id is None:
            return member_id, None
        is_classic = self.state.subscriptions[old_id].classic is not None
        if not is_classic and self.state.owned_by(old_id).epoch != STATIC_LEFT_EPOCH:
            if old_id == member_id:
                self._check_member_epoch(member_id, beat)
                return member_id, None
            raise BrokerError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {beat.instance_id} cannot join the group because the "
                f"instance id is owned by {old_id} member.",
            )
        self._replace(draft, old_id, member_id)
        return member_id, old_id

    def _check_member_epoch(self, member_id: str, beat: ConsumerHeartbeat) -> None:
        current = self.state.owned_by(member_id)
        if beat.member_epoch == current.epoch:
            return
        repeats = (
            beat.member_epoch < current.epoch
            and beat.member_epoch == current.previous_epoch
            and beat.owned is not None
            and beat.owned <= current.assigned
        )
        if not repeats:
            size = "greater" if beat.member_epoch > current.epoch else "smaller"
            raise BrokerError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"The consumer group member has a {size} member epoch ({beat.member_epoch}) than the one known by the "
                f"group coordinator ({current.epoch}). The member must abandon all its partitions and rejoin.",
            )

    def _decide_leave(self, beat: ConsumerHeartbeat, now_ms: int) -> Decision:
        if beat.instance_id is not None:
            self._static_member(beat.member_id, beat.instance_id)
        elif beat.member_id not in self.state.subscriptions:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {beat.member_id} is not a member of the group.")
        answer = ConsumerHeartbeatAnswer(member_id=beat.member_id, member_epoch=beat.member_epoch)
        if beat.member_epoch == LEFT_EPOCH:
            return self._remove([beat.member_id], answer, now_ms)
        draft = Draft(self.state)
        away = replace(draft.state.owned_by(beat.member_id), epoch=STATIC_LEFT_EPOCH, revoking=NO_PARTITIONS)
        draft.add(ConsumerRecord(RecordKind.CURRENT_MEMBER, beat.member_id, away))

        def after(_: int) -> None:
            self._revocations.drop(beat.member_id)

        return Decision(draft=draft, answer=answer, after=after)

    def _decide_expiry(self, now_ms: int) -> Decision:
        timers = (self._sessions, self._revocations, self._joins, self._syncs)
        overdue = dict.fromkeys(member_id for each in timers for member_id in each.due(now_ms))
        lost = [member_id for member_id in overdue if member_id in self.state.subscriptions]
        for member_id in overdue.keys() - set(lost):
            self._forget_timers(member_id)
        if not lost:
            return Decision(draft=Draft(self.state))
        return self._remove(lost, None, now_ms)


def _updated(known: Subscription, beat: ConsumerHeartbeat) -> Subscription:
    """Return a subscription with what a heartbeat says again."""
    return Subscription(
        instance_id=known.instance_id if beat.instance_id is None else beat.instance_id,
        rack_id=known.rack_id if beat.rack_id is None else beat.rack_id,
        client_id=beat.client_id,
        client_host=beat.client_host,
        topics=known.topics if beat.topics is None else beat.topics,
        regex=known.regex if beat.regex is None else beat.regex or None,
        rebalance_timeout_ms=known.rebalance_timeout_ms if beat.rebalance_timeout_ms < 0 else beat.rebalance_timeout_ms,
        assignor=known.assignor if beat.assignor is None else beat.assignor,
    )


def refusal_answer(event: MemberEvent, error: ErrorCode, message: str) -> Any:
    """Return the answer of its kind that says only `error`."""
    if isinstance(event, ConsumerHeartbeat):
        return ConsumerHeartbeatAnswer(error=error, message=message, member_id=event.member_id)
    return refusal_of(event, error)
