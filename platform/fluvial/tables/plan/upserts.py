"""
The batches of keyed tables after their first: rows that take the place of others in one Delta commit.

There are two ways, which leave the same rows: :mod:`fluvial.delta.row_swap`, whose cost is the batch's, and MERGE,
which is Delta's public API and does what the first cannot (another version of Delta, a contract that changed, a session
of Spark Connect).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fluvial.delta.few_rows import are_few, swap_few
from fluvial.delta.key_index import GONE, Digests
from fluvial.delta.merge import assignments, merge, values
from fluvial.delta.row_swap import FILE, ROW, WRITTEN, Swapped, can_swap, located, swap_located, swap_rows
from fluvial.delta.stamp import Stamp
from fluvial.tables.declare.declarations import State
from fluvial.tables.plan import frames
from fluvial.tables.plan.changes import IS_CURRENT, state_changes
from fluvial.tables.plan.table_index import TableIndex, frame_of, subset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def upsert_compacted(
    session: "SparkSession",
    path: str,
    latest: "DataFrame",
    *,
    key: str,
    version: int,
    stamp: Stamp,
    files: int,
    index: TableIndex | None = None,
) -> None:
    """
    Put the latest rows of a batch into a compacted table that is at `version`.

    With an `index`, which a driver that goes on running keeps, the table is not searched.
    """
    if not can_swap(session, path, latest.drop("_deleted")):
        _merge_compacted(session, path, latest, key=key, stamp=stamp)
        return
    latest = latest.coalesce(files).persist()
    try:
        if index is not None and index.load(session, version):
            _swap_compacted(session, latest, index, version=version, stamp=stamp, files=files)
            return
        swaps = frames.compacted_swaps(latest, located(session, path, version), key=key)
        swap_located(session, path, swaps, version=version, stamp=stamp, files=files, by=[key])
    finally:
        latest.unpersist()


def upsert_state(
    session: "SparkSession",
    path: str,
    partials: "DataFrame",
    declaration: State,
    *,
    version: int,
    stamp: Stamp,
    files: int,
    index: TableIndex | None = None,
) -> None:
    """
    Put the partial values of a batch into a state table that is at `version`; `index` as with compacted tables.
    """
    if not can_swap(session, path, frames.state_rows(partials, declaration)):
        _merge_state(session, path, partials, declaration, stamp=stamp)
        return
    partials = partials.coalesce(files).persist()
    try:
        if index is not None and index.holds_rows and index.load(session, version):
            _swap_state(session, partials, declaration, index, version=version, stamp=stamp, files=files)
            return
        key = declaration.key
        old = frames.rows_of(located(session, path, version), key, partials.selectExpr("_entity"))
        swaps = frames.state_swaps(partials, old, declaration)
        swap_located(session, path, swaps, version=version, stamp=stamp, files=files, by=[key])
    finally:
        partials.unpersist()


def upsert_changes(
    session: "SparkSession",
    path: str,
    events: "DataFrame",
    declaration: State,
    *,
    version: int,
    stamp: Stamp,
    files: int,
    index: TableIndex | None = None,
) -> None:
    """
    Put what the events of a batch change into a state that a reducer makes, or that keeps its versions.

    The table is at `version`; `index`, as with compacted tables, is of the rows that are current.
    """
    events = events.persist()
    try:
        keys = events.select("_entity").distinct()
        rows = state_changes(events, None, declaration).drop(FILE, ROW, WRITTEN)
        if not can_swap(session, path, rows):
            _merge_changes(session, path, events, keys, declaration, version=version, stamp=stamp)
        elif index is not None and index.holds_rows and index.load(session, version):
            _swap_changes(session, events, keys, declaration, index, version=version, stamp=stamp, files=files)
        else:
            old = frames.rows_of(_current(located(session, path, version), declaration), declaration.key, keys)
            changes = state_changes(events, old, declaration)
            swap_located(session, path, changes, version=version, stamp=stamp, files=files, by=[declaration.key])
    finally:
        events.unpersist()


def _swap_compacted(
    session: "SparkSession", latest: "DataFrame", index: TableIndex, *, version: int, stamp: Stamp, files: int
) -> None:
    batch = latest.select(index.key, "_partition", "_offset", "_deleted").toArrow()
    keys = batch[index.key].to_pylist()
    digests = Digests.of(keys)
    old = index.find(digests)
    known = old.file != GONE
    partition, offset = batch["_partition"].to_numpy(), batch["_offset"].to_numpy()
    # A row that is newer in the table stays: a key may have been written to two partitions.
    stale = known & ((partition < old.partition) | ((partition == old.partition) & (offset <= old.offset)))
    deleted = batch["_deleted"].to_numpy(zero_copy_only=False)
    written = latest.where("NOT _deleted").drop("_deleted")
    if stale.any():
        left_out = session.createDataFrame([(key,) for key in subset(keys, stale)], f"`{index.key}` string")
        written = written.join(left_out.hint("broadcast"), index.key, "left_anti")
    gone = known & ~stale
    ended = gone & deleted
    few = are_few(len(keys), latest)
    with index.following():
        places, stamp = index.rows_by_file(old.take(gone)), replace(stamp, removed=int(ended.sum()))
        swapped = _swap(session, written, places, index, version=version, stamp=stamp, files=files, few=few)
        index.committed(session, swapped, digests.take(ended))


def _swap_state(
    session: "SparkSession",
    partials: "DataFrame",
    declaration: State,
    index: TableIndex,
    *,
    version: int,
    stamp: Stamp,
    files: int,
) -> None:
    batch = partials.select("_entity", "_alive").toArrow()
    digests = Digests.of(batch["_entity"].to_pylist())
    locations = index.find(digests)
    ended = (locations.file != GONE) & ~batch["_alive"].to_numpy(zero_copy_only=False)
    with index.following():
        rows = index.rows(locations)
        few = are_few(len(digests), partials, 0 if rows is None else rows.nbytes)
        swaps = frames.state_swaps(partials, frame_of(session, index.path, rows).hint("broadcast"), declaration)
        written = swaps.where(WRITTEN).drop(WRITTEN, FILE, ROW)
        places, stamp = index.rows_by_file(locations), replace(stamp, removed=int(ended.sum()))
        swapped = _swap(session, written, places, index, version=version, stamp=stamp, files=files, few=few)
        index.committed(session, swapped, digests.take(ended))


def _swap_changes(
    session: "SparkSession",
    events: "DataFrame",
    keys: "DataFrame",
    declaration: State,
    index: TableIndex,
    *,
    version: int,
    stamp: Stamp,
    files: int,
) -> None:
    digests = Digests.of(keys.toArrow()["_entity"].to_pylist())
    with index.following():
        old = frame_of(session, index.path, index.rows(index.find(digests)))
        changes = state_changes(events, old.hint("broadcast"), declaration).persist()
        try:
            moved = changes.where(f"{FILE} IS NOT NULL").select(declaration.key).toArrow()
            swapped = swap_located(
                session,
                index.path,
                changes,
                version=version,
                stamp=stamp,
                files=files,
                by=[declaration.key],
                vectors=index.vectors,
            )
        finally:
            changes.unpersist()
        # Where those lie that still have a row is read back from what was written.
        index.committed(session, swapped, Digests.of(moved[declaration.key].to_pylist()))


def _swap(
    session: "SparkSession",
    written: "DataFrame",
    gone: Mapping[str, Any],
    index: TableIndex,
    *,
    version: int,
    stamp: Stamp,
    files: int,
    few: bool,
) -> Swapped:
    """Commit rows in the order of their keys in the place of others; `few` are written here if they can be."""
    swapped = None
    if few:
        swapped = swap_few(
            session, index.path, written, gone, version=version, stamp=stamp, by=index.key, vectors=index.vectors
        )
    return swapped or swap_rows(
        session,
        index.path,
        written,
        gone,
        version=version,
        stamp=stamp,
        files=files,
        by=[index.key],
        vectors=index.vectors,
    )


def _merge_compacted(session: "SparkSession", path: str, latest: "DataFrame", *, key: str, stamp: Stamp) -> None:
    columns = {name: f"s.`{name}`" for name in latest.columns if name != "_deleted"}
    newer = "struct(s._partition, s._offset) > struct(t._partition, t._offset)"
    merge(
        session,
        path,
        latest,
        stamp,
        on=f"t.`{key}` = s.`{key}`",
        clauses=[
            f"WHEN MATCHED AND s._deleted AND {newer} THEN DELETE",
            f"WHEN MATCHED AND {newer} THEN UPDATE SET {assignments(columns)}",
            f"WHEN NOT MATCHED AND NOT s._deleted THEN INSERT {values(columns)}",
        ],
    )


def _merge_state(
    session: "SparkSession", path: str, partials: "DataFrame", declaration: State, *, stamp: Stamp
) -> None:
    merge(
        session,
        path,
        partials,
        stamp,
        on=f"t.`{declaration.key}` = s._entity",
        clauses=[
            "WHEN MATCHED AND NOT s._alive THEN DELETE",
            f"WHEN MATCHED THEN UPDATE SET {assignments(frames.state_updates(declaration))}",
            f"WHEN NOT MATCHED AND s._alive THEN INSERT {values(frames.state_inserts(declaration))}",
        ],
    )


def _merge_changes(
    session: "SparkSession",
    path: str,
    events: "DataFrame",
    keys: "DataFrame",
    declaration: State,
    *,
    version: int,
    stamp: Stamp,
) -> None:
    table = _current(session.read.format("delta").option("versionAsOf", str(version)).load(path), declaration)
    key = declaration.key
    # Where they lie is nothing to MERGE, only that there are such rows.
    old = frames.rows_of(table, key, keys).selectExpr("*", f"'' AS {FILE}", f"0L AS {ROW}")
    changes = state_changes(events, old, declaration).persist()
    columns = {name: f"s.`{name}`" for name in changes.columns if name not in {FILE, ROW, WRITTEN}}
    current = "" if declaration.scd2 is None else f" AND t.{IS_CURRENT}"
    try:
        merge(
            session,
            path,
            changes,
            stamp,
            on=f"t.`{key}` = s.`{key}` AND s.{FILE} IS NOT NULL{current}",
            clauses=[
                f"WHEN MATCHED AND NOT s.{WRITTEN} THEN DELETE",
                f"WHEN MATCHED THEN UPDATE SET {assignments(columns)}",
                f"WHEN NOT MATCHED AND s.{WRITTEN} THEN INSERT {values(columns)}",
            ],
        )
    finally:
        changes.unpersist()


def _current(table: "DataFrame", declaration: State) -> "DataFrame":
    """The rows that a batch goes on from."""
    return table if declaration.scd2 is None else table.where(IS_CURRENT)
