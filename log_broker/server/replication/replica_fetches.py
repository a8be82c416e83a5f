"""
The fetches of replicas as their leader answers them: at once when there are changes for the session, or when some come.

A request that comes while an earlier one of the same session waits ends that wait with an empty answer.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from log_broker.core.fetch.quota import ReplicationQuota, ThrottledReplicas
from log_broker.core.fetch.replica_messages import (
    NO_SESSION,
    UNKNOWN,
    ReplicaAnswer,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    TopicIdPartition,
)
from log_broker.core.fetch.replica_session import NotLed, ReplicaSession, ReplicaSessions, WantedRead
from log_broker.core.fetch.session import SESSION_ID_MAX
from log_broker.errors import ErrorCode
from log_broker.server.net.ports import HasMemory
from log_broker.server.partitions.leading import LeadingReplica
from log_broker.server.partitions.ports import Partitions
from log_broker.server.partitions.readers import ReplicaRead
from log_broker.server.process.ports import Cluster, Process
from log_broker.wire.framing import RequestHeader
from log_broker.wire.replica_fetch import encode_replica_response

if TYPE_CHECKING:
    from log_broker.server.net.slots import Slot

WAIT_MS_MAX = 30_000
BYTES_MAX = 64 << 20
WATERMARK_SECONDS = 0.02  # a high watermark that moves alone is told this much later
THROTTLED_SECONDS = 1.0
ACKNOWLEDGED_MS = 500  # a replica that is out of sync and lacks nothing is taken note of after so long


Session = ReplicaSession[LeadingReplica]


class FetchHost(Cluster, HasMemory, Partitions, Process, Protocol):
    """What answering replicas asks of the node."""


class ReplicaFetches:
    """All replicas that fetch from this node."""

    def __init__(self, node: FetchHost) -> None:
        self.node = node
        self.loop = node.loop
        self.quota = ReplicationQuota()
        self.bytes_out = 0
        self._sessions = ReplicaSessions(self._find, self)
        self._waiting: dict[Session, _Waiting] = {}

    def handle(self, header: RequestHeader, request: ReplicaFetchRequest, slot: "Slot") -> None:
        """Answer one request, possibly later."""
        error = self._check(request)
        session: Session | ErrorCode = error
        if error is ErrorCode.NONE:
            session = self._sessions.of(request, secrets.randbelow(SESSION_ID_MAX) + 1)
        if isinstance(session, ErrorCode):
            self.answer(header, slot, ReplicaFetchResponse((), NO_SESSION, session))
            return
        earlier = self._waiting.pop(session, None)
        if earlier is not None:
            earlier.give_way()
        waiting = self._waiting[session] = _Waiting(self, header, request, session, slot)
        waiting.start()

    def answer(self, header: RequestHeader, slot: "Slot", response: ReplicaFetchResponse) -> None:
        """Write an answer into its slot."""
        slot.complete(*encode_replica_response(header.correlation_id, response))

    def ended(self, waiting: "_Waiting") -> None:
        """A request has been answered."""
        if self._waiting.get(waiting.session) is waiting:
            del self._waiting[waiting.session]

    def disconnected(self, waiting: "_Waiting") -> None:
        """The connection is gone and its session with it."""
        self.ended(waiting)
        self._sessions.end(waiting.session)

    def _check(self, request: ReplicaFetchRequest) -> ErrorCode:
        broker = self.node.cluster.brokers.get(request.replica_id)
        if broker is None or request.replica_id == self.node.config.node_id:
            return ErrorCode.BROKER_ID_NOT_REGISTERED
        if UNKNOWN < request.broker_epoch < broker.epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        return ErrorCode.NONE

    def _find(self, replica_id: int, place: TopicIdPartition) -> LeadingReplica | NotLed:
        topic_id, index = place
        node = self.node
        name = node.cluster.names.get(topic_id.hex())
        if name is None:
            return NotLed(ErrorCode.UNKNOWN_TOPIC_ID)
        partitions = node.cluster.topics[name].partitions
        if not 0 <= index < len(partitions):
            return NotLed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        image = partitions[index]
        runtime = node.logs.get(name, index)
        if runtime is None or not runtime.is_leader or replica_id not in image.replicas:
            return NotLed(ErrorCode.NOT_LEADER_OR_FOLLOWER, (image.leader, image.leader_epoch))
        if runtime.topic_id.bytes != topic_id:
            return NotLed(ErrorCode.INCONSISTENT_TOPIC_ID)
        return runtime.leading

    # The throttle of the sessions (KIP-73): replicas in sync are never held back.

    def must_wait(self, replica_id: int, place: TopicIdPartition) -> bool:
        """Whether a throttled replica gets nothing now."""
        return self.quota.is_exceeded(self.now_ms()) and self._is_throttled(replica_id, place)

    def sent(self, replica_id: int, place: TopicIdPartition, size: int) -> None:
        """Count what a replica was sent."""
        self.bytes_out += size
        if self.quota.is_limited and self._is_throttled(replica_id, place):
            self.quota.record(size, self.now_ms())

    def _is_throttled(self, replica_id: int, place: TopicIdPartition) -> bool:
        node = self.node
        topic = node.cluster.topic_by_id(place[0].hex())
        if topic is None or not 0 <= place[1] < len(topic.partitions) or replica_id in topic.partitions[place[1]].isr:
            return False
        throttled = ThrottledReplicas(topic.config.leader_replication_throttled_replicas)
        return throttled.has(place[1], node.config.node_id)

    def now_ms(self) -> int:
        return int(self.loop.time() * 1000)


class _Waiting:
    """One request until it is answered, another takes its place or its connection is gone."""

    __slots__ = (
        "_fetches",
        "_handles",
        "_header",
        "_is_asked",
        "_is_done",
        "_request",
        "_slot",
        "session",
    )

    def __init__(
        self,
        fetches: ReplicaFetches,
        header: RequestHeader,
        request: ReplicaFetchRequest,
        session: Session,
        slot: "Slot",
    ) -> None:
        self.session = session
        self._fetches = fetches
        self._header = header
        self._request = request
        self._slot = slot
        self._handles: list[asyncio.Handle] = []
        self._is_asked = False
        self._is_done = False

    def start(self) -> None:
        now_ms = self._fetches.now_ms()
        if now_ms - self.session.acknowledged_ms >= ACKNOWLEDGED_MS:
            self.session.acknowledged_ms = now_ms
            self.session.still_there(in_sync=False)
        if self._try():
            return
        wait_ms = min(max(self._request.wait_ms_max, 0), WAIT_MS_MAX)
        session = self.session
        self._later(wait_ms / 1000, self._time_is_up)
        if session.waits_for_watermark:
            self._later(WATERMARK_SECONDS, self._tell_watermarks)
        if session.has_throttled:
            self._later(THROTTLED_SECONDS, self._time_is_up)
        session.on_changes = self._changes
        self._slot.on_close(self._gone)

    def give_way(self) -> None:
        """A later request of the session is there."""
        self._answer([])

    def _later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._handles.append(self._fetches.loop.call_later(seconds, callback))

    def _try(self) -> bool:
        bytes_max = min(max(self._request.bytes_max, 0), BYTES_MAX, self._fetches.node.memory.answer_bytes_max)
        answers = _collected(self.session, bytes_max)
        if answers:
            self._answer(answers)
        return bool(answers)

    def _changes(self) -> None:
        """What is appended in one turn of the loop is answered together."""
        if not self._is_asked:
            self._is_asked = True
            self._handles.append(self._fetches.loop.call_soon(self._look))

    def _look(self) -> None:
        self._is_asked = False
        if not self._is_done and not self._try() and self.session.waits_for_watermark:
            self._later(WATERMARK_SECONDS, self._tell_watermarks)

    def _tell_watermarks(self) -> None:
        if self._is_done:
            return
        answers = self.session.changes_of_watermarks()
        if answers:
            self._answer(answers)
        elif self.session.waits_for_watermark:
            self._later(WATERMARK_SECONDS, self._tell_watermarks)

    def _time_is_up(self) -> None:
        if not self._is_done:
            self.session.still_there()
            self._answer(self.session.changes_of_watermarks())

    def _answer(self, answers: list[ReplicaAnswer]) -> None:
        if self._is_done:
            return
        self._end()
        self._fetches.ended(self)
        self._fetches.answer(self._header, self._slot, ReplicaFetchResponse(answers, self.session.session_id))

    def _gone(self) -> None:
        self._end()
        self._fetches.disconnected(self)

    def _end(self) -> None:
        self._is_done = True
        self.session.on_changes = None
        for handle in self._handles:
            handle.cancel()
        self._handles.clear()


def _collected(session: Session, bytes_max: int) -> list[ReplicaAnswer]:
    """Read what a session wants; return what its replica must hear."""
    wanted_reads = session.collect(bytes_max)
    try:
        wanted = next(wanted_reads)
        while True:
            wanted = wanted_reads.send(_read(wanted))
    except StopIteration as end:
        answers: list[ReplicaAnswer] = end.value
        return answers


def _read(wanted: WantedRead[LeadingReplica]) -> ReplicaRead:
    log, offset, bytes_max, last_fetched_epoch, min_one, is_suspect = wanted
    if is_suspect:
        log.suspect(offset)
    return log.read_replica(offset, bytes_max, last_fetched_epoch, min_one=min_one)
