"""
The batches of keyed tables after their first: rows that take the place of others in one Delta commit.

There are two ways, which leave the same rows: :mod:`fluvial.delta.row_swap`, whose cost is the batch's, and MERGE,
which is Delta's public API and does what the first cannot (another version of Delta, a contract that changed).
"""

from typing import TYPE_CHECKING

from fluvial.delta.commit import stamp_session
from fluvial.delta.row_swap import can_swap, located, swap_rows
from fluvial.delta.stamp import Stamp
from fluvial.entities import frames
from fluvial.entities.declarations import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def upsert_compacted(
    session: "SparkSession", path: str, latest: "DataFrame", *, key: str, version: int, stamp: Stamp, files: int
) -> None:
    """
    Put the latest rows of a batch into a compacted table that is at `version`.
    """
    if not can_swap(session, path, latest.drop("_deleted")):
        _merge_compacted(session, path, latest, key=key, stamp=stamp)
        return
    latest = latest.persist()
    try:
        swaps = frames.compacted_swaps(latest, located(session, path, version), key=key)
        swap_rows(session, path, swaps, version=version, stamp=stamp, files=files)
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
) -> None:
    """
    Put the partial values of a batch into a state table that is at `version`.
    """
    if not can_swap(session, path, frames.state_rows(partials, declaration)):
        _merge_state(session, path, partials, declaration, stamp=stamp)
        return
    partials = partials.persist()
    try:
        swaps = frames.state_swaps(partials, located(session, path, version), declaration)
        swap_rows(session, path, swaps, version=version, stamp=stamp, files=files)
    finally:
        partials.unpersist()


def _merge_compacted(session: "SparkSession", path: str, latest: "DataFrame", *, key: str, stamp: Stamp) -> None:
    from delta.tables import DeltaTable

    stamp_session(session, stamp)
    columns = {f"`{name}`": f"s.`{name}`" for name in latest.columns if name != "_deleted"}
    newer = "struct(s._partition, s._offset) > struct(t._partition, t._offset)"
    (
        DeltaTable.forPath(session, path)
        .alias("t")
        .merge(latest.alias("s"), f"t.`{key}` = s.`{key}`")
        .whenMatchedDelete(f"s._deleted AND {newer}")
        .whenMatchedUpdate(condition=newer, set=columns)
        .whenNotMatchedInsert(condition="NOT s._deleted", values=columns)
        .execute()
    )


def _merge_state(
    session: "SparkSession", path: str, partials: "DataFrame", declaration: State, *, stamp: Stamp
) -> None:
    from delta.tables import DeltaTable

    stamp_session(session, stamp)
    (
        DeltaTable.forPath(session, path)
        .alias("t")
        .merge(partials.alias("s"), f"t.`{declaration.key}` = s._entity")
        .whenMatchedDelete("NOT s._alive")
        .whenMatchedUpdate(set=_quoted(frames.state_updates(declaration)))
        .whenNotMatchedInsert(condition="s._alive", values=_quoted(frames.state_inserts(declaration)))
        .execute()
    )


def _quoted(columns: dict[str, str]) -> dict[str, str]:
    return {f"`{name}`": expression for name, expression in columns.items()}
