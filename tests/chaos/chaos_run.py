"""
Real processes under faults: `make chaos`.

    python tests/chaos/chaos_run.py --seconds 60 --seed 7          a storm of random faults
    python tests/chaos/chaos_run.py --peer kafka                   the same against Apache Kafka
    python tests/chaos/chaos_run.py --brokers 5
    python tests/chaos/chaos_run.py --voters 3                     voters in processes of their own
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from chaos_cluster import KINDS, Cluster
from chaos_storm import storm

STORM_SECONDS = 60.0


def say(line: str) -> None:
    """A line of progress, at once."""
    print(line, flush=True)


def main() -> int:
    """Return 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument("--peer", choices=sorted(KINDS), default="ours", help="whose nodes (default: ours)")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--voters", type=int, default=0, help="voters of the quorum that are no brokers")
    parser.add_argument("--seconds", type=float, default=STORM_SECONDS, help="how long the storm lasts; 0: none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the history and the logs of the nodes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
        return run_storm(options, Path(scratch), say)


def run_storm(options: argparse.Namespace, scratch: Path, say: Callable[[str], None]) -> int:
    """One storm on a cluster of its own."""
    cluster = Cluster(
        scratch / "cluster", kind=options.peer, brokers=options.brokers, separate_voters=options.voters
    )
    say(f"storm of {options.seconds:.0f} s, seed {options.seed}, {options.brokers} brokers, {options.voters} voters")
    try:
        cluster.start()
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
        report = storm(cluster, seconds=options.seconds, seed=options.seed, say=say, keep=options.keep)
    finally:
        if options.keep is not None:
            for node in cluster.nodes.values():
                (options.keep / f"node-{node.name}.log").write_text(node.log_text())
        cluster.close()
    say(str(report))
    return bool(report.broken)


if __name__ == "__main__":
    sys.exit(main())
