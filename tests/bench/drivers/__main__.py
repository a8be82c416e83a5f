"""
Our broker and Apache Kafka under other people's drivers: `make bench-drivers`.

    python -m tests.bench.drivers                              every load, 3 rounds, about a quarter of an hour
    python -m tests.bench.drivers --only producer latency      some of them
    python -m tests.bench.drivers --json FILE                  keep the rows; groups already in FILE are replaced
    python -m tests.bench.drivers --show FILE                  print what FILE holds

The first three groups are Apache Kafka's own Java tools: ProducerPerformance, ConsumerPerformance and EndToEndLatency.
The other two have the shapes of OpenMessaging Benchmark's workloads, named as its files are, and run on librdkafka.
Rounds alternate between the brokers after both have been warmed up; figures are medians of the rounds.
"""

import sys
from collections.abc import Callable, Mapping

from tests.bench.broker.__main__ import run_groups
from tests.bench.broker.arena import Arena
from tests.bench.broker.rows import Row
from tests.bench.drivers import kafka_tools, openmessaging

GROUPS: Mapping[str, Callable[[Arena], list[Row]]] = {
    "producer": kafka_tools.producer,
    "consumer": kafka_tools.consumer,
    "latency": kafka_tools.latency,
    "fixed-rate": openmessaging.fixed_rate,
    "max-rate": openmessaging.max_rate,
}


def main() -> int:
    return run_groups("python -m tests.bench.drivers", __doc__ or "", GROUPS, Arena)


if __name__ == "__main__":
    sys.exit(main())
