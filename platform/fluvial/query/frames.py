"""
What a process of ours and we say to each other over two pipes: frames of a kind, a length and bytes.
"""

import io
import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, BinaryIO

_HEAD = struct.Struct(">cI")
"""The kind of a frame, and how many bytes follow."""

FRAME_BYTES_MAX = 1 << 20
"""A longer piece of an answer is cut into several frames."""


class Frame(Enum):
    """
    What a frame holds.
    """

    READY = b"R"
    """The engine takes statements; JSON of what it is."""
    ASK = b"Q"
    """JSON of a statement."""
    ARROW = b"A"
    """A piece of the answer, a stream in Arrow's IPC format."""
    REFUSED = b"E"
    """JSON of why there is no answer, or none beyond the pieces before."""
    END = b"D"
    """The answer is whole."""
    CONNECT = b"C"
    """JSON of the path of a socket at which Spark Connect is to be spoken; answered by END."""


class LostEngineError(Exception):
    """
    The other process has ended.
    """


class RefusedError(Exception):
    """
    The engine has refused a statement; the text says why, in its words.
    """


def write_frame(out: BinaryIO, kind: Frame, body: bytes = b"") -> None:
    """
    Send one frame, of at most 4 GiB.
    """
    out.write(_HEAD.pack(kind.value, len(body)))
    out.write(body)
    out.flush()


def write_json(out: BinaryIO, kind: Frame, body: Mapping[str, Any]) -> None:
    """
    Send one frame of JSON.
    """
    write_frame(out, kind, json.dumps(body).encode())


def read_frame(source: BinaryIO) -> tuple[Frame, bytes]:
    """
    Receive one frame. Raises :class:`LostEngineError` when there will be none.
    """
    kind, size = _HEAD.unpack(_exactly(source, _HEAD.size))
    return Frame(kind), _exactly(source, size)


def received(source: BinaryIO) -> Iterator[tuple[Frame, bytes]]:
    """
    Every frame that comes, until the other process has ended.
    """
    with suppress(LostEngineError):
        while True:
            yield read_frame(source)


def _exactly(source: BinaryIO, size: int) -> bytes:
    data = source.read(size)
    if len(data) < size:
        raise LostEngineError
    return data


def own_pipes() -> tuple[BinaryIO, BinaryIO]:
    """
    The pipes to the process that started this one: what it sends, and what it reads.

    What libraries print on stdout goes to stderr from then on.
    """
    source, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return source, out


class FramedAnswer(io.RawIOBase):
    """
    The bytes of one answer as a file to read; reading it raises what was sent in place of its end.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._piece = memoryview(b"")
        self.ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._piece and not self.ended:
            kind, body = read_frame(self._source)
            if kind is Frame.ARROW:
                self._piece = memoryview(body)
            else:
                self.ended = True
                if kind is Frame.REFUSED:
                    raise RefusedError(json.loads(body)["message"])
        size = min(len(buffer), len(self._piece))
        buffer[:size] = self._piece[:size]
        self._piece = self._piece[size:]
        return size

    def drain(self) -> None:
        """
        Read what is left, so that the next frame is that of the next answer.
        """
        while self.read(FRAME_BYTES_MAX):
            pass


class FrameWriter(io.RawIOBase):
    """
    A file to write an answer to, which leaves in frames, until it is given up.
    """

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._given_up = False

    def give_up(self) -> None:
        """
        Let nothing leave any more: what a buffer still holds is of an answer that has been refused.
        """
        self._given_up = True

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._given_up:
            return len(view)
        for start in range(0, len(view), FRAME_BYTES_MAX):
            write_frame(self._out, Frame.ARROW, bytes(view[start : start + FRAME_BYTES_MAX]))
        return len(view)
