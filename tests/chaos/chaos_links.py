"""
Links between processes on one machine that can be cut, slowed and tapped, without namespaces and without root.

Every node is reached through a proxy only, because it advertises the proxy's address. The proxy knows who dials by the
address that the connection comes from, or by the process that holds its other end (as /proc tells), so the link from
one node to another is a thing of its own. Clients are told apart by their client id: "in/producer" is a client in the
zone "in", others are in CLIENTS.

A cut link swallows nothing: bytes wait, as they do in a network that loses packets and a TCP that sends them again, and
go on when it heals. New connections over it wait as well. `break_connections` resets what there is.
"""

import asyncio
import os
import resource
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

CLIENTS = "clients"
CHUNK_BYTES = 1 << 16
FRAME_BYTES_MAX = 128 << 20
LOOK_SECONDS = 0.5
FILES_MIN = 8192
# As the kernel prints ::ffff:0:0/96.
IPV4_MAPPED = "0000000000000000FFFF0000"

Address = tuple[str, int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How bytes pass from one end to another."""

    cut: bool = False
    discard: bool = False  # taken and thrown away; the connection is broken when that ends
    delay_seconds: float = 0.0  # of every chunk of up to CHUNK_BYTES
    bytes_per_second: float | None = None


CLEAR = Rule()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tap does instead of passing a request on: the broker's answer is this, length not included."""

    frame: bytes


@dataclass(frozen=True, slots=True)
class Break:
    """What a tap does instead of passing a frame on: end the connection."""


# Sees each frame, without its length, on its way: None lets it pass. The frame of an answer begins with the
# correlation id of its request.
Tap = Callable[[bytes], Awaitable[Answer | Break | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Taps:
    """What looks at the frames of one zone's clients."""

    request: Tap | None = None
    answer: Tap | None = None


@dataclass(eq=False)
class _Connection:
    source: str
    target: str
    writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]

    def abort(self) -> None:
        for writer in self.writers:
            _reset(writer)


class Links:
    """The proxies of one cluster, in a thread of their own. Methods may be called from any thread."""

    def __init__(
        self,
        pids: Callable[[], Mapping[int, str]],
        addresses: Mapping[str, str] | None = None,
        *,
        is_readable: bool = True,
    ) -> None:
        """
        `addresses` are those that nodes dial from, if they have one each; of other nodes `pids` tells which process is
        which, at any moment. Where what passes cannot be read, all clients are CLIENTS, and nothing can be tapped.
        """
        self._is_readable = is_readable
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < FILES_MIN:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES_MIN, hard), hard))
        self._pids = pids
        self._addresses = addresses or {}
        self._rules: dict[tuple[str, str], Rule] = {}
        self._taps: dict[str, Taps] = {}
        self._busy_until: dict[tuple[str, str], float] = {}
        self._connections: set[_Connection] = set()
        self._servers: list[asyncio.Server] = []
        self._handlers: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._changed: asyncio.Event = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End every connection and the thread."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def proxy(self, address: Address, target: str, target_address: Address) -> None:
        """Listen at `address` for those who want `target`, which itself listens at `target_address`."""

        async def listen() -> None:
            def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = self._loop.create_task(self._serve(reader, writer, target, target_address))
                self._handlers.add(task)
                task.add_done_callback(self._handlers.discard)

            self._servers.append(await asyncio.start_server(accepted, *address))

        self._call(listen())

    def rule(self, source: str, target: str, **changes: Any) -> None:
        """Change how bytes pass from `source` to `target`; what is not named stays as it is."""
        self._set({(source, target): replace(self._rules.get((source, target), CLEAR), **changes)})

    def cut(self, sources: Iterable[str], targets: Iterable[str], *, both_ways: bool = True) -> None:
        """Cut every link from one of `sources` to one of `targets`, and back."""
        sources, targets = tuple(sources), tuple(targets)
        pairs = [(a, b) for a in sources for b in targets if a != b]
        if both_ways:
            pairs += [(b, a) for a, b in pairs]
        self._set({pair: replace(self._rules.get(pair, CLEAR), cut=True) for pair in pairs})

    def heal(self) -> None:
        """Let everything pass again, as it was, and take the taps out."""
        self._set(dict.fromkeys(self._rules, CLEAR))
        self._taps.clear()

    def break_connections(self, source: str | None = None, target: str | None = None) -> None:
        """Reset the connections that `source` has opened to `target`; None is anyone."""

        async def abort() -> None:
            for connection in list(self._connections):
                if source in (None, connection.source) and target in (None, connection.target):
                    connection.abort()

        self._call(abort())

    def tap(self, zone: str, taps: Taps) -> None:
        """Look at the frames of connections that clients of `zone` open from now on."""
        self._taps[zone] = taps

    def _set(self, rules: dict[tuple[str, str], Rule]) -> None:
        async def change() -> None:
            ended = [pair for pair, rule in rules.items() if self._rules.get(pair, CLEAR).discard and not rule.discard]
            self._rules.update(rules)
            self._changed.set()
            self._changed.clear()
            for source, target in ended:
                for connection in list(self._connections):
                    if {connection.source, connection.target} == {source, target}:
                        connection.abort()

        self._call(change())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def _rule_of(self, source: str, target: str) -> Rule:
        return self._rules.get((source, target), CLEAR)

    async def _passable(self, source: str, target: str, reader: asyncio.StreamReader) -> Rule:
        """Wait while the link is cut; raises _EndedError once the end that waits, `reader`'s, has hung up."""
        while (rule := self._rule_of(source, target)).cut:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), LOOK_SECONDS)
            if reader.at_eof() or reader.exception() is not None:
                raise _EndedError
        return rule

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str, address: Address
    ) -> None:
        try:
            opening, source = b"", self._node_of(writer)
            if source is None and not self._is_readable:
                source = CLIENTS
            if source is None:
                opening = await _read_frame(reader)
                source = _zone_of(opening)
            await self._passable(source, target, reader)
            await self._passable(target, source, reader)
            onward_reader, onward = await asyncio.open_connection(*address)
        except (OSError, asyncio.IncompleteReadError, _EndedError):
            _reset(writer)
            return
        except asyncio.CancelledError:
            _reset(writer)
            raise
        connection = _Connection(source, target, (writer, onward))
        self._connections.add(connection)
        taps = self._taps.get(source)
        there = self._pump(reader, onward, source, target, opening, taps and taps.request, writer)
        back = self._pump(onward_reader, writer, target, source, b"", taps and taps.answer, None)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(there)
                pumps.create_task(back)
        except* (OSError, asyncio.IncompleteReadError, _EndedError):
            pass
        finally:
            self._connections.discard(connection)
            connection.abort()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        source: str,
        target: str,
        opening: bytes,
        tap: Tap | None,
        answers: asyncio.StreamWriter | None,
    ) -> None:
        data = opening
        while True:
            if not data:
                data = await (_read_frame(reader) if tap else reader.read(CHUNK_BYTES))
                if not data:
                    raise _EndedError
            verdict = await tap(data[4:]) if tap else None
            match verdict:
                case Break():
                    raise _EndedError
                case Answer(frame=frame):
                    assert answers is not None, "only a request can be answered"
                    answers.write(struct.pack(">i", len(frame)) + frame)
                case None:
                    await self._pass_on(data, reader, writer, source, target)
            data = b""

    async def _pass_on(
        self, data: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: str, target: str
    ) -> None:
        rule = await self._passable(source, target, reader)
        if rule.discard:
            return
        if rule.delay_seconds:
            await asyncio.sleep(rule.delay_seconds)
        if rule.bytes_per_second:
            # All connections of a link share its rate.
            now = self._loop.time()
            free_at = max(self._busy_until.get((source, target), now), now) + len(data) / rule.bytes_per_second
            self._busy_until[source, target] = free_at
            await asyncio.sleep(free_at - now)
        if rule.delay_seconds or rule.bytes_per_second:
            await self._passable(source, target, reader)
        writer.write(data)
        await writer.drain()

    def _node_of(self, writer: asyncio.StreamWriter) -> str | None:
        """The node whose process has opened this connection, or None for a client's."""
        dialled, accepted = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        if dialled[0] in self._addresses:
            return self._addresses[dialled[0]]
        # Milliseconds for each connection, when there are thousands: only where nothing else tells.
        pids = self._pids()
        inode = _inode(dialled, accepted) if pids else None
        if inode is None:
            return None
        wanted = f"socket:[{inode}]"
        for pid, name in pids.items():
            with suppress(OSError):
                folder = f"/proc/{pid}/fd"
                for number in os.listdir(folder):
                    with suppress(OSError):
                        if os.readlink(f"{folder}/{number}") == wanted:
                            return name
        return None

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        # What was being accepted when its server closed comes to a handler a turn or two later.
        for _ in range(5):
            await asyncio.sleep(0.01)
            for connection in list(self._connections):
                connection.abort()
            for handler in list(self._handlers):
                handler.cancel()
            if self._handlers:
                await asyncio.wait(self._handlers, timeout=5)


class _EndedError(Exception):
    """One end of a connection is gone, so the other goes as well."""


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection so that the other end sees a reset."""
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    length = struct.unpack(">i", size)[0]
    if not 0 <= length <= FRAME_BYTES_MAX:
        raise _EndedError
    return size + await reader.readexactly(length)


def _zone_of(frame: bytes) -> str:
    """The zone that a request's client id names: its part before the slash. The header: length, api, version, id."""
    (length,) = struct.unpack_from(">h", frame, 12)
    client_id = frame[14 : 14 + max(length, 0)].decode(errors="replace")
    zone, slash, _ = client_id.partition("/")
    return zone if slash else CLIENTS


def _inode(local: Address, remote: Address) -> str | None:
    """
    The inode of the socket with these two ends, as /proc/net/tcp lists it. A JVM's sockets are IPv6 ones that hold
    IPv4 addresses, and are in the other table.
    """
    for table, mapped in (("tcp", ""), ("tcp6", IPV4_MAPPED)):
        ends = " ".join(f"{mapped}{_hex(host)}:{port:04X}" for host, port in (local, remote))
        text = Path(f"/proc/net/{table}").read_text()
        # Found as text: there are thousands of lines when many connections have just been closed.
        if (at := text.find(ends)) >= 0:
            return text[at : text.index("\n", at)].split()[8]
    return None


def _hex(host: str) -> str:
    """An IPv4 address as the kernel prints it: the four bytes as one number of this machine."""
    return f"{int.from_bytes(bytes(map(int, host.split('.'))), 'little'):08X}"
