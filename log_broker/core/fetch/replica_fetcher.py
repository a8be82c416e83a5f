"""
A follower's fetching from one leader node: all partitions that this node follows there, over one session.

    Follow ──▶ told ──▶ awake at the leader ──▶ answered ──▶ busy (appending or truncating) ──▶ told again
                                                    └─ error ──▶ delayed, longer each time ──▶ told again

Each request names only the partitions of which there is something to tell: where the replica is by now, which at the
same time says how far it holds everything. While the leader has nothing it lets the request wait. What changes here
meanwhile goes out at once in a second request, which ends the wait of the first; there are never more than two. A
replica that has divided from its leader (KIP-101, KIP-279) is told so in the answer and cuts its log there; what it
then claims is what its log holds, so it may take several rounds and ends at a common prefix.

Answers arrive in the order of the requests. After a broken connection all is told again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, assert_never

from log_broker.core.fetch.leader_session import BACKOFF_MS_MIN, LeaderSession
from log_broker.core.fetch.quota import ReplicationQuota
from log_broker.core.fetch.replica_messages import (
    UNKNOWN,
    Diverging,
    FetchFrom,
    ReplicaAnswer,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    TopicIdPartition,
)
from log_broker.errors import ErrorCode
from log_broker.records.batch import Buffer

# An answer's partitions are mostly written within this time, and then told of together in the next request.
GATHER_MS = 20


class FollowedLog(Protocol):
    """What is asked of a replica's own log; always as it is now."""

    @property
    def log_end_offset(self) -> int:
        """Where fetching goes on; all before it is as durable as its topic demands, unless an append is under way."""
        ...

    @property
    def latest_epoch(self) -> int:
        """The leader epoch of the last batch in the log, -1 when there is none."""
        ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being written: what this replica took in as the leader may still be on its way."""
        ...

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """Return (largest known epoch up to this one, its end offset), (-1, -1) when there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherSettings:
    """Kafka's `replica.fetch.` settings; sizes in bytes, times in ms."""

    wait_ms_max: int = 500
    bytes_min: int = 1
    bytes_max: int = 10 << 20
    partition_bytes_max: int = 1 << 20
    backoff_ms_max: int = 1000


# Events.


class Follow(NamedTuple):
    """This node follows the leader in a partition from `leader_epoch` on; an older epoch than known is ignored."""

    place: TopicIdPartition
    leader_epoch: int
    log: FollowedLog
    is_throttled: bool = False


class Unfollow(NamedTuple):
    """Another leads the partition now, or it is no longer held here."""

    place: TopicIdPartition


class FetchAnswered(NamedTuple):
    """The oldest request that is under way was answered."""

    response: ReplicaFetchResponse


class FetchFailed(NamedTuple):
    """The connection is gone, and every request under way with it."""


class Appended(NamedTuple):
    """What AppendFetched or a cut asked for is done, or not."""

    place: TopicIdPartition
    token: int
    error: ErrorCode = ErrorCode.NONE


Event = Follow | Unfollow | FetchAnswered | FetchFailed | Appended


# Effects.


class SendFetch(NamedTuple):
    """Send this to the leader, behind those sent before."""

    request: ReplicaFetchRequest


class AppendFetched(NamedTuple):
    """Append the leader's bytes as they are, as durably as the topic demands; then Appended."""

    place: TopicIdPartition
    token: int
    records: Buffer
    leader_epoch: int
    high_watermark: int
    log_start_offset: int


class LeaderAdvanced(NamedTuple):
    """Without new records: the leader's high watermark, and where its log starts."""

    place: TopicIdPartition
    leader_epoch: int
    high_watermark: int
    log_start_offset: int


class Truncate(NamedTuple):
    """
    The log has divided from the leader's: drop everything from `offset` on, durably; then Appended.

    At the end of the log that is no record, only an epoch that had none.
    """

    place: TopicIdPartition
    token: int
    offset: int
    leader_epoch: int


class RestartAt(NamedTuple):
    """The leader's log starts behind the end of this one: drop everything and go on at `offset`; then Appended."""

    place: TopicIdPartition
    token: int
    offset: int


class Delayed(NamedTuple):
    """
    A partition could not be fetched and is tried again later; nothing need be done.

    `is_lasting` when the longest delay is reached: what leader and replica do not know alike for a moment is over then.
    """

    place: TopicIdPartition
    error: ErrorCode
    delay_ms: int
    is_lasting: bool = False


Effect = SendFetch | AppendFetched | LeaderAdvanced | Truncate | RestartAt | Delayed
_NOTHING: tuple[Effect, ...] = ()


class _Followed:
    """One partition. `told_in` is the number of the request that named it last."""

    __slots__ = ("backoff_ms", "busy", "emptied", "is_throttled", "leader_end", "leader_epoch", "log", "told_in")

    def __init__(self, leader_epoch: int, log: FollowedLog, *, is_throttled: bool) -> None:
        self.leader_epoch = leader_epoch
        self.log = log
        self.is_throttled = is_throttled
        self.busy = 0  # the token of what is being done to the log, 0 when nothing is
        self.backoff_ms = 0
        self.emptied = UNKNOWN  # the epoch without a record that was cut off last
        self.told_in = 0
        self.leader_end = UNKNOWN


class ReplicaFetcher:
    """The machine; `replica_id` fetches from one leader. `broker_epoch` is this node's, to be kept up to date."""

    def __init__(
        self,
        replica_id: int,
        settings: FetcherSettings,
        *,
        broker_epoch: int = UNKNOWN,
        quota: ReplicationQuota | None = None,
    ) -> None:
        self.settings = settings
        self.broker_epoch = broker_epoch
        self._replica_id = replica_id
        self._quota = quota or ReplicationQuota()
        self._followed: dict[TopicIdPartition, _Followed] = {}
        # Neither busy nor delayed, and the leader does not know its state.
        self._to_tell: dict[TopicIdPartition, None] = {}
        self._delayed: dict[TopicIdPartition, int] = {}  # until when, in ms
        self._awake: set[TopicIdPartition] = set()  # those of which the leader may send something
        self._forgotten: dict[TopicIdPartition, None] = {}
        self._busy = 0
        self._gather_until_ms = 0
        self._session = LeaderSession()
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._followed)

    def __contains__(self, place: TopicIdPartition) -> bool:
        return place in self._followed

    @property
    def is_waiting(self) -> bool:
        """Whether the leader owes an answer."""
        return self._session.is_waiting

    def lag_of(self, place: TopicIdPartition) -> int:
        """How many offsets the replica was behind its leader when that was last heard of; -1 before."""
        entry = self._followed.get(place)
        if entry is None or entry.leader_end < 0:
            return UNKNOWN
        return max(entry.leader_end - entry.log.log_end_offset, 0)

    def handle(self, event: Event, now_ms: int) -> Sequence[Effect]:
        """Take one event and return what must be done, in order."""
        effects: list[Effect] = []
        match event:
            case FetchAnswered():
                self._answered(event.response, now_ms, effects)
            case Appended():
                self._appended(event, now_ms, effects)
            case Follow():
                self._follow(event)
            case Unfollow():
                self._unfollow(event.place)
            case FetchFailed():
                self._failed(now_ms)
            case _:
                assert_never(event)
        self._send(now_ms, effects)
        return effects

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        self._send(now_ms, effects)
        return effects

    def next_deadline_ms(self) -> int | None:
        """When a delay ends, or the wait for what is still being written."""
        session = self._session
        if session.is_full or (session.is_waiting and not session.is_open):
            return None
        deadline = min(self._delayed.values()) if self._delayed else None
        if not session.is_waiting and (self._to_tell or self._awake):
            poll = self._gather_until_ms if self._busy else session.retry_ms
            deadline = poll if deadline is None else min(deadline, poll)
        return None if deadline is None else max(deadline, session.retry_ms)

    # What is followed.

    def _follow(self, event: Follow) -> None:
        place, leader_epoch, log, is_throttled = event
        entry = self._followed.get(place)
        if entry is None:
            entry = self._followed[place] = _Followed(leader_epoch, log, is_throttled=is_throttled)
        else:
            entry.is_throttled = is_throttled
            if leader_epoch < entry.leader_epoch or (leader_epoch == entry.leader_epoch and log is entry.log):
                return
            if log is not entry.log and entry.busy:
                self._end_busy(entry)  # that log is gone, and its answer will never count
            entry.leader_epoch, entry.log, entry.backoff_ms = leader_epoch, log, 0
        self._forgotten.pop(place, None)
        self._delayed.pop(place, None)
        if not entry.busy:
            self._to_tell[place] = None

    def _unfollow(self, place: TopicIdPartition) -> None:
        entry = self._followed.pop(place, None)
        if entry is None:
            return
        self._end_busy(entry)
        self._to_tell.pop(place, None)
        self._delayed.pop(place, None)
        self._awake.discard(place)
        if self._session.is_open or self._session.is_waiting:
            self._forgotten[place] = None

    def _end_busy(self, entry: _Followed) -> None:
        if entry.busy:
            entry.busy = 0
            self._busy -= 1

    # Asking.

    def _send(self, now_ms: int, effects: list[Effect]) -> None:
        session = self._session
        if session.is_full or now_ms < session.retry_ms:
            return
        if self._delayed:
            for place in [place for place, until_ms in self._delayed.items() if until_ms <= now_ms]:
                del self._delayed[place]
                self._to_tell[place] = None
        if session.is_waiting:
            # A second request while the first opens the session would not find it.
            if not self._to_tell or not session.is_open:
                return
        elif self._busy and now_ms < self._gather_until_ms:
            return
        tellings = self._tellings(session.next_number, now_ms)
        if not tellings and (session.is_waiting or not self._awake):
            return
        session_id, session_epoch, may_wait = session.sent()
        forgotten = tuple(self._forgotten)
        self._forgotten.clear()
        settings = self.settings
        request = ReplicaFetchRequest(
            self._replica_id,
            self.broker_epoch,
            settings.wait_ms_max if may_wait else 0,
            settings.bytes_min,
            settings.bytes_max,
            session_id,
            session_epoch,
            tellings,
            forgotten,
        )
        effects.append(SendFetch(request))

    def _tellings(self, number: int, now_ms: int) -> list[FetchFrom]:
        """Name what the leader does not know, in the request of this number."""
        bytes_max = self.settings.partition_bytes_max
        tellings = []
        for place in self._to_tell:
            entry = self._followed[place]
            if entry.is_throttled and (free_at_ms := self._quota.free_at_ms(now_ms)) > now_ms:
                self._delayed[place] = free_at_ms
                self._awake.discard(place)
                continue
            log = entry.log
            if not log.is_idle:
                # Its end is about to move, and what the leader sends for the end of now would not fit on.
                self._delayed[place] = now_ms + BACKOFF_MS_MIN
                self._awake.discard(place)
                continue
            tellings.append(
                FetchFrom(
                    place, entry.leader_epoch, log.log_end_offset, log.latest_epoch, log.log_start_offset, bytes_max
                )
            )
            entry.told_in = number
            self._awake.add(place)
        self._to_tell.clear()
        return tellings

    def _failed(self, now_ms: int) -> None:
        self._session.disconnected()
        self._back_off(now_ms)

    def _back_off(self, now_ms: int) -> None:
        self._tell_all_again()
        self._session.back_off(now_ms, self.settings.backoff_ms_max)

    def _tell_all_again(self) -> None:
        """The leader knows nothing of us any more."""
        self._session.end()
        self._awake.clear()
        self._forgotten.clear()
        for place, entry in self._followed.items():
            if not entry.busy and place not in self._delayed:
                self._to_tell[place] = None
            entry.told_in = 0

    # Being answered.

    def _answered(self, response: ReplicaFetchResponse, now_ms: int, effects: list[Effect]) -> None:
        session = self._session
        number = session.answered(response)
        if number is None:
            return
        if response.error is not ErrorCode.NONE:
            self._back_off(now_ms)
            return
        for answer in response.answers:
            place = answer.place
            # Of what is to be told again, or was since, this is an answer from before: of an earlier epoch perhaps.
            if place in self._awake and place not in self._to_tell:
                entry = self._followed[place]
                if entry.told_in <= number:
                    self._take(entry, answer, now_ms, effects)
        if not session.is_open and not session.is_waiting:
            self._tell_all_again()  # the leader gives no session, so each request is a whole one

    def _take(self, entry: _Followed, answer: ReplicaAnswer, now_ms: int, effects: list[Effect]) -> None:
        place = answer.place
        if answer.error is not ErrorCode.NONE:
            self._refused(entry, answer, now_ms, effects)
            return
        if answer.log_end_offset >= 0:
            entry.leader_end = answer.log_end_offset
        if answer.diverging is not None:
            offset = truncation_offset(entry.log, answer.diverging)
            if offset >= entry.log.log_end_offset:
                # No record is to go. Then the latest epoch is one in which this replica led and wrote nothing; if it
                # has been cut off before, asking again at once would go on forever.
                if entry.emptied == entry.log.latest_epoch:
                    self._delay(entry, place, ErrorCode.OFFSET_OUT_OF_RANGE, now_ms, effects)
                    return
                entry.emptied = entry.log.latest_epoch
            effects.append(Truncate(place, self._begin(entry, place, now_ms), offset, entry.leader_epoch))
        elif answer.records:
            records = answer.records[0] if len(answer.records) == 1 else b"".join(answer.records)
            if entry.is_throttled:
                self._quota.record(len(records), now_ms)
            effects.append(
                AppendFetched(
                    place,
                    self._begin(entry, place, now_ms),
                    records,
                    entry.leader_epoch,
                    answer.high_watermark,
                    answer.log_start_offset,
                )
            )
        else:
            entry.backoff_ms = 0
            effects.append(LeaderAdvanced(place, entry.leader_epoch, answer.high_watermark, answer.log_start_offset))

    def _begin(self, entry: _Followed, place: TopicIdPartition, now_ms: int) -> int:
        """The log is being changed: until that is done nothing is asked."""
        self._tokens += 1
        entry.busy = self._tokens
        if not self._busy:
            self._gather_until_ms = now_ms + GATHER_MS
        self._busy += 1
        self._awake.discard(place)
        return self._tokens

    def _refused(self, entry: _Followed, answer: ReplicaAnswer, now_ms: int, effects: list[Effect]) -> None:
        place = answer.place
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE and answer.log_start_offset >= 0:
            end = entry.log.log_end_offset
            if answer.log_start_offset > end:
                token = self._begin(entry, place, now_ms)
                effects.append(RestartAt(place, token, answer.log_start_offset))
                return
            if 0 <= answer.log_end_offset < end:
                token = self._begin(entry, place, now_ms)
                effects.append(Truncate(place, token, answer.log_end_offset, entry.leader_epoch))
                return
        self._delay(entry, place, answer.error, now_ms, effects)

    def _delay(
        self, entry: _Followed, place: TopicIdPartition, error: ErrorCode, now_ms: int, effects: list[Effect]
    ) -> None:
        before_ms, longest_ms = entry.backoff_ms, self.settings.backoff_ms_max
        entry.backoff_ms = min(max(before_ms * 2, BACKOFF_MS_MIN), longest_ms)
        self._delayed[place] = now_ms + entry.backoff_ms
        self._awake.discard(place)
        self._to_tell.pop(place, None)
        effects.append(Delayed(place, error, entry.backoff_ms, before_ms < entry.backoff_ms == longest_ms))

    def _appended(self, event: Appended, now_ms: int, effects: list[Effect]) -> None:
        place, token, error = event
        entry = self._followed.get(place)
        if entry is None or entry.busy != token:
            return
        self._end_busy(entry)
        if error is ErrorCode.NONE:
            entry.backoff_ms = 0
            self._to_tell[place] = None
        else:
            self._delay(entry, place, error, now_ms, effects)


def truncation_offset(log: FollowedLog, diverging: Diverging) -> int:
    """
    Return where a replica cuts its log, given what its leader said of the replica's last epoch (KIP-279).

    If this log knows that epoch too, both agree up to where it ends first. If not, whatever lies behind this log's
    largest earlier epoch is nowhere in the leader's log, and the next answer compares that one; without an earlier
    epoch all of it goes. [epoch 1: 0-9, epoch 3: 10-14] against a leader's [epoch 1: 0-9, epoch 2: 10-19] is told
    (2, 20), and is cut at 10.
    """
    end = log.log_end_offset
    epoch, epoch_end = log.epoch_end_offset(diverging.epoch)
    if epoch_end < 0:
        return log.log_start_offset
    if epoch != diverging.epoch:
        return min(epoch_end, end)
    return min(diverging.end_offset, epoch_end, end)
