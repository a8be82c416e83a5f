"""
Connections as TCP makes them, over a network that drops, delays and cuts.

A stream's bytes come in order and once, or late, or never: what is lost is sent again after a while, for as long as the
connection lasts. A process that is killed has its connections closed by its system. A machine without power says
nothing: the other end learns of it when it sends and the machine, up again, knows of no such connection; until then it
waits as long as it likes.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from log_broker.sim.kernel.event_loop import VirtualLoop
from log_broker.sim.kernel.kernel import Kernel
from log_broker.sim.kernel.network import Network

RETRY_US = 200_000  # the first retransmission, as Linux has it
RETRY_US_MAX = 1_600_000
CONNECT_US_MAX = 30_000_000
WRITE_BUFFER_BYTES_MAX = 64 * 1024
EPHEMERAL_PORT = 40_000

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class Streams:
    """All connections and listening addresses of a world."""

    def __init__(self, kernel: Kernel, network: Network) -> None:
        self.kernel = kernel
        self.network = network
        self.random = kernel.stream("streams").random
        self._listening: dict[tuple[str, int], tuple[VirtualLoop, ProtocolFactory]] = {}
        self._addresses: dict[str, int] = {}
        self._ports = EPHEMERAL_PORT
        self._ends: dict[VirtualLoop, dict[StreamEnd, None]] = {}
        self.powered: Callable[[int], bool] = lambda address: True
        self.late_us: dict[int, int] = {}  # api -> how much later answers to it come than all else

    def add_host(self, host: str, address: int) -> None:
        """Have `host` stand for an address of the network."""
        self._addresses[host] = address

    def listen(self, loop: VirtualLoop, factory: ProtocolFactory, host: str, port: int) -> None:
        self._listening[host, port] = loop, factory

    def unlisten(self, host: str, port: int) -> None:
        self._listening.pop((host, port), None)

    def process_ended(self, loop: VirtualLoop, *, power_lost: bool) -> None:
        """Take note that a process is gone, and whether its system is there to close its connections."""
        for place in [place for place, (listening, _) in self._listening.items() if listening is loop]:
            del self._listening[place]
        for end in list(self._ends.pop(loop, {})):
            end.vanish(closes=not power_lost)

    def hang_up(self, loop: VirtualLoop) -> None:
        """Tell a process that all its connections are gone: the run is over, and what it left open is not its fault."""
        for end in list(self._ends.get(loop, {})):
            loop.run(end.lose, None)

    async def connect(
        self, loop: VirtualLoop, factory: ProtocolFactory, host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Open a connection; raises OSError."""
        target = self._addresses.get(host)
        if target is None:
            raise OSError(f"no route to {host}")
        source = loop.host.address
        established: asyncio.Future[StreamEnd] = loop.create_future()
        gives_up_us = self.kernel.now_us + CONNECT_US_MAX

        def ask(retry_us: int) -> None:
            if established.done() or loop.is_dead:
                return
            if self.kernel.now_us >= gives_up_us:
                loop.host.do(lambda: loop.run(_fail, established, TimeoutError(f"{host}:{port} does not answer")))
                return
            delay_us = self.delay_us(source, target)
            if delay_us is None or not self.powered(target):
                self.kernel.after(retry_us, lambda: ask(min(2 * retry_us, RETRY_US_MAX)))
            else:
                self.kernel.after(delay_us, lambda: arrive(retry_us))

        def arrive(retry_us: int) -> None:
            if established.done() or loop.is_dead:
                return
            listening = self._listening.get((host, port))
            back_us = self.delay_us(target, source)
            if back_us is None or not self.powered(target):
                self.kernel.after(retry_us, lambda: ask(min(2 * retry_us, RETRY_US_MAX)))
            elif listening is None:
                refused = ConnectionRefusedError(f"nobody listens at {host}:{port}")
                self.kernel.after(back_us, lambda: loop.host.do(lambda: loop.run(_fail, established, refused)))
            else:
                theirs, their_factory = listening
                self._ports += 1
                ours = StreamEnd(self, loop, target, (host, port))
                other = StreamEnd(self, theirs, source, (f"a{source}", self._ports))
                ours.peer, other.peer = other, ours
                self._ends.setdefault(loop, {})[ours] = None
                self._ends.setdefault(theirs, {})[other] = None
                theirs.host.do(lambda: theirs.run(other.open, their_factory()))
                self.kernel.after(back_us, lambda: loop.host.do(lambda: loop.run(_settle, established, ours)))

        ask(RETRY_US)
        try:
            end = await established
        except asyncio.CancelledError:
            if established.done() and not established.cancelled() and established.exception() is None:
                established.result().abort()
            raise
        protocol = factory()
        end.open(protocol)
        return end, protocol

    def delay_us(self, source: int, target: int) -> int | None:
        """Return how long a segment takes now, None if it is lost."""
        network = self.network
        weather = network.weather
        chance = self.random
        if (source, target) in network.cut or (weather.loss > 0 and chance() < weather.loss):
            return None
        low, high = weather.delay_us
        delay_us = low + int(chance() * (high - low))
        if weather.straggling > 0 and chance() < weather.straggling:
            delay_us = int(delay_us * (1 + 99 * chance()))
        return delay_us

    def forget(self, end: "StreamEnd") -> None:
        self._ends.get(end.loop, {}).pop(end, None)


class StreamEnd(asyncio.Transport):
    """One end of a connection: the transport of its process, and what its system has still to send."""

    peer: "StreamEnd"

    def __init__(self, streams: Streams, loop: VirtualLoop, other: int, peername: tuple[str, int]) -> None:
        super().__init__()
        self.loop = loop
        self._streams = streams
        self._kernel = streams.kernel
        self._is_asker = peername[1] < EPHEMERAL_PORT  # who opened the connection sends requests
        self._address = loop.host.address
        self._other = other
        self._peername = peername
        self._protocol: asyncio.BaseProtocol | None = None
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._received: deque[bytes] = deque()  # while the process does not read
        self._sending = False  # a segment is under way, and the next one waits for it
        self._closes = False  # nothing more will be written: FIN when all is sent
        self._is_closed = False  # the process has been told
        self._reads = True
        self._eof_received = False
        self._writes_paused = False
        self._high = WRITE_BUFFER_BYTES_MAX
        self.holds_until_us = 0  # nothing leaves before
        self.is_gone = False  # no system knows of this end any more

    # The process

    def open(self, protocol: asyncio.BaseProtocol) -> None:
        """Begin to serve."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._hand_over()

    def write(self, data: Any) -> None:
        if self._closes or self.is_gone:
            return
        if self._is_asker:
            self._asks(int.from_bytes(data[4:6], "big"))
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(data)
        if not self._sending:
            self._send(RETRY_US)
        if self._unsent_bytes > self._high and not self._writes_paused and self._protocol is not None:
            self._writes_paused = True
            cast(asyncio.Protocol, self._protocol).pause_writing()

    def _asks(self, api: int) -> None:
        spy, late_us = self.loop.host.spy, self._streams.late_us
        if spy is not None:
            spy(f"api {api}")
        if api in late_us:
            self.peer.holds_until_us = self._kernel.now_us + late_us[api]

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if self._closes or self.is_gone:
            return
        self._closes = True
        if not self._sending:
            self._send(RETRY_US)
        self.loop.call_soon(self.lose, None)

    def abort(self) -> None:
        if self.is_gone:
            return
        self._unsent.clear()
        self._unsent_bytes = 0
        self.close()

    def is_closing(self) -> bool:
        return self._closes or self._is_closed or self.is_gone or self.loop.is_dead

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peername if name == "peername" else default

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        # What is unsent here a system would have taken by now: its buffer is not the transport's.
        self._high = max(WRITE_BUFFER_BYTES_MAX, high or 0)

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True
        if self._received or self._eof_received:
            self.loop.call_soon(self._hand_over)

    def is_reading(self) -> bool:
        return self._reads

    def can_write_eof(self) -> bool:
        return False

    # The system

    def vanish(self, *, closes: bool) -> None:
        """The process is gone; its system sends what it was given and closes, or is gone itself."""
        self._protocol = None
        if closes:
            self._closes = True
            if not self._sending:
                self._send(RETRY_US)
        else:
            self.is_gone = True
            self._unsent.clear()

    def _send(self, retry_us: int) -> None:
        if self.is_gone or not (self._unsent or self._closes):
            self._sending = False
            return
        self._sending = True
        kernel = self._kernel
        if kernel.now_us < self.holds_until_us:
            kernel.at(self.holds_until_us, lambda: self._send(retry_us))
            return
        delay_us = self._streams.delay_us(self._address, self._other)
        if delay_us is None:
            kernel.after(retry_us, lambda: self._send(min(2 * retry_us, RETRY_US_MAX)))
            return
        data = b"".join(self._unsent)
        count = len(self._unsent)
        kernel.after(delay_us, lambda: self._arrive(data, count, retry_us))

    def _arrive(self, data: bytes, count: int, retry_us: int) -> None:
        streams, peer = self._streams, self.peer
        if self.is_gone:
            return
        if (self._address, self._other) in streams.network.cut or not streams.powered(self._other):
            self._kernel.after(retry_us, lambda: self._send(min(2 * retry_us, RETRY_US_MAX)))
            return
        if peer.is_gone:
            # Its system knows of no such connection, and says so if it can.
            if (self._other, self._address) in streams.network.cut:
                self._kernel.after(retry_us, lambda: self._send(min(2 * retry_us, RETRY_US_MAX)))
            else:
                self._tell_process(ConnectionResetError("the connection is not known any more"))
            return
        if len(self._unsent) >= count:
            for _ in range(count):
                self._unsent_bytes -= len(self._unsent.popleft())
        if data:
            peer.take(data)
        if self._closes and not self._unsent:
            self.is_gone = True
            streams.forget(self)
            peer.take_end()
            return
        if self._writes_paused and self._unsent_bytes <= self._high // 4:
            self._writes_paused = False
            self.loop.host.do(lambda: self.loop.run(self._resume_writing))
        self._send(RETRY_US)

    def _resume_writing(self) -> None:
        if self._protocol is not None and not self._is_closed:
            cast(asyncio.Protocol, self._protocol).resume_writing()

    def take(self, data: bytes) -> None:
        """Take what has arrived."""
        self._received.append(data)
        if self._protocol is not None and self._reads:
            self.loop.host.do(lambda: self.loop.run(self._hand_over))

    def take_end(self) -> None:
        """The other end sends nothing more."""
        self._eof_received = True
        if self._protocol is not None:
            self.loop.host.do(lambda: self.loop.run(self._hand_over))

    def _tell_process(self, error: Exception | None) -> None:
        self.is_gone = True
        self._streams.forget(self)
        self.loop.host.do(lambda: self.loop.run(self.lose, error))

    def _hand_over(self) -> None:
        protocol = self._protocol
        received = self._received
        while received and self._reads and not self._is_closed and protocol is not None:
            data = received.popleft()
            if isinstance(protocol, asyncio.BufferedProtocol):
                view = memoryview(data)
                while view and not self._is_closed:
                    buffer = cast(memoryview, protocol.get_buffer(-1))
                    size = min(len(buffer), len(view))
                    buffer[:size] = view[:size]
                    protocol.buffer_updated(size)
                    view = view[size:]
            else:
                cast(asyncio.Protocol, protocol).data_received(data)
        if self._eof_received and not received and protocol is not None and not self._is_closed:
            cast(asyncio.Protocol, protocol).eof_received()
            self.close()

    def lose(self, error: Exception | None) -> None:
        """Tell the process, once, that the connection is gone."""
        if self._is_closed:
            return
        self._is_closed = True
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(error)


def _settle(future: "asyncio.Future[StreamEnd]", end: StreamEnd) -> None:
    if not future.done():
        future.set_result(end)
    else:
        end.abort()


def _fail(future: "asyncio.Future[StreamEnd]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
