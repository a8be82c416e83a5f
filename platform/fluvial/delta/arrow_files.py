"""
Writing rows as a data file of a table on this machine: as Spark would, without a job of Spark's.
"""

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

# Delta's own bounds of longer texts are cut off; without bounds a file is read by everyone.
_TEXT_MAX = 32
# Of rows in the order of a column, who looks for one value of it reads few. No dictionary is larger: of one that holds
# all values of a column, the numbers in their place are all on one page.
_PAGE_BYTES = 32 << 10
# So many columns have bounds, unless a table says otherwise.
_COLUMNS_MAX = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """
    A data file that no commit has added yet: the action that would, its rows and its bytes.
    """

    action: str
    rows: int
    bytes: int


def write_file(path: str, rows: "pa.Table") -> WrittenFile:
    """
    Write rows, in the columns of the table at `path`, which has no partitions. Of the first columns readers that look
    for some values are told the least and the greatest.
    """
    import pyarrow.parquet as pq
    from pyspark import __version__

    # Of a file that does not name it Spark may take old dates for those of another calendar.
    rows = rows.replace_schema_metadata({"org.apache.spark.version": __version__})
    name = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
    file = Path(path) / name
    pq.write_table(
        rows,
        file,
        compression="snappy",
        write_page_index=True,
        data_page_size=_PAGE_BYTES,
        dictionary_pagesize_limit=_PAGE_BYTES,
    )
    size = file.stat().st_size
    stats: dict[str, Any] = {"numRecords": rows.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for column, least, most, nulls in _bounds(rows.select(range(min(rows.num_columns, _COLUMNS_MAX)))):
        stats["minValues"][column], stats["maxValues"][column], stats["nullCount"][column] = least, most, nulls
    action = {
        "path": name,
        "partitionValues": {},
        "size": size,
        "modificationTime": time.time_ns() // 1_000_000,
        "dataChange": True,
        "stats": json.dumps(stats),
    }
    return WrittenFile(action=json.dumps({"add": action}), rows=rows.num_rows, bytes=size)


def _bounds(rows: "pa.Table") -> Iterator[tuple[str, Any, Any, int]]:
    """The least and the greatest value and the number of nulls, of texts, dates and numbers but decimal ones."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name, column in zip(rows.column_names, rows.columns, strict=True):
        kind = column.type
        is_text, is_fraction = pa.types.is_string(kind), pa.types.is_floating(kind)
        is_known = is_text or is_fraction or pa.types.is_integer(kind) or pa.types.is_date32(kind)
        if not is_known or column.null_count == len(column):
            continue
        # NaN is greater than all numbers to Spark, and no bound.
        if is_fraction and not pc.all(pc.is_finite(column)).as_py():
            continue
        found = pc.min_max(column)
        least, most = found["min"].as_py(), found["max"].as_py()
        if is_text and max(len(least), len(most)) > _TEXT_MAX:
            continue
        if pa.types.is_date32(kind):
            least, most = least.isoformat(), most.isoformat()
        yield name, least, most, column.null_count
