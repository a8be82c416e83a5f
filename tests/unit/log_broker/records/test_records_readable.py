"""No batch is stored whose records a consumer could not read: the header and every record against the bytes."""

import random
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from log_broker.errors import BrokerError, ErrorCode
from log_broker.records import Codec, build_batch, iterate_records, read_header
from log_broker.records import readable as module
from log_broker.records.batch import HEADER, HEADER_BYTES, seal
from log_broker.records.compression import compress
from log_broker.records.readable import (
    HEADERS_AT_ONCE_MAX,
    MalformedRecordsError,
    TooManyHeadersError,
    check_from,
    check_readable,
    check_single,
)
from log_broker.records.validation import READ_AT_ONCE_MAX, RECORDS_MAX, check_batch, check_section
from log_broker.records.varint import write_varint


@pytest.fixture(params=["compiled", "python"], autouse=True, scope="module")
def walks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything here holds of both walks."""
    compiled = module.walk
    if request.param == "compiled" and compiled is None:
        pytest.skip("nothing is compiled in this environment")
    module.walk = compiled if request.param == "compiled" else None
    yield
    module.walk = compiled


def varints(*numbers: int) -> bytes:
    out = bytearray()
    for number in numbers:
        write_varint(out, number)
    return bytes(out)


def record(body: bytes) -> bytes:
    return varints(len(body)) + body


def batch_of(section: bytes, count: int, codec: Codec = Codec.NONE) -> bytearray:
    """Return a batch with a right checksum around any bytes."""
    payload = compress(codec, section) if codec else section
    batch = bytearray(HEADER_BYTES + len(payload))
    size = len(batch) - 12
    HEADER.pack_into(batch, 0, 0, size, 0, 2, 0, codec, count - 1, 0, 0, -1, -1, -1, count)
    batch[HEADER_BYTES:] = payload
    seal(batch)
    return batch


def refused(batch: bytearray) -> BrokerError:
    with pytest.raises(BrokerError) as refusal:
        check_batch(batch, bytes_max=10**9)
    return refusal.value


GOOD = bytes(1) + varints(0, 0, 1) + b"k" + varints(1) + b"v" + varints(0)
UNREADABLE = {
    "garbage": b"\xff" * 37,
    "nothing": b"",
    "a delta of five million": record(bytes(1) + varints(0, 5_000_000, 1) + b"k" + varints(1) + b"v" + varints(0)),
    "a negative delta": record(bytes(1) + varints(0, -1, 1) + b"k" + varints(1) + b"v" + varints(0)),
    "a length that is too large": varints(len(GOOD) + 1) + GOOD,
    "a length that is too small": varints(len(GOOD) - 1) + GOOD,
    "a negative length": varints(-8) + GOOD,
    "bytes behind it": record(GOOD) + b"\0",
    "a key that runs over the end": record(bytes(1) + varints(0, 0, 300) + b"k" + varints(1) + b"v" + varints(0)),
    "a key of length -2": record(bytes(1) + varints(0, 0, -2, 1) + b"v" + varints(0)),
    "a value that runs over the end": record(bytes(1) + varints(0, 0, -1, 9) + b"v" + varints(0)),
    "a value of length -2": record(bytes(1) + varints(0, 0, -1, -2, 0)),
    "a value that ends early": record(bytes(1) + varints(0, 0, -1, 1) + b"vvv" + varints(0)),
    "headers that are not there": record(bytes(1) + varints(0, 0, -1, -1, 3)),
    "a million headers": record(bytes(1) + varints(0, 0, -1, -1, 1_000_000)),
    "headers of a negative number": record(bytes(1) + varints(0, 0, -1, -1, -1)),
    "a header without a name": record(bytes(1) + varints(0, 0, -1, -1, 1, -1, -1)),
    "a header that runs over the end": record(bytes(1) + varints(0, 0, -1, -1, 1, 1) + b"n" + varints(50)),
    "a number of six bytes": b"\x94\x80\x80\x80\x80\x00" + GOOD,
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_one_record_that_cannot_be_read_is_refused(what) -> None:
    assert refused(batch_of(UNREADABLE[what], 1)).code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("what", [what for what in UNREADABLE if "delta" not in what])
def test_nor_is_it_taken_among_others(what) -> None:
    others = 40
    sound = build_batch([(1, b"k", b"v", ())] * others)[HEADER_BYTES:]
    assert refused(batch_of(bytes(sound) + UNREADABLE[what], others + 1)).code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", Codec)
def test_a_count_without_the_records_is_refused_unread(codec, monkeypatch) -> None:
    monkeypatch.setattr("log_broker.records.validation.records_section", None)  # nothing is decompressed for it
    for section, count in ((b"", 1_000_000_000), (b"", 500_000), (bytes(50), 1_000_000)):
        if codec is Codec.ZSTD and section:
            continue  # a zstd frame of so many bytes can hold a million records
        assert refused(batch_of(section, count, codec)).code in {
            ErrorCode.INVALID_RECORD,
            ErrorCode.MESSAGE_TOO_LARGE,
        }


def test_a_batch_has_a_million_records_at_most() -> None:
    records = bytes([12, 0, 0, 0, 1, 1, 0]) * (RECORDS_MAX + 1)
    for codec in (Codec.GZIP, Codec.ZSTD):
        bomb = batch_of(records, RECORDS_MAX + 1, codec)
        assert len(bomb) < 50_000
        assert refused(bomb).code is ErrorCode.MESSAGE_TOO_LARGE, "at which a Java producer splits its batch"
        assert check_batch(batch_of(records, RECORDS_MAX, codec), bytes_max=10**9)


def test_a_long_batch_is_left_to_who_has_the_time() -> None:
    batch = build_batch([(1, None, None, ())] * (READ_AT_ONCE_MAX + 1))
    batch[-3] ^= 64  # the key length of the last record
    seal(batch)
    header = check_batch(batch, bytes_max=10**9)
    with pytest.raises(MalformedRecordsError):
        check_section(batch, header)


optional_bytes = st.none() | st.binary(max_size=200)
kinds = st.lists(
    st.tuples(
        st.integers(0, 9),  # of a record that is repeated, with what follows
        st.integers(1, 400),
    ),
    min_size=1,
    max_size=6,
)


def sections(seed: int, runs: list[tuple[int, int]]) -> tuple[bytearray, int]:
    """Return records in runs of the same layout, and how many there are."""
    rng = random.Random(seed)
    records = []
    time = rng.choice([0, 10**12])
    for kind, count in runs:
        key = None if kind % 3 == 0 else bytes(kind * 7)
        size = None if kind == 9 else rng.choice([0, 1, 50, 63, 64, 200, 9000])
        headers = (("h", None), ("i", b"x")) if kind == 4 else ()
        step = rng.choice([0, 0, 1, 70, -1])
        for _ in range(count):
            time += step
            value = None if size is None else rng.randbytes(size)
            records.append((time, key, value, headers))
    return build_batch(records)[HEADER_BYTES:], len(records)


@settings(deadline=None)
@example(seed=105283072, runs=[(4, 1)], at=207, bit=7, damaged=True)  # the name of a header is no UTF-8
@given(seed=st.integers(0, 2**32), runs=kinds, at=st.integers(0), bit=st.integers(0, 7), damaged=st.booleans())
def test_columns_say_what_one_by_one_says(seed, runs, at, bit, damaged) -> None:
    section, count = sections(seed, runs)
    if damaged:
        section[at % len(section)] ^= 1 << bit
    try:
        sound = check_from(section, 0, 0, count) == len(section)
    except MalformedRecordsError:
        sound = False
    if sound:
        check_readable(bytes(section), count)
        list(iterate_records(batch_of(bytes(section), count)))
    else:
        with pytest.raises(MalformedRecordsError):
            check_readable(bytes(section), count)


@pytest.mark.parametrize(
    "column", ["length", "time", "end of time", "delta", "second delta", "key", "value", "headers", "behind"]
)
def test_each_column_of_records_that_are_alike_is_looked_at(column, monkeypatch) -> None:
    count = 3000
    batch = build_batch([(10**12 + at // 9, b"key", bytes(100), ()) for at in range(count)])
    section = batch[HEADER_BYTES:]
    checked: list[int] = []
    one_by_one = check_from

    def counted(section, position, index, end_index, headers=None):
        checked.append(end_index - index)
        return one_by_one(section, position, index, end_index, headers)

    monkeypatch.setattr(module, "walk", None)
    monkeypatch.setattr(module, "check_from", counted)
    check_readable(bytes(section), count)
    assert sum(checked) < 500, "the others were checked in columns"
    at = 1500
    start = one_by_one(section, 0, 0, at)
    place = {"length": 0, "time": 3, "end of time": 4, "delta": 5, "second delta": 6, "key": 7, "value": 11}
    if column == "behind":
        section += b"\0"
    else:
        where = start + place[column] if column in place else one_by_one(section, start, at, at + 1) - 1
        section[where] ^= 0x80 if "time" in column else 2
    with pytest.raises(MalformedRecordsError):
        check_readable(bytes(section), count)


def test_headers_are_never_taken_for_alike() -> None:
    count = 200
    section = build_batch([(1, b"k", b"v", (("h", bytes(3)),))] * count)[HEADER_BYTES:]
    at = check_from(section, 0, 0, 100)
    section[at + section[at:].index(b"h") + 1] ^= 2  # the length of the header's value
    with pytest.raises(MalformedRecordsError):
        check_readable(bytes(section), count)


def test_offset_deltas_of_three_bytes_are_columns_too(monkeypatch) -> None:
    count = 1_060_000  # the deltas behind 1,048,575 have four
    section = bytes(build_batch([(1, None, None, ())] * count)[HEADER_BYTES:])
    check_readable(section, count)
    count = 20_000
    section = bytes(build_batch([(1, None, b"value", ())] * count)[HEADER_BYTES:])
    monkeypatch.setattr(module, "walk", None)
    monkeypatch.setattr(module, "check_from", lambda *asked, real=check_from: looked.append(asked[2]) or real(*asked))
    looked: list[int] = []
    check_readable(section, count)
    assert len(looked) < 200
    wrong = bytearray(section)
    wrong[check_from(section, 0, 0, 17_000) + 4] ^= 2
    with pytest.raises(MalformedRecordsError):
        check_readable(bytes(wrong), count)


@settings(deadline=None)
@given(
    key=optional_bytes,
    value=st.none() | st.binary(max_size=300) | st.integers(8000, 20_000).map(bytes),
    at=st.integers(0),
    bit=st.integers(0, 7),
    damaged=st.booleans(),
)
def test_the_quick_look_at_one_record_says_what_the_slow_one_says(key, value, at, bit, damaged) -> None:
    batch = build_batch([(7, key, value, ())])
    if damaged:
        batch[HEADER_BYTES + at % (len(batch) - HEADER_BYTES)] ^= 1 << bit
    sound = False
    with suppress(MalformedRecordsError):
        sound = check_from(batch, HEADER_BYTES, 0, 1) == len(batch)
    if sound:
        check_single(batch, len(batch))
    else:
        with pytest.raises(MalformedRecordsError):
            check_single(batch, len(batch))


def test_very_many_headers_are_left_to_who_has_the_time() -> None:
    many = tuple(("", None) for _ in range(HEADERS_AT_ONCE_MAX + 1))
    for records in ([(1, None, None, many)], [(1, None, None, many[at::50]) for at in range(50)]):
        batch = build_batch(records)
        with pytest.raises(TooManyHeadersError):
            check_batch(batch, bytes_max=10**9)
        check_section(batch, read_header(batch), is_unread=True)
        batch[-1] ^= 2
        seal(batch)
        with pytest.raises(MalformedRecordsError):
            check_section(batch, read_header(batch), is_unread=True)
    check_batch(build_batch([(1, None, None, many[1:])]), bytes_max=10**9)


def test_every_cut_of_a_record_is_refused() -> None:
    whole = bytes(build_batch([(7, b"key", b"v" * 90, (("h", b"x"),))])[HEADER_BYTES:])
    for end in range(len(whole)):
        batch = batch_of(whole[:end], 1)
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        seal(batch)
        assert refused(batch).code is ErrorCode.INVALID_RECORD
