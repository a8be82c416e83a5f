"""
One Delta commit for data and position together.

The commit's `txnVersion` is the batch number: Delta itself skips a batch that is in the table already, and of two
writers of the same batch it lets one through. A skipped write returns as a written one does, so each attempt carries a
run id of its own, and what the log then says is believed and nothing else.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from fluvial.delta.failures import LOST_RACE
from fluvial.delta.log import Commit, TableLog
from fluvial.delta.mart_stamp import BatchStamp, MartStamp
from fluvial.delta.stamp import Stamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A checkpoint takes as long as a small batch or two, so it is written beside them (:mod:`fluvial.delta.upkeep`). What
# Delta does of itself within a commit, every tenth by default, is left as a net for tables that only others write to.
TABLE = {"delta.checkpointInterval": "100"}
# Rows are replaced by marking the old ones, which a table must be made for.
KEYED_TABLE = TABLE | {"delta.enableDeletionVectors": "true"}

# Losing a race to another driver means that the other made progress; a handful in a row means something else.
ATTEMPTS_MAX = 8


AnyStamp = Stamp | MartStamp | BatchStamp


class CommitStamp(Protocol):
    """
    What a guarded commit needs of its stamp, whatever table it is of.
    """

    @property
    def app_id(self) -> str:
        """
        The name under which Delta counts the table's batches.
        """

    @property
    def batch(self) -> int:
        """
        The number of this one.
        """

    @property
    def run(self) -> str:
        """
        A name of the attempt, by which its writer knows its own commit again.
        """

    def as_json(self) -> str:
        """
        The text for `userMetadata`.
        """


class LostRaceError(Exception):
    """
    The table is not at the version that a batch was made for: another writer was first.
    """


def commit_options(stamp: CommitStamp) -> dict[str, str]:
    """
    What makes a write carry its stamp, and lets Delta refuse a batch that is in the table.
    """
    return {"txnAppId": stamp.app_id, "txnVersion": str(stamp.batch), "userMetadata": stamp.as_json()}


def append(
    frame: "DataFrame", path: str, stamp: AnyStamp, properties: Mapping[str, str] = MappingProxyType({})
) -> None:
    """
    Append rows, making the table with these properties when it is not there; columns new in `frame` are added.
    """
    (
        frame.write.format("delta")
        .mode("append")
        .options(**properties)
        .option("mergeSchema", "true")
        .options(**commit_options(stamp))
        .save(path)
    )


def replace_rows(frame: "DataFrame", path: str, stamp: Stamp, where: str) -> None:
    """
    Put rows in the place of those that the condition `where` holds for; it must hold for each of the new ones too.
    """
    (
        frame.write.format("delta")
        .mode("overwrite")
        .option("replaceWhere", where)
        .option("mergeSchema", "true")
        .options(**commit_options(stamp))
        .save(path)
    )


def replace_table(
    frame: "DataFrame", path: str, stamp: AnyStamp, properties: Mapping[str, str] = MappingProxyType({})
) -> None:
    """
    Put rows in the place of all that the table holds, with the columns of `frame` as its own.
    """
    (
        frame.write.format("delta")
        .mode("overwrite")
        .options(**properties)
        .option("overwriteSchema", "true")
        .options(**commit_options(stamp))
        .save(path)
    )


def stamp_session(session: "SparkSession", stamp: Stamp) -> None:
    """
    Have the next MERGE of this session carry the stamp. MERGE takes it from the session, so it must be the table's own.
    """
    session.conf.set("spark.databricks.delta.write.txnAppId", stamp.app_id)
    session.conf.set("spark.databricks.delta.write.txnVersion", str(stamp.batch))
    session.conf.set("spark.databricks.delta.commitInfo.userMetadata", stamp.as_json())
    session.conf.set("spark.databricks.delta.schema.autoMerge.enabled", "true")


def commit_once(log: TableLog, stamp: CommitStamp, *, above: int | None, write: Callable[[], None]) -> Commit | None:
    """
    Run `write` and return the commit that it made; None when another writer was first and nothing of it was written.

    `above` is the table's version when the batch was planned. After None the caller plans again from the new position.
    """
    try:
        write()
    except Exception as error:
        if not is_lost_race(error):
            raise
    for commit in log.newest_first(above=-1 if above is None else above):
        found = (commit.user_metadata or {}).get("fluvial")
        if isinstance(found, dict) and found.get("run") == stamp.run:
            return commit
    return None


def is_lost_race(error: Exception) -> bool:
    """
    Whether an error says that a concurrent writer won; of Spark's, the class and the condition are looked at.
    """
    if isinstance(error, LostRaceError):
        return True
    names = [type(error).__name__]
    condition = getattr(error, "getCondition", None)
    if condition is not None:
        names.append(str(condition() or ""))
    java = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    while java is not None:
        names.append(str(java.getClass().getSimpleName()))
        java = java.getCause()
    return any(name.startswith(LOST_RACE) for name in names)
