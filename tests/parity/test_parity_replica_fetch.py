"""Fetch between brokers, written and read by hand, against kio: both directions, tagged fields and all."""

import datetime
import io
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as SlowError
from kio.schema.fetch.v17.request import FetchRequest as SlowRequest
from kio.schema.fetch.v17.response import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.serial import entity_reader, entity_writer

from log_broker.core.fetch.replica_messages import (
    Diverging,
    FetchFrom,
    ReplicaAnswer,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
)
from log_broker.errors import ErrorCode
from log_broker.wire import fetch
from log_broker.wire.leader_tags import NodeEndpoint as LeaderEndpoint
from log_broker.wire.replica_fetch import (
    CLIENT_ID,
    VERSION,
    encode_replica_response,
    encode_request,
    parse_response,
    replica_request,
)

FEW = settings(max_examples=60, deadline=None)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
topic_ids = st.uuids().filter(lambda given: given.int != 0).map(lambda given: given.bytes)
places = st.tuples(st.sampled_from([UUID(int=1).bytes, UUID(int=2**100 + 7).bytes]) | topic_ids, int32)
millis = st.integers(0, 2**31 - 1)
errors = st.sampled_from([ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=200)

requests = st.builds(
    ReplicaFetchRequest,
    st.integers(0, 2**31 - 1),
    int64,
    millis,
    int32,
    int32,
    int32,
    int32,
    st.lists(st.builds(FetchFrom, places, int32, int64, int32, int64, int32), max_size=6),
    st.lists(places, max_size=4),
)
answers = st.builds(
    ReplicaAnswer,
    places,
    errors,
    int64,
    int64,
    int64,
    st.lists(st.binary(min_size=1, max_size=300), max_size=3),
    st.none() | st.builds(Diverging, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)),
    st.none() | st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1)),
)
endpoints = st.lists(
    st.builds(LeaderEndpoint, st.integers(0, 2**31 - 1), texts, st.integers(0, 65535), st.none() | texts),
    max_size=3,
)


def _decode(entity_type: Any, content: bytes) -> Any:
    entity, size = entity_reader(entity_type)(content, 0)
    assert size == len(content)
    return entity


def _grouped(items: list[Any]) -> dict[bytes, list[Any]]:
    groups: dict[bytes, list[Any]] = {}
    for item in items:
        place = item if isinstance(item[0], bytes) else item[0]
        groups.setdefault(place[0], []).append(item)
    return groups


@FEW
@given(st.integers(0, 2**31 - 1), requests)
def test_a_request_reads_the_same_in_kio(correlation_id: int, request: ReplicaFetchRequest) -> None:
    content = bytes(encode_request(correlation_id, request))
    header, size = entity_reader(RequestHeader)(content, 0)
    assert (header.correlation_id, header.client_id.encode()) == (correlation_id, CLIENT_ID)
    assert (header.request_api_key, header.request_api_version) == (1, VERSION)
    slow = _decode(SlowRequest, content[size:])
    assert (slow.replica_state.replica_id, slow.replica_state.replica_epoch) == request[:2]
    assert (slow.session_id, slow.session_epoch) == (request.session_id, request.session_epoch)
    found = [
        FetchFrom(
            (topic.topic_id.bytes, part.partition),
            part.current_leader_epoch,
            part.fetch_offset,
            part.last_fetched_epoch,
            part.log_start_offset,
            part.partition_max_bytes,
        )
        for topic in slow.topics
        for part in topic.partitions
    ]
    assert found == [asked for group in _grouped(list(request.partitions)).values() for asked in group]
    assert [(t.topic_id.bytes, p) for t in slow.forgotten_topics_data for p in t.partitions] == [
        place for group in _grouped(list(request.forgotten)).values() for place in group
    ]
    out = io.BytesIO()
    entity_writer(SlowRequest)(out, slow)
    assert out.getvalue() == content[size:]


@FEW
@given(requests)
def test_the_leader_reads_what_the_replica_wrote(request: ReplicaFetchRequest) -> None:
    content = bytes(encode_request(7, request))
    _, size = entity_reader(RequestHeader)(content, 0)
    read = replica_request(fetch.parse_request(memoryview(content)[size:], VERSION))
    assert _grouped(list(read.partitions)) == _grouped(list(request.partitions))
    assert _grouped(list(read.forgotten)) == _grouped(list(request.forgotten))
    assert read[:7] == request[:7]


def _slow_partition(answer: ReplicaAnswer) -> PartitionData:
    return PartitionData(
        partition_index=answer.place[1],
        error_code=SlowError(int(answer.error)),
        high_watermark=answer.high_watermark,
        last_stable_offset=answer.log_end_offset,
        log_start_offset=answer.log_start_offset,
        diverging_epoch=EpochEndOffset(epoch=answer.diverging.epoch, end_offset=answer.diverging.end_offset)
        if answer.diverging
        else EpochEndOffset(),
        current_leader=LeaderIdAndEpoch(leader_id=answer.leader[0], leader_epoch=answer.leader[1])
        if answer.leader
        else LeaderIdAndEpoch(),
        aborted_transactions=(),
        records=b"".join(answer.records),
    )


@FEW
@given(st.integers(0, 2**31 - 1), st.lists(answers, max_size=5), int32, endpoints)
def test_an_answer_is_what_kio_writes(
    correlation_id: int, given_answers: list[ReplicaAnswer], session_id: int, nodes: list[LeaderEndpoint]
) -> None:
    response = ReplicaFetchResponse(given_answers, session_id)
    written = b"".join(map(bytes, encode_replica_response(correlation_id, response, nodes)))
    groups = _grouped(given_answers)
    slow = FetchResponse(
        throttle_time=datetime.timedelta(0),
        error_code=SlowError.none,
        session_id=session_id,
        responses=tuple(
            FetchableTopicResponse(topic_id=UUID(bytes=topic_id), partitions=tuple(map(_slow_partition, group)))
            for topic_id, group in groups.items()
        ),
        node_endpoints=tuple(NodeEndpoint(node_id=n, host=host, port=port, rack=rack) for n, host, port, rack in nodes),
    )
    out = io.BytesIO()
    entity_writer(ResponseHeader)(out, ResponseHeader(correlation_id=correlation_id))
    entity_writer(FetchResponse)(out, slow)
    assert written == out.getvalue()

    read = parse_response(memoryview(written)[4:])
    flat = [
        answer._replace(records=(b"".join(answer.records),) if answer.records else ())
        for group in groups.values()
        for answer in group
    ]
    assert [answer._replace(records=tuple(map(bytes, answer.records))) for answer in read.answers] == flat
    assert (read.session_id, read.error) == (session_id, ErrorCode.NONE)
