"""The places of answers in the queue of their connection."""

from collections.abc import Callable, Sequence
from typing import Protocol, cast

from log_broker.core.security.principal import Principal
from log_broker.records.batch import Buffer
from log_broker.records.stored import STORED_BYTES_MIN, Chunk, read_all
from log_broker.server.net.outbox import Outbox
from log_broker.server.process.counters import Durations


class SlotOwner(Protocol):
    """What a slot asks of its connection."""

    is_closed: bool
    host: str
    peer: str
    listener: str
    principal: Principal

    def must_wait(self, slot: "Slot") -> bool: ...
    def hold(self, size: int) -> None: ...
    def slot_done(self, slot: "Slot", response_bytes: int) -> None: ...
    def way_out(self, slot: "Slot") -> Outbox | None: ...
    def fail(self, reason: str) -> None: ...


class Slot:
    """The place of one response in its connection's queue. It is filled once; what comes later is ignored."""

    __slots__ = ("_connection", "_on_close", "began", "bytes_held", "chunks", "durations", "is_done")

    def __init__(self, connection: "SlotOwner", bytes_held: int) -> None:
        self._connection = connection
        self._on_close: Callable[[], None] | None = None
        self.chunks: Sequence[Buffer] = ()  # the response with its length, once it is done
        self.bytes_held = bytes_held
        self.began = 0.0  # in seconds of the monotonic clock
        self.durations: Durations | None = None  # where the time this takes is counted
        self.is_done = False

    @property
    def closed(self) -> bool:
        """Whether nobody waits for this response any more."""
        return self._connection.is_closed

    @property
    def must_wait(self) -> bool:
        """Whether a large answer should not be made now: for want of memory, or because the client does not read."""
        return self._connection.must_wait(self)

    @property
    def takes_stored(self) -> bool:
        """Whether what is given to `complete` unread in this turn of the loop would be sent past this process."""
        way_out = self._connection.way_out(self)
        return way_out is not None and way_out.is_direct

    @property
    def owner(self) -> "SlotOwner":
        """The connection that the request came by."""
        return self._connection

    @property
    def peer(self) -> str:
        """The client's address, `host:port`."""
        return self._connection.peer

    @property
    def host(self) -> str:
        """The client's address without its port."""
        return self._connection.host

    @property
    def listener(self) -> str:
        """The name of the listener that the request came by; empty for one that no client has sent."""
        return self._connection.listener

    @property
    def principal(self) -> Principal:
        """Whoever the connection acts for."""
        return self._connection.principal

    def hold(self, size: int) -> None:
        """Count bytes that the request keeps in memory beside its own, until it is answered."""
        self.bytes_held += size
        self._connection.hold(size)

    def complete(self, *chunks: Chunk) -> None:
        """Give the whole response, header included; the length before it is added here."""
        if self.is_done:
            return
        self._end()
        size = sum(map(len, chunks))
        framed = (size.to_bytes(4, "big"), *chunks)
        if size < STORED_BYTES_MIN:
            self.chunks = cast("tuple[Buffer, ...]", framed)
        else:
            way_out = self._connection.way_out(self)
            try:
                self.chunks = read_all(framed) if way_out is None else way_out.pass_on(framed)
            except OSError as error:
                self._connection.fail(f"the records of its answer cannot be read: {error}")
                return
            size = sum(map(len, self.chunks))
        self._connection.slot_done(self, size)

    def complete_framed(self, response: Buffer) -> None:
        """Give the whole response with its length already in front."""
        if self.is_done:
            return
        self._end()
        self.chunks = (response,)
        self._connection.slot_done(self, len(response))

    def skip(self) -> None:
        """End a request that has no response."""
        if not self.is_done:
            self._end()
            self._connection.slot_done(self, 0)

    def fail_connection(self, reason: str) -> None:
        """Close the connection of a client that cannot be answered; the reason goes to the log."""
        self._end()
        self._connection.fail(reason)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call `callback` if the connection goes away before this slot is filled."""
        if self.closed:
            callback()
        elif not self.is_done:
            self._on_close = callback

    def connection_lost(self) -> None:
        callback, self._on_close = self._on_close, None
        if callback is not None and not self.is_done:
            callback()

    def _end(self) -> None:
        # Who made the answer is in the callback and has this slot: a circle that keeps all that was read for the answer
        # until the collector next looks at everything.
        self.is_done, self._on_close = True, None
