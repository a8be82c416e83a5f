"""
Our broker and Apache Kafka side by side on this machine: `make bench-broker`.

    python -m tests.bench.broker                              every load, 3 rounds
    python -m tests.bench.broker --only single consume        some of them
    python -m tests.bench.broker --json FILE                  keep the rows; groups already in FILE are replaced
    python -m tests.bench.broker --show FILE                  print what FILE holds

Rounds alternate between the brokers after both have been warmed up; figures are medians of the rounds. Client and
server share the cores, so the broker's own CPU time per message stands beside each rate.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from rich.console import Console

from tests.bench.broker import loads, upkeep, waiting
from tests.bench.broker.arena import PROGRESS, Arena, Scale
from tests.bench.broker.rows import Row, row_of_json, table_of
from tests.peers.kafka_jars import KAFKA_VERSION, KafkaJarsError, require_kafka_jars

GROUPS: dict[str, Callable[[Arena], list[Row]]] = {
    "bulk": loads.bulk,
    "single": loads.single,
    "consume": loads.consume,
    "compressed": loads.compressed,
    "waiting": waiting.waiting,
    "start": upkeep.start,
    "memory": upkeep.memory,
    "partitions-1000": upkeep.partitions_1000,
    "partitions-10000": upkeep.partitions_10000,
    "compaction": upkeep.compaction,
    "recovery": upkeep.recovery,
}


def main() -> int:
    return run_groups("python -m tests.bench.broker", __doc__ or "", GROUPS, Arena)


def run_groups(
    prog: str,
    description: str,
    groups: Mapping[str, Callable[[Any], list[Row]]],
    arena_of: Callable[[Path | None, Scale], Arena],
) -> int:
    """Run the command line of a benchmark that consists of these groups; return its exit status."""
    parser = argparse.ArgumentParser(
        prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(groups), help=f"of {', '.join(groups)}")
    parser.add_argument("--rounds", type=int, default=3, help="how often each load runs on each broker (default 3)")
    parser.add_argument("--size", type=float, default=1.0, help="factor for the length of each load (default 1)")
    parser.add_argument("--quick", action="store_true", help="one short round: shows that everything works, no more")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the rows are kept, written after each group")
    parser.add_argument(
        "--show", type=Path, metavar="FILE", help="print the rows of an earlier run and do nothing else"
    )
    parser.add_argument("--dir", type=Path, help="where the brokers keep their data (default: the system's own choice)")
    options = parser.parse_args()
    console = Console(width=150)
    if options.show:
        console.print(table_of(_kept(options.show), f"from {options.show}"))
        return 0
    try:
        require_kafka_jars(PROGRESS.print)
    except KafkaJarsError as error:
        print(error, file=sys.stderr)
        return 1
    rows = _kept(options.json) if options.json else []
    scale = Scale(rounds=1, size=0.05) if options.quick else Scale(rounds=options.rounds, size=options.size)
    failed: list[str] = []
    with arena_of(options.dir, scale) as arena:
        for name in options.only or groups:
            try:
                fresh = groups[name](arena)
            except (RuntimeError, KafkaException) as error:
                failed.append(name)
                print(f"{name} could not be measured: {error}", file=sys.stderr)
                continue
            rows = [row for row in rows if row.group != name] + fresh
            if options.json:
                options.json.write_text(json.dumps([row.as_json() for row in rows], indent=1) + "\n")
            console.print(table_of(fresh, _title(name, scale)))
    if len(options.only or groups) > 1:
        console.print(table_of(rows, _title("all", scale)))
    return 1 if failed else 0


def _title(name: str, scale: Scale) -> str:
    return f"{name}: ours and Apache Kafka {KAFKA_VERSION}, medians of {scale.rounds}, {os.cpu_count()} cores"


def _kept(path: Path) -> list[Row]:
    return [row_of_json(values) for values in json.loads(path.read_text())] if path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
