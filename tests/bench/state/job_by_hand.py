"""
The job that one writes by hand, as a program: `python -m tests.bench.state.job_by_hand FOLDER JARS`.

Works off the topic of the benchmark once, with `foreachBatch` and MERGE, in a session as Delta's guide makes it.
"""

import os
import sys
from pathlib import Path


def main() -> None:
    """Make a session, run the stream until nothing is left."""
    from pyspark.sql import SparkSession

    from tests.bench.state.by_hand import ByHand
    from tests.bench.state.merges import merged_table
    from tests.bench.state.rows import COMMON

    folder, jars = sys.argv[1:]
    spark = (
        SparkSession.builder.appName("by hand")
        .master("local[*]")
        .config("spark.jars", jars)
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .getOrCreate()
    )
    mine = Path(folder) / "by-hand"
    table = merged_table(COMMON, mine, 0)
    ByHand(spark, table, mine / "checkpoint", os.environ["FLUVIAL_BOOTSTRAP_SERVERS"], folds=False).run(10**9)
    spark.stop()


if __name__ == "__main__":
    main()
