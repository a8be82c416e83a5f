"""
How long a question takes, beside warm Spark: `make bench-ask`, BENCH="--rows 20000 --batches 5" for a trial.

The table is a state of `--rows` keys into which `--batches` batches of 1 % of the keys each were swapped, with deletion
vectors and upkeep as a run has them. Cold is the whole command from the shell. Warm is a statement at the prompt: its
text in, the last row out. Both engines answer the same statements in turns, and answers that differ are an error.
Printed are medians, and how many times as long warm Spark takes.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from fluvial.config import Settings
from fluvial.delta.commit import KEYED_TABLE, append
from fluvial.delta.log import TableLog
from fluvial.delta.row_swap import FILE, ROW, WRITTEN, located, swap_located
from fluvial.delta.stamp import Stamp
from fluvial.delta.upkeep import compact_files, is_due, write_checkpoint
from fluvial.query.engine import Answer, Door, Engine
from fluvial.spark.session import build_session, register_tables, run_sql
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.plan.frames import ordered
from tests.bench.ask import keys

TABLE, MART, KEY = "state.customers", "marts.cities", "customer"
CHANGED = 0.01
ROW_OF = (
    "concat('k', id) AS customer",
    "concat('city ', id % 500) AS city",
    "id % 97 + {batch} AS orders",
    "cast(id * 0.37 + {batch} AS decimal(14, 2)) AS spent",
    "timestamp_seconds(1700000000 + id) AS last_order_at",
    "named_struct('n', id) AS _fold",
)


@dataclass(frozen=True, slots=True)
class Question:
    """A statement that is asked."""

    name: str
    statement: str


QUESTIONS = (
    Question("one row by its key", f"select * from {TABLE} where customer = 'k77'"),
    Question("aggregate of all rows", f"select count(*) n, sum(spent) s, max(orders) m from {TABLE}"),
    Question("groups", f"select city, count(*) n, sum(spent) s from {TABLE} group by city order by s desc limit 10"),
    Question(
        "join with a mart",
        f"select m.region, count(*) n, sum(c.spent) s from {TABLE} c join {MART} m on c.city = m.city "
        "group by 1 order by 1",
    ),
)


def row_of(batch: int) -> list[str]:
    """The columns of a row that a batch wrote, from its `id`."""
    return [column.format(batch=batch) for column in ROW_OF]


def build(spark: Any, warehouse: str, rows: int, batches: int, *, upkeep: bool = True) -> None:
    """Write the state and the mart."""
    at = Warehouse.at(warehouse).path
    path = at(TABLE)

    def stamp(batch: int) -> Stamp:
        return Stamp(topic="orders", topic_id=None, batch=batch, offsets={0: ((batch - 1) * rows, batch * rows)})

    append(ordered(spark.range(rows).selectExpr(*row_of(0)).repartition(8), KEY), path, stamp(1), KEYED_TABLE)
    changed = max(1, int(rows * CHANGED))
    for batch in range(1, batches + 1):
        version = TableLog(spark, path).newest_version()
        assert version is not None
        # A stride that shares no factor with the rows spreads the changes over all files.
        ids = spark.range(changed).selectExpr(f"(id * 7919 + {batch} * 104729) % {rows} AS id").distinct()
        new = ids.selectExpr(*row_of(batch), f"true AS {WRITTEN}")
        old = located(spark, path, version).select(KEY, FILE, ROW)
        swapped = ordered(new.join(old, KEY, "left").coalesce(1), KEY)
        swap_located(spark, path, swapped, version=version, stamp=stamp(batch + 1), files=1)
        if is_due(batch):
            write_checkpoint(spark, path)
            if upkeep:
                compact_files(spark.newSession(), path, by=[KEY])
    cities = spark.range(500).selectExpr("concat('city ', id) AS city", "concat('region ', id % 12) AS region")
    cities.coalesce(1).write.format("delta").save(at(MART))


def cold(settings: Settings, statement: str, engine: str) -> float:
    """Seconds of the whole command."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "fluvial", "sql", "--warehouse", settings.warehouse, "--engine", engine, statement],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - began


def asked(door: Door, statement: str) -> tuple[float, list[str]]:
    """Seconds until the last row, and the rows."""
    rows: list[str] = []

    def take(answer: Answer) -> None:
        rows.extend(repr(list(row)) for row in answer.rows())

    began = time.perf_counter()
    door.answer(statement, take, again=rows.clear)
    return time.perf_counter() - began, sorted(rows)


def measure(settings: Settings, spark: Any, rounds: int) -> tuple[Table, dict[str, float]]:
    """Ask all questions of both engines; Spark's milliseconds by question beside the table."""
    spark_ms = {}

    def door(engine: Engine) -> Door:
        return Door(
            settings=settings,
            ask_spark=lambda statement: run_sql(spark, settings, statement),
            say=lambda _: None,
            engine=engine,
        )

    table = Table("question", "Sail, ms", "warm Spark, ms", "times as long")
    with closing(door(Engine.SAIL)) as sail, closing(door(Engine.SPARK)) as warm:
        for question in QUESTIONS:
            times: dict[str, list[float]] = {"sail": [], "spark": []}
            for number in range(rounds + 1):
                one, rows = asked(sail, question.statement)
                other, expected = asked(warm, question.statement)
                if rows != expected:
                    raise SystemExit(f"{question.name}: the answers differ: {rows[:2]} and {expected[:2]}")
                # The first of each is left out: Spark compiles, Sail opens files.
                if number:
                    times["sail"].append(one)
                    times["spark"].append(other)
            sails, sparks = median(times["sail"]), median(times["spark"])
            spark_ms[question.name] = sparks * 1000
            table.add_row(question.name, f"{sails * 1000:.0f}", f"{sparks * 1000:.0f}", f"{sparks / sails:.1f}")
    return table, spark_ms


def cold_rows(settings: Settings, rounds: int, ask: Callable[[Settings, str, str], float] = cold) -> Table:
    """Time the command from the shell: engine by engine, and where a server has engines that run."""
    statement = QUESTIONS[0].statement
    with keys.serving(settings, TABLE):
        asked = [ask(settings, statement, "auto") for _ in range(rounds + 1)][1:]
    sails = median(ask(settings, statement, "sail") for _ in range(rounds))
    spark = median(ask(settings, statement, "spark") for _ in range(max(1, rounds // 3)))
    table = Table("from the shell, cold", "Sail, s", "Spark, s", "times as long")
    table.add_row(QUESTIONS[0].name, f"{sails:.2f}", f"{spark:.2f}", f"{spark / sails:.1f}")
    table.add_row("where fluvial serve runs", f"{median(asked):.2f}", "", f"{spark / median(asked):.1f}")
    return table


def by_key(settings: Settings, rows: int, spark_ms: float, lookups: int) -> Table:
    """Look rows up by key over HTTP; `spark_ms` is what warm Spark takes for one."""
    table = Table("row by key over HTTP", "p50, ms", "p99, ms", "rows/s", "times as long: warm Spark")
    for start in ("first start", "second start"):
        with keys.serving(settings, TABLE) as server:
            table.add_row(f"{start}, ready after {server.opened:.1f} s", "", "", "", "")
            some = keys.drawn(rows, lookups)
            for clients in (1, 16):
                found = asyncio.run(keys.ask(server, TABLE, some, clients))
                times = f"{spark_ms / found.p50:.0f}" if clients == 1 else ""
                table.add_row(f"{clients} clients", f"{found.p50:.2f}", f"{found.p99:.2f}", f"{found.rate:,.0f}", times)
            again = asyncio.run(keys.ask(server, TABLE, some[:1] * lookups, 1))
            table.add_row("the same row again", f"{again.p50:.2f}", f"{again.p99:.2f}", f"{again.rate:,.0f}", "")
            table.add_row(f"memory of its own {server.resident() >> 20} MiB", "", "", "", "")
    return table


def main(words: list[str] | None = None) -> None:
    """Build the tables, ask, print."""
    parser = argparse.ArgumentParser(description="how long a question takes, beside warm Spark")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--lookups", type=int, default=5000)
    given = parser.parse_args(words)
    console = Console()
    with tempfile.TemporaryDirectory(prefix="fluvial-bench-ask-") as folder:
        settings = Settings(warehouse=str(Path(folder) / "warehouse"), spark_master=f"local[{os.cpu_count()}]")
        spark = build_session(settings, "bench-ask", say=console.print)
        build(spark, settings.warehouse, given.rows, given.batches)
        register_tables(spark, settings)
        console.print(f"{given.rows:,} rows, {given.batches} batches of deletion vectors, {os.cpu_count()} cores")
        table, spark_ms = measure(settings, spark, given.rounds)
        console.print(table)
        spark.stop()
        console.print(by_key(settings, given.rows, spark_ms[QUESTIONS[0].name], given.lookups))
        console.print(cold_rows(settings, given.rounds))


if __name__ == "__main__":
    main()
