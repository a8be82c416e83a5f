"""
What a Delta table on this machine consists of, read from its log without Spark.

The newest checkpoint and the commits after it are replayed as the Delta protocol says: a file that is added stands in
the place of one with the same path, and one that is removed goes.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from fluvial.delta.errors import BrokenLogError, TableError
from fluvial.delta.log import TableLog

# Version, and part and number of parts where a checkpoint has several files.
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_COLUMNS = ("add", "remove", "metaData")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column, with its type in Spark's short form such as array<string>."""

    name: str
    type: str
    nullable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """
    A table at its newest version; `rows` is None where a file does not say how many it holds.
    """

    version: int
    columns: tuple[Column, ...]
    partitioned_by: tuple[str, ...]
    properties: dict[str, str]
    files: int
    bytes: int
    rows: int | None
    added: tuple[dict[str, Any], ...] = field(repr=False)
    """The `add` action of each file."""
    schema: str = field(default="", repr=False)
    """The columns as the log has them, in JSON."""


class Replay:
    """
    The files and the columns of a table in a local folder, at a version from which it goes on commit by commit.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: dict[str, dict[str, Any]] = {}
        self._metadata: dict[str, Any] = {}
        self.version = -1

    @classmethod
    def at(cls, path: str, version: int | None = None) -> Self | None:
        """
        The table at its newest version or another; None where there is none. Raises as :func:`read_snapshot`.
        """
        log = TableLog(None, path)
        log.check()
        newest = log.newest_version()
        if newest is None:
            return None
        version = newest if version is None else version
        if version > newest:
            raise TableError(f"{path}: there is no version {version}: the newest is {newest}")
        replay = cls(path)
        replay.version, files = _checkpoint(Path(path) / "_delta_log", version)
        for file in files:
            replay._take(_checkpointed(file))
        try:
            replay.go_on(log, version)
        except BrokenLogError as error:
            if version == newest:
                raise
            raise TableError(
                f"{path}: version {version} can no longer be read: its log was cleaned up since"
            ) from error
        if not replay._metadata:
            raise TableError(f"{path}: its log cannot be read without Spark: no checkpoint of a kind that is read here")
        return replay

    def go_on(self, log: TableLog, until: int) -> None:
        """
        Replay the commits up to version `until`. Raises :class:`~fluvial.delta.errors.BrokenLogError`.
        """
        for number in range(self.version + 1, until + 1):
            self._take(log.actions(number))
            self.version = number

    def snapshot(self) -> Snapshot:
        """
        The table as it is at this version.
        """
        schema = json.loads(self._metadata["schemaString"])
        counts = [_rows(each) for each in self._files.values()]
        return Snapshot(
            version=self.version,
            columns=tuple(
                Column(name=each["name"], type=type_text(each["type"]), nullable=each["nullable"])
                for each in schema["fields"]
            ),
            partitioned_by=tuple(self._metadata.get("partitionColumns") or ()),
            properties=dict(self._metadata.get("configuration") or {}),
            files=len(self._files),
            bytes=sum(each["size"] for each in self._files.values()),
            rows=None if None in counts else sum(each for each in counts if each is not None),
            added=tuple(self._files.values()),
            schema=self._metadata["schemaString"],
        )

    def _take(self, actions: Iterable[dict[str, Any]]) -> None:
        """Apply the actions of one commit, whose order among themselves means nothing."""
        added = []
        for action in actions:
            if removed := action.get("remove"):
                self._files.pop(removed["path"], None)
            elif action.get("add"):
                added.append(action["add"])
            elif action.get("metaData"):
                self._metadata = action["metaData"]
        self._files.update((each["path"], each) for each in added)


def read_snapshot(path: str, version: int | None = None) -> Snapshot | None:
    """
    Read the table in a local folder, at its newest version or another; None where there is none.

    Raises TableError for a log that lacks commits, that does not go back to the version, or whose checkpoint is of a
    kind that only Spark reads.
    """
    replay = Replay.at(path, version)
    return None if replay is None else replay.snapshot()


def type_text(kind: Any) -> str:
    """Return a type of Delta's schema JSON in Spark's short form."""
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "struct":
            parts = (f"{each['name']}:{type_text(each['type'])}" for each in kind["fields"])
            return f"struct<{','.join(parts)}>"
        case "array":
            return f"array<{type_text(kind['elementType'])}>"
        case "map":
            return f"map<{type_text(kind['keyType'])},{type_text(kind['valueType'])}>"
    return str(kind["type"])


def _rows(added: dict[str, Any]) -> int | None:
    """The rows of a file without those that its deletion vector marks."""
    rows = json.loads(added.get("stats") or "{}").get("numRecords")
    return None if rows is None else rows - ((added.get("deletionVector") or {}).get("cardinality") or 0)


def _checkpoint(folder: Path, version: int) -> tuple[int, list[Path]]:
    """The version and the files of the newest checkpoint up to `version` that is complete; -1 where there is none."""
    found: dict[int, list[Path]] = {}
    parts: dict[int, int] = {}
    for file in folder.glob("*.checkpoint*.parquet"):
        if match := _CHECKPOINT.fullmatch(file.name):
            found.setdefault(int(match[1]), []).append(file)
            parts[int(match[1])] = int(match[3] or 1)
    complete = [each for each, files in found.items() if each <= version and len(files) == parts[each]]
    return (max(complete), found[max(complete)]) if complete else (-1, [])


def _checkpointed(file: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    source = pq.ParquetFile(file)
    names = [name for name in _COLUMNS if name in source.schema_arrow.names]
    for batch in source.iter_batches(columns=names):
        for row in batch.to_pylist():
            yield row | {"metaData": _metadata(row.get("metaData"))}


def _metadata(found: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if found is None else found | {"configuration": dict(found.get("configuration") or ())}
