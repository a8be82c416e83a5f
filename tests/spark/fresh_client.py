"""
Fresh answers in a process without Spark: `python fresh_client.py`, with JSON lines on stdin.

A line is `[statement, fresh, places]`; answered is a line of the rows as texts in their order, the engine and what was
told, or what was raised.
"""

import json
import logging
import sys

import fluvial
from fluvial.errors import FluvialError


def main() -> None:
    # Why a statement went to Spark.
    logging.basicConfig(stream=sys.stderr)
    logging.getLogger("fluvial").setLevel(logging.INFO)
    with fluvial.connect() as db:
        for line in sys.stdin:
            statement, fresh, places = json.loads(line)
            try:
                found = db.sql(statement, fresh=fresh, at=places)
                said = [sorted(map(repr, found.rows())), str(found.told.engine), str(found.told)]
            except FluvialError as error:
                said = [[], "none", str(error)]
            print(json.dumps(said), flush=True)
    assert "pyspark.core.context" not in sys.modules or not sys.modules["pyspark"].SparkContext._active_spark_context


if __name__ == "__main__":
    main()
