"""
One client connection: bytes to requests, and responses back in the order of the requests.

Responses that become ready in one turn of the event loop leave in one write. Reading stops while too much is
unanswered or the client does not read, so what a connection can hold in memory has a bound. What all of them hold
together has one as well, see `memory_budget`.
"""

import asyncio
import logging
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, cast

from log_broker.records.batch import Buffer
from log_broker.server.dispatch import Slot
from log_broker.server.memory_budget import FREE_BYTES
from log_broker.wire.framing import FrameCutter, FrameTooLargeError, read_header
from log_broker.wire.reading import MalformedRequestError

if TYPE_CHECKING:
    from log_broker.server.node import Node

_log = logging.getLogger(__name__)

STAGING_BYTES = 256 * 1024
UNANSWERED_REQUESTS_MAX = 512
UNANSWERED_BYTES_MAX = 64 * 1024 * 1024
WRITE_BUFFER_BYTES_MAX = 1024 * 1024
_JOIN_BYTES_MAX = 64 * 1024


class Connection(asyncio.BufferedProtocol):
    """The protocol of one accepted socket."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._loop = node.loop
        self._counters = node.counters
        self._dispatch = node.dispatch
        self._cutter = FrameCutter(node.config.socket_request_max_bytes)
        # One for all connections of the loop, which has it filled and handed over in one step; everything is copied
        # out of it before that step ends. An idle connection therefore holds no buffer.
        self._staging = node.staging
        self._budget = node.memory
        self._counted = 0  # bytes that the budget knows of
        self._admitted = 0  # of these, the length of the request that is being read
        self._waits_for_memory = False
        self._slots: deque[Slot] = deque()
        self._backlog: deque[memoryview] = deque()  # requests that were read and must wait
        self._bytes_held = 0
        self._flush_asked = False
        self._reading = True
        self._writable = True
        self._transport: asyncio.Transport | None = None
        self.is_closed = False
        self.host = self.peer = "?"
        self.last_active = self._loop.time()
        self.held_since = 0.0  # when the budget first heard of what is held now
        self._arrived = 0.0  # when bytes came last; the loop's own time stands still within a turn

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)
        peer = transport.get_extra_info("peername")
        if peer:
            self.host = peer[0]
            self.peer = f"{peer[0]}:{peer[1]}"
        refusal = self._node.connection_opened(self)
        if refusal is not None:
            self.fail(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._node.connection_closed(self)
        slots = list(self._slots)
        self._slots.clear()
        self._backlog.clear()
        self._bytes_held = 0
        self._budget.change(-self._counted)
        self._budget.leave(self)
        self._counted = 0
        for slot in slots:
            slot.connection_lost()

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._cutter.room()
        # A small rest goes through the staging buffer, where what follows it arrives in the same system call.
        return self._staging if room is None or len(room) < STAGING_BYTES else room

    def buffer_updated(self, nbytes: int) -> None:
        self._arrived = monotonic()
        self.last_active = self._loop.time()
        self._counters.bytes_in += nbytes
        room = self._cutter.room()
        try:
            if room is None or len(room) < STAGING_BYTES:
                self._backlog.extend(self._cutter.take(self._staging[:nbytes]))
            else:
                frame = self._cutter.filled(nbytes)
                if frame is not None:
                    self._backlog.append(frame)
        except FrameTooLargeError as error:
            self.fail(str(error))
        self._work()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writable = False
        self._work()

    def resume_writing(self) -> None:
        self._writable = True
        self.last_active = self._loop.time()
        self._work()

    def is_idle_since(self, deadline: float) -> bool:
        """Whether nothing has moved since `deadline` although it is the client's turn."""
        waits_for_us = bool(self._slots) and self._writable
        return self.last_active < deadline and not waits_for_us

    def must_wait(self, slot: Slot) -> bool:
        """Whether the answer for `slot` should not be made now; the one that others stand behind must not wait long."""
        if not self._writable:
            return True
        if self._slots and self._slots[0] is slot:
            return self._budget.is_full and self._bytes_held <= FREE_BYTES
        return self._budget.is_full or self._bytes_held > WRITE_BUFFER_BYTES_MAX

    def holds_memory_since(self, deadline: float) -> bool:
        """Whether it has held memory since `deadline` and only the client can change that."""
        waits_for_us = bool(self._slots) and self._writable
        return self._counted > 0 and self.held_since < deadline and not waits_for_us and not self._waits_for_memory

    def bytes_wanted(self) -> int:
        """Return the length of the request that is being read, if it is a large one."""
        pending = self._cutter.pending
        return pending if pending > FREE_BYTES else 0

    def memory_freed(self) -> None:
        self._waits_for_memory = False
        self._admitted = self._cutter.pending
        self._work()

    def close(self) -> None:
        """Close once what has been written is sent."""
        if self._transport is not None:
            self._transport.close()

    def fail(self, reason: str) -> None:
        """Close at once and say why in the log; other connections do not notice."""
        if self.is_closed:
            return
        self.is_closed = True
        _log.warning("closing the connection of %s: %s", self.peer, reason)
        if self._transport is not None:
            self._transport.abort()

    def hold(self, size: int) -> None:
        """Count bytes that a request keeps in memory beside its own; its slot gives them back."""
        self._bytes_held += size
        self._account()

    def slot_done(self, slot: Slot, response_bytes: int) -> None:
        """Note that `slot` is filled; what is ready leaves at the end of the turn."""
        self._bytes_held += response_bytes
        slot.bytes_held += response_bytes
        if response_bytes > FREE_BYTES:
            self._account()
        if self._slots and self._slots[0] is slot and not self._flush_asked:
            self._flush_asked = True
            self._loop.call_soon(self._flush)

    def _work(self) -> None:
        """Handle the requests that have arrived, and read on or stop reading by how much is unanswered or unsent."""
        if self.is_closed or self._transport is None:
            return
        backlog = self._backlog
        while backlog and self._has_room() and not self.is_closed:
            self._request(backlog.popleft())
        reading = not backlog and self._has_room()
        if self._counted or self._budget.is_full or self._cutter.pending > FREE_BYTES or self._bytes_held > FREE_BYTES:
            reading = self._ask_for_memory() and reading
        if reading != self._reading and not self.is_closed:
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _ask_for_memory(self) -> bool:
        """Count what is held, and say whether more may be read; if not, there will be word when it may."""
        if self.is_closed:
            return False
        pending = self._cutter.pending
        if pending <= FREE_BYTES:
            self._admitted = 0
            allowed = not self._budget.is_full
        else:
            allowed = self._admitted > 0 or (not self._waits_for_memory and self._budget.admits(pending))
            self._admitted = pending if allowed else 0
        self._account()
        if not allowed and not self._waits_for_memory:
            self._waits_for_memory = True
            self._budget.wait(self)
        return allowed

    def _account(self) -> None:
        """Tell the budget what is held beyond the free share: requests, one in the making, and answers not yet sent."""
        if self.is_closed or self._transport is None:
            return
        held = self._bytes_held + self._admitted + sum(map(len, self._backlog))
        if not self._writable:
            held += self._transport.get_write_buffer_size()
        counted = max(held - FREE_BYTES, 0)
        if counted != self._counted:
            if not self._counted:
                self.held_since = self._loop.time()
            change, self._counted = counted - self._counted, counted
            self._budget.change(change)

    def _has_room(self) -> bool:
        return self._writable and len(self._slots) < UNANSWERED_REQUESTS_MAX and self._bytes_held < UNANSWERED_BYTES_MAX

    def _request(self, frame: memoryview) -> None:
        try:
            header, body = read_header(frame)
        except MalformedRequestError as error:
            self.fail(str(error))
            return
        slot = Slot(self, len(frame))
        slot.began = self._arrived
        self._slots.append(slot)
        self._bytes_held += len(frame)
        self._dispatch(self._node, header, body, slot)

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
            size = sum(map(len, chunks))
            self._counters.bytes_out += size
            if size <= _JOIN_BYTES_MAX:
                self._transport.write(chunks[0] if len(chunks) == 1 else b"".join(chunks))
            else:
                self._transport.writelines(chunks)
        if self._counted:
            self._account()
        if not self._reading:
            self._work()
