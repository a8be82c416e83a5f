"""The batch codec against itself, its limits and foreign framings."""

import random
import struct
import subprocess
import sys
import zlib
from contextlib import suppress
from pathlib import Path

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from log_broker.errors import BrokerError, ErrorCode
from log_broker.records import Codec, Record, batches_in, build_batch, iterate_records, read_header
from log_broker.records.batch import HEADER_BYTES, crc_is_valid, place, seal, stamp_log_append_time
from log_broker.records.compression import (
    CompressionFailedError,
    DecompressionBoundError,
    compress,
    decompress,
)
from log_broker.records.readable import MalformedRecordsError
from log_broker.records.record import recompress
from log_broker.records.varint import read_uvarint, read_varint, varint, write_uvarint, write_varint

optional_bytes = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=10), optional_bytes), max_size=3).map(tuple)
timestamps = st.integers(min_value=0, max_value=2**45)
records = st.lists(st.tuples(timestamps, optional_bytes, optional_bytes, headers), min_size=1, max_size=20)


@given(records=records, codec=st.sampled_from(Codec), base_offset=st.integers(0, 2**60))
def test_what_goes_into_a_batch_comes_out(records, codec, base_offset) -> None:
    batch = build_batch(records, codec=codec, base_offset=base_offset)

    header = read_header(batch)
    assert header.size == len(batch)
    assert crc_is_valid(batch, header.crc)
    assert header.last_offset == base_offset + len(records) - 1
    assert header.max_timestamp == max(timestamp for timestamp, *_ in records)
    assert list(iterate_records(batch)) == [Record(base_offset + at, *record) for at, record in enumerate(records)]


@given(records=records, source=st.sampled_from(Codec), target=st.sampled_from(Codec))
def test_recompression_changes_the_codec_and_nothing_else(records, source, target) -> None:
    batch = build_batch(records, codec=source, producer_id=7, producer_epoch=1, base_sequence=3)

    other = recompress(batch, target)

    header = read_header(other)
    assert crc_is_valid(other, header.crc)
    assert header.compression == target
    assert list(iterate_records(other)) == list(iterate_records(batch))
    before = read_header(batch)
    assert header._replace(length=0, crc=0, attributes=0) == before._replace(length=0, crc=0, attributes=0)


def test_lz4_frames_are_of_independent_blocks() -> None:
    """The Java client refuses a frame whose blocks refer to each other: bit 5 of the flags behind the magic number."""
    frame = compress(Codec.LZ4, b"over and over again " * 10_000)
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] & 0x20
    assert decompress(Codec.LZ4, frame) == b"over and over again " * 10_000


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_round_trip(value) -> None:
    out = bytearray()
    write_varint(out, value)
    assert read_varint(out, 0) == (value, len(out))
    assert varint(value) == out


@given(st.integers(0, 2**64 - 1))
def test_unsigned_varints_round_trip(value) -> None:
    out = bytearray()
    write_uvarint(out, value)
    assert read_uvarint(out, 0) == (value, len(out))


def test_a_varint_ends_within_64_bits() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        read_uvarint(b"\x80" * 11, 0)


def test_placing_a_batch_keeps_its_checksum() -> None:
    batch = build_batch([(1, b"k", b"v", ())])
    place(batch, base_offset=2**40, leader_epoch=9)
    header = read_header(batch)
    assert (header.base_offset, header.leader_epoch) == (2**40, 9)
    assert crc_is_valid(batch, header.crc)


def test_log_append_time_is_every_records_time() -> None:
    batch = build_batch([(1, b"k", b"v", ()), (2, b"k", b"w", ())])
    stamp_log_append_time(batch, read_header(batch).attributes, 1234)
    assert crc_is_valid(batch, read_header(batch).crc)
    assert [record.timestamp for record in iterate_records(batch)] == [1234, 1234]


def test_batches_are_found_up_to_the_first_that_is_cut_short() -> None:
    first, second = build_batch([(1, b"a", None, ())]), build_batch([(2, None, b"b", ())])
    joined = bytes(first + second)
    assert [position for position, _ in batches_in(joined)] == [0, len(first)]
    assert [position for position, _ in batches_in(joined[:-1])] == [0]


@given(records=records, at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_damaged_records_never_do_more_than_raise(records, at, bit) -> None:
    batch = build_batch(records)
    if len(batch) == HEADER_BYTES:
        return
    position = HEADER_BYTES + at % (len(batch) - HEADER_BYTES)
    batch[position] ^= 1 << bit
    seal(batch)
    with suppress(MalformedRecordsError):
        list(iterate_records(batch))


def test_bytes_behind_the_last_record_are_refused() -> None:
    batch = build_batch([(1, b"k", b"v", ())]) + b"\0"
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    with pytest.raises(MalformedRecordsError, match="behind its last record"):
        list(iterate_records(batch))


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_decompression_is_bounded(codec) -> None:
    bomb = compress(codec, bytes(10_000_000))
    assert len(bomb) < 600_000
    with pytest.raises(DecompressionBoundError):
        decompress(codec, bomb, bytes_max=1_000_000)
    assert len(decompress(codec, bomb)) == 10_000_000


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel tells of memory by /proc")
@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_decompression_takes_the_memory_of_what_there_is(codec) -> None:
    size = 40 << 20
    script = f"""
import sys
from log_broker.records.compression import Codec, decompress
def figure(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
batch = sys.stdin.buffer.read()
before = figure("VmRSS")
assert len(decompress(Codec({codec}), batch)) == {size}
print(figure("VmHWM") - before)
"""
    batch = compress(codec, bytes(size))
    found = subprocess.run([sys.executable, "-c", script], input=batch, stdout=subprocess.PIPE, check=True)
    assert int(found.stdout) < 1.25 * size + (8 << 20)


@pytest.mark.parametrize("parts", [(3_000_000,), (1 << 20, 1 << 20), (5, 0, 2_500_000, 7), (1 << 20, 0)])
def test_gzip_is_the_same_in_parts(parts: tuple[int, ...]) -> None:
    rng = random.Random(3)
    plains = [rng.randbytes(size // 2) + bytes(size - size // 2) for size in parts]
    data = b"".join(zlib.compress(plain, wbits=31) for plain in plains)
    assert decompress(Codec.GZIP, data) == b"".join(plains)
    with pytest.raises(CompressionFailedError, match="ends early"):
        decompress(Codec.GZIP, data[:-1])


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_rubbish_is_not_decompressed(codec) -> None:
    with pytest.raises(CompressionFailedError):
        decompress(codec, b"\x17rubbish that no codec wrote" * 3)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_a_truncated_body_is_not_decompressed(codec) -> None:
    whole = compress(codec, bytes(range(256)) * 500)
    with pytest.raises(CompressionFailedError):
        decompress(codec, whole[: len(whole) // 2])


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(BrokerError) as refused:
        decompress(5, b"")
    assert refused.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_both_snappy_framings_are_read() -> None:
    plain = b"snap" * 20_000
    raw = bytes(cramjam.snappy.compress_raw(plain))
    assert decompress(Codec.SNAPPY, raw) == plain
    assert compress(Codec.SNAPPY, plain).startswith(b"\x82SNAPPY\x00")
    assert decompress(Codec.SNAPPY, compress(Codec.SNAPPY, plain)) == plain


def test_gzip_members_follow_one_another() -> None:
    assert decompress(Codec.GZIP, zlib.compress(b"one", wbits=31) + zlib.compress(b"two", wbits=31)) == b"onetwo"
