"""
Cuts the bytes of a connection into requests, and reads the header before each.

    frame: length int32, then    api key          int16
                                 api version      int16
                                 correlation id   int32
                                 client id        string?   an int16 length in every version
                                 tagged fields    in flexible versions
                                 body
"""

import struct
from typing import NamedTuple

from log_broker.records.varint import read_uvarint
from log_broker.wire.apis import APIS
from log_broker.wire.reading import MalformedRequestError

LENGTH_BYTES = 4
HEADER_BYTES_MIN = 10
HEADER_TAGS_MAX = 1000  # none is defined so far
_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")


class RequestHeader(NamedTuple):
    """What stands before the body of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


class FrameTooLargeError(Exception):
    """A frame's length is negative or above the limit, so what follows it cannot be found."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(f"a request of {length} bytes, and at most {limit} are read")
        self.length = length
        self.limit = limit


class FrameCutter:
    """
    Yields each request in memory of its own, so that it stays valid and writable as long as someone holds it.

    Bytes arrive either in a buffer that many connections share (`take`), from which small requests are copied, or
    straight in the request's own memory once its length is known (`room` and `filled`): a large one is not copied.
    """

    __slots__ = ("_frame", "_have", "_length_bytes", "_limit", "pending")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._length_bytes = b""  # the first bytes of a length that is not complete
        self._frame: bytearray | None = None  # a request that is not complete, and how much of it is there
        self._have = 0
        self.pending = 0  # its length, 0 between requests

    @property
    def is_between_frames(self) -> bool:
        """Whether every byte so far belongs to a whole request."""
        return self._frame is None and not self._length_bytes

    def room(self) -> memoryview | None:
        """Return the memory where the rest of the current request belongs, None when its length is not known yet."""
        return None if self._frame is None else memoryview(self._frame)[self._have :]

    def filled(self, count: int) -> memoryview | None:
        """Note that `count` bytes were written into `room()`; return the request if it is complete."""
        assert self._frame is not None, "only a request whose length is known has room"
        self._have += count
        if self._have < len(self._frame):
            return None
        frame, self._frame = self._frame, None
        self.pending = 0
        return memoryview(frame)

    def take(self, data: memoryview) -> list[memoryview]:
        """Copy `data` out and return the requests it completes; raises FrameTooLargeError."""
        frames: list[memoryview] = []
        position, end = 0, len(data)
        if self._frame is not None:
            position = min(len(self._frame) - self._have, end)
            self._frame[self._have : self._have + position] = data[:position]
            whole = self.filled(position)
            if whole is None:
                return frames
            frames.append(whole)
        while position < end:
            missing = LENGTH_BYTES - len(self._length_bytes)
            if missing < LENGTH_BYTES or end - position < LENGTH_BYTES:
                self._length_bytes += bytes(data[position : position + missing])
                position += missing
                if len(self._length_bytes) < LENGTH_BYTES:
                    return frames
                (length,) = _LENGTH.unpack(self._length_bytes)
                self._length_bytes = b""
            else:
                (length,) = _LENGTH.unpack_from(data, position)
                position += LENGTH_BYTES
            if not 0 <= length <= self._limit:
                raise FrameTooLargeError(length, self._limit)
            if end - position >= length:
                frames.append(memoryview(bytearray(data[position : position + length])))
                position += length
            else:
                # Zeroed pages take no memory until bytes arrive, so an announced length alone costs nothing.
                self._frame = bytearray(length)
                self.pending = length
                self._have = end - position
                self._frame[: self._have] = data[position:end]
                return frames
        return frames


def read_header(frame: memoryview) -> tuple[RequestHeader, memoryview]:
    """Split a request into header and body; raises MalformedRequestError."""
    if len(frame) < HEADER_BYTES_MIN:
        raise MalformedRequestError(f"a request of {len(frame)} bytes")
    api_key, api_version, correlation_id, size = _HEADER.unpack_from(frame)
    position = HEADER_BYTES_MIN
    client_id = None
    if size >= 0:
        position += size
        if position > len(frame):
            raise MalformedRequestError("the client id runs over the end of the request")
        client_id = str(frame[HEADER_BYTES_MIN:position], "utf-8", "replace")
    api = APIS.get(api_key)
    if api is not None and api.flexible_from <= api_version <= api.version_max:
        position = _skip_tagged_fields(frame, position)
    return RequestHeader(api_key, api_version, correlation_id, client_id), frame[position:]


def write_header(header: RequestHeader) -> bytes:
    """Write a header that `read_header` would read; a supported api's, so that its flexible versions are known."""
    name = None if header.client_id is None else header.client_id.encode()
    fixed = _HEADER.pack(header.api_key, header.api_version, header.correlation_id, -1 if name is None else len(name))
    no_tags = b"\0" if header.api_version >= APIS[header.api_key].flexible_from else b""
    return fixed + (name or b"") + no_tags


def _skip_tagged_fields(frame: memoryview, position: int) -> int:
    if position < len(frame) and frame[position] == 0:
        return position + 1
    try:
        count, position = read_uvarint(frame, position)
        if count > HEADER_TAGS_MAX:
            raise ValueError(f"there are {count}")
        for _ in range(count):
            _, position = read_uvarint(frame, position)
            size, position = read_uvarint(frame, position)
            position += size
            if position > len(frame):
                raise ValueError("they run over the end of the request")
    except (IndexError, ValueError) as error:
        raise MalformedRequestError(f"the tagged fields of the header: {error}") from None
    return position
