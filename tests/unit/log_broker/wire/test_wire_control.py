"""The control plane's messages beside kio's own reader and writer, its slow twin."""

import contextlib
import io
from dataclasses import MISSING, Field, asdict, fields
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from log_broker.errors import ErrorCode
from log_broker.wire import control
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.messages import shape_of
from log_broker.wire.reading import MalformedRequestError

BY_HAND = {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS}
VERSIONS = [
    (api.key, version)
    for api in APIS.values()
    if api.key not in BY_HAND
    for version in range(api.version_min, api.version_max + 1)
]
EVERY_VERSION = pytest.mark.parametrize(
    ("key", "version"), [pytest.param(*pair, id=f"{pair[0].name}-{pair[1]}") for pair in VERSIONS]
)
NUMBERS = {
    "int8": 7,
    "uint16": 50_000,
    "int16": -3,
    "int32": 1 << 20,
    "int64": 1 << 40,
    "float64": 0.5,
    "bool": True,
    "timedelta_i32": timedelta(milliseconds=1234),
    "timedelta_i64": timedelta(milliseconds=1 << 40),
    "datetime_i64": datetime.fromtimestamp(1_700_000_000.5, UTC),
    "error_code": KioErrorCode.not_coordinator,
    "string": "Grüße",
    "bytes": b"\0\xff",
    "records": b"records",
    "uuid": UUID(int=5),
}


def sample(description: type[Any]) -> Any:
    """An instance of a description with something other than the default in every field."""
    return description(**{field.name: sample_of(field) for field in fields(description)})


def sample_of(field: "Field[Any]") -> Any:
    shape = shape_of(field.type)
    one = NUMBERS[field.metadata["kafka_type"]] if shape.description is None else sample(shape.description)
    return (one, one) if shape.is_array else one


def plain(value: Any) -> Any:
    """kio's values as ours: times are numbers of ms, entities mappings."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    return int(value) if isinstance(value, KioErrorCode) else value


def commit_of_any_version(values: dict[str, Any]) -> dict[str, Any]:
    """What is read by hand has the same fields in every version, and leaves out what the broker does not look at."""
    topics = [
        {**topic, "partitions": [{"committed_leader_epoch": -1, **partition} for partition in topic["partitions"]]}
        for topic in values["topics"]
    ]
    whole = {"group_instance_id": None, **values, "topics": topics}
    return {name: value for name, value in whole.items() if name != "retention_time"}


def kio_bytes(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


@EVERY_VERSION
def test_a_request_is_read_as_kio_wrote_it(key: ApiKey, version: int) -> None:
    request = sample(control.description_of(key, version, "request"))
    body = memoryview(bytearray(kio_bytes(request)))
    expected = plain(asdict(request))
    if key is ApiKey.OFFSET_COMMIT:
        expected = commit_of_any_version(expected)
    assert plain(asdict(control.read_request(key, version, body))) == expected


@settings(max_examples=50, deadline=None)
@given(
    version=st.integers(8, 9), told=st.lists(st.lists(st.sampled_from(["", "", "", None, "m"]), max_size=4), max_size=3)
)
def test_offsets_with_and_without_metadata_are_read_alike(version: int, told: list[list[str | None]]) -> None:
    request = control.description_of(ApiKey.OFFSET_COMMIT, version, "request")
    topic = shape_of(request.__annotations__["topics"]).description
    partition = shape_of(topic.__annotations__["partitions"]).description
    commit = request(
        group_id="g",
        member_id="m",
        topics=tuple(
            topic(
                name="t",
                partitions=tuple(
                    partition(
                        partition_index=at,
                        committed_offset=at << 33,
                        committed_leader_epoch=at - 1,
                        committed_metadata=each,
                    )
                    for at, each in enumerate(partitions)
                ),
            )
            for partitions in told
        ),
    )
    read = control.read_request(ApiKey.OFFSET_COMMIT, version, memoryview(kio_bytes(commit)))
    assert plain(asdict(read)) == plain(asdict(commit))


@EVERY_VERSION
def test_a_response_is_written_as_kio_writes_it(key: ApiKey, version: int) -> None:
    response = sample(control.description_of(key, version, "response"))
    written = bytes(control.write_response(key, version, 9, plain(asdict(response))))
    header = b"\0\0\0\t" + (b"\0" if APIS[key].flexible_from <= version and key is not ApiKey.API_VERSIONS else b"")
    assert written == header + kio_bytes(response)
    body, position = entity_reader(type(response))(written, len(header))
    assert (body, position) == (response, len(written) - len(header))


@EVERY_VERSION
def test_the_table_knows_which_versions_are_flexible(key: ApiKey, version: int) -> None:
    for direction in ("request", "response"):
        assert control.description_of(key, version, direction).__flexible__ == (version >= APIS[key].flexible_from)


@EVERY_VERSION
def test_a_request_that_ends_early_is_refused(key: ApiKey, version: int) -> None:
    whole = kio_bytes(sample(control.description_of(key, version, "request")))
    for size in range(len(whole)):
        with pytest.raises(MalformedRequestError):
            control.read_request(key, version, memoryview(whole[:size]))


@settings(max_examples=2000, deadline=None)
@given(pair=st.sampled_from(VERSIONS), body=st.binary(max_size=200))
def test_garbage_is_a_request_or_refused(pair: tuple[ApiKey, int], body: bytes) -> None:
    with contextlib.suppress(MalformedRequestError):
        control.read_request(*pair, memoryview(body))


@settings(max_examples=1000, deadline=None)
@given(data=st.data(), pair=st.sampled_from(VERSIONS))
def test_a_request_with_a_few_wrong_bytes_is_a_request_or_refused(data: Any, pair: tuple[ApiKey, int]) -> None:
    whole = bytearray(kio_bytes(sample(control.description_of(*pair, "request"))))
    for _ in range(3):
        if whole:
            whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedRequestError):
        control.read_request(*pair, memoryview(whole))


def test_an_announced_length_alone_reserves_nothing() -> None:
    # kio's reader ends the process on these bytes.
    with pytest.raises(MalformedRequestError):
        control.read_request(ApiKey.METADATA, 12, memoryview(b"\xff\xff\xff\xff\x0f"))


def test_an_unknown_tagged_field_is_skipped() -> None:
    # Topics null, two flags, then one tagged field 5 of two bytes.
    request = control.read_request(ApiKey.METADATA, 12, memoryview(b"\0\1\0" + b"\1\5\2ab"))
    assert request.topics is None


def test_a_name_that_a_version_lacks_is_left_out_and_a_missing_one_is_an_error() -> None:
    values = {"error_code": 0, "generation_id": 1, "protocol_name": "", "leader": "", "member_id": "", "members": ()}
    assert control.write_response(ApiKey.JOIN_GROUP, 0, 1, {**values, "skip_assignment": True})
    with pytest.raises(KeyError, match="leader"):
        control.write_response(ApiKey.JOIN_GROUP, 0, 1, {key: values[key] for key in values if key != "leader"})


@pytest.mark.parametrize(("key", "version"), [(29, 3), (26, 3), (68, 0), (3, 13), (3, 99), (999, 0)])
def test_a_refusal_has_the_layout_that_the_client_expects(key: int, version: int) -> None:
    refusal = bytes(control.write_refusal(key, version, 7, ErrorCode.UNSUPPORTED_VERSION, "no"))
    assert refusal[:4] == b"\0\0\0\7"
    if version < 99 and key < 999:
        description = control.description_of(key, version, "response")
        _, size = entity_reader(description)(refusal, 5)
        assert size == len(refusal) - 5
    assert b"\0#" in refusal


def test_kio_has_no_field_type_that_we_do_not_write() -> None:
    for key, version in VERSIONS:
        for direction in ("request", "response"):
            for field in fields(control.description_of(key, version, direction)):
                kafka_type = field.metadata.get("kafka_type")
                assert kafka_type is None or kafka_type in NUMBERS, (key, field.name)
                assert field.default is MISSING or not isinstance(field.default, datetime)
