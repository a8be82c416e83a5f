"""
What keeps a table quick to read while small batches are added to it.

Each batch leaves a file or two, and marks rows in others. Files are written together with those of about their size, so
that a row is written anew a handful of times however long the table lives, and a batch never waits for a rewriting of
the whole. A file is cleaned of its marked rows on the way once they are many.
"""

from typing import TYPE_CHECKING

from fluvial.delta.commit import is_lost_race
from fluvial.delta.row_swap import checkpoint, file_sizes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Reading opens every file: so many of one size may gather.
FILES_MAX = 16
# The sizes in bytes below which files are written together, the smallest first.
SIZES = (4 << 20, 32 << 20, 256 << 20, 1 << 30)
# A file of which more rows than this are marked is written anew: reading it would mostly read what is gone.
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


def compact_files(session: "SparkSession", path: str, *, files_max: int | None = None) -> bool:
    """
    Write a table's small files together, without the rows that deletion vectors mark; whether it was done.

    It is, once more than `files_max` (FILES_MAX) files are small. `session` must be the table's own: its settings are
    changed. Another writer's commit goes before: then nothing is done.
    """
    most = FILES_MAX if files_max is None else files_max
    sizes = file_sizes(session, path)
    below = next((size for size in SIZES if sum(each < size for each in sizes) > most), None)
    if below is None:
        return False
    session.conf.set("spark.databricks.delta.optimize.minFileSize", str(below))
    session.conf.set("spark.databricks.delta.optimize.maxDeletedRowsRatio", str(MARKED_MAX))
    try:
        session.sql(f"OPTIMIZE delta.`{path}`")
    except Exception as error:
        if not is_lost_race(error):
            raise
        return False
    return True
