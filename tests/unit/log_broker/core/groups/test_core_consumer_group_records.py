"""The records of KIP-848 groups: as Kafka writes them, back and forth, and never a crash on anything else."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from log_broker.core.groups.consumer_group_records import (
    ClassicMetadata,
    ConsumerRecord,
    CurrentAssignment,
    GroupEpoch,
    MemberState,
    RecordKind,
    ResolvedRegex,
    Subscription,
    decode,
    encode,
)
from log_broker.core.groups.records import MalformedGroupRecordError, encode_offset_key

TOPIC = "ff5d952d6f274b81af39253d6b7a0758"

text = st.text(max_size=8)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
topics = st.frozensets(text, max_size=4)
places = st.frozensets(
    st.tuples(st.binary(min_size=16, max_size=16).map(bytes.hex), st.integers(0, 2**31 - 1)), max_size=6
)
values = {
    RecordKind.GROUP: st.builds(GroupEpoch, epoch=int32, metadata_hash=int64),
    RecordKind.MEMBER: st.builds(
        Subscription,
        instance_id=st.none() | text,
        rack_id=st.none() | text,
        client_id=text,
        client_host=text,
        topics=topics,
        regex=st.none() | text,
        rebalance_timeout_ms=int32,
        assignor=st.none() | text,
        classic=st.none()
        | st.builds(
            ClassicMetadata,
            session_timeout_ms=int32,
            protocols=st.lists(st.tuples(text, st.binary(max_size=200)), max_size=3).map(tuple),
        ),
    ),
    RecordKind.TARGET_EPOCH: int32,
    RecordKind.TARGET_MEMBER: places,
    RecordKind.CURRENT_MEMBER: st.builds(
        CurrentAssignment,
        epoch=int32,
        previous_epoch=int32,
        state=st.sampled_from(MemberState),
        assigned=places,
        revoking=places,
    ),
    RecordKind.REGEX: st.builds(ResolvedRegex, topics=topics, version=int64, timestamp_ms=int64),
}


@st.composite
def records(draw: st.DrawFn) -> ConsumerRecord:
    kind = draw(st.sampled_from(RecordKind))
    name = "" if kind in {RecordKind.GROUP, RecordKind.TARGET_EPOCH} else draw(text)
    return ConsumerRecord(kind, name, draw(st.none() | values[kind]))


@given(text, records())
def test_back_and_forth(group: str, record: ConsumerRecord) -> None:
    assert decode(*encode(group, record)) == (group, record)


# Read as what stands beside them by Kafka 4.1's DumpLogSegments --offsets-decoder.
AS_KAFKA_READS_THEM = {
    ConsumerRecord(RecordKind.GROUP, "", GroupEpoch(epoch=1, metadata_hash=8209622563089004987)): (
        "0003000167",
        "00000000000101000871ee703984f3b9bb",
    ),
    ConsumerRecord(RecordKind.TARGET_EPOCH, "", 2): ("0006000167", "00000000000200"),
    ConsumerRecord(RecordKind.TARGET_MEMBER, "m", frozenset({(TOPIC, 0), (TOPIC, 1)})): (
        "000700016700016d",
        "000002" + TOPIC + "03" + "00000000" + "00000001" + "0000",
    ),
    ConsumerRecord(
        RecordKind.CURRENT_MEMBER,
        "m",
        CurrentAssignment(
            epoch=2,
            previous_epoch=1,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=frozenset({(TOPIC, 0)}),
            revoking=frozenset({(TOPIC, 3)}),
        ),
    ): (
        "000800016700016d",
        "0000" + "00000002" + "00000001" + "01" + "02" + TOPIC + "020000000000" + "02" + TOPIC + "020000000300" + "00",
    ),
    ConsumerRecord(
        RecordKind.REGEX, "^x", ResolvedRegex(topics=frozenset({"x1"}), version=3, timestamp_ms=1795275670336)
    ): ("001000016700025e78", "000002037831" + "0000000000000003" + "000001a1fec4c340" + "00"),
    ConsumerRecord(
        RecordKind.MEMBER,
        "m",
        Subscription(
            instance_id="i1",
            client_id="c",
            client_host="/h",
            topics=frozenset({"t"}),
            rebalance_timeout_ms=300_000,
            classic=ClassicMetadata(session_timeout_ms=45_000, protocols=(("range", b"\x00\x03"),)),
        ),
    ): (
        "000500016700016d",
        "0000" + "036931" + "00" + "0263" + "032f68" + "020274" + "00" + "000493e0" + "00"
        "01" + "00" + "11" + "01" + "0000afc8" + "02" + "0672616e6765" + "030003" + "00" + "00",
    ),
}


@pytest.mark.parametrize("record", AS_KAFKA_READS_THEM, ids=lambda record: record.kind.name)
def test_the_bytes_are_kafkas(record: ConsumerRecord) -> None:
    key, value = encode("g", record)
    assert value is not None
    assert (key.hex(), value.hex()) == AS_KAFKA_READS_THEM[record]


def test_a_tag_of_a_later_version_is_passed_over() -> None:
    key, value = encode("g", ConsumerRecord(RecordKind.TARGET_EPOCH, "", 2))
    assert value is not None
    assert decode(key, value[:-1] + bytes.fromhex("0100080000000000000001")) == (
        "g",
        ConsumerRecord(RecordKind.TARGET_EPOCH, "", 2),
    )


def test_other_records_are_not_ours() -> None:
    assert decode(encode_offset_key("g", "t", 0), b"") is None
    assert decode(bytes.fromhex("0004000167"), b"\0\0\1\0") is None, "the partition metadata of Kafka before 4.1"


@given(st.sampled_from(RecordKind), st.binary(max_size=40), st.none() | st.binary(max_size=60))
def test_anything_else_is_said_to_be_malformed(kind: RecordKind, key: bytes, value: bytes | None) -> None:
    with contextlib.suppress(MalformedGroupRecordError):
        assert decode(kind.to_bytes(2, "big") + key, value) is not None
