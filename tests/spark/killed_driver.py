"""
A driver that ends at a step of bringing one table up to date; as a program, it kills itself and its JVM there.

    python tests/spark/killed_driver.py '{"step": "files written", "kind": "state", "topic": "t", …}'

"planned": nothing is written yet. "files written": a data file lies in the table's folder and no commit names it.
"commit begun": all files are there, and Delta's transaction is about to commit. "committed": before anything follows.
"shown": the position is in the consumer group as well. A driver that comes to its end ends with 0.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from plain_fold import FIELDS

from fluvial.config import Settings
from fluvial.delta import row_swap
from fluvial.tables import Declaration, aggregate, compacted, count_distinct, history, pipeline, state, sum_
from fluvial.tables.drive import runner
from fluvial.tables.refresh import key_plan, key_refresh, part_refresh, row_refresh

STEPS = ("planned", "files written", "commit begun", "committed", "shown")
# An append is one call of Spark's: its commit has no beginning that Python sees.
APPEND_STEPS = tuple(step for step in STEPS if step != "commit begun")
# A mart reads tables, and has no position in a topic to show.
MART_STEPS = tuple(step for step in STEPS if step != "shown")
MART_INPUT = "history.killed_input"
SECONDS_MAX = 240


def table_of(kind: str, topic: str) -> Declaration:
    """The table of a kind that is killed."""
    match kind:
        case "history":
            return history(topic, name="killed")
        case "compacted":
            return compacted(topic, name="killed", key="id")
        case "mart":
            declare = pipeline(name="killed", inputs=[MART_INPUT], key="customer", version="1")
            return declare(
                lambda rows: rows.groupBy("customer").sum("amount").withColumnRenamed("sum(amount)", "spent")
            )
        case "rows":
            return pipeline(name="killed", inputs=[MART_INPUT], version="1")(lambda rows: rows.where("amount > 5"))
        case "aggregate":
            fields = {"spent": sum_("amount"), "amounts": count_distinct("amount")}
            return aggregate(MART_INPUT, name="killed", by="customer", fields=fields)
        case _:
            return state("killed", topic=topic, key="id", fields=FIELDS)


def kill(*_arguments: object, **_keywords: object) -> None:
    """End this process and its JVM, which may not finish what it was asked for."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


@contextmanager
def ending_at(step: str, folder: Path, end: Callable[..., None] = kill) -> Iterator[None]:
    """Have the next run of the table in `folder` call `end` at a step, if it comes to it."""

    def after(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            done = real(*arguments, **keywords)
            end()
            return done

        return call

    match step:
        case "planned":
            with _with_commit_once(end):
                yield
        case "files written":
            with _ending_at_a_new_file(folder, end):
                yield
        case "commit begun":
            with patch.object(row_swap._Transaction, "commit", end):
                yield
        case "committed":
            with _with_commit_once(after(runner.commit_once)):
                yield
        case "shown":
            with patch.object(runner, "show_position", after(runner.show_position)):
                yield
        case _:
            raise ValueError(step)


@contextmanager
def _with_commit_once(call: Callable[..., Any]) -> Iterator[None]:
    """Have `call` called where a commit is made."""
    with ExitStack() as patched:
        for module in (runner, key_refresh, part_refresh, row_refresh):
            patched.enter_context(patch.object(module, "commit_once", call))
        yield


@contextmanager
def _ending_at_a_new_file(folder: Path, end: Callable[[], None]) -> Iterator[None]:
    """Call `end` as soon as a data file lies there that was not there before."""

    def data_files() -> set[str]:
        return {path.name for path in folder.glob("*.parquet")}

    before, is_over = data_files(), threading.Event()

    def watch() -> None:
        while data_files() == before:
            if is_over.wait(0.001):
                return
        end()

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def end_of(program: str, order: Mapping[str, str], settings: Settings) -> int:
    """Run a driver of its own, which may kill itself; return the status that it ended with."""
    cluster = ("bootstrap_servers", "registry_url", "warehouse")
    words = [sys.executable, program, json.dumps({**order, **{name: getattr(settings, name) for name in cluster}})]
    with Path(f"{settings.warehouse}-driver.log").open("a") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        try:
            return process.wait(SECONDS_MAX)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def settings_of(order: Mapping[str, str]) -> Settings:
    """The settings of a driver that was started by :func:`end_of`."""
    assert os.getpid() == os.getpgid(0), "it kills its group, which must be its own"
    return Settings(
        bootstrap_servers=order["bootstrap_servers"],
        registry_url=order["registry_url"],
        warehouse=order["warehouse"],
        spark_master="local[2]",
        spark_conf={"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"},
    )


def main(order: dict[str, str]) -> None:
    from fluvial.spark.session import build_session

    settings = settings_of(order)
    table = table_of(order["kind"], order["topic"])
    spark = build_session(settings, "fluvial killed driver")
    # A mart of a few rows is cheaper by the full query.
    for module in (key_plan, part_refresh):
        module.why_full = lambda _work: None
    with ending_at(order["step"], Path(settings.warehouse, table.table.replace(".", "/"))):
        runner.materialize(table, settings, spark)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
