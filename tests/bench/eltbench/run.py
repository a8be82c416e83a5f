"""
One engine once through ELTBench, in a process of the environment's Python.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from lakebench.benchmarks import ELTBench
from lakebench.benchmarks.elt_bench.engine_impl.sail import SailELTBench
from lakebench.benchmarks.elt_bench.engine_impl.spark import SparkELTBench
from lakebench.engines import Sail, Spark

from fluvial.config import Settings
from fluvial.spark.jars import require_jars
from fluvial.spark.session import build_session
from tests.bench.eltbench.dice import Seeds, without_dice
from tests.bench.eltbench.phases import FACT, FLUVIAL, SAIL, SPARK


class _WithoutDice:
    """What both of LakeBench's implementations for a Spark session have otherwise here."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)  # type: ignore[call-arg]
        self.np = Seeds()

    def merge_percent_into_total_sales_fact(self, percent: float) -> None:
        with without_dice(self.engine.spark):  # type: ignore[attr-defined]
            super().merge_percent_into_total_sales_fact(percent)  # type: ignore[misc]


class _SparkWithoutDice(_WithoutDice, SparkELTBench):  # type: ignore[misc]
    pass


class _SailWithoutDice(_WithoutDice, SailELTBench):  # type: ignore[misc]
    pass


class Timer:
    """LakeBench's own, which knows the clock alone, and beside it the processor's time of this process and below."""

    def __init__(self, of: Any) -> None:
        self._of = of
        self.spent: list[tuple[str, float, float]] = []
        self.results: list[Any] = []

    @contextmanager
    def __call__(self, phase: str, **named: Any) -> Iterator[Any]:
        began, clock = _processor(), time.monotonic()
        with self._of(phase=phase, **named) as context:
            yield context
        self.spent.append((phase, time.monotonic() - clock, _processor() - began))
        self.results = self._of.results

    def clear_results(self) -> None:
        """As LakeBench's."""
        self._of.clear_results()


def main() -> int:
    """Run, and write what was found as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("engine")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--memory")
    parser.add_argument("--scale", type=float)
    parser.add_argument("--answer", type=Path)
    options = parser.parse_args()
    engine, table = _engine(options.engine, options.folder, options.memory)
    bench = ELTBench(engine, "local", scale_factor=round(options.scale), input_folder_uri=str(options.data))
    timer = bench.timer = Timer(bench.timer)
    bench.run()
    failed = [each for each in bench.results if not each["success"]]
    if failed:
        raise SystemExit(f"{failed[0]['phase']}, {failed[0]['test_item']}: {failed[0]['error_message']}")
    found = {"table": table, "spent": timer.spent, "said": getattr(engine, "said", []), "memory": _memory()}
    options.answer.write_text(json.dumps(found), encoding="utf-8")
    if options.engine == FLUVIAL:
        engine.door.close()
    return 0


def _engine(name: str, folder: Path, memory: str) -> tuple[Any, str]:
    """The engine, and where its fact table will lie."""
    lake = folder / "lake"
    if name == FLUVIAL:
        from tests.bench.eltbench.ours import MART, Fluvial, FluvialELTBench

        ours = Fluvial(folder, memory)
        ELTBench.register_engine(Spark, FluvialELTBench)
        return ours, ours.path(MART.table)
    if name == SAIL:
        from pysail.spark import SparkConnectServer

        # LakeBench's would want one port.
        Sail._SAIL_SERVER = SparkConnectServer(port=0)
        Sail._SAIL_SERVER.start(background=True)
        ELTBench.register_engine(Sail, _SailWithoutDice)
        return Sail(str(lake)), f"{lake}/{FACT}"
    plain_session(memory) if name == SPARK else build_session(
        Settings(warehouse=str(folder / "warehouse"), spark_conf={"spark.driver.memory": memory}), "eltbench"
    )
    ELTBench.register_engine(Spark, _SparkWithoutDice)
    return Spark(schema_name="eltbench", schema_uri=str(lake)), f"{lake}/{FACT}"


def plain_session(memory: str) -> Any:
    """Spark and Delta, with nothing set but what they need to start."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[*]").config("spark.driver.memory", memory)
    for key, value in {
        "spark.driver.extraClassPath": os.pathsep.join(map(str, require_jars(None))),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalogImplementation": "in-memory",
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _family() -> list[psutil.Process]:
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def _processor() -> float:
    times = [process.cpu_times() for process in _family()]
    return sum(each.user + each.system for each in times)


def _memory() -> int:
    """The bytes that these processes have at the end."""
    return sum(process.memory_info().rss for process in _family())


if __name__ == "__main__":
    sys.exit(main())
