"""
Answers with parts of a file by each path that a fetch could take: `-m tests.bench.broker.fetch_paths_server FILE`.

Prints its port. A request is `ASKED`: which path, where in the file, how many bytes; the answer has that many behind
HEADER. No bytes ask for the processor time so far, which is answered as `TOLD`.
"""

import asyncio
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from log_broker.server.process.event_loop import loop_factory
from log_broker.server.process.memory import settle

ASKED = struct.Struct(">BQI")
TOLD = struct.Struct(">d")
HEADER = bytes(80)  # about what an answer for one partition has before its records
AHEAD_BYTES = 1 << 20
PIECE_BYTES = 256 * 1024
WAKING_BYTES = 64 * 1024


class Serving(asyncio.Protocol):
    """One connection, whose client asks for one answer after the other."""

    def __init__(self, file: int, mapped: memoryview, threads: ThreadPoolExecutor) -> None:
        self._file = file
        self._mapped = mapped
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._drained: asyncio.Future[None] | None = None
        self._rest = (0, 0)  # of an answer by `_sendfile_on`

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        self._socket = transport.get_extra_info("socket").fileno()

    def data_received(self, data: bytes) -> None:
        path, position, length = ASKED.unpack(data)
        if length:
            list(PATHS.values())[path](self, position, length)
        else:
            self._transport.write(TOLD.pack(time.process_time()))

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        assert self._drained is not None
        self._drained.set_result(None)
        self._drained = None
        if self._rest[1]:
            self._send_on(*self._rest)

    def read(self, position: int, length: int) -> None:
        """All of it is read and handed to the transport."""
        self._transport.writelines((HEADER, os.pread(self._file, length, position)))

    def parts(self, position: int, length: int) -> None:
        """The same in parts, of which none is so large that the C library maps memory for it."""
        end = position + length
        parts = [os.pread(self._file, min(AHEAD_BYTES, end - at), at) for at in range(position, end, AHEAD_BYTES)]
        self._transport.writelines((HEADER, *parts))

    def pieces(self, position: int, length: int) -> None:
        """A piece is read when the one before is in the socket; what that does not take is read at once."""
        os.write(self._socket, HEADER)
        end = position + length
        while position < end:
            piece = memoryview(os.pread(self._file, min(PIECE_BYTES, end - position), position))
            position += len(piece)
            try:
                taken = os.write(self._socket, piece)
            except BlockingIOError:
                taken = 0
            if taken < len(piece):
                self._transport.writelines((piece[taken:], os.pread(self._file, end - position, position)))
                return

    def sendfile(self, position: int, length: int) -> None:
        """What the socket takes at once is sent from the file; the rest is read."""
        os.write(self._socket, HEADER)
        position, length = self._sent(position, length)
        if length:
            self._transport.write(os.pread(self._file, length, position))

    def sendfile_on(self, position: int, length: int) -> None:
        """All of it is sent from the file but for pieces by which the transport says that the socket takes more."""
        os.write(self._socket, HEADER)
        self._send_on(position, length)

    def ahead(self, position: int, length: int) -> None:
        """A thread reads what comes next while the last is sent."""
        self._task = self._loop.create_task(self._read_ahead(position, position + length))

    def mapped(self, position: int, length: int) -> None:
        """Nothing is read, the file's own pages are handed to the transport."""
        self._transport.writelines((HEADER, self._mapped[position : position + length]))

    def _sent(self, position: int, length: int) -> tuple[int, int]:
        try:
            while length:
                sent = os.sendfile(self._socket, self._file, position, length)
                position, length = position + sent, length - sent
        except BlockingIOError:
            pass
        return position, length

    def _send_on(self, position: int, length: int) -> None:
        while length:
            position, length = self._sent(position, length)
            waking = min(WAKING_BYTES, length)
            self._rest = (position + waking, length - waking)
            if waking:
                self._transport.write(os.pread(self._file, waking, position))
                if self._drained is not None:
                    return
                position, length = self._rest

    async def _read_ahead(self, position: int, end: int) -> None:
        read = self._loop.run_in_executor
        reading = read(self._threads, os.pread, self._file, min(AHEAD_BYTES, end - position), position)
        self._transport.write(HEADER)
        while position < end:
            piece = await reading
            position += len(piece)
            if position < end:
                reading = read(self._threads, os.pread, self._file, min(AHEAD_BYTES, end - position), position)
            self._transport.write(piece)
            if self._drained is not None:
                await self._drained


PATHS: dict[str, Callable[[Serving, int, int], None]] = {
    "read and write": Serving.read,
    "read in parts of 1 MiB, then write": Serving.parts,
    "read and write in pieces of 256 KiB": Serving.pieces,
    "sendfile, then read and write": Serving.sendfile,
    "sendfile throughout": Serving.sendfile_on,
    "read ahead in a thread": Serving.ahead,
    "mmap": Serving.mapped,
}


async def serve(file: int) -> None:
    """Serve until the process is killed."""
    mapped = memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_READ))
    with ThreadPoolExecutor(1) as threads:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Serving(file, mapped, threads), "127.0.0.1", 0)
        settle()
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


def main() -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(os.open(sys.argv[1], os.O_RDONLY)))


if __name__ == "__main__":
    main()
