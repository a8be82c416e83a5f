"""What `fluvial topic produce` makes of CSV, Parquet and JSON lines, with a broker and a registry in this process."""

import datetime as dt
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fluvial_command import Cli

from fluvial.serde.avro_json import MismatchError, convert
from fluvial.serde.avro_text import value_of_text
from fluvial.testing import embedded_platform

SALE = {
    "type": "record",
    "name": "Sale",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "count", "type": "int"},
        {"name": "paid", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "map", "values": "long"}, "default": {}},
    ],
}
AT = "2026-03-01T12:00:00Z"
VALUE = {"id": "a", "count": 2, "paid": "12.50", "at": "2026-03-01T12:00:00Z", "note": None, "tags": {"x": 1}}
AVRO = ("--subject", "sale-value")


@dataclass
class Sales:
    """Commands against a cluster whose registry has the subject sale-value."""

    cli: Cli
    cluster: tuple[str, ...]
    made: int = 0

    def produce(self, *words: str, stdin: str | bytes = b"") -> list[dict[str, Any]]:
        """Produce into a new topic; return its records."""
        topic = self.topic()
        self.cli.ok("topic", "produce", topic, *words, *self.cluster, stdin=stdin)
        return self.read(topic)

    def refused(self, *words: str, stdin: str | bytes = b"") -> str:
        return self.cli.refused("topic", "produce", self.topic(), *words, *self.cluster, stdin=stdin)

    def read(self, topic: str) -> list[dict[str, Any]]:
        printed = self.cli.ok(
            "topic", "consume", topic, "--from-beginning", "--to-end", "--format", "json", *self.cluster
        )
        return [json.loads(line) for line in printed.splitlines()]

    def topic(self) -> str:
        self.made += 1
        self.cli.ok("topic", "create", f"sale{self.made}", "--partitions", "2", *self.cluster[:2])
        return f"sale{self.made}"


@pytest.fixture(scope="module")
def sales(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sales]:
    cli = Cli(tmp_path_factory.mktemp("produce"))
    with embedded_platform() as platform:
        cluster = ("--bootstrap-server", platform.broker.bootstrap_servers, "--registry-url", platform.registry_url)
        (cli.cwd / "sale.avsc").write_text(json.dumps(SALE))
        cli.ok("schema", "register", "sale.avsc", "--subject", "sale-value", *cluster[2:])
        yield Sales(cli, cluster)


def test_csv_is_read_by_the_schema(sales: Sales) -> None:
    [row] = sales.produce(
        "--input-format", "csv", *AVRO, "--key-field", "id", "--timestamp-field", "at", "--partition", "1",
        "--header", "source=a=b", "--header-field", "shop", "--header-field", "n=count",
        stdin=f'id,count,paid,at,note,tags,shop\n\na,2,12.50,{AT},,"{{""x"": 1}}",Malmö\n',
    )  # fmt: skip
    assert (row["key"], row["partition"], row["timestamp"]) == ("a", 1, "2026-03-01T12:00:00.000Z")
    assert row["value"] == VALUE | {"at": row["value"]["at"]}
    assert row["headers"] == [
        {"name": "source", "value": "a=b"},
        {"name": "shop", "value": "Malmö"},
        {"name": "n", "value": "2"},
    ]


def test_parquet_is_read_by_its_types(sales: Sales) -> None:
    at = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
    table = pa.table(
        {
            "id": ["a", "b"],
            "count": pa.array([2, 3], pa.int32()),
            "paid": pa.array([Decimal("12.50"), Decimal("0.01")], pa.decimal128(9, 2)),
            "at": pa.array([at, at + dt.timedelta(hours=1)], pa.timestamp("ns", "UTC")),
            "note": pa.array([None, "x"], pa.string()),
            "tags": pa.array([[("x", 1)], []], pa.map_(pa.string(), pa.int64())),
        }
    )
    pq.write_table(table, sales.cli.cwd / "sales.parquet")
    words = ("--input-format", "parquet", *AVRO, "--timestamp-field", "at", "--key-field", "id", "--partition", "0")
    rows = sales.produce(*words, "--file", "sales.parquet")
    assert [row["timestamp"] for row in rows] == ["2026-03-01T12:00:00.000Z", "2026-03-01T13:00:00.000Z"]
    assert [(row["value"]["paid"], row["value"]["note"], row["value"]["tags"]) for row in rows] == [
        ("12.50", None, {"x": 1}),
        ("0.01", "x", {}),
    ]
    assert sales.produce(*words, stdin=(sales.cli.cwd / "sales.parquet").read_bytes())[1]["key"] == "b"


def test_rows_without_a_schema_are_json(sales: Sales) -> None:
    [row] = sales.produce("--input-format", "csv", stdin="a,b\r\n1,\r\n")
    assert json.loads(row["value"]) == {"a": "1", "b": ""}


def test_lines_of_json_have_event_times_and_headers(sales: Sales) -> None:
    rows = sales.produce(
        "--timestamp-field", "ms", "--header-field", "who", "--partition", "0",
        stdin='{"ms": 1767225600001, "who": null}\n{"ms": "2026-01-01T00:00:00.002", "who": [1]}\n',
    )  # fmt: skip
    assert [row["timestamp"] for row in rows] == ["2026-01-01T00:00:00.001Z", "2026-01-01T00:00:00.002Z"]
    assert [row["headers"][0]["value"] for row in rows] == [None, "[1]"]
    assert json.loads(rows[0]["value"]) == {"ms": 1767225600001, "who": None}


def csv_of(**cells: str) -> str:
    row = {"id": "a", "count": "2", "paid": "1.00", "at": AT} | cells
    return f"{','.join(row)}\nok,1,1.00,{AT}{',' * (len(row) - 4)}\n{','.join(row.values())}\n"


@pytest.mark.parametrize(
    ("words", "stdin", "says"),
    [
        (AVRO, csv_of(count="two"), "line 3: count: 'two' is not a whole number of 32 bits (1 records before it"),
        (AVRO, csv_of(count=""), "line 3: count: '' is not a whole number"),
        (AVRO, csv_of(paid="1.234"), "line 3: paid: '1.234' has 3 decimal places, and the schema allows 2"),
        (AVRO, csv_of(paid="123456789.00"), "line 3: paid: '123456789.00' does not fit decimal(9,2)"),
        (AVRO, csv_of(at="noon"), "line 3: at: 'noon' is no ISO 8601 timestamp"),
        ((), "a,b\n1,2\n1\n", "line 3: has 1 fields, and the header has 2"),
        ((), 'a,b\n"1\n2",2\n1,2,3\n', "line 4: has 3 fields, and the header has 2"),
        ((), "a,a\n1,2\n", "line 1: two columns are named 'a'"),
        ((), 'a\n"x', "line 2: not CSV"),
        ((), b"a\n\xff\n", "not UTF-8 text"),
        (("--key-field", "k"), "a\n1\n", "line 2: has no field 'k' for the key (--key-field)"),
        (("--timestamp-field", "a"), "a\nnoon\n", "line 2: the field 'a' is 'noon'; a timestamp is ISO 8601"),
        (("--timestamp-field", "a"), "a\n0\n", "line 2: the field 'a' is '0'; a timestamp is after 1970"),
        (("--header-field", "h"), "a\n1\n", "line 2: has no field 'h' for a header (--header-field)"),
        (("--header", "x"), "", "--header 'x': write NAME=VALUE"),
        (("--header-field", "x="), "", "--header-field 'x=': write FIELD or NAME=FIELD"),
        (("--key-separator", ":"), "", "--key-separator splits lines"),
        (("--partition", "2"), "", "has no partition 2; it has 2, from 0 on"),
    ],
)
def test_a_wrong_row_or_option_is_told(sales: Sales, words: tuple[str, ...], stdin: str | bytes, says: str) -> None:
    assert says in sales.refused("--input-format", "csv", *words, stdin=stdin)


def test_a_wrong_row_of_parquet_is_named(sales: Sales) -> None:
    out = io.BytesIO()
    pq.write_table(pa.table({"id": ["a", "b"], "count": [1, 1], "paid": ["1", "x"], "at": [1, 1]}), out)
    words = ("--input-format", "parquet", *AVRO)
    assert "row 2: paid: 'x' is no decimal" in sales.refused(*words, stdin=out.getvalue())
    assert "not a Parquet file that can be read" in sales.refused(*words, stdin=b"a,b\n")


UNION = ["null", "long", {"type": "array", "items": "string"}, "string"]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ("boolean", "TRUE", True),
        ("double", "1e3", 1000.0),
        ("string", "5", "5"),
        (["null", "string"], "", None),
        (UNION, "5", 5),
        (UNION, '["a"]', ["a"]),
        (UNION, "five", "five"),
        ({"type": "int", "logicalType": "date"}, "2026-01-01", "2026-01-01"),
        ({"type": "int", "logicalType": "date"}, "20000", 20000),
        ("N", '{"a": 1}', {"a": 1}),
    ],
)
def test_what_a_cell_means(schema: Any, text: str, value: Any) -> None:
    named = {"N": {"type": "record", "name": "N", "fields": [{"name": "a", "type": "int"}]}}
    assert value_of_text(schema, text, named) == value


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1E+8", "0.001"])
def test_a_decimal_that_its_schema_does_not_hold(value: str) -> None:
    with pytest.raises(MismatchError, match=r"^paid: "):
        convert(SALE["fields"][2]["type"], value, path="paid")  # type: ignore[index]
