"""
What more clients, more cores and more brokers bring: `make bench-scale`.

    python -m tests.bench.scale                        all but density, about five minutes
    python -m tests.bench.scale --only clients         of clients, cores, brokers
    python -m tests.bench.scale --only density         partitions on one broker, a quarter of an hour
    python -m tests.bench.scale --rounds 1 --seconds 1 a quick look

Clients are connections that send one request at a time, made beforehand: a batch of 500 small records on a topic that
bounds their age, so that the broker looks at each record and costs several times what its clients cost. They share the
machine all the same, and the CPU time of both sides stands beside each rate. Records are not synced before they are
acknowledged, as all brokers have one disk here; *density* is one broker, and syncs too. Rounds alternate between what
is compared; figures are medians.

After each load the ends of the log are held against what was acknowledged; a difference ends the run with status 1.
That the platform's main job survives the loss of a broker is tested in `tests/e2e/test_broker_loss.py`.
"""

import argparse
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from rich.console import Console

from tests.bench.scale.density import density
from tests.bench.scale.driving import RecordsMissingError, client_processes
from tests.bench.scale.machine import bigger_machine
from tests.bench.scale.ramp import ramp
from tests.bench.scale.together import together

CORES_LEAST = 2


GROUPS: Mapping[str, Callable[..., None]] = {
    "clients": ramp,
    "cores": bigger_machine,
    "brokers": together,
    "density": density,
}
UNASKED = ("clients", "cores", "brokers")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(GROUPS), help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--rounds", type=int, default=3, help="how often each load runs; medians are shown (default 3)")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each load runs (default 2)")
    options = parser.parse_args()
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("at least one round, and longer than no time")
    if len(os.sched_getaffinity(0)) < CORES_LEAST:
        print("on a single core brokers only take turns: nothing to compare", file=sys.stderr)
        return 1
    console = Console(width=130)
    chosen = {name: GROUPS[name] for name in options.only or UNASKED}
    return run(chosen, console, count=options.rounds, seconds=options.seconds)


def run(groups: Mapping[str, Callable[..., None]], console: Console, *, count: int, seconds: float) -> int:
    """Run each group, `count` rounds of loads of so many seconds; return 1 if one of them failed, otherwise 0."""
    failed = False
    console.print(
        f"{len(os.sched_getaffinity(0))} cores, {_processor()}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.release()}; clients are {client_processes()} process(es)"
    )
    for name, group in groups.items():
        console.print(f"\n{name}: {group.__doc__}", markup=False, highlight=False)
        try:
            group(console, count=count, seconds=seconds)
        except (RecordsMissingError, RuntimeError, OSError, KafkaException) as error:
            failed = True
            print(f"{name} could not be measured: {error}", file=sys.stderr)
    return 1 if failed else 0


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    sys.exit(main())
