"""
The rows of a Delta table on this machine, read without Spark: data files less what their deletion vectors mark.
"""

import base64
import string
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from fluvial.delta.deletion_vectors import PORTABLE_MAGIC
from fluvial.delta.errors import TableError
from fluvial.delta.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyroaring import BitMap64

# The alphabet of ZeroMQ's base 85, in which Delta writes the name of a vector's file, as that of `base64.b85decode`.
_BASE85 = str.maketrans(
    string.digits + string.ascii_lowercase + string.ascii_uppercase + ".-:+=^!/*?&<>()[]{}@%$#",
    string.digits + string.ascii_uppercase + string.ascii_lowercase + "!#$%&()*+-;<=>?@^_`{|}~",
)
_UUID_CHARACTERS = 20
_PARTITION_TYPES = {"string": "string", "integer": "int32", "long": "int64", "date": "date32", "boolean": "bool"}


def identity(added: Mapping[str, Any]) -> tuple[str, ...]:
    """
    What two versions of a table have the same of only where a file gives both the same rows.
    """
    vector = added.get("deletionVector") or {}
    return (added["path"], str(vector.get("pathOrInlineDv")), str(vector.get("offset")))


def read_rows(
    path: str, snapshot: Snapshot, added: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None
) -> "pa.Table":
    """
    The rows of some files of a snapshot, with all of its columns or those named.

    Raises :class:`TableError` for a table whose files name columns otherwise than it does, or that lacks a file.
    """
    import pyarrow as pa

    names = [each.name for each in snapshot.columns] if columns is None else list(columns)
    parts = [file for _, file in read_files(path, snapshot, added, names)]
    if not parts:
        return pa.table({name: pa.nulls(0) for name in names})
    # A file from before a column was added, or made wider, has what it had.
    whole = pa.concat_tables(parts, promote_options="permissive")
    for name in names:
        if name not in whole.column_names:
            whole = whole.append_column(name, pa.nulls(len(whole)))
    return whole.select(names)


def read_files(
    path: str, snapshot: Snapshot, added: Iterable[Mapping[str, Any]], columns: Sequence[str]
) -> Iterator[tuple[Mapping[str, Any], "pa.Table"]]:
    """
    Each file with its rows, of the columns that it has.
    """
    if snapshot.properties.get("delta.columnMapping.mode", "none") != "none":
        raise TableError(f"{path}: its files name columns otherwise than the table, which only Spark reads")
    types = {each.name: each.type for each in snapshot.columns}
    for each in added:
        try:
            yield each, _rows(path, each, columns, types)
        except FileNotFoundError as error:
            raise TableError(
                f"{error.filename or each['path']} is gone: a VACUUM removed it, or somebody did"
            ) from error


def _rows(path: str, added: Mapping[str, Any], columns: Sequence[str], types: Mapping[str, str]) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.parquet as pq

    # ParquetFile and not read_table, which takes `a=b` in a path for a column.
    with pq.ParquetFile(data_file(path, added), coerce_int96_timestamp_unit="us") as file:
        has = file.schema_arrow.names
        rows = file.read([name for name in columns if name in has])
        count = file.metadata.num_rows
    if not rows.column_names:
        rows = pa.table({columns[0]: pa.nulls(count)})
    rows = as_columns(rows, added, columns, types)
    vector = added.get("deletionVector")
    if vector:
        import numpy as np

        kept = np.ones(count, dtype=bool)
        kept[np.asarray(marked_rows(path, vector).to_array(), np.uint64)] = False
        rows = rows.filter(pa.array(kept))
    return rows


def as_columns(
    rows: "pa.Table", added: Mapping[str, Any], columns: Sequence[str], types: Mapping[str, str]
) -> "pa.Table":
    """
    What was read of a file as columns of the table: instants in UTC, and those of a partition with their values.
    """
    import pyarrow as pa

    for name in rows.column_names:
        # Spark's older form of an instant says nothing of its zone, which is UTC.
        if types[name] == "timestamp":
            instants = rows[name].cast(pa.timestamp("us", "UTC"))
            rows = rows.set_column(rows.column_names.index(name), name, instants)
    for name, value in dict(added.get("partitionValues") or {}).items():
        if name in columns:
            rows = rows.drop_columns([name]) if name in rows.column_names else rows
            kind = pa.type_for_alias(_PARTITION_TYPES.get(types[name], "string"))
            rows = rows.append_column(name, pa.array([value] * len(rows), pa.string()).cast(kind))
    return rows


def data_file(path: str, added: Mapping[str, Any]) -> Path:
    """
    Where a file lies that the action `added` to the table at `path`.
    """
    return _file(path, unquote(added["path"]))


def marked_rows(path: str, vector: Mapping[str, Any]) -> "BitMap64":
    """
    The rows that a deletion vector marks, as the Delta protocol stores them.
    """
    from pyroaring import BitMap64

    text, size = vector["pathOrInlineDv"], vector["sizeInBytes"]
    if vector["storageType"] == "i":
        data = base64.b85decode(text.translate(_BASE85))[:size]
    else:
        file = text
        if vector["storageType"] == "u":
            prefix, name = text[:-_UUID_CHARACTERS], text[-_UUID_CHARACTERS:]
            found = uuid.UUID(bytes=base64.b85decode(name.translate(_BASE85)))
            file = f"{prefix}/deletion_vector_{found}.bin".lstrip("/")
        with _file(path, file).open("rb") as opened:
            opened.seek(vector.get("offset") or 0)
            (stored,) = struct.unpack(">i", opened.read(4))
            if stored != size:
                raise TableError(f"{file}: not the deletion vector that the table's log tells of")
            data = opened.read(size)
    if data[: len(PORTABLE_MAGIC)] != PORTABLE_MAGIC:
        raise TableError(f"{path}: a deletion vector of a kind that only Spark reads")
    return BitMap64.deserialize(data[len(PORTABLE_MAGIC) :])


def _file(path: str, name: str) -> Path:
    return Path("/" + name.removeprefix("file:").lstrip("/")) if name.startswith("file:") else Path(path) / name
