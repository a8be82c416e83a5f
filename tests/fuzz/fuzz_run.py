"""
A million broken requests at the broker, and the search for what costs more than it took to send: `make fuzz`.

    python tests/fuzz/fuzz_run.py --requests 1000000 --seed 1
    python tests/fuzz/fuzz_run.py --cost                          the search alone
    python tests/fuzz/fuzz_run.py --cost --part states --part pairs

First come decoders: most requests go through them in this process, one in `--socket-every` to a broker in a process of
its own. What ends a decoder is printed with its seed and index; `--from` goes on at an index. Then comes the search for
cost, whose parts are said by `--help`; `--jobs` of them run at a time, and CPU is measured, so other work beside does
little harm.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from cost_run import PARTS, Amounts, Order, run_all, totals
from fuzz_decoding import decode
from fuzz_node import NodeUnderFire, fire
from fuzz_persistent import run as run_persistent
from fuzz_requests import RequestFuzzer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

STEP = 1_000
SHARED = frozenset({"bulk", "fields", "volleys", "pairs", "states", "schemas"})  # parts that two processes share
COST_PARTS = """\
parts of the search for cost:
  fields    each field of each api: repeated, long, at the edges of its type, bombs of records, promised lengths
  bulk      --requests through decoders and handlers of a node, without sockets
  volleys   --sockets requests over sockets, 64 at a time
  states    what is stored or held first (bombs, groups, producers, ...), and every request over it
  pairs     --pairs requests that wait, and what wakes them
  shapes    each shape of schema, grown until a bound is reached
  schemas   --schemas pairs of schemas over HTTP
  quorum    three nodes, and what strangers say to their quorum
bounds: a turn of the loop of 50 ms of CPU, the budget of requests and 16 MiB of memory, disk and numbers that last in
proportion, an answer for another client
"""


def main() -> int:
    """Return 1 when anything was found."""
    options = _parser().parse_args()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    findings: list[str] = []
    began = time.monotonic()
    with Progress(*columns) as progress:
        if not options.cost:
            findings += _decoders(options, progress)
            count = options.requests // options.socket_every
            if count:
                with tempfile.TemporaryDirectory() as folder:
                    findings += _sockets(Path(folder), options, count, progress)
            findings += _persistent(options, progress)
        findings += _cost(options, progress)
    for finding in findings:
        print(finding)
    print(f"seed {options.seed}: {len(findings)} findings in {time.monotonic() - began:.0f} s")
    return bool(findings)


def _decoders(options: argparse.Namespace, progress: Progress) -> list[str]:
    fuzzer = RequestFuzzer(options.seed)
    findings: list[str] = []
    slowest = (0.0, -1)
    end = options.first + options.requests - options.requests // options.socket_every
    task = progress.add_task("decoders", total=end, completed=options.first)
    for index in range(options.first, end):
        request = fuzzer.request(index)
        began = time.perf_counter()
        try:
            decode(request)
        except Exception as error:
            findings.append(f"request {index} of seed {options.seed}, {request.hex()}: {error!r}")
        slowest = max(slowest, (time.perf_counter() - began, index))
        if index % STEP == 0:
            progress.update(task, completed=index)
    progress.update(task, completed=end)
    print(f"the slowest to read was request {slowest[1]} with {slowest[0] * 1000:.1f} ms")
    return findings


def _sockets(folder: Path, options: argparse.Namespace, count: int, progress: Progress) -> list[str]:
    task = progress.add_task("sockets", total=count)
    with NodeUnderFire(folder) as node:
        report = asyncio.run(fire(node, options.seed, count, at_each=lambda: progress.advance(task)))
        print(report)
        return report.findings


def _cost(options: argparse.Namespace, progress: Progress) -> list[str]:
    amounts = Amounts(
        seed=options.seed,
        requests=options.requests,
        sockets=options.sockets,
        pairs=options.pairs,
        schemas=options.schemas,
        first=options.first,
    )
    orders = [
        Order(part, amounts, share, shares)
        for part in options.part or PARTS
        for shares in (options.jobs if part in SHARED else 1,)
        for share in range(shares)
    ]
    tasks = {part: progress.add_task(part, total=0) for part in dict.fromkeys(order.part for order in orders)}
    for order in orders:
        task = progress.tasks[tasks[order.part]]
        progress.update(task.id, total=(task.total or 0) + totals(order))
    found = run_all(
        orders,
        options.jobs,
        advance=lambda order, count: progress.advance(tasks[order.part], count),
        say=lambda text: progress.console.print(text, soft_wrap=True, markup=False, highlight=False),
    )
    return [f"{order.part}: {finding}" for order, said in found.items() for finding in said]


def _persistent(options: argparse.Namespace, progress: Progress) -> list[str]:
    """Each field at its edges, and a look at what the node keeps: some 5,000 requests, whatever was asked for."""
    task = progress.add_task("what lasts", total=None)
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(run_persistent(Path(folder), options.seed, at_each=lambda: progress.advance(task)))
    print(f"{report.requests} requests with a field at an edge: {len(report.findings)} findings")
    return report.findings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").strip(),
        epilog=COST_PARTS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--requests", type=int, default=1_000_000, help="through decoders, and through handlers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", dest="first", type=int, default=0, help="index of the first request")
    parser.add_argument("--socket-every", type=int, default=10, help="one request in so many goes to a real broker")
    parser.add_argument("--cost", action="store_true", help="only the search for cost")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part of it; repeatable")
    parser.add_argument("--sockets", type=int, default=100_000, help="requests over sockets in the search for cost")
    parser.add_argument("--pairs", type=int, default=1_000)
    parser.add_argument("--schemas", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time, each with a node")
    return parser


if __name__ == "__main__":
    sys.exit(main())
