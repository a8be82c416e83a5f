"""
Fetch sessions (KIP-227): the broker remembers what a client fetches, and each side says only what has changed.

- A full request (epoch 0 or -1) names every partition; of one that it names twice the last counts. It ends the session
  that it names. With epoch 0 it asks for a new one, which begins with its response, at epoch 1.
- Any other epoch continues a session. An unknown id is FETCH_SESSION_ID_NOT_FOUND, an epoch that is not the session's
  INVALID_FETCH_SESSION_EPOCH, and neither changes anything. Partitions in the request join or replace what was asked of
  them, forgotten ones leave, and a session left without partitions ends. Each such request moves the epoch on by one
  (1 follows 2^31-1), so of two that wait at once the earlier is refused.
- A response in a session names a partition that has records, an error or another replica to read from, or whose high
  watermark or log start is not what the client was last told. After an error it is told again.
- Partitions whose records were sent go to the end of the order: when responses are full, each has its turn.
- A new session takes a free slot, or that of the session unused for longest if that is more than two minutes. Without
  a slot the client is given id 0 and goes on with full requests.

A request passes through `begin`, which says what to read, and `finish`, which says what of it to answer.
"""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Generic, NamedTuple, Protocol, TypeVar, assert_never

from log_broker.errors import ErrorCode

NO_SESSION = 0
FINAL_EPOCH = -1  # a request outside any session, or one that closes its session
INITIAL_EPOCH = 0  # a full request that would like a session
EPOCH_MAX = 2**31 - 1
SESSION_ID_MAX = 2**31 - 1

EVICTABLE_AFTER_MS = 120_000
SESSION_PARTITIONS_MAX = 5_000  # each request of a session looks at all of them; with more, it names all of them
PARTITIONS_MAX = 1_000_000  # over all sessions: what clients can make the broker hold

_NEVER_TOLD = -1
_PARTITION_OF = itemgetter(0)


def next_epoch(epoch: int) -> int:
    """The epoch of a session's request behind the one of this epoch."""
    return 1 if epoch == EPOCH_MAX else epoch + 1


class FetchedPartition(NamedTuple):
    """What a request asks of one partition, in the order of the wire; only replicas say what their own log is like."""

    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    bytes_max: int


class FetchedTopic(NamedTuple):
    """Some partitions of one topic; `name` as it stands in the request: in UTF-8, or the 16 bytes of the topic's id."""

    name: bytes
    partitions: Sequence[FetchedPartition]


class ForgottenTopic(NamedTuple):
    """Partitions that leave a session."""

    name: bytes
    partitions: Sequence[int]


class Answer(Protocol):
    """What was found in one partition."""

    @property
    def partition(self) -> int: ...
    @property
    def error(self) -> ErrorCode: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def records(self) -> Sequence[object]: ...
    @property
    def preferred_replica(self) -> int: ...


A = TypeVar("A", bound=Answer)
Answers = Sequence[tuple[bytes, Sequence[A]]]


class Sessionless(NamedTuple):
    """Read and answer what the request names; no session comes of it."""

    topics: Sequence[FetchedTopic]


class Opening(NamedTuple):
    """Read and answer what the request names; the session begins with the response."""

    topics: Sequence[FetchedTopic]
    by_id: bool = False


class Continuing(NamedTuple):
    """Read all that the session held after this request, which made `epoch` its epoch; answer what has changed."""

    topics: Sequence[FetchedTopic]
    session: "_Session"
    epoch: int


class Refused(NamedTuple):
    """Read nothing and answer the error."""

    error: ErrorCode


Plan = Sessionless | Opening | Continuing


class Response(NamedTuple, Generic[A]):
    """What goes into the response beside the request's own limits."""

    topics: Answers[A]
    session_id: int = NO_SESSION
    error: ErrorCode = ErrorCode.NONE


def merged(topics: Sequence[FetchedTopic]) -> Sequence[FetchedTopic]:
    """
    Name each partition once: at its first place, with what was asked of it last, as Kafka's FetchRequest does.

    What names none twice is returned as it is.
    """
    if len(topics) == 1 or len({topic.name for topic in topics}) == len(topics):
        for _, partitions in topics:
            if len(partitions) > 1 and len(set(map(_PARTITION_OF, partitions))) < len(partitions):
                break
        else:
            return topics
    found = {(topic.name, asked.partition): asked for topic in topics for asked in topic.partitions}
    if len(found) == sum(len(topic.partitions) for topic in topics):
        return topics
    return _by_topic((name, asked) for (name, _), asked in found.items())


def _by_topic(asked_of: Iterable[tuple[bytes, FetchedPartition]]) -> list[FetchedTopic]:
    """List partitions in their order: a topic stands there again where another came between its partitions."""
    topics: list[FetchedTopic] = []
    name: bytes | None = None
    partitions: list[FetchedPartition] = []
    for topic, asked in asked_of:
        if topic != name:
            name, partitions = topic, []
            topics.append(FetchedTopic(name, partitions))
        partitions.append(asked)
    return topics


class _CachedPartition:
    """One partition of a session: what is asked of it, and what the client was last told."""

    __slots__ = ("asked", "high_watermark", "log_start_offset")

    def __init__(self, asked: FetchedPartition, high_watermark: int, log_start_offset: int) -> None:
        self.asked = asked
        self.high_watermark = high_watermark
        self.log_start_offset = log_start_offset

    def tell(self, answer: Answer) -> bool:
        """Whether the client must hear of this answer; if so it counts as told."""
        changes = (
            bool(answer.records)
            or answer.error is not ErrorCode.NONE
            or answer.preferred_replica >= 0
            or answer.high_watermark != self.high_watermark
            or answer.log_start_offset != self.log_start_offset
        )
        self.high_watermark = answer.high_watermark if answer.error is ErrorCode.NONE else _NEVER_TOLD
        self.log_start_offset = answer.log_start_offset
        return changes


class _Session:
    """What one client fetches; `partitions` stand in the order in which they are read."""

    __slots__ = ("by_id", "epoch", "last_used_ms", "partitions", "session_id")

    def __init__(self, session_id: int, now_ms: int, *, by_id: bool) -> None:
        self.session_id = session_id
        self.by_id = by_id  # whether topics are named by their ids; a session does not mix them
        self.epoch = INITIAL_EPOCH + 1
        self.last_used_ms = now_ms
        self.partitions: dict[tuple[bytes, int], _CachedPartition] = {}

    def topics(self) -> list[FetchedTopic]:
        """List what is asked, in order."""
        return _by_topic((topic, cached.asked) for (topic, _), cached in self.partitions.items())

    def begin(self, topics: Sequence[FetchedTopic], answers: Answers[A]) -> None:
        """Take what is asked and was answered first: all of it is told; what had records is read last the next time."""
        had_records: dict[tuple[bytes, int], _CachedPartition] = {}
        for (name, partitions), (_, found) in zip(topics, answers, strict=True):
            for asked, answer in zip(partitions, found, strict=True):
                told = answer.high_watermark if answer.error is ErrorCode.NONE else _NEVER_TOLD
                cached = _CachedPartition(asked, told, answer.log_start_offset)
                (had_records if answer.records else self.partitions)[name, asked.partition] = cached
        self.partitions.update(had_records)

    def update(self, topics: Sequence[FetchedTopic], forgotten: Sequence[ForgottenTopic]) -> None:
        for topic in topics:
            for asked in topic.partitions:
                cached = self.partitions.get((topic.name, asked.partition))
                if cached is None:
                    fresh = _CachedPartition(asked, _NEVER_TOLD, _NEVER_TOLD)
                    self.partitions[topic.name, asked.partition] = fresh
                else:
                    cached.asked = asked
        for gone in forgotten:
            for partition in gone.partitions:
                self.partitions.pop((gone.name, partition), None)

    def changes(self, answers: Answers[A]) -> list[tuple[bytes, list[A]]]:
        """Choose what the client must hear of."""
        told = []
        for name, found in answers:
            chosen = [answer for answer in found if self.partitions[name, answer.partition].tell(answer)]
            if chosen:
                told.append((name, chosen))
        for name, chosen in told:
            for answer in chosen:
                if answer.records:
                    key = (name, answer.partition)
                    self.partitions[key] = self.partitions.pop(key)
        return told


class FetchSessions:
    """The sessions of one broker, at most `slots_max`."""

    def __init__(self, *, slots_max: int) -> None:
        self.slots_max = slots_max
        self._sessions: dict[int, _Session] = {}  # the one unused for longest stands first
        self._partitions = 0  # the sum over all sessions

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session_id: int) -> bool:
        return session_id in self._sessions

    @property
    def partition_count(self) -> int:
        """How many partitions all sessions hold."""
        return self._partitions

    def begin(
        self,
        session_id: int,
        epoch: int,
        topics: Sequence[FetchedTopic],
        forgotten: Sequence[ForgottenTopic],
        now_ms: int,
        *,
        by_id: bool = False,
    ) -> Plan | Refused:
        """Take a request, which names topics `by_id` or by their names, and say what it reads."""
        session = self._sessions.get(session_id)
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session is not None:
                self._end(session)
            topics = merged(topics)
            return Sessionless(topics) if epoch == FINAL_EPOCH else Opening(topics, by_id)
        if session is None:
            return Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch or session.by_id != by_id:
            is_epoch = session.epoch != epoch
            return Refused(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH if is_epoch else ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
            )
        before = len(session.partitions)
        session.update(topics, forgotten)
        # Also where the session ends here: an earlier request that still waits has read what may be forgotten now.
        session.epoch = next_epoch(epoch)
        self._partitions += len(session.partitions) - before
        if not session.partitions:
            self._end(session)
            return Sessionless(())
        if self._partitions > PARTITIONS_MAX or len(session.partitions) > SESSION_PARTITIONS_MAX:
            self._end(session)
            return Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.last_used_ms = now_ms
        self._sessions[session_id] = self._sessions.pop(session_id)
        return Continuing(session.topics(), session, session.epoch)

    def finish(self, plan: Plan, answers: Answers[A], *, fresh_id: int, now_ms: int) -> Response[A]:
        """
        Say what is answered, `answers` standing as `plan.topics` do.

        `fresh_id` becomes the id of a session that begins: 1 … 2^31-1, hard to guess and not taken.
        """
        match plan:
            case Sessionless():
                return Response(answers)
            case Opening():
                return Response(answers, self._open(fresh_id, plan, answers, now_ms))
            case Continuing(session=session, epoch=epoch):
                if session.epoch != epoch:
                    return Response((), session.session_id, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
                return Response(session.changes(answers), session.session_id)
            case _:
                assert_never(plan)

    def _open(self, fresh_id: int, opening: Opening, answers: Answers[A], now_ms: int) -> int:
        assert fresh_id not in self._sessions, "two clients would share a session"
        count = sum(len(topic.partitions) for topic in opening.topics)
        is_too_large = count > SESSION_PARTITIONS_MAX or self._partitions + count > PARTITIONS_MAX
        if is_too_large or not self._make_room(now_ms):
            return NO_SESSION
        session = _Session(fresh_id, now_ms, by_id=opening.by_id)
        session.begin(opening.topics, answers)
        self._sessions[fresh_id] = session
        self._partitions += len(session.partitions)
        return fresh_id

    def _make_room(self, now_ms: int) -> bool:
        """Free a slot if none is; False when every session is in use."""
        while len(self._sessions) >= self.slots_max:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.last_used_ms <= EVICTABLE_AFTER_MS:
                return False
            self._end(oldest)
        return True

    def _end(self, session: _Session) -> None:
        del self._sessions[session.session_id]
        self._partitions -= len(session.partitions)
