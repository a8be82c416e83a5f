"""Request headers and variable-length integers, by hand against kio, and record batches against aiokafka."""

import io
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer
from kio.serial.readers import read_unsigned_varint
from kio.serial.writers import write_unsigned_varint

from log_broker.records import Codec, build_batch, iterate_records
from log_broker.records.varint import read_uvarint, write_uvarint
from log_broker.wire.apis import APIS, Api
from log_broker.wire.control import description_of
from log_broker.wire.framing import RequestHeader, read_header, write_header

PRODUCE_DESCRIBED_FROM = 3

# For every version of every api; kio is slow.
FEW = settings(max_examples=10)

client_ids = st.none() | st.text(st.characters(codec="utf-8"), max_size=40)


def header_class(api: Api, version: int) -> type[Any]:
    described = max(version, PRODUCE_DESCRIBED_FROM) if api.key == 0 else version
    found: type[Any] = description_of(api.key, described, "request").__header_schema__
    return found


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.key.name)
@FEW
@given(correlation_id=st.integers(-(2**31), 2**31 - 1), client_id=client_ids)
@example(correlation_id=0, client_id="\ufffd")
def test_request_headers(api: Api, correlation_id: int, client_id: str | None) -> None:
    for version in range(api.version_min, api.version_max + 1):
        schema = header_class(api, version)
        slow = schema(
            request_api_key=api.key, request_api_version=version, correlation_id=correlation_id, client_id=client_id
        )
        out = io.BytesIO()
        entity_writer(schema)(out, slow)
        fast = RequestHeader(int(api.key), version, correlation_id, client_id)

        assert write_header(fast) == out.getvalue()
        found, body = read_header(memoryview(out.getvalue() + b"body"))
        assert (found, bytes(body)) == (fast, b"body")
        assert entity_reader(schema)(write_header(fast), 0) == (slow, len(out.getvalue()))


@given(value=st.integers(0, 2**31 - 1))
def test_unsigned_variable_length_integers(value: int) -> None:
    slow = io.BytesIO()
    write_unsigned_varint(slow, value)
    fast = bytearray()
    write_uvarint(fast, value)
    assert bytes(fast) == slow.getvalue()
    assert read_uvarint(fast, 0) == read_unsigned_varint(slow.getvalue(), 0) == (value, len(fast))


records = st.lists(
    st.tuples(
        st.integers(0, 2**41),
        st.none() | st.binary(max_size=40),
        st.none() | st.binary(max_size=200),
        st.lists(
            st.tuples(st.text(st.characters(codec="utf-8"), max_size=8), st.none() | st.binary(max_size=8)), max_size=3
        ),
    ),
    min_size=1,
    max_size=8,
)


@given(records=records, codec=st.sampled_from([Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]))
def test_record_batches(records: list[Any], codec: Codec) -> None:
    ours = bytes(build_batch([(at, key, value, tuple(headers)) for at, key, value, headers in records], codec=codec))
    theirs = DefaultRecordBatch(ours)
    assert theirs.validate_crc()
    assert [(r.timestamp, r.key, r.value, list(map(tuple, r.headers))) for r in theirs] == records

    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 20)
    for number, (at, key, value, headers) in enumerate(records):
        builder.append(number, timestamp=at, key=key, value=value, headers=headers)
    written = bytes(builder.build())
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in iterate_records(written)] == records
    if codec is Codec.NONE:
        assert ours[21:] == written[21:]
