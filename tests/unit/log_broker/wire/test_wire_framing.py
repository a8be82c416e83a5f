"""Cutting a stream into requests, however the bytes happen to arrive."""

import random
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from log_broker.wire.framing import (
    GROWTH,
    STAGING_BYTES,
    STEP_BYTES_MAX,
    FrameCutter,
    FrameTooLargeError,
    RequestHeader,
    read_header,
    write_header,
)
from log_broker.wire.reading import MalformedRequestError

STAGING = 16


def cut(stream: bytes, sizes: list[int], *, staging: int = STAGING, limit: int = 1 << 20) -> list[bytes]:
    """Feed a stream in pieces, large requests straight into their own memory as a connection does."""
    cutter = FrameCutter(limit)
    frames: list[memoryview] = []
    position = 0
    turn = 0
    while position < len(stream):
        size = sizes[turn % len(sizes)]
        turn += 1
        come = cutter.held - cutter.spare
        cutter.allow(cutter.wanted)
        assert cutter.held <= max(GROWTH * come, STAGING_BYTES + come), "memory follows what has come"
        assert cutter.held <= come + STEP_BYTES_MAX
        room = cutter.room()
        if room is not None:
            piece = stream[position : position + min(size, len(room))]
            room[: len(piece)] = piece
            room.release()
            frame = cutter.filled(len(piece))
            frames += [] if frame is None else [frame]
        else:
            piece = stream[position : position + min(size, staging)]
            frames += cutter.take(memoryview(bytearray(piece)), frames_max=3)
            while cutter.uncut is not None:
                frames += cutter.take_uncut(frames_max=3)
        position += len(piece)
    assert cutter.is_between_frames
    assert (cutter.held, cutter.pending) == (0, 0)
    assert all(not frame.readonly for frame in frames)
    return [bytes(frame) for frame in frames]


@given(
    frames=st.lists(st.binary(max_size=100), max_size=10),
    sizes=st.lists(st.integers(min_value=1, max_value=40), min_size=1, max_size=5),
)
def test_requests_come_out_as_they_went_in(frames: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    assert cut(stream, sizes) == frames


def test_large_requests_come_out_as_they_went_in() -> None:
    rng = random.Random(5)
    for _ in range(20):
        frames = [rng.randbytes(rng.choice((10, 70_000, 300_000, 3_000_000, 9_000_000))) for _ in range(4)]
        stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
        sizes = [rng.randrange(1, 1 << rng.randrange(13, 24)) for _ in range(5)]
        assert cut(stream, sizes, staging=STAGING_BYTES, limit=10_000_000) == frames


def test_a_length_alone_takes_no_memory() -> None:
    announced = memoryview(bytearray(struct.pack(">i", 100 << 20) + bytes(8)))
    cutters = [FrameCutter(100 << 20) for _ in range(10)]
    tracemalloc.start()
    try:
        for cutter in cutters:
            assert cutter.take(announced) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000
    assert all((cutter.held, cutter.pending, cutter.wanted) == (8, 100 << 20, 0) for cutter in cutters)


def test_a_request_grows_only_by_what_was_allowed() -> None:
    cutter = FrameCutter(100 << 20)
    come = 100_000
    assert cutter.take(memoryview(bytearray(struct.pack(">i", 100 << 20) + bytes(come)))) == []
    assert cutter.room() is None, "nothing was allowed yet"
    assert 0 < cutter.wanted <= (GROWTH - 1) * come
    cutter.allow(1000)
    assert (cutter.held, cutter.spare, cutter.wanted) == (come + 1000, 1000, 0)
    room = cutter.room()
    assert room is not None
    assert len(room) == 1000
    room.release()
    assert cutter.filled(1000) is None
    assert cutter.room() is None


def test_what_is_behind_so_many_requests_is_cut_later() -> None:
    stream = bytearray(b"".join(struct.pack(">i", 1) + b"%d" % (number % 10) for number in range(1000)) + b"\0")
    cutter = FrameCutter(100)
    frames = cutter.take(memoryview(stream), frames_max=64)
    assert len(frames) == 64
    assert cutter.uncut is not None
    stream[:] = bytes(len(stream))  # the shared buffer is read into again
    while cutter.uncut is not None:
        frames += cutter.take_uncut(frames_max=64)
    assert [bytes(frame) for frame in frames] == [b"%d" % (number % 10) for number in range(1000)]
    assert not cutter.is_between_frames


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


def test_a_client_id_that_is_no_text_does_not_grow() -> None:
    """Answers and forwarded requests hold it, in strings of at most 32,767 bytes."""
    size = 32_767
    frame = b"\0\3\0\x08\0\0\0\1" + size.to_bytes(2, "big") + b"\xff" * size + b"body"
    header, body = read_header(memoryview(frame))
    assert header.client_id == "?" * size
    assert bytes(body) == b"body"
    assert read_header(memoryview(write_header(header)))[0] == header


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
