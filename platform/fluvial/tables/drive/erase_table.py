"""
Erased keys leave one table that is made from a topic, in one commit that says so.

Which rows they are is told by their key, and by their place in the log where they have one: a key that came back after
it was erased keeps what came since. The commit is one of the table's batches, so that a run that was planned before it
is refused by Delta and planned again, without the records that are erased.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from fluvial.delta.commit import commit_once
from fluvial.delta.erasures import Erasure, Erasures, add_erasure
from fluvial.delta.log import Commit, TableLog
from fluvial.delta.merge import merge
from fluvial.delta.stamp import Position, new_run_id
from fluvial.spark.avro import Contract
from fluvial.spark.connect import session_of_its_own
from fluvial.tables.declare.declarations import Compacted, History, State
from fluvial.tables.plan.checks import compacted_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLACE_COLUMNS = ("_partition", "_offset")
_SOURCE = "digest STRING, before MAP<INT, BIGINT>"


def erase_pending(
    spark: "SparkSession",
    log: TableLog,
    position: Position,
    erasures: Erasures,
    *,
    root: str,
    key: str,
    is_state: bool,
) -> Commit | Literal["other"] | None:
    """
    Take the rows of erased keys out of a table at `position` that has not got these `erasures` of its topic yet.

    None where it has all of them; "other" when another writer was first, or when a state had read beyond an erasure
    that nothing in the log marks: it is then listed once more, up to where the table has read. `key` is the column
    that has the record's key.
    """
    stamp = position.stamp
    if stamp is None or position.version is None:
        return None
    pending = erasures.after(stamp.erased)
    if not pending:
        return None
    with session_of_its_own(spark) as session:
        table = session.read.format("delta").option("versionAsOf", position.version).load(log.path)
        wanted = pending.last_of_each()
        if is_state:
            # Its rows are folded of records before and behind the erasure, unless a tombstone parts them.
            outrun = [each for each in wanted if _has_read_beyond(position, each) and not each.ended]
            for each in outrun:
                _list_again(session, root, each, position)
            if outrun:
                return "other"
        if not _has_places(table):
            wanted = [each for each in wanted if not (each.ended and _has_read_the_end(position, each))]
        new = replace(
            stamp,
            batch=stamp.batch + 1,
            offsets={partition: (end, end) for partition, end in position.ends.items()},
            removed=0,
            rewritten={},
            erased=pending.newest,
            run=new_run_id(),
        )
        rows = session.createDataFrame([(each.digest, dict(each.before)) for each in wanted], _SOURCE)

        def write() -> None:
            on = covered(table, key)
            merge(session, log.path, rows, new, on=on, clauses=["WHEN MATCHED THEN DELETE"])

        return commit_once(log, new, above=position.version, write=write) or "other"


def key_column(declaration: History | Compacted | State, contract: Contract, spark: "SparkSession") -> str:
    """
    The column of a declared table that has the record's key.
    """
    match declaration:
        case History():
            return "_key"
        case Compacted():
            return compacted_key(declaration, contract, spark)
        case State():
            return declaration.key


def key_of(table: "DataFrame") -> str:
    """
    The column of a table of a topic that has the record's key.
    """
    return "_key" if "_key" in table.columns else str(table.columns[0])


def covered(table: "DataFrame", key: str) -> str:
    """
    The SQL condition for the rows `t` of a table that an erasure `s` covers, a row of `digest` and `before`.
    """
    same = f"sha2(CAST(t.`{key}` AS BINARY), 256) = s.digest"
    if not _has_places(table):
        return same
    # A row of a table that was adopted may have no place: it was there before all records.
    return f"{same} AND coalesce(t._offset < element_at(s.before, t._partition), t._partition IS NULL)"


def _has_places(table: "DataFrame") -> bool:
    return set(PLACE_COLUMNS) <= set(table.columns)


def _has_read_beyond(position: Position, erasure: Erasure) -> bool:
    return any(position.ends.get(partition, 0) > before for partition, before in erasure.before.items())


def _has_read_the_end(position: Position, erasure: Erasure) -> bool:
    return all(position.ends.get(partition, 0) >= erasure.before[partition] for partition in erasure.ended)


def _list_again(session: "SparkSession", root: str, erasure: Erasure, position: Position) -> None:
    """Have an erasure cover what the table has read as well: its rows no longer tell the records apart."""
    before = {
        partition: max(erasure.before.get(partition, 0), position.ends.get(partition, 0))
        for partition in {*erasure.before, *position.ends}
    }
    add_erasure(
        session,
        root,
        topic=erasure.topic,
        topic_id=erasure.topic_id,
        digest=erasure.digest,
        before=before,
        ended=(),
    )
