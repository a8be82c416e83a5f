"""Answers on their way to a client that may not read them: in order, and what they hold is known."""

import asyncio
import random
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from certificates import Authority

from log_broker.records.stored import Chunk
from log_broker.server.net.outbox import PIECE_BYTES, Outbox
from log_broker.server.process.counters import Counters
from log_broker.server.process.event_loop import loop_factory
from log_broker.storage.file_part import FilePart
from log_broker.storage.files import OsFileSystem
from log_broker.storage.segment_files import SegmentFiles

MIB = 1 << 20
BUFFER_BYTES = 64 * 1024
SYSTEM_BYTES_MAX = MIB // 2  # of a connection whose buffers are that small, in both ends
LOOPS = [pytest.param(asyncio.new_event_loop, id="asyncio"), pytest.param(loop_factory(), id="fastest")]


class Sending(asyncio.Protocol):
    """The broker's end."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.outbox = Outbox(self.counters)
        self.gone = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        self.outbox.attach(cast(asyncio.Transport, transport))

    def pause_writing(self) -> None:
        self.outbox.paused()

    def resume_writing(self) -> None:
        self.outbox.resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        self.outbox.clear()
        self.gone.set_result(None)


class Client:
    """The other end, which reads only what it is told to; each read in a thread."""

    def __init__(self, port: int, context: ssl.SSLContext | None) -> None:
        link = socket.socket()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        link.settimeout(60)
        link.connect(("127.0.0.1", port))
        self.link = link if context is None else context.wrap_socket(link, server_hostname="localhost")

    async def read(self, size: int) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(None, self._read, size)

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size and (data := self.link.recv(min(size - len(found), BUFFER_BYTES))):
            found += data
        return bytes(found)


def between(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    scene: Callable[[Sending, Client], Awaitable[None]],
    folder: Path | None = None,
) -> None:
    """Play a scene between the two ends; with a folder for certificates over TLS."""
    contexts: list[Any] = [None, None]
    if folder is not None:
        authority = Authority(folder)
        contexts = [ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(authority.path))]
        contexts[0].load_cert_chain(authority.issue("broker"))

    async def run() -> None:
        loop = asyncio.get_running_loop()
        made: asyncio.Future[Sending] = loop.create_future()

        class Accepted(Sending):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                made.set_result(self)

        server = await loop.create_server(Accepted, "127.0.0.1", 0, ssl=contexts[0])
        client = await loop.run_in_executor(None, Client, server.sockets[0].getsockname()[1], contexts[1])
        try:
            await scene(await made, client)
        finally:
            client.link.close()
            server.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(run(), 60))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - a client's end says it
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("secured", [False, True])
def test_all_arrives_in_order(tmp_path: Path, new_loop: Any, secured: bool) -> None:
    dice = random.Random(3)
    sizes = [0, 1, 4, 100, 70_000, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 5]
    answers = [[dice.randbytes(dice.choice(sizes)) for _ in range(dice.randrange(1, 5))] for _ in range(40)]
    whole = b"".join(chunk for answer in answers for chunk in answer)

    async def scene(sending: Sending, client: Client) -> None:
        reading = asyncio.ensure_future(client.read(len(whole)))
        for answer in answers:
            sending.outbox.send(list(answer))
            await asyncio.sleep(dice.choice([0, 0, 0.001]))
        assert sending.counters.bytes_out == len(whole)
        assert await reading == whole
        await until(lambda: sending.outbox.is_free)
        assert sending.outbox.held == 0

    between(new_loop, scene, tmp_path if secured else None)


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("secured", [False, True])
def test_what_a_client_does_not_read_is_known_to_the_end(tmp_path: Path, new_loop: Any, secured: bool) -> None:
    unknown = SYSTEM_BYTES_MAX + (2 * PIECE_BYTES if secured else 0)  # encrypted, and not sent

    async def scene(sending: Sending, client: Client) -> None:
        outbox = sending.outbox
        outbox.send([bytes(MIB) for _ in range(8)])
        for read in range(7):
            assert not outbox.is_free
            assert outbox.held >= (8 - read) * MIB - unknown
            assert outbox.held % MIB == 0, "a buffer is held until its last byte is sent"
            await client.read(MIB)
            await asyncio.sleep(0)
        await client.read(MIB)
        await until(lambda: outbox.is_free)
        assert outbox.held == 0

    between(new_loop, scene, tmp_path if secured else None)


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("secured", [False, True])
def test_it_closes_once_all_is_sent(tmp_path: Path, new_loop: Any, secured: bool) -> None:
    async def scene(sending: Sending, client: Client) -> None:
        sending.outbox.send([b"a" * (3 * MIB), b"b"])
        sending.outbox.close()
        found = await client.read(4 * MIB)
        assert found == b"a" * (3 * MIB) + b"b"
        if secured:
            client.link.close()
        await sending.gone

    between(new_loop, scene, tmp_path if secured else None)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_client_that_goes_midway_leaves_nothing(new_loop: Any) -> None:
    async def scene(sending: Sending, client: Client) -> None:
        sending.outbox.send([bytes(MIB) for _ in range(4)])
        client.link.close()
        await sending.gone
        assert sending.outbox.held == 0

    between(new_loop, scene)


def stored(folder: Path, size: int) -> tuple[SegmentFiles, bytes]:
    """A segment's file of so many bytes, and the bytes."""
    files, content = SegmentFiles(OsFileSystem(), folder, 0), random.Random(5).randbytes(size)
    files.path().write_bytes(content)
    return files, content


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("secured", [False, True])
def test_what_is_stored_arrives_in_its_place(tmp_path: Path, new_loop: Any, secured: bool) -> None:
    files, content = stored(tmp_path, 6 * MIB)
    dice = random.Random(8)
    answers: list[list[Chunk]] = []
    whole = bytearray()
    for _ in range(30):
        answer: list[Chunk] = []
        for _ in range(dice.randrange(1, 4)):
            length = dice.choice([1, 100, 70_000, MIB, 3 * MIB + 1])
            at = dice.randrange(len(content) - length)
            answer += [b"before", FilePart(files, at, length)] if dice.random() < 0.8 else [content[at : at + length]]
            whole += (b"before" if isinstance(answer[-1], FilePart) else b"") + content[at : at + length]
        answers.append([*answer, b"behind"] if dice.random() < 0.5 else answer)
        whole += b"behind" if answers[-1][-1] == b"behind" else b""

    async def scene(sending: Sending, client: Client) -> None:
        reading = asyncio.ensure_future(client.read(len(whole)))
        for answer in answers:
            sending.outbox.send(sending.outbox.pass_on(answer))
            await asyncio.sleep(dice.choice([0, 0, 0.005]))
        assert await reading == whole
        assert sending.counters.bytes_out == len(whole)

    between(new_loop, scene, tmp_path if secured else None)
    files.close()


@pytest.mark.parametrize("new_loop", LOOPS)
def test_what_a_socket_took_unread_holds_no_memory_and_needs_the_file_no_more(tmp_path: Path, new_loop: Any) -> None:
    files, content = stored(tmp_path, 4 * MIB)

    async def scene(sending: Sending, client: Client) -> None:
        rest = sending.outbox.pass_on([b"answer", FilePart(files, 0, len(content))])
        assert 0 < sum(map(len, rest)) < len(content), "the socket took a part of it"
        sending.outbox.send(rest)
        assert sending.outbox.held <= sum(map(len, rest))
        files.log.truncate(0)
        files.close()
        files.path().unlink()
        assert await client.read(6 + len(content)) == b"answer" + content

    between(new_loop, scene)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_file_that_has_become_shorter_is_told_and_not_made_up(tmp_path: Path, new_loop: Any) -> None:
    files, content = stored(tmp_path, MIB)

    async def scene(sending: Sending, client: Client) -> None:
        with pytest.raises(OSError, match="shorter"):
            sending.outbox.pass_on([b"answer", FilePart(files, 0, len(content) + 1)])

    between(new_loop, scene)
    files.close()
