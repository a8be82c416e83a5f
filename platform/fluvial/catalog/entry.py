"""What a catalog is told of a table: where it lies, and its columns as its own log has them."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fluvial.delta.snapshot import read_snapshot
from fluvial.spark.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
# SQL's words for those types that Delta's log calls otherwise.
_SQL: Mapping[str, str] = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryColumn:
    """A column; `kind` is its type as Delta's log has it, a word or a JSON object."""

    name: str
    kind: Any
    nullable: bool
    comment: str | None
    partition_index: int | None

    @property
    def sql_type(self) -> str:
        """Its type as `CREATE TABLE` has it."""
        return sql_type(self.kind)

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Precision and scale of a decimal."""
        match = _DECIMAL.fullmatch(self.kind) if isinstance(self.kind, str) else None
        return None if match is None else (int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A table by its name, such as state.orders, and the URI of its folder."""

    table: str
    location: str
    columns: tuple[EntryColumn, ...]

    @property
    def database(self) -> str:
        """What stands before the dot."""
        return self.table.partition(".")[0]

    @property
    def name(self) -> str:
        """What stands behind it."""
        return self.table.partition(".")[2]


def sql_type(kind: Any, words: Mapping[str, str] = MappingProxyType({})) -> str:
    """
    Return a type of Delta's schema JSON as SQL has it, `struct<a:bigint>` for one with parts.

    `words` has those that another dialect calls otherwise.
    """
    if isinstance(kind, str):
        return words.get(kind) or _SQL.get(kind, kind)
    match kind["type"]:
        case "struct":
            parts = (f"{_quoted(each['name'])}:{sql_type(each['type'], words)}" for each in kind["fields"])
            return f"struct<{','.join(parts)}>"
        case "array":
            return f"array<{sql_type(kind['elementType'], words)}>"
        case "map":
            return f"map<{sql_type(kind['keyType'], words)},{sql_type(kind['valueType'], words)}>"
        case "udt":
            return sql_type(kind["sqlType"], words)
    return str(kind["type"])


def entry_of(warehouse: Warehouse, table: str, spark: "SparkSession | None") -> Entry | None:
    """
    Return what there is to tell of a table as it is now; None where there is no table.

    One that is not on this machine is read by `spark`. Raises TableError for a log that is broken.
    """
    path = warehouse.path(table)
    if warehouse.local is None:
        assert spark is not None, "a table that is elsewhere is read by Spark"
        return _remote(table, path, spark)
    folder = warehouse.local.joinpath(*table.split(".", 1))
    snapshot = read_snapshot(str(folder))
    if snapshot is None:
        return None
    columns = tuple(_columns(json.loads(snapshot.schema), list(snapshot.partitioned_by)))
    return Entry(table=table, location=Path(folder).absolute().as_uri(), columns=columns)


def _remote(table: str, path: str, spark: "SparkSession") -> Entry | None:
    from delta.tables import DeltaTable

    if not DeltaTable.isDeltaTable(spark, path):
        return None
    found = DeltaTable.forPath(spark, path)
    (detail,) = found.detail().select("partitionColumns").collect()
    columns = tuple(_columns(json.loads(found.toDF().schema.json()), list(detail.partitionColumns)))
    return Entry(table=table, location=path, columns=columns)


def _columns(schema: Mapping[str, Any], partitioned_by: list[str]) -> Iterator[EntryColumn]:
    for field in schema["fields"]:
        name = field["name"]
        yield EntryColumn(
            name=name,
            kind=field["type"],
            nullable=field["nullable"],
            comment=(field.get("metadata") or {}).get("comment"),
            partition_index=partitioned_by.index(name) if name in partitioned_by else None,
        )


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"
