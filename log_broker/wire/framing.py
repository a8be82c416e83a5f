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
from mmap import ACCESS_COPY, mmap
from typing import NamedTuple

from log_broker.records.varint import read_uvarint
from log_broker.wire.apis import APIS
from log_broker.wire.reading import MalformedRequestError

LENGTH_BYTES = 4
HEADER_BYTES_MIN = 10
HEADER_TAGS_MAX = 1000  # none is defined so far
STAGING_BYTES = 256 * 1024  # of the buffer that connections share
DIRECT_FROM_BYTES = 32 * 1024
GROWTH = 8  # a large request's memory is at most so many times what has come of it, so that it seldom moves
STEP_BYTES_MAX = 16 * 1024 * 1024
# A request of so many bytes is mapped: its memory is never moved, and the system has it back when it ends. What is
# allocated otherwise is copied as it grows, and the C library keeps what was freed.
MAPPED_FROM_BYTES = 4 * 1024 * 1024
_ZEROS = memoryview(bytes(MAPPED_FROM_BYTES))  # never written to, so all of it is the system's one page of zeros
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

    Bytes arrive either in a buffer that many connections share (`take`), from which they are copied, or, once
    DIRECT_FROM_BYTES of a large request are there, straight in the request's own memory (`room` and `filled`). That
    memory grows with the bytes that have come, by a step that the owner must allow first (`wanted`, `allow`): a length
    is a promise and costs nothing.
    """

    __slots__ = ("_allowed", "_frame", "_have", "_length_bytes", "_limit", "_size", "pending", "uncut")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._length_bytes = b""  # the first bytes of a length that is not complete
        self._frame: bytearray | mmap | None = None  # a request that is not complete
        self._size = 0  # how much of that may be filled; all, unless it is mapped
        self._have = 0  # how much of that is filled
        self._allowed = 0  # by how much it grows when it is read into next
        self.pending = 0  # the length of that request, 0 between requests
        self.uncut: memoryview | None = None  # a copy of bytes that `take` has left; they come before any others

    @property
    def is_between_frames(self) -> bool:
        """Whether every byte so far belongs to a whole request."""
        return self._frame is None and not self._length_bytes

    @property
    def held(self) -> int:
        """Bytes of memory of the request that is not complete, with those that were allowed."""
        return 0 if self._frame is None else self._size + self._allowed

    @property
    def spare(self) -> int:
        """How many bytes of the request fit into what is held for it."""
        return self.held - self._have

    @property
    def wanted(self) -> int:
        """By how many bytes a large request must be allowed to grow before it is read on; 0 if there is room."""
        if self._frame is None or self.spare or self._have < DIRECT_FROM_BYTES:
            return 0
        have, missing = self._have, self.pending - self._have
        if missing < STAGING_BYTES:
            return missing
        step = STAGING_BYTES if have < STAGING_BYTES // 2 else (GROWTH - 1) * have
        return min(missing, STEP_BYTES_MAX, step)

    def allow(self, size: int) -> None:
        """Let the request grow by `size` bytes."""
        self._allowed += size

    def room(self) -> memoryview | None:
        """
        Return the memory where the next bytes of the current request belong; None if they should come by `take`.

        A small rest does: what follows it arrives in the same system call then.
        """
        if self._frame is None or self.pending - self._have < STAGING_BYTES:
            return None
        if self._allowed:
            self._extend(self._frame, self._allowed)
            self._allowed = 0
        return memoryview(self._frame)[self._have : self._size] if self._size > self._have else None

    def filled(self, count: int) -> memoryview | None:
        """Note that `count` bytes were written into `room()`; return the request if it is complete."""
        assert self._frame is not None, "only a request whose length is known has room"
        self._have += count
        if self._have < self.pending:
            return None
        frame, self._frame = self._frame, None
        self.pending = self._allowed = 0
        return memoryview(frame)

    def take(self, data: memoryview, *, frames_max: int | None = None) -> list[memoryview]:
        """
        Copy `data` out and return the requests it completes; raises FrameTooLargeError.

        What stands behind `frames_max` requests is left for later, in `uncut`: cut, a small one takes far more memory.
        """
        frames: list[memoryview] = []
        position, end = 0, len(data)
        if self._frame is None and not self._length_bytes and end > LENGTH_BYTES:
            (length,) = _LENGTH.unpack_from(data)
            if length == end - LENGTH_BYTES and length <= self._limit:
                return [memoryview(bytearray(data[LENGTH_BYTES:]))]  # one whole request, as most often
        if self._frame is not None:
            position = min(self.pending - self._have, end)
            whole = self._append(self._frame, data[:position])
            if whole is None:
                return frames
            frames.append(whole)
        while position < end:
            if len(frames) == frames_max:
                self.uncut = data[position:] if data.readonly else memoryview(bytes(data[position:]))
                return frames
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
                self._frame = bytearray(data[position:end])
                self.pending = length
                self._have = self._size = end - position
                return frames
        return frames

    def take_uncut(self, *, frames_max: int) -> list[memoryview]:
        """Cut what `take` has left, which comes before anything that arrives later."""
        data, self.uncut = self.uncut, None
        return [] if data is None else self.take(data, frames_max=frames_max)

    def _append(self, frame: bytearray | mmap, data: memoryview) -> memoryview | None:
        """Add bytes to the current request, in memory that it has and then in more; return it if it is complete."""
        end = self._have + len(data)
        lacking = end - self._size
        if lacking > 0:
            self._allowed = max(self._allowed - lacking, 0)
            frame = self._extend(frame, lacking)
        memoryview(frame)[self._have : end] = data
        return self.filled(len(data))

    def _extend(self, frame: bytearray | mmap, size: int) -> bytearray | mmap:
        """Have room for `size` bytes more."""
        if isinstance(frame, bytearray):
            if self.pending < MAPPED_FROM_BYTES:
                # Not `bytearray(n)` beside it: memory that is extended is often extended in place.
                frame += _ZEROS[:size]
            else:
                self._frame = mmap(-1, self.pending, access=ACCESS_COPY)
                self._frame[: self._have] = frame[: self._have]
                frame = self._frame
        self._size += size
        return frame


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
        name = frame[HEADER_BYTES_MIN:position]
        try:
            client_id = str(name, "utf-8")
        except UnicodeDecodeError:
            # No longer than it came: answers and other nodes get it too.
            client_id = str(name, "utf-8", "replace").replace("\ufffd", "?")
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
