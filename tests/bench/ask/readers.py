"""
What deletion vectors cost those who read a table: `python -m tests.bench.ask.readers`.

A state as its runs leave it after 100 batches, the same without the upkeep that bounds its files and their vectors, and
a copy without any, each read whole and for one row by Sail, Polars, delta-rs and a warm Spark. Medians; answers that
differ are an error.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from fluvial.config import Settings
from fluvial.query.sail import Sail
from fluvial.spark.session import build_session
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.plan.frames import ordered
from tests.bench.ask import other_readers
from tests.bench.ask.__main__ import KEY, TABLE, build
from tests.peers.python_programs import python_of

KIND = {"as runs leave it": "kept", "without upkeep": "left", "a copy": "copy"}
WANTED = "k77"
Found = tuple[list[float], list[float], tuple[str, str]]
"""Seconds for all rows and for one, and both answers."""


def asked(path: str, rounds: int, ask: Callable[[str], Any]) -> Found:
    """The seconds of an engine that is asked statements."""
    seconds: list[list[float]] = []
    answers = []
    for statement in (
        f"select sum(spent) from delta.`{path}`",
        f"select spent from delta.`{path}` where {KEY} = '{WANTED}'",
    ):
        taken = []
        for _ in range(rounds + 1):
            began = time.perf_counter()
            answer = ask(statement)
            taken.append(time.perf_counter() - began)
        seconds.append(taken[1:])
        answers.append(str(answer))
    return seconds[0], seconds[1], (answers[0], answers[1])


def by_others(reader: str, path: str, rounds: int) -> Found:
    """The seconds of a reader in an environment of its own."""
    words = [str(python_of("polars")), other_readers.__file__, reader, path, WANTED, str(rounds)]
    whole, one = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return whole["seconds"], one["seconds"], (whole["answer"], one["answer"])


def main() -> None:
    """Build the tables, read them, print."""
    parser = argparse.ArgumentParser(description="what deletion vectors cost those who read a table")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="fluvial-bench-readers-") as folder:
        settings = Settings(warehouse=folder, spark_master=f"local[{os.cpu_count()}]")
        spark = build_session(settings, "bench-readers", say=console.print)
        paths = {kind: Warehouse.at(f"{folder}/{name}").path(TABLE) for kind, name in KIND.items()}
        for kind, name in list(KIND.items())[:2]:
            build(spark, f"{folder}/{name}", given.rows, given.batches, upkeep=kind != "without upkeep")
        whole = spark.read.format("delta").load(paths["as runs leave it"])
        ordered(whole.coalesce(8), KEY).write.format("delta").save(paths["a copy"])
        table = Table("reader", *(f"{kind}: {what}, s" for kind in KIND for what in ("all rows", "one row")))
        with closing(Sail([Path(folder)])) as sail:

            def by_sail(statement: str) -> Any:
                with sail.ask(statement) as reader:
                    return reader.read_all().column(0)[0].as_py()

            readers: dict[str, Callable[[str], Found]] = {
                "Sail": lambda path: asked(path, given.rounds, by_sail),
                "Polars": lambda path: by_others("polars", path, given.rounds),
                "delta-rs": lambda path: by_others("deltalake", path, given.rounds),
                "warm Spark": lambda path: asked(path, given.rounds, lambda text: spark.sql(text).first()[0]),
            }
            answers = set()
            for reader, read in readers.items():
                shown = []
                for path in paths.values():
                    all_rows, one_row, answer = read(path)
                    answers.add(answer)
                    shown += [f"{median(all_rows):.3f}", f"{median(one_row):.3f}"]
                table.add_row(reader, *shown)
        if len(answers) != 1:
            raise SystemExit(f"the answers differ: {answers}")
        console.print(table)
        spark.stop()


if __name__ == "__main__":
    main()
