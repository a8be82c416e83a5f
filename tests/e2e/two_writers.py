"""
One driver that appends rows to a table that another appends to as well: `two_writers.py NAME ROWS`, in a project.

A commit that loses its race is made again, as it was refused and nothing of it is in the table.
"""

import sys

from fluvial.config import load_settings
from fluvial.delta.commit import is_lost_race
from fluvial.spark.session import build_session
from fluvial.spark.warehouse import Warehouse


def main() -> None:
    name, rows = sys.argv[1], int(sys.argv[2])
    settings = load_settings()
    spark = build_session(settings, name)
    table = Warehouse.at(settings.warehouse).path("marts.rows")
    refused = 0
    for row in range(rows):
        frame = spark.createDataFrame([(name, row)], "writer string, row int").coalesce(1)
        while True:
            try:
                frame.write.format("delta").mode("append").save(table)
                break
            except Exception as error:
                if not is_lost_race(error):
                    raise
                refused += 1
    print(f"{name}: {rows} commits, {refused} times refused")


if __name__ == "__main__":
    main()
