"""
Fetch: read each partition and answer when there is enough, when the client's patience ends or when something is wrong.

A waiting request holds no data: it counts what comes, and reads when that is enough, so what is sent is what is there
then. What a request reads, and what of that its response names, is decided by its session (`core/fetch/session.py`).
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Protocol

from log_broker.core.fetch.session import (
    NO_SESSION,
    SESSION_ID_MAX,
    FetchedPartition,
    FetchSessions,
    Opening,
    Plan,
    Refused,
    Sessionless,
)
from log_broker.core.security.acls import ResourceType
from log_broker.errors import ErrorCode
from log_broker.records.batch import HEADER_BYTES
from log_broker.records.stored import Chunk
from log_broker.server.handlers.data.fetch_reader import FetchReader
from log_broker.server.net.dispatch import answer_failure, failures_answered
from log_broker.server.net.memory_budget import FREE_BYTES
from log_broker.server.net.ports import HasMemory
from log_broker.server.net.rights import HasAuthorizer, is_a_node, refused, rights_of
from log_broker.server.net.slots import Slot, SlotOwner
from log_broker.server.ops.client_habits import ClientHabits
from log_broker.server.partitions.current_leader import endpoints_of
from log_broker.server.partitions.fetch_answers import Found, empty_data, sliced, written_empty
from log_broker.server.partitions.ports import Partitions
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.server.process.ports import Cluster, Process
from log_broker.server.quorum.fetch import fetch_metadata
from log_broker.server.quorum.ports import HasQuorum
from log_broker.server.replication.replica_fetches import ReplicaFetches
from log_broker.storage.cold_reads import ColdPart
from log_broker.wire.fetch import (
    EMPTY_FROM,
    TOPIC_IDS_FROM,
    FetchRequest,
    PartitionData,
    encode_response,
    parse_request,
)
from log_broker.wire.framing import RequestHeader
from log_broker.wire.quorum import FETCH_VERSION, METADATA_TOPIC_ID
from log_broker.wire.reading import MalformedRequestError
from log_broker.wire.replica_fetch import VERSION as REPLICA_VERSION
from log_broker.wire.replica_fetch import replica_request

_METADATA = METADATA_TOPIC_ID.bytes
_NONE = ErrorCode.NONE
CONGESTED_RETRY_MS = 50
WAIT_MS_MAX = 5 * 60 * 1000
SLICE_PARTITIONS = 1_000  # looked at in one turn of the loop
PARSED_AT_ONCE_BYTES = 128 * 1024
ENCODED_AT_ONCE_MAX = 4_000  # topics and partitions
LOADS_MAX = 3  # the indexes, where they lead to, and once more if the page cache has let go of that by then
WAITING_BYTES = 512  # what a fetch that waits holds for each of its partitions, about
BATCH_BYTES_MIN = HEADER_BYTES


class FetchHost(Cluster, HasAuthorizer, HasMemory, HasQuorum, Partitions, Process, Protocol):
    """What answering a Fetch asks of the node."""

    @property
    def fetch_sessions(self) -> FetchSessions: ...

    @property
    def habits(self) -> ClientHabits: ...

    @property
    def replica_fetches(self) -> ReplicaFetches: ...

    @property
    def waiting_fetches(self) -> dict[SlotOwner, deque[tuple[RequestHeader, memoryview, Slot]]]:
        """The connections of which a fetch waits, and what stands behind it."""
        ...


def handle(node: FetchHost, header: RequestHeader, body: memoryview, slot: Slot) -> None:
    """
    Answer one Fetch request, possibly later.

    One fetch of a connection waits at a time, as with Kafka, which reads no request before it has answered the last:
    those that were sent behind it begin when it is answered.
    """
    if node.waiting_fetches and (behind := node.waiting_fetches.get(slot.owner)) is not None:
        behind.append((header, body, slot))
    else:
        _begin(node, header, body, slot)


def _begin(node: FetchHost, header: RequestHeader, body: memoryview, slot: Slot) -> bool:
    """Handle a request that is its connection's first; say whether the next is to wait for it."""
    if len(body) > PARSED_AT_ONCE_BYTES:
        node.waiting_fetches.setdefault(slot.owner, deque())
        node.run(_begin_aside(node, header, body, slot))
        return True
    try:
        request = parse_request(body, header.api_version)
    except MalformedRequestError as error:
        slot.fail_connection(str(error))
        return False
    return _begin_parsed(node, header, request, body, slot)


async def _begin_aside(node: FetchHost, header: RequestHeader, body: memoryview, slot: Slot) -> None:
    """Parse a request of very many partitions outside the event loop and then handle it."""
    waits = False
    with failures_answered(node, header, slot, body):
        try:
            request = await node.logs.aside(partial(parse_request, body, header.api_version))
        except MalformedRequestError as error:
            slot.fail_connection(str(error))
        else:
            waits = not slot.closed and _begin_parsed(node, header, request, body, slot)
    if not waits:
        _next(node, slot.owner)


def _begin_parsed(node: FetchHost, header: RequestHeader, request: FetchRequest, body: memoryview, slot: Slot) -> bool:
    if request.replica_id >= 0:
        if not is_a_node(node, slot):
            raise refused(ResourceType.CLUSTER)
        if header.api_version == FETCH_VERSION and request.topics and request.topics[0].name == _METADATA:
            if len(request.topics) > 1 or len(request.topics[0].partitions) > 1 or request.forgotten:
                slot.fail_connection("the metadata log is fetched by itself")
                return False
            fetch_metadata(node, header, body, slot)
            return False
        _handle_replica(node, header, request, slot)
        return False
    session_id, epoch, topics, forgotten = request[5:9]
    by_id = header.api_version >= TOPIC_IDS_FROM
    plan = node.fetch_sessions.begin(session_id, epoch, topics, forgotten, node.clock_ms(), by_id=by_id)
    if isinstance(plan, Refused):
        slot.complete(*encode_response(header.correlation_id, header.api_version, [], error=plan.error))
        return False
    return _Fetch(node, header, request, plan, slot).start()


def _next(node: FetchHost, owner: SlotOwner) -> None:
    """Begin with the fetch that stands behind one that has ended, if there is one."""
    behind = node.waiting_fetches[owner]
    if not behind or owner.is_closed:
        del node.waiting_fetches[owner]
        return
    header, body, slot = behind.popleft()
    waits = False
    try:
        waits = _begin(node, header, body, slot)
    except Exception as error:
        answer_failure(node, header, slot, error, body)
    if not waits:
        asyncio.get_running_loop().call_soon(_next, node, owner)


def _handle_replica(node: FetchHost, header: RequestHeader, request: FetchRequest, slot: Slot) -> None:
    if header.api_version != REPLICA_VERSION:
        slot.fail_connection(f"replicas fetch with version {REPLICA_VERSION}, not {header.api_version}")
        return
    node.replica_fetches.handle(header, replica_request(request), slot)


def _fresh_id(sessions: FetchSessions) -> int:
    """Draw an id that nobody has; nobody can guess it either, and so end or disturb another client's session."""
    while (session_id := secrets.randbelow(SESSION_ID_MAX) + 1) in sessions:
        pass
    return session_id


class _Fetch:
    """
    One request until it is answered or its connection is gone.

    While it waits it knows how many bytes there are, and looks only at the partitions that have moved, all those of one
    turn of the loop together. What it answers is read once, when there is enough.
    """

    __slots__ = (
        "_counted",
        "_enough",
        "_header",
        "_is_last_chance",
        "_is_sliced",
        "_is_waiting",
        "_loads_left",
        "_look_handle",
        "_moved",
        "_node",
        "_plan",
        "_reader",
        "_request",
        "_slot",
        "_timer",
        "_total",
        "_wait_ms",
        "_watched",
    )

    def __init__(self, node: FetchHost, header: RequestHeader, request: FetchRequest, plan: Plan, slot: Slot) -> None:
        self._node = node
        self._header = header
        self._request = request
        self._plan = plan
        self._reader = FetchReader(node, request, header.api_version, rights_of(node, slot))
        self._slot = slot
        self._timer: asyncio.TimerHandle | None = None
        self._wait_ms = min(request.wait_ms_max, WAIT_MS_MAX)
        self._is_waiting = False
        self._is_last_chance = False
        self._is_sliced = False  # whether it was looked at in more than one turn
        self._loads_left = LOADS_MAX
        self._enough = 0  # bytes
        self._total = 0  # bytes that are there, as of the last look
        self._counted: dict[int, int] = {}  # of these, those of each partition that has any
        self._watched: list[tuple[PartitionRuntime, FetchedPartition]] = []  # see `FetchReader`
        self._moved: list[tuple[int, int]] = []  # those to be looked at, as `moved` was told of them
        self._look_handle: asyncio.Handle | None = None

    def start(self) -> bool:
        """Answer, or wait for what is asked; say whether it waits."""
        self._look_at_all(last_chance=self._wait_ms <= 0)
        return self._is_waiting

    def _take(self, steps: Generator[None, None, None], then: Callable[[], None] | None = None) -> None:
        """Take the steps, of very many partitions some in each turn, and `then` go on."""
        self._look_handle = None
        if self._is_waiting and self._slot.closed:
            return  # its connection is about to say so
        for _ in steps:
            self._is_sliced = True
            self._keep_turn()
            self._look_handle = asyncio.get_running_loop().call_soon(self._called, self._take, steps, then)
            return
        if then is not None:
            then()

    def _called(self, step: Callable[..., None], *arguments: Any) -> None:
        """Do what the event loop was asked to call; what goes wrong in it nobody else would tell the client."""
        try:
            step(*arguments)
        except Exception as error:
            self._forget()
            answer_failure(self._node, self._header, self._slot, error)

    def _may_be_held(self) -> bool:
        """Whether there is memory for this large fetch to wait; of small ones that is not asked, as a share is free."""
        size = len(self._watched) * WAITING_BYTES
        memory = self._node.memory
        if memory.held + size > memory.limit // 2:
            return False
        self._slot.hold(size)
        return True

    def _pause(self, milliseconds: int) -> None:
        """Wait for so long at the most."""
        self._timer = asyncio.get_running_loop().call_later(milliseconds / 1000, self._called, self._time_is_up)
        self._keep_turn()

    def _keep_turn(self) -> None:
        """Let the connection's next fetches wait until this one is answered."""
        if not self._is_waiting:
            self._is_waiting = True
            self._node.waiting_fetches.setdefault(self._slot.owner, deque())
            self._slot.on_close(self._forget)

    def _wait(self) -> None:
        """Stand at the end of what was counted in each partition. An answer that is not urgent has read up to there."""
        if self._timer is None and len(self._watched) * WAITING_BYTES > FREE_BYTES and not self._may_be_held():
            self._watched.clear()
            self._pause(min(self._wait_ms, CONGESTED_RETRY_MS))
            return
        committed, counted = self._reader.is_committed, self._counted
        for at, (runtime, asked) in enumerate(self._watched):
            offset = asked[2]
            if at in counted:
                offset = runtime.last_stable_offset if committed else runtime.high_watermark
            runtime.waiters.add(self, at, offset, committed=committed)
        if self._is_sliced:
            self._find_moved()
        if self._timer is None:
            self._pause(self._wait_ms)

    def _find_moved(self) -> None:
        """Take note of partitions that have moved between the look at them and now."""
        self._is_sliced = False
        committed = self._reader.is_committed
        for at, (runtime, asked) in enumerate(self._watched):
            end = runtime.last_stable_offset if committed else runtime.high_watermark
            if runtime.is_closed or asked.offset < end:
                self.moved(at, -1 if runtime.is_closed else asked.offset)

    def moved(self, at: int, offset: int) -> None:
        """See `readers.Reader`."""
        self._moved.append((at, offset))
        if self._look_handle is None:
            self._look_handle = asyncio.get_running_loop().call_soon(self._called, self._look)

    def _look(self) -> None:
        """Count what has come in the partitions that have moved since the last look, and answer if it is enough."""
        self._look_handle = None
        if self._slot.closed:
            return  # its connection is about to say so
        for at, offset in self._moved:
            if not self._count(at, offset):
                self._stop_waiting()
                self._look_at_all(last_chance=False)
                return
        if self._total >= self._enough and len(self._watched) > SLICE_PARTITIONS:
            self._stop_waiting()
            self._look_at_all(last_chance=True)
        elif self._total >= self._enough:
            self._answer_waited()
        else:
            self._moved.clear()

    def _count(self, at: int, offset: int) -> bool:
        """Count what there is of a partition, and wait behind that; False when everything has to be looked at again."""
        if offset < 0:
            return False
        if self._total + BATCH_BYTES_MIN >= self._enough:
            self._total = self._enough  # whatever has come is enough
            return True
        runtime, asked = self._watched[at]
        try:
            unread = runtime.unread_bytes(asked.offset, isolation_level=self._request.isolation_level)
        except OSError:
            return False
        if unread is None or unread[0] > asked.bytes_max:
            return False  # more than may be sent of it: waiting brings nothing
        size, end = unread
        self._total += size - self._counted.get(at, 0)
        self._counted[at] = size
        runtime.waiters.add(self, at, end, committed=self._reader.is_committed)
        return True

    def _time_is_up(self) -> None:
        self._timer = None
        self._stop_waiting()
        if not self._slot.closed:
            self._look_at_all(last_chance=True)

    def _forget(self) -> None:
        """End, because it is answered or its connection is gone."""
        self._stop_waiting()
        self._stop_timer()
        if self._is_waiting:
            self._is_waiting = False
            node, owner = self._node, self._slot.owner
            if node.waiting_fetches[owner]:
                asyncio.get_running_loop().call_soon(_next, node, owner)
            else:
                del node.waiting_fetches[owner]

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_waiting(self) -> None:
        for runtime, _ in self._watched:
            runtime.waiters.remove(self)
        self._watched.clear()
        self._counted.clear()
        self._moved.clear()
        if self._look_handle is not None:
            self._look_handle.cancel()
            self._look_handle = None

    def _look_at_all(self, *, last_chance: bool) -> None:
        """Read everything, with a pause after each slice; answer if that is enough, or wait."""
        if self._slot.must_wait:
            self._wait_for_memory()
            return
        self._is_last_chance = last_chance
        reader = self._reader
        room = reader.room()
        self._enough = min(self._request.bytes_min, room)
        may_load, unread = self._loads_left > 0, self._slot.takes_stored
        look = reader.look(self._plan.topics, room, SLICE_PARTITIONS, may_load=may_load, unread=unread)
        self._take(look, self._looked)

    def _load(self, parts: Sequence[ColdPart]) -> None:
        """Have another thread wait for the disk, and look again then."""
        self._loads_left -= 1
        self._is_last_chance |= self._timer is not None  # having waited before, it is answered with what has come
        self._stop_timer()
        self._keep_turn()
        self._node.logs.cold_loads.load(parts).add_done_callback(self._loaded)

    def _loaded(self, loading: "asyncio.Future[None]") -> None:
        if loading.cancelled() or self._slot.closed:
            return
        loading.exception()  # reading meets it once more, and answers it
        self._called(partial(self._look_at_all, last_chance=self._is_last_chance))

    def _looked(self) -> None:
        reader, topics = self._reader, self._plan.topics
        is_urgent = self._is_last_chance or reader.is_urgent or not topics
        if reader.cold:
            self._load(tuple(reader.cold))
        elif is_urgent or reader.size >= self._enough or (not reader.is_all_idle and reader.is_cut_short(topics)):
            self._take(self._answer(reader.found))
        else:
            self._total, self._watched, self._counted = reader.size, reader.watched, reader.counted
            self._wait()

    def _answer_waited(self) -> None:
        """Answer what was waited for, reading only the partitions in which something has come."""
        if self._slot.must_wait:
            self._wait_for_memory()
            return
        changed = sorted({at for at, _ in self._moved} | self._counted.keys())
        reader, unread = self._reader, self._slot.takes_stored
        rest = iter(reader.read_again(self._watched, changed, reader.room(), unread=unread))
        topics = [(topic.name, list(islice(rest, len(topic.partitions)))) for topic in self._plan.topics]
        for _ in self._answer(topics):
            raise AssertionError("these few partitions take one turn")

    def _wait_for_memory(self) -> None:
        """Hold nothing until the client has read what it has, or others have given memory back."""
        self._stop_waiting()
        self._stop_timer()
        self._pause(CONGESTED_RETRY_MS)

    def _answer(self, topics: list[tuple[bytes, Found]]) -> Generator[None, None, None]:
        """
        Answer with what was found, with a pause after each slice.

        A runtime stands for a partition of which there is nothing but its offsets.
        """
        plan = self._plan
        is_written = isinstance(plan, Sessionless) and self._header.api_version >= EMPTY_FROM
        empty = written_empty(self._header.api_version) if is_written else empty_data
        whole: list[tuple[bytes, list[Any]]] = []
        for name, found in sliced(topics, SLICE_PARTITIONS):
            if found is None:
                yield
                continue
            whole.append((name, [data if isinstance(data, PartitionData) else empty(data) for data in found]))
        self._end_wait()
        respond = partial(_respond, self._node, self._header, self._slot, self._reader.leaders)
        if is_written:
            respond(whole)
            return
        sessions = self._node.fetch_sessions
        fresh_id = _fresh_id(sessions) if isinstance(plan, Opening) else NO_SESSION
        response = sessions.finish(plan, whole, fresh_id=fresh_id, now_ms=self._node.clock_ms())
        respond(response.topics, error=response.error, session_id=response.session_id)

    def _end_wait(self) -> None:
        if self._is_waiting:
            self._forget()


def _respond(
    node: FetchHost,
    header: RequestHeader,
    slot: Slot,
    leaders: Sequence[tuple[int, int] | None],
    topics: Sequence[tuple[bytes, Sequence[PartitionData | bytes]]],
    *,
    error: ErrorCode = ErrorCode.NONE,
    session_id: int = NO_SESSION,
) -> None:
    if node.habits.is_looking:
        every = (data for _, found in topics for data in found if isinstance(data, PartitionData))
        node.habits.fetched(header.client_id, sum(len(chunk) for data in every for chunk in data.records))
    encode = partial(
        encode_response,
        header.correlation_id,
        header.api_version,
        topics,
        error=error,
        session_id=session_id,
        endpoints=endpoints_of(node, leaders, slot.listener) if leaders else (),
    )
    if sum(1 + len(found) for _, found in topics) > ENCODED_AT_ONCE_MAX:
        node.run(_respond_later(node, header, slot, encode))
    else:
        slot.complete(*encode())


async def _respond_later(
    node: FetchHost, header: RequestHeader, slot: Slot, encode: Callable[[], Sequence[Chunk]]
) -> None:
    with failures_answered(node, header, slot):
        slot.complete(*await node.logs.aside(encode))
