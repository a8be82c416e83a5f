"""The records of `__consumer_offsets` against bytes that Kafka writes."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from log_broker.core.groups.records import (
    CommittedOffset,
    GroupKey,
    MalformedGroupRecordError,
    OffsetKey,
    StoredGroup,
    StoredMember,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)

TEXT = st.text(max_size=20)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def test_an_offset_stands_as_kafka_writes_it() -> None:
    assert encode_offset_key("g", "t", 2) == bytes.fromhex("0001 0001 67 0001 74 00000002")
    value = CommittedOffset(offset=5, metadata="m", leader_epoch=1, timestamp_ms=9)
    assert encode_offset(value) == bytes.fromhex("0003 0000000000000005 00000001 0001 6d 0000000000000009")


def test_a_group_key_stands_as_kafka_writes_it() -> None:
    assert encode_group_key("g") == bytes.fromhex("0002 0001 67")


def test_older_versions_of_an_offset_are_read() -> None:
    version_one = bytes.fromhex("0001 0000000000000005 0001 6d 0000000000000009 ffffffffffffffff")
    assert decode_offset(version_one) == CommittedOffset(offset=5, metadata="m", timestamp_ms=9)
    assert decode_key(bytes.fromhex("0000 0001 67 0001 74 00000002")) == OffsetKey(group="g", topic="t", partition=2)


def test_keys_of_other_kinds_are_left_alone() -> None:
    assert decode_key(bytes.fromhex("0003 0001 67")) is None


@given(st.builds(OffsetKey, group=TEXT, topic=TEXT, partition=INT32), TEXT)
def test_keys_come_back(key: OffsetKey, group: str) -> None:
    assert decode_key(encode_offset_key(key.group, key.topic, key.partition)) == key
    assert decode_key(encode_group_key(group)) == GroupKey(group=group)


@given(st.builds(CommittedOffset, offset=INT64, metadata=TEXT, leader_epoch=INT32, timestamp_ms=INT64))
def test_offsets_come_back(value: CommittedOffset) -> None:
    assert decode_offset(encode_offset(value)) == value


MEMBER = st.builds(
    StoredMember,
    member_id=TEXT,
    instance_id=st.none() | TEXT,
    client_id=TEXT,
    client_host=TEXT,
    rebalance_timeout_ms=INT32,
    session_timeout_ms=INT32,
    subscription=st.binary(max_size=20),
    assignment=st.binary(max_size=20),
)
GROUP = st.builds(
    StoredGroup,
    protocol_type=TEXT,
    generation=INT32,
    protocol=st.none() | TEXT,
    leader=st.none() | TEXT,
    timestamp_ms=INT64,
    members=st.lists(MEMBER, max_size=3).map(tuple),
)


@given(GROUP)
def test_groups_come_back_and_cut_ones_are_refused(value: StoredGroup) -> None:
    encoded = encode_group(value)
    assert decode_group(encoded) == value
    with pytest.raises(MalformedGroupRecordError):
        decode_group(encoded[:-1])


@given(st.binary(max_size=60))
def test_garbage_is_a_record_or_refused(value: bytes) -> None:
    for read in (decode_key, decode_offset, decode_group):
        with contextlib.suppress(MalformedGroupRecordError):
            read(value)
