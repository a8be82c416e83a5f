"""
A million broken requests at every decoder of the broker, or as many as wanted: `make fuzz`.

    python tests/fuzz/fuzz_run.py --requests 1000000 --seed 1

Most go through the decoders in this process, one in `--socket-every` to a broker in a process of its own. What ends a
decoder is printed with its seed and index; `--from` goes on at an index.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from fuzz_decoding import decode
from fuzz_node import NodeUnderFire, fire
from fuzz_persistent import run as run_persistent
from fuzz_requests import RequestFuzzer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

STEP = 1_000


def main() -> int:
    """Return 1 when anything was found."""
    options = _parser().parse_args()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        findings = _decoders(options, progress)
        count = options.requests // options.socket_every
        if count:
            with tempfile.TemporaryDirectory() as folder:
                findings += _sockets(Path(folder), options, count, progress)
        findings += _persistent(options, progress)
    for finding in findings:
        print(finding)
    print(f"{options.requests} requests of seed {options.seed}, {count} of them over sockets: {len(findings)} findings")
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


def _persistent(options: argparse.Namespace, progress: Progress) -> list[str]:
    """Each field at its edges, and a look at what the node keeps: some 5,000 requests, whatever was asked for."""
    task = progress.add_task("what lasts", total=None)
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(run_persistent(Path(folder), options.seed, at_each=lambda: progress.advance(task)))
    print(f"{report.requests} requests with a field at an edge: {len(report.findings)} findings")
    return report.findings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", dest="first", type=int, default=0, help="index of the first request")
    parser.add_argument("--socket-every", type=int, default=10, help="one request in so many goes to a real broker")
    return parser


if __name__ == "__main__":
    sys.exit(main())
