"""
What keeps a table quick to read while small batches are added to it.

Each batch leaves a file or two, and marks rows in others. Files are written together with those of about their size, so
that a row is written again a handful of times however long the table lives, and a batch never waits for a rewriting of
the whole. A file is cleaned of its marked rows on the way once they are many.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from fluvial.delta.commit import is_lost_race
from fluvial.delta.row_swap import checkpoint, file_sizes, takes_order, write_together

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Reading opens every file: so many of one size may gather.
FILES_MAX = 16
# Files of one size are those between two of these, in bytes.
SIZES = (0, 4 << 20, 32 << 20, 256 << 20)
# Many small files become so large a one: a task reads a file, so a table is spread over some.
TARGET_MIN, TARGET_MAX = SIZES[-2:]
FILES_OF_A_TABLE = 8
# A file of which more rows than this are marked is written again: reading it would mostly read what is gone.
MARKED_MAX = 0.3
# Looking costs a query, and so many batches more or fewer do no harm.
BATCHES_BETWEEN = 8


def is_due(batch: int) -> bool:
    """Whether to look after the table now that it holds so many batches."""
    return batch % BATCHES_BETWEEN == 0


def write_checkpoint(session: "SparkSession", path: str) -> bool:
    """
    Write a checkpoint of a table whose last one is some commits old; whether it was done. May run beside batches.

    Whoever reads a table reads the commits since its last checkpoint one by one.
    """
    return checkpoint(session, path, commits_min=BATCHES_BETWEEN)


def written_together(sizes: Collection[int], files_max: int) -> int | None:
    """
    Files of fewer bytes than this are to be written together; None while no more than `files_max` are of one size.

    Large files are left alone however many small ones there are: else each upkeep would write the whole table again.
    """
    for least, most in reversed([*pairwise(SIZES)]):
        if sum(least <= size < most for size in sizes) > files_max:
            return most
    return None


def target_size(table: int) -> int:
    """How many bytes a file should hold in a table of so many."""
    return min(max(table // FILES_OF_A_TABLE, TARGET_MIN), TARGET_MAX)


def compact_files(session: "SparkSession", path: str, *, by: Sequence[str] = (), files_max: int | None = None) -> bool:
    """
    Write a table's small files together, without the rows that deletion vectors mark; whether it was done.

    It is, once there are more than `files_max` (FILES_MAX) of one size. Rows come to lie in the order of the columns
    `by`, where Delta's classes allow it. `session` must be the table's own: its settings are changed. Another writer's
    commit goes before: then nothing is done.
    """
    found = file_sizes(session, path)
    sizes = _average_sizes(session, path) if found is None else [file.bytes for file in found[1]]
    below = written_together(sizes, FILES_MAX if files_max is None else files_max)
    if below is None:
        return False
    target = target_size(sum(sizes))
    try:
        if found is None or not by or not takes_order(session, path):
            _optimize(session, path, below=below, target=target)
        else:
            version, files = found
            few = [file for file in files if file.bytes < below or file.marked > MARKED_MAX]
            count = max(round(sum(file.bytes for file in few) / target), 1)
            names = [file.name for file in few]
            write_together(session, path, names, version=version, by=by, files=count)
    except Exception as error:
        if not is_lost_race(error):
            raise
        return False
    return True


def _optimize(session: "SparkSession", path: str, *, below: int, target: int) -> None:
    session.conf.set("spark.databricks.delta.optimize.maxFileSize", str(target))
    session.conf.set("spark.databricks.delta.optimize.minFileSize", str(below))
    session.conf.set("spark.databricks.delta.optimize.maxDeletedRowsRatio", str(MARKED_MAX))
    session.sql(f"OPTIMIZE delta.`{path}`")


def _average_sizes(session: "SparkSession", path: str) -> list[int]:
    """
    As many sizes in bytes as a table has files: the average of all, which is what Delta says of any table.
    """
    row = session.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
    return [] if row is None or not row["numFiles"] else [row["sizeInBytes"] // row["numFiles"]] * row["numFiles"]
