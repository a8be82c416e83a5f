"""
Seconds that a reader which is not Spark takes for a table: `python other_readers.py polars|deltalake PATH KEY ROUNDS`,
in an environment that has it. Printed as JSON: of all rows, of one row by its key, and what the answers were.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def by_polars(path: str, key: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    import polars

    def whole() -> Any:
        return polars.scan_delta(path).select(polars.col("spent").sum()).collect().item()

    def one() -> Any:
        return polars.scan_delta(path).filter(polars.col("customer") == key).select("spent").collect().item()

    return whole, one


def by_deltalake(path: str, key: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from deltalake import DeltaTable, QueryBuilder

    def asked(statement: str) -> Any:
        reader = QueryBuilder().register("t", DeltaTable(path)).execute(statement)
        (batch,) = [each for each in reader if each.num_rows]
        return batch.column(0)[0].as_py()

    return lambda: asked("select sum(spent) from t"), lambda: asked(f"select spent from t where customer = '{key}'")


READERS = {"polars": by_polars, "deltalake": by_deltalake}


def main(words: list[str]) -> None:
    reader, path, key, rounds = words
    found: list[dict[str, Any]] = []
    for ask in READERS[reader](str(Path(path).absolute()), key):
        seconds = []
        for _ in range(int(rounds) + 1):
            began = time.perf_counter()
            answer = ask()
            seconds.append(time.perf_counter() - began)
        found.append({"seconds": seconds[1:], "answer": str(answer)})
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
