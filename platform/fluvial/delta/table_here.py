"""
Tables whose files this process can read itself, and their columns in Arrow.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fluvial.delta.errors import TableError
from fluvial.delta.log import is_here
from fluvial.delta.snapshot import Snapshot, read_snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# What columns of one file can be cast to those of another for; nested values may have other fields.
_PLAIN = re.compile(r"string|byte|short|integer|long|boolean|date|timestamp(_ntz)?|float|double|binary|decimal\(.*")
# Looking through more is work for many machines.
ROWS_MAX = 20_000_000


def table_here(path: str, version: int) -> Snapshot | None:
    """
    The table at `path`, where its files can be read and written from here: it is on this machine, has no partitions,
    and promises nothing of its rows that only Delta's own writer keeps.
    """
    if not is_here(path):
        return None
    try:
        snapshot = read_snapshot(path, version)
    except TableError:
        return None
    if snapshot is None or snapshot.partitioned_by or snapshot.rows is None or snapshot.rows > ROWS_MAX:
        return None
    return snapshot if _is_plain(snapshot.properties) else None


def _is_plain(properties: Mapping[str, str]) -> bool:
    """Whether a table of these properties promises nothing of its rows that only Delta's own writer keeps."""
    is_mapped = properties.get("delta.columnMapping.mode", "none") != "none"
    return not is_mapped and not any(name.startswith("delta.constraints.") for name in properties)


def columns_to_write(schema: str, properties: Mapping[str, str]) -> "pa.Schema | None":
    """
    The columns in Arrow of the files that this process may write for a table of this schema, in JSON as its log has it,
    and these properties; None where that is for Spark: a column is never null, generated, or of a type not known here.
    """
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    columns = json.loads(schema)
    for each in columns["fields"]:
        is_promise = not each["nullable"] or any(name.startswith("delta.") for name in each["metadata"])
        if is_promise or not _is_written(each["type"]):
            return None
    return to_arrow_schema(StructType.fromJson(columns)) if _is_plain(properties) else None


def _is_written(kind: Any) -> bool:
    """Whether values of a type, as the log has it, are written here, nested ones with all that they consist of."""
    if isinstance(kind, str):
        return _PLAIN.fullmatch(kind) is not None
    parts = [kind.get(name) for name in ("elementType", "keyType", "valueType")]
    parts += [each["type"] for each in kind.get("fields", ())]
    return all(_is_written(each) for each in parts if each is not None)


def plain_schema(snapshot: Snapshot) -> "pa.Schema | None":
    """
    The columns of a table in Arrow; None where one is of nested values, which files may have otherwise than the table.
    """
    found = plain_columns(snapshot, [each.name for each in snapshot.columns])
    return None if found is None else found[1]


def plain_columns(snapshot: Snapshot, names: Sequence[str]) -> "tuple[StructType, pa.Schema] | None":
    """
    Some columns of a table as Spark has them and in Arrow; None where one of them is of nested values.
    """
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    if not all(_PLAIN.fullmatch(each.type) for each in snapshot.columns if each.name in names):
        return None
    fields = StructType.fromJson(json.loads(snapshot.schema)).fields
    schema = StructType([each for each in fields if each.name in names])
    return schema, to_arrow_schema(schema)
