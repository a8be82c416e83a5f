"""
A Delta table's own log, read for what its commits say of themselves.

Only the commit files are read, as the Delta protocol lays them down (`_delta_log/<version>.json`, a `commitInfo` action
in each): no Spark job, no snapshot. A local table needs no JVM at all.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from fluvial.delta.errors import BrokenLogError, StorageError, table_of
from fluvial.spark.connect import is_client, list_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMMIT_FILE = re.compile(r"(\d{20})\.json")
_CHECKPOINT_FILE = re.compile(r"(\d{20})\.checkpoint(\..+)?\.(parquet|json)")
_ACTION = re.compile(r'\s*\{\s*"(\w+)"\s*:')
# Rows that an operation says to have written: at least one file was added for them.
_ROWS_WRITTEN = ("numOutputRows", "numTargetRowsInserted", "numTargetRowsUpdated")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """
    What one commit says of itself; `timestamp_ms` is in milliseconds of Unix time.
    """

    version: int
    operation: str
    user_metadata: Mapping[str, Any] | None
    metrics: Mapping[str, str]
    txn_id: str | None
    timestamp_ms: int | None = None

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

    def check(self) -> int | None:
        """
        The version of the newest commit, None where there is no table. Raises
        :class:`~fluvial.delta.errors.BrokenLogError` where a commit that the table consists of is not whole.

        Delta reads an empty commit as one that changed nothing, and one that was cut off between two lines as the rest
        of it: rows would be missing, or there twice, without an error. Only the names of the commits are looked at
        where the table is not on this machine: an object store keeps a file whole or not at all.
        """
        versions, checkpoint = self._listed()
        if _missing(versions, checkpoint) is not None:
            # A folder is not listed at one moment: of two commits that come meanwhile the second may be seen alone.
            versions, checkpoint = self._listed()
            missing = _missing(versions, checkpoint)
            if missing is not None:
                raise BrokenLogError(self._file(missing), "is missing")
        if isinstance(self._files, _LocalFiles):
            for version in versions:
                if version > checkpoint:
                    self.commit(version)
        return max(versions, default=None)

    def _listed(self) -> tuple[list[int], int]:
        """The versions whose commits are there, in their order, and that of the last checkpoint, -1 for none."""
        with self._explained():
            names = self._files.names()
        checkpoints = (int(match[1]) for name in names if (match := _CHECKPOINT_FILE.fullmatch(name)))
        return sorted(_versions_of(names)), max(checkpoints, default=-1)

    def commit(self, version: int) -> Commit:
        """
        One commit, which must be there. Raises :class:`~fluvial.delta.errors.BrokenLogError` for one that is not whole.
        """
        lines = self._lines(version)
        commit = Commit(version=version, operation="?", user_metadata=None, metrics={}, txn_id=None)
        for line in lines:
            if _kind(line) == "commitInfo":
                info = self._action(version, line)["commitInfo"]
                commit = Commit(
                    version=version,
                    operation=info.get("operation", "?"),
                    user_metadata=_json_object(info.get("userMetadata")),
                    metrics=info.get("operationMetrics") or {},
                    txn_id=info.get("txnId"),
                    timestamp_ms=info.get("inCommitTimestamp") or info.get("timestamp"),
                )
                break
        # Writers may leave commitInfo out: such a commit says nothing of itself.
        self._check_whole(commit, lines)
        return commit

    def whole_commits(self) -> Iterator[Commit]:
        """
        The commits that can be read, from the newest down; those that are broken are passed over.
        """
        try:
            versions = sorted(self._versions(), reverse=True)
        except BrokenLogError:
            return
        for version in versions:
            try:
                yield self.commit(version)
            except BrokenLogError:
                continue

    def _check_whole(self, commit: Commit, lines: list[str]) -> None:
        if not lines:
            raise BrokenLogError(self._file(commit.version), "is empty")
        self._action(commit.version, lines[-1])
        kinds = {_kind(line) for line in lines}
        stamp = (commit.user_metadata or {}).get("fluvial")
        # What stands last differs: of a batch's commit it is the number of the batch, or a file.
        is_batch = isinstance(stamp, dict) and "batch" in stamp
        if (is_batch and "txn" not in kinds) or (commit.metric(*_ROWS_WRITTEN) > 0 and "add" not in kinds):
            raise BrokenLogError(self._file(commit.version), "is cut off: it lacks actions that it counts")

    def _action(self, version: int, line: str) -> dict[str, Any]:
        try:
            action = json.loads(line)
        except ValueError as error:
            raise BrokenLogError(self._file(version), "is torn: a line of it is not JSON") from error
        if not isinstance(action, dict):
            raise BrokenLogError(self._file(version), "is torn: a line of it is no action")
        return action

    def _lines(self, version: int) -> list[str]:
        with self._explained(f"{version:020d}.json"):
            return [line for line in self._files.lines(f"{version:020d}.json") if line.strip()]

    def _file(self, version: int) -> str:
        return f"{self._folder}/{version:020d}.json"

    @property
    def _folder(self) -> str:
        return f"{self.path}/_delta_log"

    @contextmanager
    def _explained(self, name: str = "") -> Iterator[None]:
        """Say what the system says of a local file of the log."""
        file = f"{self._folder}/{name}".rstrip("/")
        try:
            yield
        except FileNotFoundError as error:
            raise BrokenLogError(file, "is missing") from error
        except (NotADirectoryError, IsADirectoryError) as error:
            raise BrokenLogError(file, "is not what Delta keeps there: a file where a folder must be, or the other "
                                 "way round") from error  # fmt: skip
        except UnicodeDecodeError as error:
            raise BrokenLogError(file, "is torn: it is not text") from error
        except OSError as error:
            table = table_of(file) or self.path
            raise StorageError(
                table, file, error.strerror or str(error), "repair its permissions or its disk"
            ) from error

    def added_files(self, version: int) -> list[str] | None:
        """
        The names of the data files that a commit added; None when one of them came with rows marked in it.
        """
        names = []
        for line in self._lines(version):
            added = self._action(version, line).get("add")
            if added is not None:
                if added.get("deletionVector"):
                    return None
                names.append(unquote(added["path"]).rpartition("/")[2])
        return names

    def data_changes(self, version: int) -> set[str]:
        """
        The kinds of a commit's actions that change rows or columns: of `add`, `remove` and `metaData`.

        Files that were only written together (OPTIMIZE) are none of them.
        """
        return {
            kind
            for action in self.actions(version)
            for kind, body in action.items()
            if kind == "metaData" or (kind in ("add", "remove") and body.get("dataChange", True))
        }

    def actions(self, version: int) -> Iterator[dict[str, Any]]:
        """
        The actions of one commit, as they stand. Raises :class:`~fluvial.delta.errors.BrokenLogError`.
        """
        for line in self._lines(version):
            yield self._action(version, line)

    def commit_times_ms(self) -> dict[int, int]:
        """
        The time of each commit on this machine, in milliseconds of Unix time, as `TIMESTAMP AS OF` takes it.

        It is the one that the commit states (`inCommitTimestamp`), else that of its file, but later than the one
        before: Delta's rule, whatever became of the files' times when somebody copied them.
        """
        assert isinstance(self._files, _LocalFiles), "times of files are known on this machine"
        times: dict[int, int] = {}
        last = -1
        for version in sorted(self._versions()):
            name = f"{version:020d}.json"
            with self._explained(name):
                stated = next(
                    (_stated_ms(line) for line in self._files.lines(name) if _kind(line) == "commitInfo"), None
                )
                last = stated or max(self._files.modified_ms(name), last + 1)
            times[version] = last
        return times

    def newest_first(self, *, above: int = -1, until: int | None = None) -> Iterator[Commit]:
        """
        The commits that are still in the log, from the newest, or version `until`, down to the one after `above`.
        """
        for version in sorted(self._versions(), reverse=True):
            if version > above and (until is None or version <= until):
                yield self.commit(version)

    def _versions(self) -> list[int]:
        with self._explained():
            return _versions_of(self._files.names())


def _missing(versions: list[int], checkpoint: int) -> int | None:
    """The first commit since the last checkpoint that is not there while a later one is."""
    if not versions:
        return None if checkpoint < 0 else checkpoint
    since = [version for version in versions if version > checkpoint]
    return next((wanted for wanted, version in enumerate(since, checkpoint + 1) if version != wanted), None)


def _kind(line: str) -> str | None:
    match = _ACTION.match(line)
    return None if match is None else match[1]


def _stated_ms(line: str) -> int | None:
    try:
        stated = json.loads(line)["commitInfo"].get("inCommitTimestamp")
    except (ValueError, AttributeError):
        return None
    return stated if isinstance(stated, int) else None


def _versions_of(names: list[str]) -> list[int]:
    matches = (_COMMIT_FILE.fullmatch(name) for name in names)
    return [int(match[1]) for match in matches if match]


def is_here(path: str) -> bool:
    """
    Whether a table's path is a folder on this machine, which is read without Spark.
    """
    return not _SCHEME.match(path)


def _files_of(spark: "SparkSession | None", path: str) -> "_LocalFiles | _SparkFiles | _ConnectFiles":
    if is_here(path):
        return _LocalFiles(Path(path) / "_delta_log")
    assert spark is not None, "a table elsewhere is read through Spark"
    folder = f"{path}/_delta_log"
    return _ConnectFiles(spark, folder) if is_client(spark) else _SparkFiles(spark, folder)


class _LocalFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        try:
            return os.listdir(self._folder)
        except FileNotFoundError:
            return []

    def lines(self, name: str) -> Iterator[str]:
        with (self._folder / name).open(encoding="utf-8") as file:
            yield from file

    def modified_ms(self, name: str) -> int:
        return (self._folder / name).stat().st_mtime_ns // 1_000_000


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
