"""
One consumer group: its members, by either protocol, and its committed offsets. Decides; its driver does the doing.

`handle(event, now_ms)` returns effects in order. A Reply that promises something durable follows the Persisted of the
Persist it depends on, and offsets change only then.
"""

from collections.abc import Sequence
from typing import Any

from log_broker.core.groups.classic_group import ClassicGroup, GroupState
from log_broker.core.groups.classic_protocol import ClassicProtocol
from log_broker.core.groups.consumer_events import ConsumerHeartbeat, ConsumerSupport
from log_broker.core.groups.consumer_group import ConsumerGroup, refusal_answer
from log_broker.core.groups.consumer_group_records import ConsumerRecord
from log_broker.core.groups.consumer_protocol import CONSUMER_PROTOCOL
from log_broker.core.groups.kinds import GroupKinds
from log_broker.core.groups.offsets import GroupOffsets
from log_broker.core.groups.protocol import (
    Commit,
    Delete,
    DeleteOffsets,
    Effect,
    Event,
    Heartbeat,
    Join,
    Leave,
    Persisted,
    Reply,
    Sync,
    TopicPartition,
    to_retry,
)
from log_broker.core.groups.writes import PendingWrites
from log_broker.errors import ErrorCode


class Group:
    """The machine of one group. `classic` is DEAD for a group of either kind whose end is being stored."""

    def __init__(
        self,
        group_id: str,
        *,
        initial_delay_ms: int = 0,
        members_max: int = 2**31 - 1,
        support: ConsumerSupport | None = None,
    ) -> None:
        self.group_id = self.name = group_id
        self.classic = ClassicGroup(group_id)
        self.offsets = GroupOffsets(group_id)
        self._writes = PendingWrites()
        self._protocol = ClassicProtocol(
            self.classic, self._writes, initial_delay_ms=initial_delay_ms, members_max=members_max
        )
        self._kinds = GroupKinds(self.classic, self._protocol, self._writes, support)
        self._commits_pending = 0

    @property
    def consumer(self) -> ConsumerGroup | None:
        """The group of the new protocol, None for a classic one."""
        return self._kinds.consumer

    @property
    def kind(self) -> str:
        """The type that ListGroups reports."""
        return "classic" if self.consumer is None else "consumer"

    @property
    def state_name(self) -> str:
        return self.classic.state.value if self.consumer is None else self.consumer.state.state.value

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing would be lost if the group did not exist."""
        classic = self.classic
        if classic.state is GroupState.DEAD:
            return not self._writes
        return (
            self.consumer is None
            and classic.state is GroupState.EMPTY
            and not (self.offsets or classic.roster.invited or self._writes or classic.is_stored)
        )

    def replay(self, record: ConsumerRecord) -> None:
        """Take in a record of the new protocol, at load."""
        self._kinds.replay(record)

    def loaded(self, now_ms: int) -> None:
        """All records have been replayed."""
        self._kinds.loaded(now_ms)

    def next_deadline_ms(self) -> int | None:
        """When `tick` must be called next, at the latest."""
        consumer = self._kinds.consumer
        return self._protocol.rebalances.next_deadline_ms() if consumer is None else consumer.next_deadline_ms()

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """Do what has become due by time alone."""
        consumer = self._kinds.consumer
        return self._protocol.rebalances.tick(now_ms) if consumer is None else consumer.tick(now_ms)

    def handle(self, event: Event, now_ms: int) -> Sequence[Effect]:
        """Take one event at the given time and return what must be done, in order."""
        match event:
            case Commit():
                return self._commit(event, now_ms)
            case Persisted():
                return self._writes.persisted(event, now_ms)
            case ConsumerHeartbeat() | Join() | Sync() | Heartbeat() | Leave():
                return self._kinds.handle(event, now_ms)
            case DeleteOffsets():
                return self._delete_offsets(event)
            case Delete():
                return self._delete(event)

    def _commit(self, commit: Commit, now_ms: int) -> Sequence[Effect]:
        error = self._check_commit(commit, now_ms)
        if error is not ErrorCode.NONE or not commit.offsets:
            return [Reply(commit.token, error)]

        self._commits_pending += 1

        def outcome(error: ErrorCode, _: int) -> list[Effect]:
            self._commits_pending -= 1
            if error is ErrorCode.NONE and commit.producer is not None:
                self.offsets.hold(commit.producer[0], commit.offsets)
            elif error is ErrorCode.NONE:
                self.offsets.apply(commit.offsets)
            return [Reply(commit.token, to_retry(error))]

        return [self._writes.persist(self.offsets.records_of(commit.offsets), outcome, producer=commit.producer)]

    def _check_commit(self, commit: Commit, now_ms: int) -> ErrorCode:
        if self.classic.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        in_protocol = commit.generation >= 0 or commit.member_id or commit.instance_id is not None
        if commit.producer is not None and not in_protocol:
            return ErrorCode.NONE  # a producer older than KIP-447 does not say for which member it commits
        if self.consumer is not None:
            return self.consumer.check_commit(
                commit.member_id, commit.instance_id, commit.generation, knows_epochs=commit.knows_epochs
            )
        if self.classic.state is GroupState.EMPTY and commit.generation < 0:
            return ErrorCode.NONE
        if not in_protocol:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = self.classic.check_generation(commit.member_id, commit.instance_id, commit.generation)
        if error is ErrorCode.NONE:
            self.classic.hear(self.classic.members[commit.member_id], now_ms)
            if self.classic.state is GroupState.COMPLETING and commit.producer is None:
                # The member knows of the new generation but not yet what it owns in it.
                error = ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def _delete_offsets(self, event: DeleteOffsets) -> Sequence[Effect]:
        if self.classic.members and self.classic.protocol_type != CONSUMER_PROTOCOL:
            return [Reply(event.token, ErrorCode.NON_EMPTY_GROUP)]
        read = self._kinds.subscribed_topics() if self.classic.members or self.consumer is not None else frozenset()
        # Members whose subscription cannot be read may read anything.
        answers = {
            place: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if read is None or place[0] in read else ErrorCode.NONE
            for place in event.partitions
        }
        doomed = [place for place, error in answers.items() if error is ErrorCode.NONE and place in self.offsets]
        if not doomed:
            return [Reply(event.token, answers)]

        def outcome(error: ErrorCode, _: int) -> list[Effect]:
            if error is not ErrorCode.NONE:
                return [Reply(event.token, to_retry(error))]
            self.offsets.remove(doomed)
            return [Reply(event.token, answers)]

        return [self._writes.persist(self.offsets.tombstones_of(doomed), outcome)]

    def _delete(self, event: Delete) -> Sequence[Effect]:
        if self.classic.state is GroupState.DEAD:
            return [Reply(event.token, ErrorCode.GROUP_ID_NOT_FOUND)]
        if not self._kinds.has_no_members:
            return [Reply(event.token, ErrorCode.NON_EMPTY_GROUP)]
        if self._commits_pending:
            # Their offsets could not be taken away yet; a client that asks again finds them.
            return [Reply(event.token, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)]
        self.classic.move_to(GroupState.DEAD)
        records = (*self.offsets.tombstones_of(self.offsets.known()), *self._kinds.tombstones())

        def outcome(error: ErrorCode, _: int) -> list[Effect]:
            if error is not ErrorCode.NONE:
                self.classic.move_to(GroupState.EMPTY)
                return [Reply(event.token, to_retry(error))]
            self.offsets.remove(self.offsets.known())
            self._kinds.consumer = None
            return [Reply(event.token, ErrorCode.NONE)]

        return [self._writes.persist(records, outcome)]

    def expire_offsets(self, now_ms: int, *, retention_ms: int) -> Sequence[Effect]:
        """
        Take away offsets that nobody has needed for longer than `retention_ms` (KIP-211), and the group after the last.

        Those of a group without members count from when the last one left, or from their commit if that was later;
        those of a group that is read, for topics that no member reads any more, from their commit. What cannot be
        known to be unread stays.
        """
        if self.classic.state is GroupState.DEAD or (self.consumer is None and self.classic.roster.invited):
            return ()
        oldest_ms = now_ms - retention_ms
        read: frozenset[str] | None = frozenset()
        if not self._kinds.has_no_members:
            settled = self.consumer is not None or self.classic.state is GroupState.STABLE
            read = self._kinds.subscribed_topics() if settled else None
        elif self.consumer is None and self.classic.empty_since_ms > oldest_ms and self.offsets:
            read = None
        doomed: list[TopicPartition] = []
        if read is not None:
            doomed = [place for place in self.offsets.committed_before(oldest_ms) if place[0] not in read]
        ends = self._kinds.has_no_members and len(doomed) == len(self.offsets) and not self._writes
        records = self.offsets.tombstones_of(doomed)
        if ends:
            self.classic.move_to(GroupState.DEAD)
            records = (*records, *self._kinds.tombstones())
        if not records:
            return ()

        def outcome(error: ErrorCode, _: int) -> list[Effect]:
            if error is ErrorCode.NONE:
                self.offsets.remove(doomed)
            if ends and error is ErrorCode.NONE:
                self._kinds.consumer = None
            elif ends:
                self.classic.move_to(GroupState.EMPTY)
            return []

        return [self._writes.persist(records, outcome)]

    def forget_topic(self, topic: str) -> Sequence[Effect]:
        """Take away the offsets of a topic that was deleted: one of the same name that comes later is another."""
        doomed = [place for place in self.offsets.partitions() if place[0] == topic]
        if not doomed or self.classic.state is GroupState.DEAD:
            return ()

        def outcome(error: ErrorCode, _: int) -> list[Effect]:
            if error is ErrorCode.NONE:
                self.offsets.remove(doomed)
            return []

        return [self._writes.persist(self.offsets.tombstones_of(doomed), outcome)]


def refusal(event: Event, error: ErrorCode, message: str) -> Any:
    """Return the answer to an event of a client that says only `error`."""
    if isinstance(event, ConsumerHeartbeat | Join | Sync | Heartbeat | Leave):
        return refusal_answer(event, error, message)
    return error
