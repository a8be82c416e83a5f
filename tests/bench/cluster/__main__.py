"""
Three nodes of ours and three of Apache Kafka on this machine: `make bench-cluster`.

    python -m tests.bench.cluster                              every load, 3 rounds
    python -m tests.bench.cluster --only bulk kill             some of them
    python -m tests.bench.cluster --json FILE                  keep the rows; groups already in FILE are replaced
    python -m tests.bench.cluster --show FILE                  print what FILE holds

RF 3, min.insync.replicas 2, acks=all, everything else at each side's defaults. Rounds alternate between the clusters
after both have been warmed up; figures are medians of the rounds. Client, six nodes and their disk share one machine.
"""

import sys

from tests.bench.broker.__main__ import run_groups
from tests.bench.cluster import failover, loads
from tests.bench.cluster.arena import ClusterArena

GROUPS = {
    "bulk": loads.bulk,
    "single": loads.single,
    "spread": loads.spread,
    "memory": loads.memory,
    "kill": failover.kill,
    "restart": failover.restart,
    "partitions": failover.partitions,
}

if __name__ == "__main__":
    sys.exit(run_groups("python -m tests.bench.cluster", __doc__ or "", GROUPS, ClusterArena))
