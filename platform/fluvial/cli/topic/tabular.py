"""CSV and Parquet as the records of a topic, one a row."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from fluvial.cli.topic.lines import LINE_BYTES_MAX, LineError
from fluvial.cli.topic.rows import Record, RowReader
from fluvial.errors import FluvialError
from fluvial.serde.avro_json import render

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_AT_ONCE = 1000


def csv_records(
    file: BinaryIO, rows: RowReader, typed: Callable[[Mapping[str, str]], Mapping[str, Any]] | None
) -> Iterator[Record]:
    """
    Yield the records of CSV with a header row; `typed` reads the cells of a row, which are strings without it.

    Raises LineError with the line at which a row begins.
    """
    csv.field_size_limit(LINE_BYTES_MAX)
    reader = csv.reader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""), strict=True)
    number = 1
    try:
        names = next(reader, [])
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise FluvialError(f"two columns are named {twice!r}")
        number = reader.line_num + 1
        for cells in reader:
            # An empty line is no row; csv gives it as one without cells.
            if cells:
                if len(cells) != len(names):
                    raise FluvialError(f"has {len(cells)} fields, and the header has {len(names)}")
                row = dict(zip(names, cells, strict=True))
                yield rows.record(row if typed is None else typed(row))
            number = reader.line_num + 1
    except UnicodeDecodeError as error:
        raise LineError(number, "or one of the next is not UTF-8 text") from error
    except csv.Error as error:
        raise LineError(number, f"not CSV: {error}") from error
    except FluvialError as error:
        raise LineError(number, str(error)) from error


def parquet_records(file: BinaryIO, rows: RowReader) -> Iterator[Record]:
    """Yield the records of a Parquet file; raises LineError with the number of a row, counted from 1."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        source = pq.ParquetFile(file if file.seekable() else io.BytesIO(file.read()))
        for batch in source.iter_batches(_ROWS_AT_ONCE):
            columns = [
                (name, column.type, _micros(column)) for name, column in zip(batch.schema.names, batch, strict=True)
            ]
            lists = [(name, kind, column.to_pylist()) for name, kind, column in columns]
            for at in range(batch.num_rows):
                number += 1
                yield rows.record({name: plain(values[at], kind) for name, kind, values in lists})
    except (pa.ArrowException, OSError) as error:
        raise FluvialError(f"not a Parquet file that can be read: {str(error).splitlines()[0]}") from error
    except FluvialError as error:
        raise LineError(number, str(error), unit="row") from error


def _micros(column: "pa.Array") -> "pa.Array":
    """Return a column of nanoseconds in microseconds, which is what Python and Avro's timestamps hold."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        return column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return column


def plain(value: Any, kind: "pa.DataType") -> Any:
    """Return a value of Arrow as JSON, as `topic produce` takes it."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_map(kind):
        return {str(key): plain(each, kind.item_type) for key, each in value}
    if pa.types.is_struct(kind):
        return {part.name: plain(value[part.name], part.type) for part in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [plain(each, kind.value_type) for each in value]
    return render(value)
