"""
One Delta commit that puts rows in the place of others: new rows are written to files of their own, and the rows that
they replace are marked as gone by deletion vectors. What a batch costs then depends on the batch, not on the table.

Delta's public way to do so is MERGE, which joins twice and writes again what it touches. This calls the transaction
classes that MERGE itself is made of. They are no public API: nothing but this module and :mod:`.deletion_vectors`
knows them, and they are used only with the versions of Delta that they were tried with. The table stays an ordinary
Delta table.
"""

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from fluvial.delta.arrow_files import WrittenFile, write_file
from fluvial.delta.commit import AnyStamp, LostRaceError
from fluvial.delta.deletion_vectors import PORTABLE_MAGIC, Vectors
from fluvial.delta.errors import plain_path
from fluvial.delta.jvm import be_active, converters, delta_log, delta_version, none, scala_object
from fluvial.delta.log import TableLog
from fluvial.delta.recent import Recent
from fluvial.spark.connect import is_client

if TYPE_CHECKING:
    import pyarrow as pa
    from pyroaring import BitMap64
    from pyspark.sql import DataFrame, SparkSession

# The versions of Delta whose transaction classes are known to behave as is assumed here.
DELTA_VERSIONS = frozenset({"4.4.0"})

# Where a row of the table lies; columns that `located` adds and `swap_rows` takes.
FILE, ROW = "_in_file", "_in_row"
# Whether a row of `swap_rows` is to be written, or only its predecessor taken away.
WRITTEN = "_written"

# What `row_changes` adds: whether a row came or went, and with which version.
CHANGE, CHANGED_AT = "_change_type", "_commit_version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Swapped:
    """A commit of :func:`swap_rows`: the version that it made, and the names of the data files that it added."""

    version: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of a table: its name, and the numbers of its rows (a numpy array) that are marked as gone."""

    name: str
    marked: Any


def knows_delta(session: "SparkSession") -> bool:
    """
    Whether Delta's classes are reached from here, and are of a version that they are known of.
    """
    return not is_client(session) and delta_version(session) in DELTA_VERSIONS


def can_swap(session: "SparkSession", path: str, frame: "DataFrame", *, only_came: bool = False) -> bool:
    """
    Whether rows of the shape of `frame` can be put into the table at `path` by :func:`swap_rows`: :func:`takes_swaps`,
    and it has the very columns of the frame.
    """
    return takes_swaps(session, path, only_came=only_came) and (
        _shape(session.read.format("delta").load(path)) == _shape(frame)
    )


def takes_swaps(session: "SparkSession", path: str, *, only_came: bool = False) -> bool:
    """
    Whether rows of the table at `path` can be replaced here.

    They can where this version of Delta is a known one, the session is no client of Spark Connect, and the table has
    deletion vectors (not needed where rows `only_came`) and no partition columns.
    """
    if not knows_delta(session):
        return False
    metadata = delta_log(session, path).update(False, none(session), none(session)).metadata()
    enabled = metadata.configuration().get("delta.enableDeletionVectors")
    has_vectors = enabled.isDefined() and enabled.get() == "true"
    return bool(not metadata.partitionColumns().nonEmpty() and (only_came or has_vectors))


def located(session: "SparkSession", path: str, version: int) -> "DataFrame":
    """
    The rows of a version of the table, each with the place where it lies.
    """
    return (
        session.read.format("delta")
        .option("versionAsOf", str(version))
        .load(path)
        .selectExpr("*", f"_metadata.file_name AS {FILE}", f"_metadata.row_index AS {ROW}")
    )


def data_files(
    session: "SparkSession", path: str, version: int, *, without_query: bool = False
) -> list[DataFile] | None:
    """
    The files of which `version`, the table's newest, consists; None where the table has moved on, some of its files
    lie elsewhere than in the table's folder itself, or, `without_query`, where only a query over its log tells them.
    """
    import numpy as np

    log = delta_log(session, path)
    snapshot = log.update(False, none(session), none(session))
    files = _told_files(session, snapshot) if without_query else _all_files(session, snapshot)
    if files is None or snapshot.version() != version or any("/" in add.path() for add in files):
        return None
    vectors = Vectors.of(session, log, Recent(0))
    nothing = np.empty(0, np.uint64)
    return [
        DataFile(
            name=_file_name(add),
            marked=nothing
            if add.deletionVector() is None
            else np.frombuffer(vectors.rows(add.deletionVector()).to_array(), np.uint64),
        )
        for add in files
    ]


def row_changes(session: "SparkSession", path: str, *, since: int, until: int) -> "DataFrame | None":
    """
    The rows that came and went with the commits after version `since` up to `until`, however they were written.

    The table's columns, then :data:`CHANGE` (`insert`, `delete`) and :data:`CHANGED_AT`, the version. Only what changed
    is read: files that came or went, and of files that stayed the rows that were marked. None where Delta's classes
    are not known to be as assumed.
    """
    from pyspark.sql import DataFrame

    if not knows_delta(session):
        return None
    nothing = none(session)
    reader = scala_object(session, "org.apache.spark.sql.delta.commands.cdc.CDCReader")
    log = delta_log(session, path)
    # From the actions of each commit, so that nothing has to be kept for it while the table is written.
    changes = reader.changesToBatchDF(log, since + 1, until, session._jsparkSession, nothing, nothing, True, nothing)
    return DataFrame(changes, session).drop("_commit_timestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSize:
    """What a file of a table takes: its name, its bytes, and which share of its rows is marked as gone."""

    name: str
    bytes: int
    marked: float


def file_sizes(session: "SparkSession", path: str) -> tuple[int, list[FileSize]] | None:
    """
    The table's newest version and its data files; None where Delta's classes are not known to be as assumed.
    """
    if not knows_delta(session):
        return None
    snapshot = delta_log(session, path).update(False, none(session), none(session))
    files = _all_files(session, snapshot)
    return int(snapshot.version()), [
        FileSize(name=_file_name(add), bytes=int(add.size()), marked=_share_marked(add)) for add in files
    ]


def _share_marked(add: Any) -> float:
    vector, rows = add.deletionVector(), add.numPhysicalRecords()
    if vector is None:
        return 0.0
    return float(vector.cardinality()) / rows.get() if rows.isDefined() and rows.get() else 1.0


def takes_order(session: "SparkSession", path: str) -> bool:
    """
    Whether :func:`write_together` leaves a table as OPTIMIZE would: one that is neither partitioned nor clustered, and
    keeps no identities of its rows.
    """
    if not knows_delta(session):
        return False
    snapshot = delta_log(session, path).update(False, none(session), none(session))
    features = snapshot.protocol().readerAndWriterFeatureNames()
    return not (
        snapshot.metadata().partitionColumns().nonEmpty()
        or any(features.contains(feature) for feature in ("clustering", "rowTracking"))
    )


def write_together(
    session: "SparkSession", path: str, names: Collection[str], *, version: int, by: Sequence[str], files: int
) -> int:
    """
    Write data files of a table once more as `files` files, in the order of the columns `by` and without rows that are
    marked as gone, in one commit on top of `version`, as OPTIMIZE does; returns the version that it made.

    Of an ordered file a reader that looks for few keys skips all pages but theirs. Raises :class:`LostRaceError` when
    the table has moved on, and Delta's own errors of conflicting writers.
    """
    transaction = _Transaction.begin(session, path)
    if transaction.version != version:
        raise LostRaceError(f"{path} is at version {transaction.version}, and its files were chosen at {version}")
    return transaction.write_together(names, by, files)


def actions_of_files(session: "SparkSession", snapshot: Any) -> Iterator[dict[str, Any]]:
    """
    The actions that added the files of a snapshot, as they stand in the log.
    """
    for add in _all_files(session, snapshot):
        yield json.loads(add.json())


def checkpoint(session: "SparkSession", path: str, *, commits_min: int) -> bool:
    """
    Write a checkpoint of the table's newest version if its last is `commits_min` versions old, and let Delta clear up
    what its log need not keep. Returns whether it did; never where Delta's classes are not known to be as assumed.
    """
    if not knows_delta(session):
        return False
    log = delta_log(session, path)
    snapshot = log.update(False, none(session), none(session))
    if snapshot.version() - max(snapshot.checkpointProvider().version(), 0) < commits_min:
        return False
    be_active(session)
    log.checkpoint(snapshot, none(session))
    return True


def holds_batch(session: "SparkSession", path: str, stamp: AnyStamp) -> bool:
    """
    Whether the table has a batch already, by a commit of its :attr:`~fluvial.delta.commit.CommitStamp.app_id`.
    """
    return _Transaction.begin(session, path).holds(stamp)


def swap_located(
    session: "SparkSession",
    path: str,
    rows: "DataFrame",
    *,
    version: int,
    stamp: AnyStamp,
    files: int,
    by: Sequence[str] = (),
    vectors: "Recent[BitMap64] | None" = None,
) -> Swapped:
    """
    Do what :func:`swap_rows` does with `rows` that carry their places.

    A row has the table's columns, :data:`WRITTEN`, and the place of the row that it replaces, null where there is none.
    """
    rows = rows.persist()
    try:
        return swap_persisted(session, path, rows, version=version, stamp=stamp, files=files, by=by, vectors=vectors)
    finally:
        rows.unpersist()


def swap_persisted(
    session: "SparkSession",
    path: str,
    rows: "DataFrame",
    *,
    version: int,
    stamp: AnyStamp,
    files: int,
    by: Sequence[str] = (),
    vectors: "Recent[BitMap64] | None" = None,
) -> Swapped:
    """
    Do what :func:`swap_located` does with rows that Spark has computed and keeps.
    """
    import pyarrow.compute as pc
    from pyspark.sql.functions import col

    gone = rows.where(col(FILE).isNotNull()).select(FILE, ROW, WRITTEN).toArrow()
    stamp = replace(stamp, removed=gone.num_rows - (pc.sum(gone[WRITTEN]).as_py() or 0))
    written = rows.where(WRITTEN).drop(WRITTEN, FILE, ROW)
    places = _by_file(gone)
    return swap_rows(session, path, written, places, version=version, stamp=stamp, files=files, by=by, vectors=vectors)


def swap_rows(
    session: "SparkSession",
    path: str,
    written: "DataFrame",
    gone: Mapping[str, Any],
    *,
    version: int,
    stamp: AnyStamp,
    files: int,
    by: Sequence[str] = (),
    vectors: "Recent[BitMap64] | None" = None,
) -> Swapped:
    """
    Commit the rows `written` and take away those at `gone`, in one transaction on top of `version`.

    `gone` holds row numbers (a numpy array) by file name; at most `files` data files are written, each in the order of
    the columns `by`: who looks for one key skips all pages but its own. `vectors` are the deletion vectors that the
    process knows from the batches before: each of them is read again otherwise. Raises :class:`LostRaceError` when the
    table has moved on, and Delta's own errors of conflicting writers.
    """
    transaction = _begun(session, path, version, stamp)
    added = transaction.write(_ordered(written.coalesce(files), by))
    return transaction.swap(added, gone, Recent(0) if vectors is None else vectors, stamp)


def _ordered(rows: "DataFrame", by: Sequence[str]) -> "DataFrame":
    return rows.sortWithinPartitions(*(rows[f"`{name}`"] for name in by)) if by else rows


def swap_arrow_rows(
    session: "SparkSession",
    path: str,
    written: "pa.Table",
    gone: Mapping[str, Any],
    *,
    version: int,
    stamp: AnyStamp,
    vectors: "Recent[BitMap64] | None" = None,
) -> Swapped:
    """
    Do what :func:`swap_rows` does with rows that this process holds, in the table's columns, and writes itself.
    """
    files = [write_file(path, written)] if written.num_rows else []
    transaction = _begun(session, path, version, stamp)
    return transaction.swap(transaction.take_in(files), gone, Recent(0) if vectors is None else vectors, stamp)


def _begun(session: "SparkSession", path: str, version: int, stamp: AnyStamp) -> "_Transaction":
    """A transaction on top of `version`. Raises LostRaceError where the table is at another, or has the batch."""
    transaction = _Transaction.begin(session, path)
    if transaction.version != version or transaction.holds(stamp):
        raise LostRaceError(f"{path} is at version {transaction.version}, and the batch was made for {version}")
    return transaction


def _by_file(locations: Any) -> Mapping[str, Any]:
    """Row numbers (a numpy array) by file name, of an Arrow table of places."""
    import pyarrow.compute as pc

    names = locations[FILE].combine_chunks().dictionary_encode()
    if len(names) == 0:
        return {}
    numbers = locations[ROW].combine_chunks()
    return {
        unquote(name.as_py()): numbers.filter(pc.equal(names.indices, index)).to_numpy()
        for index, name in enumerate(names.dictionary)
    }


def _unchanged(add: Any) -> dict[str, Any]:
    """The action that adds a file of which every row was in the table."""
    action: dict[str, Any] = json.loads(add.json())["add"]
    return action | {"dataChange": False}


def _file_name(add: Any) -> str:
    return unquote(add.path()).rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transaction:
    """A transaction of Delta's, which is the only place that its classes are called from."""

    session: "SparkSession"
    log: Any
    java: Any

    @classmethod
    def begin(cls, session: "SparkSession", path: str) -> "_Transaction":
        be_active(session)
        log = delta_log(session, path)
        java = log.startTransaction(none(session), none(session))
        # Any commit in between conflicts: rows may have moved, and two writers of one range must not both pass.
        java.readWholeTable()
        return cls(session=session, log=log, java=java)

    @property
    def version(self) -> int:
        return int(self.java.readVersion())

    def holds(self, stamp: AnyStamp) -> bool:
        """Whether the table has this batch; another writer's that comes meanwhile is a conflict from here on."""
        name = stamp.app_id
        known = _in_checksum(self.session, self.java.snapshot(), "setTransactions")
        if known is None:
            return int(self.java.txnVersion(name)) >= stamp.batch
        # What txnVersion does, which looks for the batch by a query over the whole state of the table.
        getattr(self.java.readTxn(), "$plus$eq")(name)
        return any(each.appId() == name and each.version() >= stamp.batch for each in known)

    def write(self, frame: "DataFrame") -> list[Any]:
        """Write the frame's files; the actions that add them."""
        return list(self._converters.asJava(self.java.writeFiles(frame._jdf)))

    def write_together(self, names: Collection[str], by: Sequence[str], files: int) -> int:
        """Commit files in the order of some columns in the place of others, with no row that came or went."""
        from pyspark.sql import DataFrame

        old = list(self._files(names).values())
        java = self.log.createDataFrame(self.java.snapshot(), self._sequence(old), False, none(self.session))
        rows = DataFrame(java, self.session)
        columns = [rows[f"`{name}`"] for name in by]
        parts = rows.coalesce(1) if files == 1 else rows.repartitionByRange(files, *columns)
        action = self.session._jvm.org.apache.spark.sql.delta.actions.Action
        added = self.write(_ordered(parts, by))
        same = [action.fromJson(json.dumps({"add": _unchanged(each)})) for each in added]
        now = time.time_ns() // 1_000_000
        nothing, no_columns = none(self.session), self._sequence([])
        operation = getattr(self.session._jvm.org.apache.spark.sql.delta, "DeltaOperations$Optimize")(
            no_columns, no_columns, False, nothing, False
        )
        gone = [each.removeWithTimestamp(now, False) for each in old]
        self._count(
            numAddedFiles=len(added),
            numRemovedFiles=len(old),
            numAddedBytes=sum(int(each.size()) for each in added),
            numRemovedBytes=sum(int(each.size()) for each in old),
        )
        return int(self.java.commit(self._sequence([*same, *gone]), operation))

    def take_in(self, written: Collection[WrittenFile]) -> list[Any]:
        """The actions that add files which are written already."""
        self._count(
            numOutputRows=sum(each.rows for each in written), numOutputBytes=sum(each.bytes for each in written)
        )
        action = self.session._jvm.org.apache.spark.sql.delta.actions.Action
        return [action.fromJson(each.action) for each in written]

    def _count(self, **counted: int) -> None:
        """Have the table's history show these numbers of the commit."""
        metrics, sql = self.session._jvm.java.util.HashMap(), self.session._jvm.org.apache.spark.sql
        for name, value in counted.items():
            metric = sql.execution.metric.SQLMetrics.createMetric(self.session._jsc.sc(), name)
            metric.set(value)
            metrics.put(name, metric)
        maps = scala_object(self.session, "scala.collection.immutable.Map")
        self.java.registerSQLMetrics(
            self.session._jsparkSession, getattr(maps, "from")(self._converters.asScala(metrics))
        )

    def swap(self, added: list[Any], gone: Mapping[str, Any], recent: "Recent[BitMap64]", stamp: AnyStamp) -> Swapped:
        """Commit files that were added, and mark rows of others as gone."""
        version = self.commit([*added, *self.take_away(gone, recent)], stamp)
        return Swapped(version=version, files=tuple(map(_file_name, added)))

    def take_away(self, rows: Mapping[str, Any], recent: "Recent[BitMap64]") -> Iterable[Any]:
        """Mark rows as gone, all in one file of deletion vectors; the actions that say so."""
        from pyroaring import BitMap64

        files: dict[str, Any] = {}
        for name, add in self._files(rows.keys()).items():
            # A file of which no row is left is only removed; what is marked in it already need not be read.
            if add.numPhysicalRecords().contains(len(rows[name])):
                yield add.remove()
            else:
                files[name] = add
        if not files:
            return
        # Each name that is looked up in the JVM is a question to it, and there may be dozens of files.
        descriptor, some = self.session._jvm.org.apache.spark.sql.delta.actions.DeletionVectorDescriptor, self._some
        on_disk, nothing = descriptor.onDiskWithRelativePath, none(self.session)
        vectors = Vectors.of(self.session, self.log, recent)
        identity = self.session._jvm.java.util.UUID.randomUUID()
        writer = vectors.writer(identity)
        try:
            for name, add in files.items():
                marked = BitMap64(rows[name].astype("uint64"))
                before = add.deletionVector()
                if before is not None:
                    marked |= vectors.rows(before)
                location = writer.write(PORTABLE_MAGIC + marked.serialize())
                vector = on_disk(identity, "", location.length(), len(marked), some(location.offset()), nothing)
                vectors.recent.put(vector.uniqueId(), marked, location.length())
                pair = add.removeRows(vector, True, True)
                if add.numPhysicalRecords().contains(len(marked)):
                    yield add.remove()
                else:
                    yield from (pair._1(), pair._2())
        finally:
            writer.close()

    def commit(self, actions: Iterable[Any], stamp: AnyStamp) -> int:
        """Commit and return the version that it made."""
        delta = self.session._jvm.org.apache.spark.sql.delta
        update = self.session._jvm.org.apache.spark.sql.streaming.OutputMode.Update()
        operation = getattr(delta, "DeltaOperations$StreamingUpdate")(
            update, stamp.app_id, stamp.batch, self._some(stamp.as_json())
        )
        self.java.updateSetTransaction(stamp.app_id, stamp.batch, none(self.session))
        return int(self.java.commit(self._sequence(actions), operation))

    def _files(self, names: Iterable[str]) -> dict[str, Any]:
        """The table's files of these names, as the actions that added them."""
        wanted = set(names)
        found: dict[str, Any] = {}
        for add in _all_files(self.session, self.java.snapshot()):
            name = _file_name(add)
            if name in wanted:
                if name in found:
                    raise ValueError(f"{self.log.dataPath()} holds two files named {name}")
                found[name] = add
        return found

    def _sequence(self, items: Iterable[Any]) -> Any:
        array = self.session._jvm.java.util.ArrayList()
        for item in items:
            array.add(item)
        return self._converters.asScala(array).toSeq()

    @property
    def _some(self) -> Any:
        return self.session._jvm.scala.Some

    @property
    def _converters(self) -> Any:
        return converters(self.session)


def _all_files(session: "SparkSession", snapshot: Any) -> Collection[Any]:
    """The actions that added the files of a snapshot."""
    known = _in_checksum(session, snapshot, "allFiles")
    return snapshot.allFiles().collectAsList() if known is None else known


def _told_files(session: "SparkSession", snapshot: Any) -> Collection[Any] | None:
    """
    The actions that added the files of a snapshot, as its checksum says; None where it does not, or the log's last
    checkpoint cannot be opened: whoever does without it would not find that out.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    checkpoint_files = snapshot.checkpointProvider().topLevelFiles()
    try:
        for each in converters(session).asJava(checkpoint_files):
            pq.read_metadata(each.getPath().toUri().getPath())
    except (OSError, pa.ArrowException):
        return None
    return _in_checksum(session, snapshot, "allFiles")


def _in_checksum(session: "SparkSession", snapshot: Any, field: str) -> list[Any] | None:
    """
    What the checksum of a version, a file beside its commit, says of it; None where it does not.

    It holds the transactions and, of a table of up to 50 files, the files: no query over the table's state is needed.
    """
    checksum = snapshot.checksumOpt()
    if not checksum.isDefined() or not _is_of_commit(session, checksum.get(), snapshot):
        return None
    said = getattr(checksum.get(), field)()
    return list(converters(session).asJava(said.get())) if said.isDefined() else None


def _is_of_commit(session: "SparkSession", checksum: Any, snapshot: Any) -> bool:
    """Whether a checksum was written for the very commit that is there: it outlives one that a power cut took."""
    path = plain_path(str(snapshot.path().getParent()))
    written_by = checksum.txnId()
    return bool(
        written_by.isDefined() and written_by.get() == TableLog(session, path).commit(int(snapshot.version())).txn_id
    )


def _shape(frame: "DataFrame") -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in frame.schema}
