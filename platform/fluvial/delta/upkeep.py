"""
What keeps a table quick to read while small batches are added to it.
"""

from typing import TYPE_CHECKING

from fluvial.delta.commit import is_lost_race

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Each batch leaves a file or two, and reading opens them all; rewriting costs what the table is large, so it is rare.
FILES_MAX = 50


def compact_files(session: "SparkSession", path: str, *, files_max: int = FILES_MAX) -> bool:
    """
    Write the rows of a table's small files together, without those that deletion vectors mark; whether it was done.

    It is, once the table has more than `files_max` files. Another writer's commit goes before: then nothing is done.
    """
    files = session.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
    if files is None or files["numFiles"] <= files_max:
        return False
    try:
        session.sql(f"OPTIMIZE delta.`{path}`")
    except Exception as error:
        if not is_lost_race(error):
            raise
        return False
    return True
