"""
SIGKILL at random moments while a graph of ten marts is brought up to date: `make kill-marts`.

    python tests/e2e/kill_marts_run.py --kills 50 --seed 1 --executors
"""

import sys

from kill_tables import Graph
from kill_tables_run import main

from tests.by_changes import refresh_by_changes
from tests.e2e.kill_marts_project import BY_CHANGES, TOPICS

MARTS = Graph("tests.e2e.kill_marts_project", TOPICS, environment={BY_CHANGES: "1"}, seconds=25.0, settled_every=4)

if __name__ == "__main__":
    refresh_by_changes()
    sys.exit(main(__file__, MARTS))
