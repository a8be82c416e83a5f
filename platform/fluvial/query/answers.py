"""The answers of `fluvial sql`, written in the format that was asked for."""

import io
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO

from fluvial.query import rendering

if TYPE_CHECKING:
    import pyarrow as pa

    from fluvial.query.engine import Answer


class Format(StrEnum):
    """How the answer is written."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"
    ARROW_STREAM = "arrow-stream"
    MARKDOWN = "markdown"

    @property
    def is_text(self) -> bool:
        """Whether it can be shown on a terminal, one answer after another."""
        return self not in (Format.PARQUET, Format.ARROW, Format.ARROW_STREAM)

    @property
    def rows_max(self) -> int | None:
        """How many rows are asked for, one more than are shown; None for all."""
        return rendering.TABLE_ROWS_MAX + 1 if self is Format.TABLE else None


def write(answer: "Answer", fmt: Format, out: BinaryIO, width: int) -> None:
    """Write an answer; a table is drawn `width` characters wide."""
    if not fmt.is_text:
        _write_arrow(*answer.arrow(), fmt, out)
        return
    text = io.TextIOWrapper(out, encoding="utf-8", newline="", write_through=True)
    try:
        match fmt:
            case Format.TABLE:
                _draw(answer, text, width)
            case Format.JSON:
                rendering.write_json(answer.columns, answer.rows(), text)
            case Format.NDJSON:
                rendering.write_ndjson(answer.columns, answer.rows(), text)
            case Format.MARKDOWN:
                rendering.write_markdown(answer.columns, answer.rows(), text)
            case _:
                rendering.write_csv(answer.columns, answer.rows(), text)
    finally:
        text.detach()


def _draw(answer: "Answer", out: io.TextIOWrapper, width: int) -> None:
    from rich.console import Console

    rows: Sequence[Any] = list(islice(answer.rows(), rendering.TABLE_ROWS_MAX + 1))
    console = Console(file=out, width=width, highlight=False, markup=False, no_color=True)
    shown = rows[: rendering.TABLE_ROWS_MAX]
    if answer.columns:
        rendering.draw_table(answer.columns, shown, console, more=len(rows) > len(shown))


def _write_arrow(schema: "pa.Schema", batches: "Iterator[pa.RecordBatch]", fmt: Format, out: BinaryIO) -> None:
    with _writer(schema, fmt, out) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _writer(schema: "pa.Schema", fmt: Format, out: BinaryIO) -> Any:
    import pyarrow as pa

    match fmt:
        case Format.ARROW:
            return pa.ipc.new_file(out, schema)
        case Format.ARROW_STREAM:
            return pa.ipc.new_stream(out, schema)
    from pyarrow import parquet

    return parquet.ParquetWriter(out, schema)
