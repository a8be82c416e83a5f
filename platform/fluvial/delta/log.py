"""
A Delta table's own log, read for what its commits say of themselves.

Only the commit files are read, as the Delta protocol lays them down (`_delta_log/<version>.json`, a `commitInfo` action
in each): no Spark job, no snapshot. A local table needs no JVM at all.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from fluvial.spark.connect import is_client, list_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMMIT_FILE = re.compile(r"(\d{20})\.json")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """
    What one commit says of itself.
    """

    version: int
    operation: str
    user_metadata: Mapping[str, Any] | None
    metrics: Mapping[str, str]
    txn_id: str | None

    def metric(self, *names: str) -> int:
        """
        The sum of the named operation metrics; what was not counted counts as 0.
        """
        return sum(int(self.metrics.get(name, 0)) for name in names)


class TableLog:
    """
    The commits of the table at `path`, a local folder or a URI that Spark's file systems know.
    """

    def __init__(self, spark: "SparkSession | None", path: str) -> None:
        self.path = path
        self._files = _files_of(spark, path)

    def newest_version(self) -> int | None:
        """
        The version of the newest commit; None where there is no table.
        """
        return max(self._versions(), default=None)

    def commit(self, version: int) -> Commit:
        """
        One commit, which must be there.
        """
        for line in self._files.lines(f"{version:020d}.json"):
            action = json.loads(line)
            if "commitInfo" in action:
                info = action["commitInfo"]
                return Commit(
                    version=version,
                    operation=info.get("operation", "?"),
                    user_metadata=_json_object(info.get("userMetadata")),
                    metrics=info.get("operationMetrics") or {},
                    txn_id=info.get("txnId"),
                )
        # Writers may leave commitInfo out: such a commit says nothing of itself.
        return Commit(version=version, operation="?", user_metadata=None, metrics={}, txn_id=None)

    def added_files(self, version: int) -> list[str] | None:
        """
        The names of the data files that a commit added; None when one of them came with rows marked in it.
        """
        names = []
        for line in self._files.lines(f"{version:020d}.json"):
            added = json.loads(line).get("add")
            if added is not None:
                if added.get("deletionVector"):
                    return None
                names.append(unquote(added["path"]).rpartition("/")[2])
        return names

    def newest_first(self, *, above: int = -1) -> Iterator[Commit]:
        """
        The commits that are still in the log, from the newest down to the one after version `above`.
        """
        for version in sorted((version for version in self._versions() if version > above), reverse=True):
            yield self.commit(version)

    def _versions(self) -> list[int]:
        matches = (_COMMIT_FILE.fullmatch(name) for name in self._files.names())
        return [int(match[1]) for match in matches if match]


def _files_of(spark: "SparkSession | None", path: str) -> "_LocalFiles | _SparkFiles | _ConnectFiles":
    if not _SCHEME.match(path):
        return _LocalFiles(Path(path) / "_delta_log")
    assert spark is not None, "a table elsewhere is read through Spark"
    folder = f"{path}/_delta_log"
    return _ConnectFiles(spark, folder) if is_client(spark) else _SparkFiles(spark, folder)


class _LocalFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        try:
            return [entry.name for entry in self._folder.iterdir()]
        except FileNotFoundError:
            return []

    def lines(self, name: str) -> Iterator[str]:
        with (self._folder / name).open(encoding="utf-8") as file:
            yield from file


class _SparkFiles:
    def __init__(self, spark: "SparkSession", folder: str) -> None:
        self._jvm = spark._jvm
        self._path_of = spark._jvm.org.apache.hadoop.fs.Path
        self._folder = self._path_of(folder)
        self._system = self._folder.getFileSystem(spark._jsc.hadoopConfiguration())

    def names(self) -> list[str]:
        if not self._system.exists(self._folder):
            return []
        return [status.getPath().getName() for status in self._system.listStatus(self._folder)]

    def lines(self, name: str) -> Iterator[str]:
        stream = self._system.open(self._path_of(self._folder, name))
        try:
            text: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        yield from text.splitlines()


class _ConnectFiles:
    """Read as tables are: a client of Spark Connect has no file system of its own."""

    def __init__(self, spark: "SparkSession", folder: str) -> None:
        self._spark = spark
        self._folder = folder

    def names(self) -> list[str]:
        return [path.rpartition("/")[2] for path in list_files(self._spark, f"{self._folder}/*.json")]

    def lines(self, name: str) -> Iterator[str]:
        for row in self._spark.read.text(f"{self._folder}/{name}").collect():
            yield row[0]


def _json_object(text: str | None) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text) if text else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
