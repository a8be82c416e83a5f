"""
One consumer group: its members, by the classic protocol, and its committed offsets. Decides; its driver does the doing.

`handle(event, now_ms)` returns effects in order. A Reply that promises something durable follows the Persisted of the
Persist it depends on, and offsets change only then.
"""

from collections.abc import Sequence

from log_broker.core.group_members import GroupMembers, GroupState
from log_broker.core.group_offsets import GroupOffsets
from log_broker.core.group_protocol import (
    Commit,
    Delete,
    DeleteOffsets,
    Effect,
    Event,
    Heartbeat,
    Join,
    Leave,
    Member,
    Persisted,
    Reply,
    Sync,
    to_retry,
)
from log_broker.core.group_records import encode_group_key
from log_broker.errors import ErrorCode

CONSUMER_PROTOCOL = "consumer"


class Group(GroupMembers):
    """The machine of one group."""

    def __init__(self, group_id: str, *, initial_delay_ms: int = 0, members_max: int = 2**31 - 1) -> None:
        super().__init__(group_id, initial_delay_ms=initial_delay_ms, members_max=members_max)
        self.offsets = GroupOffsets(group_id)

    def handle(self, event: Event, now_ms: int) -> Sequence[Effect]:  # noqa: PLR0911 one return for each event
        """Take one event at the given time and return what must be done, in order."""
        match event:
            case Join():
                return self._join(event, now_ms)
            case Sync():
                return self._sync(event, now_ms)
            case Heartbeat():
                return self._heartbeat(event, now_ms)
            case Leave():
                return self._leave(event, now_ms)
            case Commit():
                return self._commit(event, now_ms)
            case DeleteOffsets():
                return self._delete_offsets(event)
            case Delete():
                return self._delete(event)
            case Persisted():
                return self._outcomes.pop(event.number)(event.error, now_ms)

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing would be lost if the group did not exist."""
        return self.state in {GroupState.EMPTY, GroupState.DEAD} and not (
            self.offsets or self._invited or self._outcomes
        )

    def _commit(self, commit: Commit, now_ms: int) -> Sequence[Effect]:
        error = self._check_commit(commit, now_ms)
        if error is not ErrorCode.NONE or not commit.offsets:
            return [Reply(commit.token, error)]

        def outcome(error: ErrorCode, _: int) -> list[Effect]:
            if error is ErrorCode.NONE and commit.producer is not None:
                self.offsets.hold(commit.producer[0], commit.offsets)
            elif error is ErrorCode.NONE:
                self.offsets.apply(commit.offsets)
            return [Reply(commit.token, to_retry(error))]

        return [self._persist(self.offsets.records_of(commit.offsets), outcome, producer=commit.producer)]

    def _check_commit(self, commit: Commit, now_ms: int) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        in_protocol = commit.generation >= 0 or commit.member_id or commit.instance_id is not None
        if self.state is GroupState.EMPTY and commit.generation < 0:
            return ErrorCode.NONE
        if not in_protocol:
            # A producer older than KIP-447 does not say for which member it commits.
            return ErrorCode.UNKNOWN_MEMBER_ID if commit.producer is None else ErrorCode.NONE
        error = self._check_generation(commit.member_id, commit.instance_id, commit.generation)
        if error is ErrorCode.NONE:
            self._hear(self.members[commit.member_id], now_ms)
            if self.state is GroupState.COMPLETING and commit.producer is None:
                # The member knows of the new generation but not yet what it owns in it.
                error = ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def _delete_offsets(self, event: DeleteOffsets) -> Sequence[Effect]:
        if self.members and self.protocol_type != CONSUMER_PROTOCOL:
            return [Reply(event.token, ErrorCode.NON_EMPTY_GROUP)]
        read = {topic for member in self.members.values() for topic in _subscribed(member, self.protocol or "")}
        answers = {
            place: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if place[0] in read else ErrorCode.NONE
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

        return [self._persist(self.offsets.tombstones_of(doomed), outcome)]

    def _delete(self, event: Delete) -> Sequence[Effect]:
        if self.state is not GroupState.EMPTY:
            error = ErrorCode.GROUP_ID_NOT_FOUND if self.state is GroupState.DEAD else ErrorCode.NON_EMPTY_GROUP
            return [Reply(event.token, error)]
        self.state = GroupState.DEAD
        records = (*self.offsets.tombstones_of(self.offsets.partitions()), (encode_group_key(self.group_id), None))

        def outcome(error: ErrorCode, _: int) -> list[Effect]:
            if error is not ErrorCode.NONE:
                self.state = GroupState.EMPTY
                return [Reply(event.token, to_retry(error))]
            self.offsets.remove(self.offsets.partitions())
            self.offsets.forget_held()
            return [Reply(event.token, ErrorCode.NONE)]

        return [self._persist(records, outcome)]

    def expire_offsets(self, now_ms: int, *, retention_ms: int) -> Sequence[Effect]:
        """Take away offsets that were committed, and whose group has had no member, for longer than `retention_ms`."""
        if self.state is not GroupState.EMPTY or now_ms - self.empty_since_ms < retention_ms:
            return ()
        doomed = self.offsets.committed_before(now_ms - retention_ms)
        if not doomed:
            return ()

        def outcome(error: ErrorCode, _: int) -> list[Effect]:
            if error is ErrorCode.NONE:
                self.offsets.remove(doomed)
            return []

        return [self._persist(self.offsets.tombstones_of(doomed), outcome)]


def _subscribed(member: Member, protocol: str) -> list[str]:
    """Return the topics in a consumer's subscription: int16 version, then an array of strings."""
    content = member.metadata(protocol)
    topics = []
    try:
        position = 6
        for _ in range(int.from_bytes(content[2:6], "big")):
            length = int.from_bytes(content[position : position + 2], "big")
            raw = content[position + 2 : position + 2 + length]
            if len(raw) < length or len(content) < position + 2:
                break
            topics.append(raw.decode())
            position += 2 + length
    except ValueError:
        pass
    return topics
