"""A follower and its leader without disks: logs as lists of epochs, and a wire that delays, drops and reorders work."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from log_broker.core.fetch.replica_fetcher import (
    Appended,
    AppendFetched,
    Delayed,
    Effect,
    FetchAnswered,
    FetcherSettings,
    FetchFailed,
    Follow,
    LeaderAdvanced,
    ReplicaFetcher,
    RestartAt,
    SendFetch,
    Truncate,
    Unfollow,
)
from log_broker.core.fetch.replica_messages import (
    ReplicaAnswer,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    TopicIdPartition,
)
from log_broker.core.fetch.replica_session import NotLed, ReplicaSession, ReplicaSessions
from log_broker.core.partition.epochs import LeaderEpochs
from log_broker.errors import ErrorCode

RECORD_BYTES = 4


@dataclass(slots=True)
class Read:
    error: ErrorCode
    high_watermark: int
    log_start_offset: int
    chunks: Sequence[bytes] = ()
    size: int = 0
    diverging: tuple[int, int] | None = None


@dataclass(slots=True)
class ModelLog:
    """Each record is its epoch, in four bytes; `start` is the offset of the first."""

    records: list[int] = field(default_factory=list)
    start: int = 0
    leader_epoch: int = 0
    high_watermark: int = 0
    is_idle: bool = True
    acknowledged: Callable[[int], None] = lambda _: None
    waiting: dict[object, tuple[int, Callable[[], None]]] = field(default_factory=dict)

    @property
    def log_end_offset(self) -> int:
        return self.start + len(self.records)

    @property
    def log_start_offset(self) -> int:
        return self.start

    @property
    def latest_epoch(self) -> int:
        return self.records[-1] if self.records else -1

    def epochs(self, current: int) -> LeaderEpochs:
        starts = {epoch: self.start + at for at, epoch in reversed(list(enumerate(self.records)))}
        return LeaderEpochs(sorted(starts.items()), current=current)

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        return self.epochs(self.latest_epoch).end_offset(epoch, self.log_end_offset)

    # As a leader.

    def check_leader_epoch(self, epoch: int) -> ErrorCode:
        if epoch == self.leader_epoch:
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < self.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    def read_replica(self, offset: int, max_bytes: int, last_fetched_epoch: int, *, min_one: bool = True) -> Read:
        found = Read(ErrorCode.NONE, self.high_watermark, self.start)
        if offset < self.start:
            found.error = ErrorCode.OFFSET_OUT_OF_RANGE
            return found
        if last_fetched_epoch >= 0:
            epoch, end = self.epochs(self.leader_epoch).end_offset(last_fetched_epoch, self.log_end_offset)
            if epoch < 0:
                found.error = ErrorCode.OFFSET_OUT_OF_RANGE
                return found
            if epoch < last_fetched_epoch or end < offset:
                found.diverging = (epoch, end)
                return found
        if offset > self.log_end_offset:
            found.error = ErrorCode.OFFSET_OUT_OF_RANGE
            return found
        count = max(max_bytes // RECORD_BYTES, 1 if min_one else 0)
        taken = self.records[offset - self.start : offset - self.start + count]
        if taken:
            found.chunks = (b"".join(epoch.to_bytes(RECORD_BYTES, "big") for epoch in taken),)
            found.size = len(taken) * RECORD_BYTES
        return found

    def follower_fetched(self, replica_id: int, broker_epoch: int, fetch_offset: int, log_start_offset: int) -> None:
        self.acknowledged(fetch_offset)
        self.high_watermark = max(self.high_watermark, fetch_offset)

    def on_appended(self, offset: int, callback: Callable[[], None]) -> Callable[[], None]:
        key = object()
        self.waiting[key] = (offset, callback)
        return lambda: self.waiting.pop(key, None) and None

    def append(self, count: int) -> None:
        self.records += [self.leader_epoch] * count
        for key, (offset, callback) in list(self.waiting.items()):
            if offset < self.log_end_offset:
                del self.waiting[key]
                callback()

    def begin_epoch(self, epoch: int) -> None:
        self.leader_epoch = epoch
        for _, callback in list(self.waiting.values()):
            callback()
        self.waiting.clear()


def collected(session: ReplicaSession[ModelLog], bytes_max: int) -> list[ReplicaAnswer]:
    """Read what a session wants; nothing is ever damaged in here."""
    reads = session.collect(bytes_max)
    try:
        wanted = next(reads)
        while True:
            found = wanted.log.read_replica(
                wanted.offset, wanted.bytes_max, wanted.last_fetched_epoch, min_one=wanted.min_one
            )
            wanted = reads.send(found)
    except StopIteration as end:
        return end.value


class Pair:
    """One follower node and one leader node of some partitions, driven by chance."""

    def __init__(self, seed: int, partitions: int = 3) -> None:
        self.chance = random.Random(seed)
        self.now_ms = 0
        self.places: list[TopicIdPartition] = [(bytes(15) + bytes((at % 2,)), at) for at in range(partitions)]
        self.led = {place: ModelLog() for place in self.places}
        self.followed = {place: ModelLog() for place in self.places}
        self.moved: set[TopicIdPartition] = set()
        for place in self.places:
            self.led[place].acknowledged = lambda offset, place=place: self.check_acknowledged(place, offset)
        settings = FetcherSettings(bytes_max=6 * RECORD_BYTES, partition_bytes_max=4 * RECORD_BYTES)
        self.fetcher = ReplicaFetcher(1, settings, broker_epoch=5)
        self.requests: deque[ReplicaFetchRequest] = deque()
        self.responses: deque[ReplicaFetchResponse] = deque()
        self.jobs: list[AppendFetched | Truncate | RestartAt] = []
        self.sessions = ReplicaSessions(self._find)
        self.ids = 0
        self.waiting: ReplicaSession[ModelLog] | None = None
        self.sent = 0
        self.delays = 0
        for place in self.places:
            self.tell(Follow(place, 0, self.followed[place]))

    def _find(self, replica_id: int, place: TopicIdPartition) -> ModelLog | NotLed:
        assert replica_id == 1
        if place in self.moved:
            return NotLed(ErrorCode.NOT_LEADER_OR_FOLLOWER, (2, 7))
        return self.led[place]

    def check_acknowledged(self, place: TopicIdPartition, offset: int) -> None:
        """What the leader is told the follower holds, it holds: the same records, written."""
        led, followed = self.led[place], self.followed[place]
        first = max(led.start, followed.start)
        assert followed.log_end_offset >= offset or offset < first
        assert (
            led.records[first - led.start : offset - led.start]
            == (followed.records[first - followed.start : offset - followed.start])
        )

    # The follower's side.

    def tell(self, event: object) -> None:
        self.do(self.fetcher.handle(event, self.now_ms))  # type: ignore[arg-type]

    def do(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendFetch(request):
                    self.sent += 1
                    self.requests.append(request)
                    assert len(self.requests) + len(self.responses) + (self.waiting is not None) <= 2
                case AppendFetched() | Truncate() | RestartAt():
                    assert all(job.place != effect.place for job in self.jobs), "one job of a partition at a time"
                    self.jobs.append(effect)
                case LeaderAdvanced(place, _, high_watermark, _):
                    log = self.followed[place]
                    log.high_watermark = max(log.high_watermark, min(high_watermark, log.log_end_offset))
                case Delayed():
                    self.delays += 1

    def finish_job(self, *, fails: bool = False) -> None:
        job = self.jobs.pop(self.chance.randrange(len(self.jobs)))
        if fails:
            self.tell(Appended(job.place, job.token, ErrorCode.KAFKA_STORAGE_ERROR))
            return
        log = self.followed[job.place]
        match job:
            case AppendFetched():
                raw = bytes(job.records)
                epochs = [int.from_bytes(raw[at : at + RECORD_BYTES], "big") for at in range(0, len(raw), RECORD_BYTES)]
                log.records += epochs
                log.high_watermark = max(log.high_watermark, min(job.high_watermark, log.log_end_offset))
            case Truncate():
                assert log.start <= job.offset < log.log_end_offset
                del log.records[job.offset - log.start :]
            case RestartAt():
                assert job.offset > log.log_end_offset
                log.records.clear()
                log.start = job.offset
        self.tell(Appended(job.place, job.token))

    # The leader's side: one request waits at most, and a newer one ends its wait.

    def serve(self) -> None:
        request = self.requests.popleft()
        if self.waiting is not None:
            self.responses.append(ReplicaFetchResponse([], self.waiting.session_id))
            self.waiting = None
        self.ids += 1
        session = self.sessions.of(request, self.ids)
        if isinstance(session, ErrorCode):
            self.responses.append(ReplicaFetchResponse([], error=session))
            return
        self.waiting = session
        self.look()

    def look(self) -> None:
        if self.waiting is not None and (answers := collected(self.waiting, 6 * RECORD_BYTES)):
            self.responses.append(ReplicaFetchResponse(answers, self.waiting.session_id))
            self.waiting = None

    def time_is_up(self) -> None:
        if self.waiting is not None:
            self.waiting.still_there()
            self.responses.append(ReplicaFetchResponse(self.waiting.changes_of_watermarks(), self.waiting.session_id))
            self.waiting = None

    def break_connection(self, *, leader_forgets: bool) -> None:
        self.requests.clear()
        self.responses.clear()
        if self.waiting is not None and leader_forgets:
            self.sessions.end(self.waiting)
        self.waiting = None
        self.tell(FetchFailed())

    def lead_again(self, place: TopicIdPartition, *, keep: int) -> None:
        """Another led meanwhile and cut the log to `keep` records or what was committed, whichever is more."""
        log = self.led[place]
        committed = max(log.high_watermark - log.start, 0)
        del log.records[max(keep, committed) :]
        log.begin_epoch(log.leader_epoch + self.chance.randint(1, 2))

    def step(self) -> None:
        """Let one thing happen."""
        place = self.chance.choice(self.places)
        led = self.led[place]
        match self.chance.randrange(15):
            case 0 | 1:
                led.append(self.chance.randint(1, 5))
                self.look()
            case 2 | 3 | 4 if self.requests:
                self.serve()
            case 5 | 6 | 7 if self.responses:
                self.tell(FetchAnswered(self.responses.popleft()))
            case 8 | 9 if self.jobs:
                self.finish_job(fails=self.chance.random() < 0.1)
            case 10:
                self.time_is_up()
            case 11 if self.chance.random() < 0.2:
                self.break_connection(leader_forgets=self.chance.random() < 0.5)
            case 12 if self.chance.random() < 0.3:
                self.lead_again(place, keep=self.chance.randint(0, len(led.records)))
                if self.chance.random() < 0.7:
                    self.tell(Follow(place, led.leader_epoch, self.followed[place]))
            case 13 if self.chance.random() < 0.2:
                cut = min(led.high_watermark, led.log_end_offset) - led.start
                if cut > 0:
                    del led.records[:cut]
                    led.start += cut
            case 14 if self.chance.random() < 0.2:
                self.tell(Unfollow(place))
                self.jobs = [job for job in self.jobs if job.place != place]
                self.tell(Follow(place, led.leader_epoch, self.followed[place]))
            case _:
                self.now_ms += self.chance.randint(1, 40)
                self.do(self.fetcher.tick(self.now_ms))

    def settle(self, steps: int = 4000) -> None:
        """Let nothing go wrong any more until the follower has everything."""
        for place in self.places:
            self.tell(Follow(place, self.led[place].leader_epoch, self.followed[place]))
        for _ in range(steps):
            if self.jobs:
                self.finish_job()
            elif self.responses:
                self.tell(FetchAnswered(self.responses.popleft()))
            elif self.requests:
                self.serve()
            elif self.is_settled():
                return
            else:
                self.time_is_up()
                deadline = self.fetcher.next_deadline_ms()
                if deadline is not None:
                    self.now_ms = max(self.now_ms, deadline)
                    self.do(self.fetcher.tick(self.now_ms))
        raise AssertionError(f"not settled: {self.led} {self.followed}")

    def is_settled(self) -> bool:
        return all(
            led.log_end_offset == followed.log_end_offset == led.high_watermark == followed.high_watermark
            and led.records == followed.records[len(followed.records) - len(led.records) :]
            for led, followed in ((self.led[place], self.followed[place]) for place in self.places)
        )


class PatientPair(Pair):
    """
    A pair of which nothing ever fails and no wait ends by time: only changes makes the leader look and answer.

    What partitions and sessions call back comes as late as chance will have it.
    """

    def __init__(self, seed: int, partitions: int) -> None:
        self.callbacks: deque[Callable[[], None]] = deque()
        self.looks = False
        super().__init__(seed, partitions)

    def grow(self, place: TopicIdPartition) -> None:
        """Append to a leader's log, and have those called that wait there."""
        led = self.led[place]
        led.records += [led.leader_epoch] * self.chance.randint(1, 2)
        for key, (offset, callback) in list(led.waiting.items()):
            if offset < led.log_end_offset:
                del led.waiting[key]
                self.callbacks.append(callback)

    def serve(self) -> None:
        waits = self.requests[0].wait_ms_max > 0
        super().serve()
        if self.waiting is not None:
            self.waiting.on_changes = self.has_new_records
            if not waits:
                self.time_is_up()

    def has_new_records(self) -> None:
        if not self.looks:
            self.looks = True
            self.callbacks.append(self.look_again)

    def look_again(self) -> None:
        self.looks = False
        self.look()

    def step(self) -> None:
        match self.chance.randrange(12):
            case 0 | 1:
                self.grow(self.chance.choice(self.places))
            case 2 | 3 if self.requests:
                self.serve()
            case 4 | 5 if self.responses:
                self.tell(FetchAnswered(self.responses.popleft()))
            case 6 | 7 if self.jobs:
                self.finish_job()
            case 8 | 9 | 10 if self.callbacks:
                self.callbacks.popleft()()
            case _:
                self.now_ms += self.chance.randint(0, 12)
                self.do(self.fetcher.tick(self.now_ms))

    def settle(self, steps: int = 4000) -> None:
        """Do all that is left to be done until the followers hold everything and the leader knows it."""
        for _ in range(steps):
            if self.callbacks:
                self.callbacks.popleft()()
            elif self.jobs:
                self.finish_job()
            elif self.responses:
                self.tell(FetchAnswered(self.responses.popleft()))
            elif self.requests:
                self.serve()
            elif all(led.high_watermark == led.log_end_offset for led in self.led.values()):
                return
            else:
                deadline = self.fetcher.next_deadline_ms()
                assert deadline is not None, "everybody waits, and records are not everywhere"
                self.now_ms = max(self.now_ms, deadline)
                self.do(self.fetcher.tick(self.now_ms))
        raise AssertionError(f"not settled: {self.led} {self.followed}")
