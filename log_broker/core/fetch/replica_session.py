"""
A replica's fetch session as its leader node keeps it: what the replica asks, and of which partitions there are changes.

A request changes only the partitions that it names, and only those are looked at: each is read when it is named and
then again when it has grown. What was sent with records, an error or a divergence is asleep until it is named again
(see `replica_messages`). The high watermark rides along with whatever else is answered, and by itself a little later.

Nothing in here reads, waits or knows what time it is: `collect` names the reads that it wants done, and what a replica
holds is acknowledged to its partition, a `LedLog`.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from log_broker.core.fetch.replica_messages import (
    INITIAL_EPOCH,
    UNKNOWN,
    Diverging,
    FetchFrom,
    ReplicaAnswer,
    ReplicaFetchRequest,
    TopicIdPartition,
)
from log_broker.errors import ErrorCode
from log_broker.records.batch import Buffer

_EPOCH_MAX = 2**31 - 1

Cancel = Callable[[], None]


class ReplicaRead(Protocol):
    """
    What a leader finds for a replica, up to the end of its log; `chunks` hold `size` bytes of whole batches.

    With `diverging`, (epoch, its end offset), the replica's log is no part of the leader's and there are no bytes.
    """

    @property
    def error(self) -> ErrorCode: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def chunks(self) -> Sequence[Buffer]: ...
    @property
    def size(self) -> int: ...
    @property
    def diverging(self) -> tuple[int, int] | None: ...


class LedLog(Protocol):
    """What is asked of a partition by those that follow it."""

    @property
    def high_watermark(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def isr(self) -> Sequence[int]: ...

    def check_leader_epoch(self, epoch: int) -> ErrorCode:
        """Say what is wrong with the epoch that the replica believes in."""
        ...

    def follower_fetched(self, replica_id: int, broker_epoch: int, fetch_offset: int, log_start_offset: int) -> None:
        """Take note that a replica holds all before `fetch_offset`."""
        ...

    def on_appended(self, offset: int, callback: Callable[[], None]) -> Cancel:
        """Call `callback` once when the log ends behind `offset`, or is led here no more."""
        ...


class NotLed(NamedTuple):
    """Why a partition cannot be followed here, and by whom it is led at which epoch, if that is known."""

    error: ErrorCode
    leader: tuple[int, int] | None = None


class Throttle(Protocol):
    """Holds back replicas that are not in sync."""

    def must_wait(self, replica_id: int, place: TopicIdPartition) -> bool: ...
    def sent(self, replica_id: int, place: TopicIdPartition, size: int) -> None: ...


Log = TypeVar("Log", bound=LedLog)


class WantedRead(NamedTuple, Generic[Log]):
    """
    A read for a replica, up to the end of the log: at most `bytes_max`, a larger first batch only with `min_one`.

    `is_suspect` says that the replica was sent what is there and did not take it: it may be damaged.
    """

    log: Log
    offset: int
    bytes_max: int
    last_fetched_epoch: int
    min_one: bool
    is_suspect: bool


class _Wanted(Generic[Log]):
    """One partition: what was asked last, and what the replica was told last."""

    __slots__ = ("asked", "cancel", "high_watermark", "log", "log_start_offset", "sent_from")

    def __init__(self, asked: FetchFrom) -> None:
        self.asked = asked
        self.log: Log | None = None  # while it is awake
        self.sent_from = UNKNOWN  # where the records began that it was sent last
        self.cancel: Cancel | None = None
        self.high_watermark = UNKNOWN
        self.log_start_offset = UNKNOWN

    def sleep(self) -> None:
        self.log = None
        if self.cancel is not None:
            self.cancel()
            self.cancel = None


class ReplicaSession(Generic[Log]):
    """The session of one replica node. `on_changes` is called whenever something may have to be answered."""

    def __init__(
        self,
        replica_id: int,
        session_id: int,
        find: Callable[[TopicIdPartition], Log | NotLed],
        throttle: Throttle | None = None,
    ) -> None:
        self.replica_id = replica_id
        self.session_id = session_id
        self.epoch = INITIAL_EPOCH + 1
        self.broker_epoch = UNKNOWN
        self.on_changes: Callable[[], None] | None = None
        self.acknowledged_ms = 0  # when `still_there` was called last, by the clock of who calls it
        self._find = find
        self._throttle = throttle
        self._wanted: dict[TopicIdPartition, _Wanted[Log]] = {}
        self._due: dict[TopicIdPartition, None] = {}  # to be read, those that have waited longest first
        self._throttled: dict[TopicIdPartition, None] = {}
        self._behind: dict[TopicIdPartition, None] = {}  # awake, and not told of the latest high watermark

    def __len__(self) -> int:
        return len(self._wanted)

    @property
    def has_throttled(self) -> bool:
        """Whether something was left out that could be sent later."""
        return bool(self._throttled)

    @property
    def waits_for_watermark(self) -> bool:
        """Whether a high watermark may come that the replica does not know yet."""
        return bool(self._behind)

    def begins(self, request: ReplicaFetchRequest) -> ErrorCode:
        """Take a request in; an error says that it is not this session's next."""
        if request.session_epoch != INITIAL_EPOCH:
            if request.session_epoch != self.epoch:
                return ErrorCode.INVALID_FETCH_SESSION_EPOCH
            self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1
        self.broker_epoch = request.broker_epoch
        for place in request.forgotten:
            gone = self._wanted.pop(place, None)
            if gone is not None:
                gone.sleep()
                self._due.pop(place, None)
                self._behind.pop(place, None)
                self._throttled.pop(place, None)
        for asked in request.partitions:
            wanted = self._wanted.get(asked.place)
            if wanted is None:
                self._wanted[asked.place] = _Wanted(asked)
            else:
                wanted.sleep()
                wanted.asked = asked
                wanted.high_watermark = UNKNOWN  # what it was told last may have found nobody
            self._due[asked.place] = None
        for place in self._throttled:
            self._due[place] = None
        self._throttled.clear()
        return ErrorCode.NONE

    def collect(self, bytes_max: int) -> Generator[WantedRead[Log], ReplicaRead, list[ReplicaAnswer]]:
        """
        Yield the reads of what is due, at most so many bytes beyond a first batch; return what the replica must hear.

        What each read finds is sent in before the next is asked for.
        """
        answers: list[ReplicaAnswer] = []
        room = bytes_max
        first = True
        for place in list(self._due):
            # Without room what the replica holds is still taken note of; the partition stays due.
            del self._due[place]
            answer, size = yield from self._look(place, max(room, 0), first=first)
            if size:
                room -= size
                first = False
            if answer is not None:
                answers.append(answer)
        if answers:
            self._add_watermarks(answers)
        return answers

    def changes_of_watermarks(self) -> list[ReplicaAnswer]:
        """Return what the replica should hear although there is nothing else to say."""
        answers: list[ReplicaAnswer] = []
        self._add_watermarks(answers)
        return answers

    def has_due(self) -> bool:
        return bool(self._due)

    def end(self) -> None:
        """Wait for nothing any more."""
        self.on_changes = None
        for wanted in self._wanted.values():
            wanted.sleep()
        self._wanted.clear()
        self._due.clear()
        self._behind.clear()
        self._throttled.clear()

    def still_there(self, *, in_sync: bool = True) -> None:
        """
        Acknowledge again what the replica was last heard to hold, since it asks for more; look for other changes.

        Without `in_sync` only of partitions in which it is out of sync. That is to be done now and then however much
        is answered: who was put out of sync without lacking anything is let in again by its fetches alone, and of a
        partition without changes there are no others.
        """
        for place, wanted in self._wanted.items():
            if not in_sync and (wanted.log is None or self.replica_id in wanted.log.isr):
                continue
            # What was asked in an earlier epoch says nothing of the log in this one.
            if wanted.log is not None and not wanted.log.check_leader_epoch(wanted.asked.leader_epoch):
                self._acknowledge(wanted.log, wanted.asked)
                if wanted.log.log_start_offset != wanted.log_start_offset:
                    self._behind[place] = None

    def _look(
        self, place: TopicIdPartition, room: int, *, first: bool
    ) -> Generator[WantedRead[Log], ReplicaRead, tuple[ReplicaAnswer | None, int]]:
        wanted = self._wanted[place]
        asked = wanted.asked
        log = self._find(place)
        if isinstance(log, NotLed):
            return self._refuse(wanted, ReplicaAnswer(place, log.error, leader=log.leader)), 0
        error = log.check_leader_epoch(asked.leader_epoch)
        if error is not ErrorCode.NONE:
            return self._refuse(wanted, ReplicaAnswer(place, error)), 0
        is_suspect = wanted.sent_from == asked.offset
        if is_suspect:
            wanted.sent_from = UNKNOWN
        throttled = self._throttle is not None and self._throttle.must_wait(self.replica_id, place)
        read = yield WantedRead(
            log,
            asked.offset,
            0 if throttled else min(asked.bytes_max, room),
            asked.last_fetched_epoch,
            first and not throttled,
            is_suspect,
        )
        if read.error is not ErrorCode.NONE or read.diverging is not None:
            diverging = None if read.diverging is None else Diverging(*read.diverging)
            answer = ReplicaAnswer(
                place,
                read.error,
                read.high_watermark,
                log.log_end_offset,
                read.log_start_offset,
                diverging=diverging,
            )
            return self._refuse(wanted, answer), 0
        self._acknowledge(log, asked)
        if not read.size:
            self._wait(place, wanted, log, read, throttled=throttled)
            return None, 0
        if self._throttle is not None:
            self._throttle.sent(self.replica_id, place, read.size)
        wanted.sleep()
        wanted.sent_from = asked.offset
        self._behind.pop(place, None)
        wanted.high_watermark, wanted.log_start_offset = log.high_watermark, read.log_start_offset
        return (
            ReplicaAnswer(
                place,
                ErrorCode.NONE,
                log.high_watermark,
                log.log_end_offset,
                read.log_start_offset,
                read.chunks,
            ),
            read.size,
        )

    def _acknowledge(self, log: LedLog, asked: FetchFrom) -> None:
        log.follower_fetched(self.replica_id, self.broker_epoch, asked.offset, asked.log_start_offset)

    def _wait(
        self, place: TopicIdPartition, wanted: _Wanted[Log], log: Log, read: ReplicaRead, *, throttled: bool
    ) -> None:
        wanted.log = log
        if log.log_end_offset > wanted.asked.offset:
            # There is something, and it did not fit or must not be sent now.
            if throttled:
                self._throttled[place] = None
            else:
                self._due[place] = None
        else:
            wanted.cancel = log.on_appended(wanted.asked.offset, lambda: self._grown(place))
        if wanted.high_watermark < wanted.asked.offset or wanted.log_start_offset != read.log_start_offset:
            self._behind[place] = None

    def _grown(self, place: TopicIdPartition) -> None:
        wanted = self._wanted.get(place)
        if wanted is None:
            return
        wanted.cancel = None
        self._due[place] = None
        if self.on_changes is not None:
            self.on_changes()

    def _refuse(self, wanted: _Wanted[Log], answer: ReplicaAnswer) -> ReplicaAnswer:
        wanted.sleep()
        wanted.high_watermark = UNKNOWN
        self._behind.pop(answer.place, None)
        return answer

    def _add_watermarks(self, answers: list[ReplicaAnswer]) -> None:
        for place in list(self._behind):
            wanted = self._wanted[place]
            log = wanted.log
            if log is None:
                del self._behind[place]
                continue
            high_watermark, log_start = log.high_watermark, log.log_start_offset
            if high_watermark > wanted.high_watermark or log_start != wanted.log_start_offset:
                wanted.high_watermark, wanted.log_start_offset = high_watermark, log_start
                answers.append(ReplicaAnswer(place, ErrorCode.NONE, high_watermark, UNKNOWN, log_start))
            if high_watermark >= wanted.asked.offset:
                del self._behind[place]


class ReplicaSessions(Generic[Log]):
    """The sessions of all replica nodes: one each, since a node fetches from another over one connection."""

    def __init__(self, find: Callable[[int, TopicIdPartition], Log | NotLed], throttle: Throttle | None = None) -> None:
        self._find = find
        self._throttle = throttle
        self._sessions: dict[int, ReplicaSession[Log]] = {}

    def of(self, request: ReplicaFetchRequest, fresh_id: int) -> ReplicaSession[Log] | ErrorCode:
        """Return the session that a request belongs to, with it taken in; a full one begins a new session."""
        replica_id = request.replica_id
        session = self._sessions.get(replica_id)
        if request.session_epoch == INITIAL_EPOCH:
            if session is not None:
                session.end()
            session = ReplicaSession(replica_id, fresh_id, lambda place: self._find(replica_id, place), self._throttle)
            self._sessions[replica_id] = session
        elif session is None or session.session_id != request.session_id:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        error = session.begins(request)
        return session if error is ErrorCode.NONE else error

    def end(self, session: ReplicaSession[Log]) -> None:
        """Forget a session, because its connection is gone."""
        session.end()
        if self._sessions.get(session.replica_id) is session:
            del self._sessions[session.replica_id]
