"""
What is gone from a table's newest version goes from its files as well: rows that are only marked, old files, old log.

A row that was replaced or taken away stays readable in old versions until VACUUM, and in a file that deletion vectors
mark for longer: such files are written again. Delta's log has more than names: the bounds of each file's columns are
values of rows, so that what stands before the newest stamped commit is removed too, once a checkpoint has the table.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluvial.delta.commit import ATTEMPTS_MAX, is_lost_race
from fluvial.delta.errors import OvertakenError, TableError, plain_path
from fluvial.delta.jvm import forget_log
from fluvial.delta.log import Commit, TableLog
from fluvial.delta.row_swap import checkpoint
from fluvial.delta.snapshot import read_snapshot
from fluvial.spark.connect import is_client, parallelism

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORPHAN_HOURS = 1
"""A file that no commit names may be of a batch under way; it is left alone for so long."""
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:", re.IGNORECASE)
_NUMBERED = re.compile(r"\.?(\d{20})\..+")
_LITE_REFUSED = "DELTA_CANNOT_VACUUM_LITE"
_LAST_VACUUM = "_last_vacuum_info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """
    What a vacuum has left: whether old versions' files are all gone, whether the old log is, and files of no commit.

    `orphans` is None where they cannot be counted from here.
    """

    files: bool
    log: bool
    orphans: int | None


def write_without_marked(session: "SparkSession", path: str) -> bool:
    """
    Write files again of which deletion vectors mark rows; whether there were any. Conflicts with a batch are retried.
    """
    log = TableLog(session, path)
    for _ in range(ATTEMPTS_MAX):
        before = log.newest_version()
        try:
            session.sql(f"REORG TABLE delta.`{path}` APPLY (PURGE)").collect()
        except Exception as error:
            if not is_lost_race(error):
                raise
            continue
        return log.newest_version() != before
    raise OvertakenError(path, ATTEMPTS_MAX, doing="rewriting of files")


def vacuum(session: "SparkSession", path: str) -> Vacuumed:
    """
    Remove the files that only old versions have, and the log before the newest stamped commit.

    A reader of an old version fails from then on. Files that a batch is just writing stay. `session` must be the
    table's own: its settings are changed.
    """
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    # Else hours other than none are taken for the table's own retention.
    session.conf.set("spark.databricks.delta.vacuum.retentionWindowIgnore.enabled", "false")
    # As many tasks list the folders, ten thousand of them unless it is said, and a table has one folder.
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", str(2 * parallelism(session)))
    # Its two commits would stand above the stamp, and say nothing that is needed.
    session.conf.set("spark.databricks.delta.vacuum.logging.enabled", "false")
    newest = TableLog(session, path).newest_version()
    files = True
    try:
        # Only what the log tells of: the files of a batch under way are in no commit yet.
        session.sql(f"VACUUM delta.`{path}` LITE RETAIN 0 HOURS").collect()
    except Exception as error:
        if _LITE_REFUSED not in str(error):
            raise
        files = False
    session.sql(f"VACUUM delta.`{path}` RETAIN {ORPHAN_HOURS} HOURS").collect()
    orphans = _orphans(path)
    is_clean = files or orphans == 0
    forgot = _forget_old_log(session, path, vacuumed=newest if is_clean else None)
    return Vacuumed(files=is_clean, log=forgot, orphans=orphans)


def _forget_old_log(session: "SparkSession", path: str, *, vacuumed: int | None) -> bool:
    """
    Remove commits before the newest stamped one, once a checkpoint of the newest is there; whether it was done.

    No file is left that only versions up to `vacuumed` have.
    """
    log = TableLog(session, path)
    newest = log.newest_version()
    if newest is None or is_client(session):
        return False
    with suppress(TableError):
        checkpoint(session, path, commits_min=1)
    folder = _Folder(session, f"{path}/_delta_log")
    names = list(folder.names())
    if not any(name.startswith(f"{newest:020d}.checkpoint") for name in names):
        return False
    kept = next((commit.version for commit in log.newest_first() if _is_stamped(commit)), newest)
    if vacuumed is not None:
        kept = min(kept, vacuumed)
        # Of a log that does not begin with version 0, VACUUM LITE must know from where on it has to look.
        folder.write(_LAST_VACUUM, json.dumps({"latestCommitVersionOutsideOfRetentionWindow": vacuumed}))
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is not None and int(match[1]) < (newest if ".checkpoint" in name else kept):
            folder.remove(name)
    forget_log(session, path)
    return True


def _is_stamped(commit: Commit) -> bool:
    found = (commit.user_metadata or {}).get("fluvial")
    return isinstance(found, dict)


def _orphans(path: str) -> int | None:
    """The number of data files with rows in a local table's folder that its newest version does not have."""
    if _SCHEME.match(path) and not path.startswith("file:"):
        return None
    folder = Path(plain_path(path))
    snapshot = read_snapshot(str(folder))
    if snapshot is None:
        return 0
    named = {each["path"].rpartition("/")[2] for each in snapshot.added}
    found = [file for file in folder.rglob("*.parquet") if "_delta_log" not in file.parts]
    return sum(file.name not in named and _has_rows(file) for file in found)


def _has_rows(file: Path) -> bool:
    """Whether a data file has rows: Spark leaves empty ones where a commit adds none. One that is torn may."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: int = pq.read_metadata(file).num_rows
    except (OSError, pa.ArrowInvalid):
        return True
    return rows > 0


class _Folder:
    """A folder of a file system that Spark knows."""

    def __init__(self, session: "SparkSession", path: str) -> None:
        self._path_of: Any = session._jvm.org.apache.hadoop.fs.Path
        self._path = self._path_of(path)
        self._system = self._path.getFileSystem(session._jsc.hadoopConfiguration())

    def names(self) -> Iterator[str]:
        for status in self._system.listStatus(self._path):
            yield status.getPath().getName()

    def write(self, name: str, text: str) -> None:
        stream = self._system.create(self._path_of(self._path, name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def remove(self, name: str) -> None:
        self._system.delete(self._path_of(self._path, name), False)
