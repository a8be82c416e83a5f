"""
What the newest version of a table says of its data files: rows, bytes, and the least and greatest value of columns.

Writers of Delta keep these statistics for data skipping. They are bounds: a text may be cut off, rows may be marked as
gone since. No data file is read.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from fluvial.delta.errors import TableError
from fluvial.delta.jvm import delta_log, none
from fluvial.delta.log import is_here
from fluvial.delta.row_swap import actions_of_files, knows_delta
from fluvial.delta.snapshot import read_snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of more files their bytes are taken, as each one must be asked for.
FILES_MAX = 2000
BYTES_A_ROW = 50
"""What a row is taken to have where it is not known."""

Key = str | int | date


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """
    No value of a column is less than `least` or greater than `most`, which are None where all values are null.
    """

    least: Any
    most: Any
    has_null: bool

    def may_hold(self, keys: Sequence[Key], *, null: bool) -> bool:
        """
        Whether one of the ascending `keys`, or with `null` a null, may be among the values.
        """
        if (null and self.has_null) or self.least is None:
            return null and self.has_null
        at = bisect_left(keys, self.least)
        return at < len(keys) and keys[at] <= self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStats:
    """
    The rows of a data file that are not marked as gone, and the bounds of its columns as far as they are known.
    """

    rows: int
    bounds: Mapping[str, Bounds]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStats:
    """
    The rows of a table at a `version`, and its files as far as they are known one by one.
    """

    version: int
    rows: int
    files: tuple[FileStats, ...] = ()


def table_stats(session: "SparkSession", path: str, columns: Mapping[str, str]) -> TableStats | None:
    """
    The statistics of the newest version, with bounds of those `columns` (Spark's type by name) that are compared alike
    here and there: texts, whole numbers and dates. None where Delta's classes are not known to be as assumed.
    """
    if not knows_delta(session):
        return None
    snapshot = delta_log(session, path).update(False, none(session), none(session))
    checksum = snapshot.checksumOpt()
    # Without a checksum beside the commit, a query over the table's state counts them.
    count = checksum.get().numFiles() if checksum.isDefined() else snapshot.numOfFiles()
    if int(count) > FILES_MAX:
        return TableStats(version=int(snapshot.version()), rows=int(snapshot.sizeInBytes()) // BYTES_A_ROW)
    mapping = snapshot.metadata().configuration().get("delta.columnMapping.mode")
    # Their statistics have columns by other names.
    known = {} if mapping.isDefined() and mapping.get() != "none" else columns
    files = tuple(of_action(add, known) for add in _added(session, path, snapshot))
    return TableStats(version=int(snapshot.version()), rows=sum(file.rows for file in files), files=files)


def _added(session: "SparkSession", path: str, snapshot: Any) -> Iterable[Mapping[str, Any]]:
    """The actions that added a table's files: read here where it is on this machine, else asked for one by one."""
    if is_here(path):
        with suppress(TableError):
            here = read_snapshot(path, int(snapshot.version()))
            if here is not None:
                return here.added
    return (action["add"] for action in actions_of_files(session, snapshot))


def of_action(add: Mapping[str, Any], columns: Mapping[str, str]) -> FileStats:
    """
    The statistics in the action that added a file.
    """
    stats = json.loads(add.get("stats") or "{}")
    rows = stats.get("numRecords", add.get("size", 0) // BYTES_A_ROW) - marked_rows(add)
    least, most = stats.get("minValues") or {}, stats.get("maxValues") or {}
    bounds = {}
    for name, nulls in (stats.get("nullCount") or {}).items():
        if name in columns and name in least and name in most:
            values = [_value(each[name], columns[name]) for each in (least, most)]
            if None not in values:
                bounds[name] = Bounds(least=values[0], most=values[1], has_null=nulls > 0)
        elif name in columns and nulls == stats.get("numRecords"):
            bounds[name] = Bounds(least=None, most=None, has_null=True)
    return FileStats(rows=rows, bounds=bounds)


def marked_rows(action: Mapping[str, Any]) -> int:
    """
    How many rows of its file the action that adds or removes it says to be marked as gone.
    """
    return int((action.get("deletionVector") or {}).get("cardinality", 0))


def comparable_type(kind: str) -> bool:
    """
    Whether bounds of a column of this type of Spark's can be compared here.
    """
    return kind in {"string", "tinyint", "smallint", "int", "bigint", "date"}


def ranges(bounds: Iterable[Bounds], most: int) -> list[tuple[Key, Key]]:
    """
    At most so many ranges, first and last, that hold all values within `bounds` but null.
    """
    found: list[tuple[Any, Any]] = []
    for each in sorted((each for each in bounds if each.least is not None), key=lambda each: each.least):
        if found and each.least <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], each.most)
        else:
            found.append((each.least, each.most))
    while len(found) > most:
        pairs = (found[at : at + 2] for at in range(0, len(found), 2))
        found = [(pair[0][0], pair[-1][1]) for pair in pairs]
    return found


def _value(value: Any, kind: str) -> Any:
    """A bound as Python has it; None for one that Python cannot have."""
    try:
        if kind == "string":
            value.encode()  # a text that was cut within a pair of surrogates is none
        return date.fromisoformat(value) if kind == "date" else value
    except ValueError:
        return None
