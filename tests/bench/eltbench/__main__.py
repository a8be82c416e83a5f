"""
LakeBench's ELTBench on plain Spark, on Sail and on fluvial: `make bench-eltbench`, BENCH="--scale 0.1" for a trial.

Parquet is loaded into five Delta tables, a fact table is made of them, three times 0.1 % of the lines are merged into
it, then come OPTIMIZE, VACUUM and a query. An engine runs in a fresh process of an environment of its own; with several
rounds the engines take turns, each begins one, and the figures are medians. After each round the fact tables are
compared row by row, and where two differ nothing is printed but that. What each engine does where is said by
`docs/benchmarks.md`; the seeds of the merges are fixed and two things of the data are changed (`data.py`), as the
tables of two engines could not be alike otherwise.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fluvial.spark.cache import cache_folder
from tests.bench.eltbench import environment
from tests.bench.eltbench.phases import ENGINES, FLUVIAL, SAIL, SPARK, TUNED, Run, in_turn, medians, rows, summed

RUN_SECONDS_MAX = 4 * 3600
_SAID = Console(stderr=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is measured, and where."""

    scale: float
    rounds: int
    engines: tuple[str, ...]
    memory: str
    folder: Path | None

    @property
    def data(self) -> Path:
        """Where the Parquet files are kept from one call to the next."""
        return cache_folder("eltbench") / f"data-{self.scale:g}"


def main() -> int:
    """Measure and print."""
    work = _work()
    python = environment.python()
    _call(python, "data", f"{work.scale:g}", str(work.data))
    began = time.monotonic()
    runs: dict[str, list[Run]] = {engine: [] for engine in work.engines}
    for number in range(work.rounds):
        with tempfile.TemporaryDirectory(prefix="eltbench-", dir=work.folder) as temporary:
            _round(work, python, number, Path(temporary), runs)
    _print(work, {engine: medians(found) for engine, found in runs.items()}, time.monotonic() - began)
    return 0


def _work() -> Work:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.eltbench", description=(__doc__ or "").split("\n")[1])
    parser.add_argument("--scale", type=float, default=1, help="TPC-DS's: 1 has 2.9 million lines of sales")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--engines",
        nargs="+",
        default=[FLUVIAL, SPARK, TUNED, SAIL],
        choices=[*ENGINES],
        help="the first one's seconds are what the others' are compared with",
    )
    parser.add_argument("--memory", default="4g", help="spark.driver.memory of each session")
    parser.add_argument("--folder", type=Path, help="where the tables are written, and removed again")
    options = parser.parse_args()
    if options.scale <= 0 or options.rounds < 1:
        parser.error("--scale and --rounds begin above 0")
    return Work(**(vars(options) | {"engines": tuple(dict.fromkeys(options.engines))}))


def _round(work: Work, python: str, number: int, folder: Path, runs: dict[str, list[Run]]) -> None:
    tables = {}
    for engine in in_turn(work.engines, number):
        answer, own = folder / f"{engine}.json", folder / engine
        began = time.monotonic()
        _call(
            *(python, "run", engine, "--data", str(work.data), "--folder", str(own), "--memory", work.memory),
            *("--scale", f"{work.scale:g}", "--answer", str(answer)),
        )
        found = json.loads(answer.read_text(encoding="utf-8"))
        tables[engine] = found["table"]
        runs[engine].append(summed(found["spent"]))
        seconds, gigabytes = time.monotonic() - began, found["memory"] / 2**30
        _say(f"round {number + 1}, {engine}: {seconds:.0f} s with its start, {gigabytes:.1f} GiB at its end")
        for line in found["said"]:
            _say(f"  {line}")
        _leave_only(own, Path(tables[engine]))
    _say(_call(python, "judge", work.memory, *tables.values()))


def _leave_only(folder: Path, table: Path) -> None:
    """Remove the loaded tables, which need the most of the disk, before the next engine comes."""
    for each in folder.glob("*/*"):
        if each != table and each not in table.parents:
            shutil.rmtree(each, ignore_errors=True)


def _call(python: str, module: str, *words: str) -> str:
    """What a module prints that runs in the environment; one that fails ends this, with what it said."""
    done = subprocess.run(
        (python, "-m", f"tests.bench.eltbench.{module}", *words),
        cwd=environment.ROOT,
        env=environment.variables(),
        timeout=RUN_SECONDS_MAX,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{module} {' '.join(words)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout.strip()


def _say(line: str) -> None:
    _SAID.print(line, highlight=False, markup=False, soft_wrap=True)


def _print(work: Work, found: dict[str, Run], seconds: float) -> None:
    first, *others = found
    title = f"ELTBench, scale {work.scale:g}, {work.rounds} rounds: seconds (of the processor)"
    table = Table("phase", first, *(head for other in others for head in (other, f": {first}")), title=title)
    for row in rows(found):
        table.add_row(*row)
    console = Console(width=140)
    console.print(table)
    console.print("the fact tables of all engines were equal, row by row, after each round", highlight=False)
    console.print(f"{seconds / 60:.1f} minutes", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
