"""A table that its test writes by hand as runs do, commit by commit, with what each version holds kept beside it."""

import json
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from fluvial.delta.deletion_vectors import PORTABLE_MAGIC
from fluvial.delta.rows import _BASE85
from fluvial.delta.stamp import Stamp

Key = Any
Row = dict[str, Any]
KINDS: dict[pa.DataType, str] = {
    pa.string(): "string",
    pa.int64(): "long",
    pa.int32(): "integer",
    pa.date32(): "date",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.decimal128(10, 2): "decimal(10,2)",
}


PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors"],
}


@dataclass(slots=True)
class DataFile:
    """A file of the table: its keys by row number, and the rows that are marked as gone."""

    name: str
    keys: list[Key]
    marked: set[int] = field(default_factory=set)
    added: dict[str, Any] = field(default_factory=dict)


class KeyedHistory:
    """Each commit makes a version; `versions` holds the rows of each by key."""

    def __init__(
        self, folder: Path, columns: Mapping[str, pa.DataType], key: Sequence[str], topic: str = "orders"
    ) -> None:
        self.folder = folder
        self.schema = pa.schema(list(columns.items()))
        self.key = tuple(key)
        self.topic = topic
        self.versions: list[dict[Key, Row]] = []
        self.files: list[DataFile] = []
        (folder / "_delta_log").mkdir(parents=True)

    @property
    def newest(self) -> int:
        return len(self.versions) - 1

    def put(self, rows: Sequence[Row], gone: Sequence[Key] = (), *, row_group: int = 1000) -> None:
        """Write rows in the place of those with their keys, and take away others, in one commit."""
        held = dict(self.versions[-1]) if self.versions else {}
        new = {self.key_of(row): row for row in rows}
        actions = [action for file in self.files for action in self._mark(file, {*new, *gone})]
        self.files = [file for file in self.files if len(file.marked) < len(file.keys)]
        if new:
            actions.append(self._add(list(new.values()), row_group))
        held = {key: row for key, row in held.items() if key not in gone} | new
        self._commit("STREAMING UPDATE", actions, held, stamped=True)

    def compact(self) -> None:
        """Write all rows together, as OPTIMIZE does."""
        removed = [{"remove": {"path": file.name, "dataChange": False}} for file in self.files]
        held = self.versions[-1]
        self.files = []
        self._commit("OPTIMIZE", [*removed, self._add(list(held.values()), 3, changes=False)], held, stamped=False)

    def vacuum(self) -> None:
        """Remove the data files of earlier versions."""
        kept = {file.name for file in self.files}
        for path in self.folder.glob("*.parquet"):
            if path.name not in kept:
                path.unlink()

    def key_of(self, row: Row) -> Key:
        values = tuple(row[name] for name in self.key)
        return values[0] if len(values) == 1 else values

    def _mark(self, file: DataFile, keys: set[Key]) -> list[dict[str, Any]]:
        rows = {at for at, key in enumerate(file.keys) if key in keys and at not in file.marked}
        if not rows:
            return []
        file.marked |= rows
        removed = {"remove": {"path": file.name, "dataChange": True}}
        if len(file.marked) == len(file.keys):
            return [removed]
        file.added = {"add": {**file.added["add"], "deletionVector": inline_vector(sorted(file.marked))}}
        return [removed, file.added]

    def _add(self, rows: Sequence[Row], row_group: int, *, changes: bool = True) -> dict[str, Any]:
        name = f"part-{uuid.uuid4()}.parquet"
        pq.write_table(pa.Table.from_pylist(list(rows), self.schema), self.folder / name, row_group_size=row_group)
        size = (self.folder / name).stat().st_size
        added = {
            "add": {
                "path": name, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": changes,
                "stats": json.dumps({"numRecords": len(rows)}),
            }
        }  # fmt: skip
        self.files.append(DataFile(name, [self.key_of(row) for row in rows], added=added))
        return added

    def _commit(self, operation: str, actions: list[dict[str, Any]], held: dict[Key, Row], *, stamped: bool) -> None:
        version = len(self.versions)
        info: dict[str, Any] = {"operation": operation, "timestamp": 1_700_000_000_000 + version}
        if stamped:
            stamp = Stamp(
                topic=self.topic, topic_id=None, batch=version, offsets={0: (10 * version, 10 * version + 10)}
            )
            info["userMetadata"] = stamp.as_json()
            actions.append({"txn": {"appId": stamp.app_id, "version": stamp.batch}})
        first = [] if version else [{"protocol": PROTOCOL}, self._metadata()]
        text = "".join(f"{json.dumps(each)}\n" for each in [{"commitInfo": info}, *first, *actions])
        draft = self.folder / "_delta_log" / f".{version}.tmp"
        draft.write_text(text)
        self.versions.append(held)
        draft.replace(self.folder / "_delta_log" / f"{version:020d}.json")

    def _metadata(self) -> dict[str, Any]:
        fields = [
            {"name": each.name, "type": KINDS[each.type], "nullable": True, "metadata": {}} for each in self.schema
        ]
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": [],
            "configuration": {"delta.enableDeletionVectors": "true"},
            "createdTime": 0,
        }
        return {"metaData": metadata}


def inline_vector(rows: Sequence[int]) -> dict[str, Any]:
    """A deletion vector within the log, as the Delta protocol has it."""
    import base64

    body = PORTABLE_MAGIC + bytes(BitMap64(rows).serialize())
    back = {to: chr(of) for of, to in _BASE85.items()}
    text = "".join(back[each] for each in base64.b85encode(body + bytes(-len(body) % 4)))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(body), "cardinality": len(rows)}


def customers(folder: Path) -> KeyedHistory:
    """A state by `customer`, with an internal column."""
    columns = {"customer": pa.string(), "orders": pa.int64(), "spent": pa.decimal128(10, 2), "_fold": pa.string()}
    return KeyedHistory(folder / "state" / "customers", columns, ["customer"])


def go_on(history: KeyedHistory, dice: random.Random, keys: Sequence[Any], row: Callable[[Any, int], Row]) -> None:
    """One more commit, drawn by dice: rows put and taken away, or all rows written together."""
    if history.versions and dice.random() < 0.15 and history.versions[-1]:
        history.compact()
    else:
        put = dice.sample(keys, dice.randint(0 if history.versions else 1, min(6, len(keys))))
        gone = [key for key in dice.sample(keys, dice.randint(0, 2)) if key not in put]
        history.put([row(key, len(history.versions)) for key in put], gone, row_group=dice.choice([1, 3, 1000]))
