"""Cutting a stream into requests, however the bytes happen to arrive."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from log_broker.wire.framing import FrameCutter, FrameTooLargeError, RequestHeader, read_header, write_header
from log_broker.wire.reading import MalformedRequestError

STAGING = 16


def cut(stream: bytes, sizes: list[int]) -> list[bytes]:
    """Feed a stream in pieces, large requests straight into their own memory as a connection does."""
    cutter = FrameCutter(1 << 20)
    frames = []
    position = 0
    turn = 0
    while position < len(stream):
        size = sizes[turn % len(sizes)]
        turn += 1
        room = cutter.room()
        if room is not None and len(room) >= STAGING:
            piece = stream[position : position + min(size, len(room))]
            room[: len(piece)] = piece
            frame = cutter.filled(len(piece))
            frames += [] if frame is None else [frame]
        else:
            piece = stream[position : position + min(size, STAGING)]
            frames += cutter.take(memoryview(bytearray(piece)))
        position += len(piece)
    assert cutter.is_between_frames
    assert all(not frame.readonly for frame in frames)
    return [bytes(frame) for frame in frames]


@given(
    frames=st.lists(st.binary(max_size=100), max_size=10),
    sizes=st.lists(st.integers(min_value=1, max_value=40), min_size=1, max_size=5),
)
def test_requests_come_out_as_they_went_in(frames: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    assert cut(stream, sizes) == frames


def test_requests_do_not_share_memory() -> None:
    staging = memoryview(bytearray(struct.pack(">i", 1) + b"a" + struct.pack(">i", 1) + b"b"))
    one, two = FrameCutter(100).take(staging)
    staging[4] = 0
    assert (bytes(one), bytes(two)) == (b"a", b"b")


@pytest.mark.parametrize("length", [-1, 101, 2**31 - 1])
def test_a_length_out_of_bounds_is_refused(length: int) -> None:
    with pytest.raises(FrameTooLargeError):
        FrameCutter(100).take(memoryview(struct.pack(">i", length)))


@pytest.mark.parametrize(
    "header",
    [
        RequestHeader(18, 0, 1, "client"),
        RequestHeader(3, 12, -5, None),
        RequestHeader(3, 12, 7, "Grüße"),
        RequestHeader(0, 9, 7, ""),
    ],
)
def test_a_header_is_read_as_it_was_written(header: RequestHeader) -> None:
    found, body = read_header(memoryview(write_header(header) + b"body"))
    assert (found, bytes(body)) == (header, b"body")


def test_tagged_fields_of_a_header_are_skipped() -> None:
    header = RequestHeader(3, 12, 1, "c")
    found, body = read_header(memoryview(write_header(header)[:-1] + b"\2\0\1x\7\2yz" + b"body"))
    assert (found, bytes(body)) == (header, b"body")


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\3\0\1\0\0\0\1\0",
        b"\0\3\0\1\0\0\0\1\0\5abc",
        b"\0\3\0\x0c\0\0\0\1\xff\xff",
        b"\0\3\0\x0c\0\0\0\1\xff\xff\1\0\x7fx",
    ],
)
def test_a_header_that_is_cut_short_is_refused(frame: bytes) -> None:
    with pytest.raises(MalformedRequestError):
        read_header(memoryview(frame))
