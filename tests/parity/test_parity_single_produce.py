"""
The short cut for Produce requests of one partition against the code that reads and writes every request.
"""

import struct

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from log_broker.core.partition.protocol import AppendResult
from log_broker.errors import ErrorCode
from log_broker.records.varint import write_uvarint
from log_broker.wire.produce import FLEXIBLE_FROM, VERSION_MAX, PartitionAnswer, encode_response, parse_request
from log_broker.wire.produce_single import VERSION_MIN, encode_single, parse_single
from log_broker.wire.reading import MalformedRequestError

FEW = settings(max_examples=60, deadline=None)

versions = st.integers(VERSION_MIN, VERSION_MAX)
names = st.text(min_size=1, max_size=200).map(lambda text: text.encode()[:249])
topics = st.lists(
    st.tuples(names, st.lists(st.tuples(st.integers(0, 2**31 - 1), st.none() | st.binary(max_size=300)), max_size=3)),
    max_size=3,
)


def body_of(version: int, transactional_id: bytes | None, acks: int, asked: list) -> bytes:
    out = bytearray()

    def length(value: int | None, layout: str) -> None:
        if version >= FLEXIBLE_FROM:
            write_uvarint(out, 0 if value is None else value + 1)
        else:
            out.extend(struct.pack(layout, -1 if value is None else value))

    def tags() -> None:
        if version >= FLEXIBLE_FROM:
            out.append(0)

    length(None if transactional_id is None else len(transactional_id), ">h")
    out.extend(transactional_id or b"")
    out.extend(struct.pack(">hi", acks, 30_000))
    length(len(asked), ">i")
    for name, partitions in asked:
        length(len(name), ">h")
        out.extend(name)
        length(len(partitions), ">i")
        for index, records in partitions:
            out.extend(struct.pack(">i", index))
            length(None if records is None else len(records), ">i")
            out.extend(records or b"")
            tags()
        tags()
    tags()
    return bytes(out)


def assert_alike(body: bytes, version: int) -> bool:
    """Whatever the short cut reads, the other reads as the same; say whether it read anything."""
    single = parse_single(memoryview(body), version)
    if single is None:
        return False
    request = parse_request(memoryview(body), version)
    assert request.transactional_id is None
    ((name, ((partition, records),)),) = request.topics
    assert (request.acks, request.timeout_ms, name, partition, records) == single
    return True


@FEW
@given(versions, st.none() | names, st.integers(-2, 2), topics)
def test_a_request_is_read_alike(version: int, transactional_id: bytes | None, acks: int, asked: list) -> None:
    read = assert_alike(body_of(version, transactional_id, acks, asked), version)
    is_single = transactional_id is None and len(asked) == 1 and len(asked[0][1]) == 1 and asked[0][1][0][1] is not None
    short_name = version < FLEXIBLE_FROM or (bool(asked) and len(asked[0][0]) < 127)
    assert read == (is_single and short_name)


@FEW
@given(
    versions,
    names,
    st.binary(max_size=200),
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=4),
    st.integers(0, 500),
)
def test_damaged_requests_are_read_alike(
    version: int, name: bytes, records: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    body = bytearray(body_of(version, None, 1, [(name, [(7, records)])]))
    for at, value in changes:
        body[at % len(body)] = value
    damaged = bytes(body[: max(len(body) - cut, 0)]) if cut < 250 else bytes(body)
    try:
        parse_request(memoryview(damaged), version)
    except MalformedRequestError:
        assert parse_single(memoryview(damaged), version) is None
    else:
        assert_alike(damaged, version)


@FEW
@given(
    versions,
    st.integers(-(2**31), 2**31 - 1),
    names,
    st.integers(0, 2**31 - 1),
    st.sampled_from(list(ErrorCode)),
    st.tuples(*[st.integers(-1, 2**63 - 1)] * 3),
    st.sampled_from([(), ((3, "why"),)]),
    st.none() | st.just("what is wrong"),
)
def test_a_response_is_written_alike(
    version: int,
    correlation_id: int,
    name: bytes,
    partition: int,
    error: ErrorCode,
    numbers: tuple[int, int, int],
    record_errors: tuple[tuple[int, str], ...],
    message: str | None,
) -> None:
    assume(version < FLEXIBLE_FROM or len(name) < 127)  # a longer name has two length bytes, and is left to the other
    result = AppendResult(error, *numbers, record_errors, message)
    expected = encode_response(correlation_id, version, [(name, [PartitionAnswer(partition, result)])])
    framed = encode_single(correlation_id, version, name, partition, result)
    assert framed == len(expected).to_bytes(4, "big") + expected


@pytest.mark.parametrize("version", range(VERSION_MIN))
def test_older_versions_are_left_to_the_other(version: int) -> None:
    assert parse_single(memoryview(body_of(8, None, 1, [(b"t", [(0, b"records")])])), version) is None
