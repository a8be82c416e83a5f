"""
How many partitions a topic should have, from the brokers, its consumers and its load.

More than are needed cost too: a failover elects a leader for each, and a record is joined with fewer others
(docs/benchmarks.md, "What choices cost").
"""

from math import ceil

BYTES_PER_SECOND = 30_000_000
"""Of one partition: half of what bulk produce with `acks=all` gets into one on three nodes (docs/benchmarks.md)."""


def advised_partitions(*, brokers: int, consumers: int, bytes_per_second: float) -> int:
    """
    The fewest partitions that each broker leads one of, each consumer of a group reads one of, and that take the load.

    Above the number of brokers it is a multiple of it, so that each leads as many.
    """
    least = max(brokers, consumers, ceil(bytes_per_second / BYTES_PER_SECOND), 1)
    return ceil(least / max(brokers, 1)) * max(brokers, 1)
