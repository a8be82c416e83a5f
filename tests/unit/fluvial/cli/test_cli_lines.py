"""A line of input as key and value."""

import json
from typing import Any

import pytest

from fluvial.cli.topic.lines import LineError, LineReader
from fluvial.cli.topic.rows import Record, RowReader
from fluvial.errors import FluvialError


def encode(value: Any) -> bytes:
    if not isinstance(value, dict):
        raise FluvialError("no object")
    return b"\0" + json.dumps(value, sort_keys=True).encode()


@pytest.mark.parametrize(
    ("reader", "line", "record"),
    [
        (LineReader(), b"plain \xff", Record(key=None, value=b"plain \xff")),
        (LineReader(), b"", Record(key=None, value=b"")),
        (LineReader(key_separator=":"), b"a:b:c", Record(key=b"a", value=b"b:c")),
        (LineReader(rows=RowReader(key_field="id")), b'{"id": 7}', Record(key=b"7", value=b'{"id": 7}')),
        (LineReader(rows=RowReader(key_field="id")), b'{"id": null}', Record(key=None, value=b'{"id": null}')),
        (LineReader(rows=RowReader(key_field="id")), b"  ", None),
        (LineReader(rows=RowReader(encode=encode)), b'{"b": 1, "a": 2}', Record(key=None, value=b'\0{"a": 2, "b": 1}')),
        (
            LineReader(rows=RowReader(encode=encode, key_field="id")),
            b'{"id": "k"}',
            Record(key=b"k", value=b'\0{"id": "k"}'),
        ),
        (LineReader(rows=RowReader(encode=encode), key_separator="|"), b"k|null", Record(key=b"k", value=None)),
        (LineReader(rows=RowReader(encode=encode)), b"", None),
    ],
)
def test_a_line_is_a_record(reader: LineReader, line: bytes, record: Record | None) -> None:
    assert reader.read(1, line) == record


@pytest.mark.parametrize(
    ("reader", "line", "says"),
    [
        (LineReader(key_separator="|"), b"a:b", r"line 3: holds no '\|'"),
        (LineReader(rows=RowReader(key_field="id")), b"[]", "line 3: has no field 'id'"),
        (
            LineReader(rows=RowReader(key_field="day")),
            b'{"dya": 1}',
            r"line 3: has no field 'day' .*: did you mean dya\?",
        ),
        (
            LineReader(rows=RowReader(key_field="id")),
            b'{"a": 1, "b": 2}',
            "line 3: has no field 'id' .*fields are a, b",
        ),
        (LineReader(rows=RowReader(key_field="id")), b'{"id": [1]}', r"line 3: the field 'id' is \[1\]"),
        (LineReader(rows=RowReader(encode=encode)), b"{", "line 3: not JSON"),
        (LineReader(rows=RowReader(encode=encode)), b"\xff", "line 3: not JSON"),
        (LineReader(rows=RowReader(encode=encode)), b"5", "line 3: no object"),
    ],
)
def test_what_is_no_record_names_its_line(reader: LineReader, line: bytes, says: str) -> None:
    with pytest.raises(LineError, match=says):
        reader.read(3, line)
