"""Rows joined from encoded columns are byte for byte what fastavro writes of them."""

import io

import fastavro
import pandas as pd
import pytest

from fluvial_demo.encode import RowEncoder, framing
from fluvial_demo.feeds import Feed


@pytest.fixture(scope="module", params=[0, 1, 2, 3, 4], ids=["planes", "airports", "airlines", "weather", "events"])
def feed(request: pytest.FixtureRequest, feeds: list[Feed]) -> Feed:
    return feeds[request.param]


def test_bytes_equal_those_of_the_row_by_row_encoder(feed: Feed) -> None:
    schema = fastavro.parse_schema(dict(feed.schema))
    names = [field["name"] for field in schema["fields"]]
    rows = feed.records[:: max(1, len(feed) // 2000)]
    expected = []
    for values in rows[names].astype(object).itertuples(index=False):
        buffer = io.BytesIO()
        record = {name: None if pd.isna(value) else value for name, value in zip(names, values, strict=True)}
        fastavro.schemaless_writer(buffer, schema, record)
        expected.append(buffer.getvalue())
    assert list(RowEncoder(feed.schema).encode(rows)) == expected


def test_each_row_is_framed_with_the_schema_id(feed: Feed) -> None:
    (value,) = RowEncoder(feed.schema).encode(feed.records.head(1), framing(0x01020304))
    assert value[:5] == b"\0\x01\x02\x03\x04"


def test_a_value_that_does_not_fit_its_type_is_refused() -> None:
    schema = {"type": "record", "name": "Row", "fields": [{"name": "number", "type": "int"}]}
    with pytest.raises(ValueError, match="twelve"):
        RowEncoder(schema).encode(pd.DataFrame({"number": ["twelve"]}))
    with pytest.raises(ValueError, match="None"):
        RowEncoder(schema).encode(pd.DataFrame({"number": pd.array([1, None], dtype="Int64")}))
