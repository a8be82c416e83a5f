"""
One client connection: bytes to requests, and responses back in the order of the requests.

Responses that become ready in one turn of the event loop leave in one write. Reading stops while too much is
unanswered or the client does not read, so what a connection can hold in memory has a bound. What all of them hold
together has one as well, see `memory_budget`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol, cast

from log_broker.records.batch import Buffer
from log_broker.server.net.dispatch import LARGE_ANSWERS, DispatchHost
from log_broker.server.net.memory_budget import FREE_BYTES
from log_broker.server.net.memory_share import MemoryShare
from log_broker.server.net.outbox import Outbox
from log_broker.server.net.ports import HasMemory
from log_broker.server.net.sign_in import UNKNOWN_CALLER, Caller
from log_broker.server.net.slots import Slot
from log_broker.server.process.ports import Cluster
from log_broker.wire.framing import FrameCutter, FrameTooLargeError, RequestHeader, read_header
from log_broker.wire.reading import MalformedRequestError

_log = logging.getLogger(__name__)

UNANSWERED_REQUESTS_MAX = 512
UNANSWERED_BYTES_MAX = 64 * 1024 * 1024
CUT_REQUESTS_MAX = 32  # that are not handled yet; of more the bytes are kept
ANSWER_BYTES_AHEAD_MAX = 1024 * 1024  # of large answers behind one that is not ready
UNANSWERED_REQUEST_BYTES = 2 * 1024  # what one takes beside its own bytes, a Fetch that waits for one
LEAST_READ_BYTES = 1024
TURN_SECONDS_MAX = 0.005  # of one connection's requests in a row


class Registry(Protocol):
    """Where connections report."""

    def opened(self, connection: "Connection") -> str | None:
        """Note a new connection; say why it cannot stay if there are too many."""
        ...

    def room_for(self, host: str) -> int:
        """Return how many more connections an address may have."""
        ...

    def closed(self, connection: "Connection") -> None: ...


class ConnectionHost(Cluster, DispatchHost, HasMemory, Protocol):
    """What a connection asks of its node."""

    @property
    def dispatch(self) -> Callable[[Any, RequestHeader, memoryview, Slot], None]: ...

    @property
    def staging(self) -> memoryview: ...

    @property
    def connections(self) -> "Registry": ...


class Connection(asyncio.BufferedProtocol):
    """The protocol of one accepted socket."""

    def __init__(self, node: ConnectionHost, caller: Caller = UNKNOWN_CALLER) -> None:
        self._node = node
        self._loop = node.loop
        self._counters = node.counters
        self.dispatch = node.dispatch
        self._cutter = FrameCutter(node.config.socket_request_max_bytes)
        # One for all connections of the loop, which has it filled and handed over in one step; everything is copied
        # out of it before that step ends. An idle connection therefore holds no buffer.
        self._staging = node.staging
        self._budget = node.memory
        self._share = MemoryShare(node.memory, self._cutter)
        self._outbox = Outbox(node.counters)
        self._slots: deque[Slot] = deque()
        self._backlog: deque[memoryview] = deque()  # requests that were read and must wait
        self._bytes_held = 0
        self._flush_asked = False
        self._work_asked = False
        self._reading = True
        self._transport: asyncio.Transport | None = None
        self.is_closed = False
        self.host = self.peer = "?"
        self.listener, self.principal, self.session = caller
        self.last_active = self._loop.time()
        self._unread_since = 0.0  # while the client does not read its answers
        self._paused_at = 0.0
        self._arrived = 0.0  # when bytes came last; the loop's own time stands still within a turn

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._outbox.attach(self._transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.host, self.peer = peer[0], f"{peer[0]}:{peer[1]}"
        refusal = self._node.connections.opened(self)
        if refusal is not None:
            self.fail(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._node.connections.closed(self)
        slots, self._slots = self._slots, deque()
        self._backlog.clear()
        self._outbox.clear()
        self._bytes_held = 0
        self._share.end(self)
        for slot in slots:
            slot.connection_lost()

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._cutter.room()
        if room is not None:
            return room
        if not self._budget.is_reserved:
            return self._staging
        # What is left is for requests that have begun: no more is taken than the share of this connection and what it
        # has been allowed. It stops being read if that is nothing.
        spare = self._cutter.spare
        free = FREE_BYTES - (self._bytes_held + self._cutter.held - spare)
        return self._staging[: max(free, spare, LEAST_READ_BYTES)]

    def buffer_updated(self, nbytes: int) -> None:
        self._arrived = monotonic()
        self.last_active = self._loop.time()
        self._counters.bytes_in += nbytes
        try:
            if self._cutter.room() is None:
                self._backlog.extend(self._cutter.take(self._staging[:nbytes], frames_max=CUT_REQUESTS_MAX))
            else:
                frame = self._cutter.filled(nbytes)
                if frame is not None:
                    self._backlog.append(frame)
                elif self._cutter.spare:
                    return  # it has its memory, so there is nothing to decide
        except FrameTooLargeError as error:
            self.fail(str(error))
        if self._backlog:
            self._share.begun_at = 0.0
        self._work()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._outbox.paused()
        self._unread_since = self._unread_since or self._loop.time()
        self._work()

    def resume_writing(self) -> None:
        self.last_active = self._loop.time()
        self._outbox.resumed()
        if self._outbox.is_free:
            self._unread_since = 0.0
        self._work()

    def is_idle_since(self, deadline: float) -> bool:
        """Whether nothing has moved since `deadline` although it is the client's turn."""
        waits_for_us = bool(self._slots) and self._outbox.is_free
        return self.last_active < deadline and not waits_for_us

    @property
    def is_sending(self) -> bool:
        """Whether an answer is ready that the client has not read."""
        return not self.is_closed and (not self._outbox.is_free or (bool(self._slots) and self._slots[0].is_done))

    def must_wait(self, slot: Slot) -> bool:
        """Whether the answer for `slot` should not be made now; the one that others stand behind must not wait long."""
        if not self._outbox.is_free:
            return True
        if self._slots and self._slots[0] is slot:
            if not self._budget.is_full:
                return False
            # Those that hold memory and wait for an answer would wait for each other, so one of them has its answer.
            return self._bytes_held <= FREE_BYTES or not self._budget.takes_turn(self)
        return self._budget.is_full or self._bytes_held > ANSWER_BYTES_AHEAD_MAX

    def holds_memory_since(self, deadline: float) -> bool:
        """Whether it has held memory since `deadline` and only the client can change that."""
        share = self._share
        if not share.counted or share.is_waiting:
            return False
        if not self._outbox.is_free:
            return self._unread_since < deadline
        # However many answers it waits for: a request that is not complete is not ours to finish.
        return self._reading and self._cutter.pending > FREE_BYTES and share.begun_at < deadline

    def bytes_wanted(self) -> int:
        """Return by how much the request that is being read must grow; 0 while others before it wait."""
        return 0 if self._backlog else self._cutter.wanted

    def memory_freed(self) -> None:
        self._share.is_waiting = False
        self._grow(self.bytes_wanted())
        self._work()

    def close(self) -> None:
        """Close once what has been written is sent."""
        self._outbox.close()

    def cut_off(self) -> None:
        """Close at once."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def fail(self, reason: str) -> None:
        """Close at once and say why in the log; other connections do not notice."""
        if self.is_closed:
            return
        _log.warning("closing the connection of %s: %s", self.peer, reason)
        self.cut_off()

    def hold(self, size: int) -> None:
        """Count bytes that a request keeps in memory beside its own; its slot gives them back."""
        self._bytes_held += size
        self._account()

    def way_out(self, slot: Slot) -> Outbox | None:
        """Return by what the answer for `slot` may be sent at once, None if it is not next."""
        return self._outbox if not self.is_closed and self._slots[0] is slot else None

    def slot_done(self, slot: Slot, response_bytes: int) -> None:
        """Note that `slot` is filled; what is ready leaves at the end of the turn."""
        self._bytes_held += response_bytes
        slot.bytes_held += response_bytes
        if self._bytes_held - self._share.counted > FREE_BYTES:
            self._account()
        if self._slots and self._slots[0] is slot and not self._flush_asked:
            self._flush_asked = True
            self._loop.call_soon(self._flush)

    def _work(self) -> None:
        """Handle the requests that have arrived, and read on or stop reading by how much is unanswered or unsent."""
        if self.is_closed or self._transport is None:
            return
        backlog = self._backlog
        turn_ends = 0.0
        while backlog and self._has_room() and not self._lacks_memory() and not self.is_closed:
            self._request(backlog.popleft())
            if not backlog and self._cutter.uncut is not None:
                self._cut_more()
            if backlog:
                now = monotonic()
                turn_ends = turn_ends or now + TURN_SECONDS_MAX
                if now > turn_ends:
                    self._work_later()
                    break
        reading = self._has_room() and not self._work_asked
        share = self._share
        if backlog or share.counted or self._budget.is_reserved or self._cutter.pending > FREE_BYTES:
            self._account()
            if reading:
                reading = self._ask_for_memory()
            elif share.is_waiting:
                share.stop_waiting(self)
        if reading != self._reading and not self.is_closed:
            self._reading = reading
            if reading:
                if share.begun_at:
                    share.begun_at += self._loop.time() - self._paused_at
                self._transport.resume_reading()
            else:
                self._paused_at = self._loop.time()
                self._transport.pause_reading()

    def _work_later(self) -> None:
        """Let others have their turn before the next request is handled."""
        if not self._work_asked:
            self._work_asked = True
            self._loop.call_soon(self._work_again)

    def _work_again(self) -> None:
        self._work_asked = False
        self._work()

    def _cut_more(self) -> None:
        try:
            self._backlog.extend(self._cutter.take_uncut(frames_max=CUT_REQUESTS_MAX))
        except FrameTooLargeError as error:
            self.fail(str(error))

    def _ask_for_memory(self) -> bool:
        """Say whether more may be read; if not, `memory_freed` is called when it may."""
        if self.is_closed:
            return False
        if self._backlog:
            self._share.wait_to_answer(self, is_beyond=self._is_beyond_its_share())
            return False
        wanted = self.bytes_wanted()
        allowed = self._share.asks(self, wanted, self._held())
        if allowed:
            self._grow(wanted)
        return allowed

    def _grow(self, size: int) -> None:
        """Let the request that is being read grow by `size` bytes."""
        if size:
            self._cutter.allow(size)
            self._account()

    def _held(self) -> int:
        """Requests, one in the making, and answers not yet sent."""
        uncut = self._cutter.uncut
        read = self._cutter.held + sum(map(len, self._backlog)) + (0 if uncut is None else len(uncut))
        return read + self._bytes_held + self._outbox.held

    def _account(self) -> None:
        """Have the budget know what is held."""
        if not self.is_closed and self._transport is not None:
            self._share.account(self, self._held(), self._loop.time())

    def _lacks_memory(self) -> bool:
        """Whether the next request must wait until others have given memory back."""
        return self._is_beyond_its_share() or (self._budget.is_full and _has_large_answer(self._backlog[0]))

    def _is_beyond_its_share(self) -> bool:
        return self._budget.is_reserved and self._bytes_held > FREE_BYTES

    def _has_room(self) -> bool:
        if not self._outbox.is_free or len(self._slots) >= UNANSWERED_REQUESTS_MAX:
            return False
        held = self._bytes_held
        if held <= ANSWER_BYTES_AHEAD_MAX or not self._backlog:
            return held < UNANSWERED_BYTES_MAX
        return held < UNANSWERED_BYTES_MAX and not _has_large_answer(self._backlog[0])

    def _request(self, frame: memoryview) -> None:
        try:
            header, body = read_header(frame)
        except MalformedRequestError as error:
            self.fail(str(error))
            return
        slot = Slot(self, len(frame) + UNANSWERED_REQUEST_BYTES)
        slot.began = self._arrived
        self._slots.append(slot)
        self._bytes_held += slot.bytes_held
        self.dispatch(self._node, header, body, slot)

    def _flush(self) -> None:
        """Send every response that has none unfinished before it."""
        self._flush_asked = False
        slots = self._slots
        chunks: list[Buffer] = []
        now = monotonic()
        while slots and (slot := slots[0]).is_done:
            slots.popleft()
            self._bytes_held -= slot.bytes_held
            if slot.durations is not None:
                slot.durations.add(now - slot.began)
            chunks += slot.chunks
        if self.is_closed or self._transport is None:
            return
        if chunks:
            self._outbox.send(chunks)
        if self._share.counted:
            self._account()
        if not self._reading:
            self._work()


def _has_large_answer(frame: memoryview) -> bool:
    return int.from_bytes(frame[:2], "big") in LARGE_ANSWERS
