"""
SIGKILL at random moments while tables are brought up to date, 50 kills or as many as wanted: `make kill-tables`.

    python tests/e2e/kill_tables_run.py --kills 50 --seed 1 --executors
"""

import argparse
import sys
import tempfile
from pathlib import Path

from kill_tables import run_kills, session
from local_platform import LocalPlatform


def main() -> int:
    """Return 1 when a table was not what the log says, or a change was written back twice or not at all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--executors", action="store_true", help="a Spark cluster, whose executors are killed as well")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="kill-tables-") as folder:
        platform = LocalPlatform(Path(folder) / "data")
        spark = session(Path(folder) / "beside")
        try:
            report = run_kills(
                platform,
                spark,
                options.kills,
                options.seed,
                executors=options.executors,
                at_each=lambda so_far: print(so_far, flush=True),
            )
        finally:
            platform.down()
            spark.stop()
    for problem in report.problems:
        print(problem)
    print(report)
    return bool(report.problems)


if __name__ == "__main__":
    sys.exit(main())
