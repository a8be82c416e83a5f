"""
SIGKILL at random moments while tables are brought up to date, 50 kills or as many as wanted: `make kill-tables`.

    python tests/e2e/kill_tables_run.py --kills 50 --seed 1 --executors
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from kill_tables import TABLES, Graph, Report, run_kills, session
from local_platform import ROOT, LocalPlatform


def main(program: str, graph: Graph) -> int:
    """Return 1 when a table was not what the log says, or a change was written back twice or not at all."""
    parser = argparse.ArgumentParser(description=f"SIGKILL at random moments of {graph.project}.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--executors", action="store_true", help="a Spark cluster, whose executors are killed as well")
    options = parser.parse_args()
    words = (f"--kills {options.kills} --seed {options.seed}", *(("--executors",) if options.executors else ()))
    again = " ".join(("python", str(Path(program).relative_to(ROOT)), *words))
    print(again, flush=True)
    report = _run(graph, options)
    for problem in report.problems:
        print(problem)
    print(report)
    if report.problems:
        print(f"again: {again}")
    return bool(report.problems)


def _run(graph: Graph, options: argparse.Namespace) -> Report:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kill-tables-") as folder:
        platform = LocalPlatform(Path(folder) / "data")
        spark = session(Path(folder) / "beside")
        try:
            return run_kills(
                platform,
                spark,
                options.kills,
                options.seed,
                graph=graph,
                executors=options.executors,
                at_each=lambda so_far: print(f"{time.monotonic() - began:.0f} s: {so_far}", flush=True),
            )
        finally:
            platform.down()
            spark.stop()


if __name__ == "__main__":
    sys.exit(main(__file__, TABLES))
