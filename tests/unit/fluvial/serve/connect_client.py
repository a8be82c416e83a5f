"""
A client of Spark Connect in a process of its own: `python connect_client.py URL`, with what it asks as JSON on stdin.

Each thing asked is SQL, or an expression that a function of Python's evaluates in the server. Answered is a line of
JSON: for each its rows, or what was raised.
"""

import json
import sys
from typing import Any


def main() -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    print(json.dumps([_tried(spark, each) for each in json.load(sys.stdin)], default=str))


def _tried(spark: Any, asked: dict[str, str]) -> Any:
    try:
        if "save" in asked:
            spark.sql("select 1 as a").write.format(asked["format"]).save(asked["save"])
            return "saved"
        if "columns" in asked:
            return spark.table(asked["columns"]).schema.jsonValue()["fields"]
        if "sql" in asked:
            return [row.asDict(recursive=True) for row in spark.sql(asked["sql"]).collect()]
        return _evaluated(spark, asked["python"])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _evaluated(spark: Any, expression: str) -> str:
    from pyspark.sql.functions import lit, udf

    def evaluate(given: str) -> str:
        try:
            return str(eval(given))
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    (row,) = spark.range(1).select(udf(evaluate, "string")(lit(expression)).alias("said")).collect()
    return str(row.said)


if __name__ == "__main__":
    main()
