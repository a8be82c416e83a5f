"""A Delta table that is written by hand, commit by commit: no Spark runs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fluvial.delta.mart_stamp import MartStamp
from fluvial.delta.stamp import Stamp

_TYPES = {pa.string(): "string", pa.int64(): "long", pa.float64(): "double"}


class HandWrittenTable:
    """Each commit adds a file of rows, or takes them all away."""

    def __init__(self, folder: Path, columns: Mapping[str, pa.DataType]) -> None:
        self.folder = folder
        self.schema = pa.schema(list(columns.items()))
        self.versions = 0
        self._files: list[str] = []
        (folder / "_delta_log").mkdir(parents=True)

    def commit(
        self, rows: Sequence[Sequence[Any]], stamp: "Stamp | MartStamp | None" = None, *, instead: bool = False
    ) -> None:
        """Write one version, of these rows and those before, or instead of those before."""
        info: dict[str, Any] = {"operation": "WRITE", "timestamp": 1_700_000_000_000 + 1000 * self.versions}
        actions: list[dict[str, Any]] = [{"commitInfo": info}]
        if stamp is not None:
            info["userMetadata"] = stamp.as_json()
            actions.append({"txn": {"appId": stamp.app_id, "version": stamp.batch}})
        if self.versions == 0:
            actions += [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": self._metadata()}]
        if instead:
            actions += [{"remove": {"path": file, "dataChange": True, "deletionTimestamp": 1}} for file in self._files]
            self._files = []
        actions.append({"add": self._added(rows)})
        (self._log / f"{self.versions:020d}.json").write_text("\n".join(map(json.dumps, actions)))
        self.versions += 1

    @property
    def _log(self) -> Path:
        return self.folder / "_delta_log"

    def _added(self, rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
        name = f"part-{self.versions}.parquet"
        columns = list(zip(*rows, strict=True)) or [()] * len(self.schema)
        arrays = [pa.array(values, kind) for values, kind in zip(columns, self.schema.types, strict=True)]
        pq.write_table(pa.table(arrays, schema=self.schema), self.folder / name)
        self._files.append(name)
        size = (self.folder / name).stat().st_size
        return {"path": name, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}

    def _metadata(self) -> dict[str, Any]:
        fields = [
            {"name": each.name, "type": _TYPES[each.type], "nullable": True, "metadata": {}} for each in self.schema
        ]
        return {
            "id": "5a1f9a54-0000-4000-8000-000000000000",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": [],
            "configuration": {},
            "createdTime": 0,
        }
