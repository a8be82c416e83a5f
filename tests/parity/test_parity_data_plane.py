"""Produce, Fetch and ListOffsets written by hand against kio: every version that both know, byte for byte."""

import datetime
import io
from importlib import import_module
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from log_broker.core.partition.protocol import AppendResult
from log_broker.errors import ErrorCode
from log_broker.wire import fetch, list_offsets, produce

PRODUCE_VERSIONS = range(3, produce.VERSION_MAX + 1)
FETCH_VERSIONS = range(fetch.VERSION_MIN, fetch.VERSION_MAX + 1)
LIST_OFFSETS_VERSIONS = range(list_offsets.VERSION_MIN, list_offsets.VERSION_MAX + 1)

# There is one test for each version, and kio is slow: that is the point of it.
FEW = settings(max_examples=25, deadline=None)

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
some_records = st.binary(max_size=200)
millis = st.integers(0, 2**31 - 1)


def slow(api: str, version: int, part: str, name: str) -> Any:
    return getattr(import_module(f"kio.schema.{api}.v{version}.{part}"), name)


def encode(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def decode(entity_type: Any, content: bytes, correlation_id: int) -> Any:
    """Read header and body, and see to it that nothing is left."""
    header, header_size = entity_reader(entity_type.__header_schema__)(content, 0)
    assert header.correlation_id == correlation_id
    entity, entity_size = entity_reader(entity_type)(content, header_size)
    assert header_size + entity_size == len(content)
    return entity


def duration(value_ms: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=value_ms)


topics_of_partitions = st.lists(
    st.tuples(names, st.lists(st.tuples(int32, st.none() | some_records), max_size=3)), max_size=3
)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@FEW
@given(acks=st.integers(-1, 1), timeout=millis, transactional_id=st.none() | names, topics=topics_of_partitions)
def test_produce_requests(version, acks, timeout, transactional_id, topics) -> None:
    topic = slow("produce", version, "request", "TopicProduceData")
    partition = slow("produce", version, "request", "PartitionProduceData")
    request = slow("produce", version, "request", "ProduceRequest")(
        transactional_id=transactional_id,
        acks=acks,
        timeout=duration(timeout),
        topic_data=tuple(
            topic(name=name, partition_data=tuple(partition(index=i, records=r) for i, r in partitions))
            for name, partitions in topics
        ),
    )

    read = produce.parse_request(memoryview(bytearray(encode(request))), version)

    assert read.acks == acks
    assert read.timeout_ms == timeout
    assert read.transactional_id == (None if transactional_id is None else transactional_id.encode())
    assert [
        (t.name.decode(), [(i, None if r is None else bytes(r)) for i, r in t.partitions]) for t in read.topics
    ] == topics


results = st.builds(
    AppendResult,
    error=st.sampled_from([ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD]),
    base_offset=int64,
    log_append_time_ms=st.just(-1) | st.integers(0, 2**41),
    log_start_offset=int64,
    record_errors=st.lists(st.tuples(int32, names), max_size=3).map(tuple),
    message=st.none() | names,
)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@FEW
@given(
    correlation_id=int32,
    topics=st.lists(st.tuples(names, st.lists(st.tuples(int32, results), max_size=3)), max_size=3),
)
def test_produce_responses(version, correlation_id, topics) -> None:
    written = produce.encode_response(
        correlation_id,
        version,
        [(name.encode(), [produce.PartitionAnswer(*answer) for answer in answers]) for name, answers in topics],
    )

    response = decode(slow("produce", version, "response", "ProduceResponse"), bytes(written), correlation_id)

    assert len(response.responses) == len(topics)
    for read, (name, answers) in zip(response.responses, topics, strict=True):
        assert read.name == name
        assert len(read.partition_responses) == len(answers)
        for found, (index, result) in zip(read.partition_responses, answers, strict=True):
            assert (found.index, found.error_code, found.base_offset) == (index, result.error, result.base_offset)
            if result.log_append_time_ms >= 0:
                assert found.log_append_time.timestamp() * 1000 == pytest.approx(result.log_append_time_ms)
            else:
                assert found.log_append_time is None
            if version >= 5:
                assert found.log_start_offset == result.log_start_offset
            if version >= 8:
                assert found.error_message == result.message
                assert [(e.batch_index, e.batch_index_error_message) for e in found.record_errors] == list(
                    result.record_errors
                )


asked_partitions = st.builds(
    dict, partition=int32, current_leader_epoch=int32, fetch_offset=int64, partition_max_bytes=int32
)


def topic_field(version: int) -> str:
    return "topic_id" if version >= fetch.TOPIC_IDS_FROM else "topic"


def topic_value(version: int, name: str) -> str | UUID:
    """The name, or an id made from it."""
    return uuid5(NAMESPACE_OID, name) if version >= fetch.TOPIC_IDS_FROM else name


def topic_key(version: int, name: str) -> bytes:
    """How the fast twin has it."""
    value = topic_value(version, name)
    return value.bytes if isinstance(value, UUID) else value.encode()


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@FEW
@given(
    wait=millis,
    min_bytes=int32,
    max_bytes=int32,
    isolation=st.integers(0, 1),
    session=st.tuples(int32, int32),
    topics=st.lists(st.tuples(names, st.lists(asked_partitions, max_size=3)), max_size=3),
    forgotten=st.lists(st.tuples(names, st.lists(int32, max_size=3)), max_size=2),
    rack=names,
)
def test_fetch_requests(version, wait, min_bytes, max_bytes, isolation, session, topics, forgotten, rack) -> None:
    topic = slow("fetch", version, "request", "FetchTopic")
    partition = slow("fetch", version, "request", "FetchPartition")
    optional: dict[str, Any] = {}
    if version >= 7:
        gone = slow("fetch", version, "request", "ForgottenTopic")
        optional |= {
            "session_id": session[0],
            "session_epoch": session[1],
            "forgotten_topics_data": tuple(
                gone(**{topic_field(version): topic_value(version, name)}, partitions=tuple(p)) for name, p in forgotten
            ),
        }
    if version >= 11:
        optional["rack_id"] = rack
    without_epoch = version < 9
    if version < 15:
        optional["replica_id"] = -1
    request = slow("fetch", version, "request", "FetchRequest")(
        max_wait=duration(wait),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        topics=tuple(
            topic(
                **{topic_field(version): topic_value(version, name)},
                partitions=tuple(
                    partition(**{k: v for k, v in p.items() if not (without_epoch and k == "current_leader_epoch")})
                    for p in partitions
                ),
            )
            for name, partitions in topics
        ),
        **optional,
    )

    read = fetch.parse_request(memoryview(encode(request)), version)

    assert (read.replica_id, read.wait_ms_max, read.bytes_min, read.bytes_max) == (-1, wait, min_bytes, max_bytes)
    assert read.isolation_level == isolation
    assert (read.session_id, read.session_epoch) == (session if version >= 7 else (0, -1))
    assert [(t.name, list(t.partitions)) for t in read.forgotten] == (
        [(topic_key(version, name), partitions) for name, partitions in forgotten] if version >= 7 else []
    )
    assert [
        (t.name, [(p.partition, p.leader_epoch, p.offset, p.bytes_max) for p in t.partitions]) for t in read.topics
    ] == [
        (
            topic_key(version, name),
            [
                (
                    p["partition"],
                    -1 if without_epoch else p["current_leader_epoch"],
                    p["fetch_offset"],
                    p["partition_max_bytes"],
                )
                for p in partitions
            ],
        )
        for name, partitions in topics
    ]


@pytest.mark.parametrize("version", range(fetch.EMPTY_FROM, FETCH_VERSIONS[-1] + 1))
@FEW
@given(partition=int32, offsets=st.tuples(int64, int64, int64))
def test_a_partition_without_anything_to_read_is_written_the_same_at_once(version, partition, offsets) -> None:
    flexible = version >= fetch.FLEXIBLE_FROM
    empty = fetch.encode_empty(partition, *offsets, flexible=flexible)
    whole = fetch.PartitionData(partition, ErrorCode.NONE, *offsets, ())
    answers = [fetch.encode_response(7, version, [(bytes(16), [each, whole])]) for each in (empty, whole)]
    assert b"".join(answers[0]) == b"".join(answers[1])


partition_data = st.builds(
    fetch.PartitionData,
    partition=int32,
    error=st.sampled_from([ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE]),
    high_watermark=int64,
    last_stable_offset=int64,
    log_start_offset=int64,
    records=st.lists(st.binary(min_size=1, max_size=50), max_size=3),
    aborted=st.lists(st.tuples(int64, int64), max_size=3),
    preferred_replica=int32,
    leader=st.none() | st.tuples(int32, int32),
    diverging=st.none() | st.tuples(int32, int64),
)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@FEW
@given(
    correlation_id=int32,
    topics=st.lists(st.tuples(names, st.lists(partition_data, max_size=3)), max_size=3),
    session_id=int32,
)
def test_fetch_responses(version, correlation_id, topics, session_id) -> None:
    chunks = fetch.encode_response(
        correlation_id,
        version,
        [(topic_key(version, name), partitions) for name, partitions in topics],
        error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        session_id=session_id,
    )

    response = decode(slow("fetch", version, "response", "FetchResponse"), b"".join(chunks), correlation_id)

    if version >= 7:
        assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert response.session_id == session_id
    assert len(response.responses) == len(topics)
    for read, (name, partitions) in zip(response.responses, topics, strict=True):
        assert getattr(read, topic_field(version)) == topic_value(version, name)
        assert len(read.partitions) == len(partitions)
        for found, data in zip(read.partitions, partitions, strict=True):
            assert (found.partition_index, found.error_code) == (data.partition, data.error)
            assert (found.high_watermark, found.last_stable_offset) == (data.high_watermark, data.last_stable_offset)
            assert bytes(found.records or b"") == b"".join(data.records)
            assert [(a.producer_id, a.first_offset) for a in found.aborted_transactions] == data.aborted
            if version >= 5:
                assert found.log_start_offset == data.log_start_offset
            if version >= 11:
                assert found.preferred_read_replica == data.preferred_replica
            if version >= 12:
                assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (data.diverging or (-1, -1))
            if version >= 16:
                assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (data.leader or (-1, -1))


@pytest.mark.parametrize("version", LIST_OFFSETS_VERSIONS)
@FEW
@given(
    isolation=st.integers(0, 1),
    topics=st.lists(st.tuples(names, st.lists(st.tuples(int32, int32, int64), max_size=3)), max_size=3),
)
def test_list_offsets_requests(version, isolation, topics) -> None:
    topic = slow("list_offsets", version, "request", "ListOffsetsTopic")
    partition = slow("list_offsets", version, "request", "ListOffsetsPartition")
    request = slow("list_offsets", version, "request", "ListOffsetsRequest")(
        replica_id=-1,
        **({"isolation_level": isolation} if version >= 2 else {}),
        **({"timeout": duration(5)} if version >= 10 else {}),
        topics=tuple(
            topic(
                name=name,
                partitions=tuple(
                    partition(
                        partition_index=index,
                        timestamp=timestamp,
                        **({"current_leader_epoch": epoch} if version >= 4 else {}),
                    )
                    for index, epoch, timestamp in partitions
                ),
            )
            for name, partitions in topics
        ),
    )

    read = list_offsets.parse_request(memoryview(encode(request)), version)

    assert read.isolation_level == (isolation if version >= 2 else 0)
    assert [(name.decode(), [tuple(p) for p in partitions]) for name, partitions in read.topics] == [
        (name, [(index, epoch if version >= 4 else -1, timestamp) for index, epoch, timestamp in partitions])
        for name, partitions in topics
    ]


found_partitions = st.builds(
    list_offsets.FoundPartition,
    partition=int32,
    error=st.sampled_from([ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]),
    timestamp=int64,
    offset=int64,
    leader_epoch=int32,
)


@pytest.mark.parametrize("version", LIST_OFFSETS_VERSIONS)
@FEW
@given(
    correlation_id=int32,
    topics=st.lists(st.tuples(names, st.lists(found_partitions, max_size=3)), max_size=3),
)
def test_list_offsets_responses(version, correlation_id, topics) -> None:
    written = list_offsets.encode_response(correlation_id, version, [(name.encode(), found) for name, found in topics])

    response = decode(slow("list_offsets", version, "response", "ListOffsetsResponse"), bytes(written), correlation_id)

    assert [
        (t.name, [(p.partition_index, p.error_code, p.timestamp, p.offset) for p in t.partitions])
        for t in response.topics
    ] == [(name, [tuple(found)[:4] for found in partitions]) for name, partitions in topics]
    if version >= 4:
        assert [p.leader_epoch for t in response.topics for p in t.partitions] == [
            found.leader_epoch for _, partitions in topics for found in partitions
        ]
