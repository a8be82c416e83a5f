"""
The cost fuzzer as a whole: its parts, each in a process of its own, and what they found.

`tests/fuzz/fuzz_run.py --cost` runs it; a part is given by name, a seed and how much of it.
"""

import asyncio
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

from cost_bulk import BLOCK
from cost_corpus import LAST
from cost_meter import Meter
from cost_node import TURN_SECONDS_KILLED
from cost_pairs import run_pairs
from cost_quorum import run_quorum
from cost_schemas import SHAPES, run_schemas, run_small_schemas
from cost_search import Search, grid, run_grid, run_volleys
from cost_states import STATES, run_states

from log_broker.wire.apis import APIS

Say = Callable[[str], object]
Advance = Callable[[int], object]
KEYS = [api.key for api in APIS.values() if api.key not in LAST]
CONFIRMED_MAX = 60  # candidates of the bulk that are tried alone
BLOCK_SECONDS_MAX = 600.0
IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much of each part."""

    seed: int = 1
    requests: int = 1_000_000
    sockets: int = 100_000
    pairs: int = 1_000
    schemas: int = 10_000
    first: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """A share of a part: what one process does."""

    part: str
    amounts: Amounts
    share: int = 0
    shares: int = 1

    def mine(self, count: int) -> range:
        """Return this share of `count` indexes."""
        size = -(-count // self.shares)
        return range(self.amounts.first + self.share * size, self.amounts.first + min((self.share + 1) * size, count))


def totals(order: Order) -> int:
    """How many steps the share has, for its progress bar."""
    amounts = order.amounts
    match order.part:
        case "bulk":
            return len(order.mine(amounts.requests))
        case "fields":
            return sum(len(cases) for _, cases in grid(KEYS[order.share :: order.shares]))
        case "volleys":
            return len(order.mine(amounts.sockets))
        case "pairs":
            return len(order.mine(amounts.pairs))
        case "states":
            return len(list(STATES)[order.share :: order.shares])
        case "shapes":
            return len(list(SHAPES)[order.share :: order.shares])
        case "schemas":
            return len(order.mine(amounts.schemas))
        case _:
            return 1


PARTS = ("fields", "bulk", "volleys", "states", "pairs", "shapes", "schemas", "quorum")


async def run_part(order: Order, say: Say, advance: Advance) -> list[str]:
    """Run one share of a part and return its findings."""
    if order.part == "bulk":
        return await _bulk(order, say, advance)
    search = Search(say=say)
    seed = order.amounts.seed
    try:
        match order.part:
            case "fields":
                await run_grid(search, KEYS[order.share :: order.shares], advance)
            case "volleys":
                await run_volleys(search, seed, order.mine(order.amounts.sockets), advance)
            case "pairs":
                await run_pairs(search, seed, order.mine(order.amounts.pairs), advance)
            case "states":
                await run_states(search, list(STATES)[order.share :: order.shares], at_each=advance)
            case "shapes":
                await run_schemas(search, list(SHAPES)[order.share :: order.shares], advance)
            case "schemas":
                await run_small_schemas(search, seed, order.mine(order.amounts.schemas), advance)
            case "quorum":
                await run_quorum(search)
            case part:
                raise ValueError(f"there is no part {part}")
    finally:
        await search.bench.close()
    return [str(finding) for finding in search.findings]


async def _bulk(order: Order, say: Say, advance: Advance) -> list[str]:
    """Have blocks of requests run in processes, and try again what passed a bound."""
    bulk = Bulk(order.amounts.seed)
    await bulk.start()
    candidates: list[dict[str, Any]] = []
    try:
        indexes = order.mine(order.amounts.requests)
        at = indexes.start
        while at < indexes.stop:
            count = min(BLOCK - at % BLOCK, indexes.stop - at)
            found, end = await bulk.block(at, count, advance)
            candidates += found
            at = max(end, at + 1)
        findings: list[str] = []
        seen: set[str] = set()
        for candidate in candidates:
            # One of a kind is enough.
            words = candidate["what"].split()
            what = [word for word in words if not word.isdigit()][:6] if words[0] != "bytes" else candidate["said"][:60]
            kind = f"{candidate['kind']} {what}"
            if kind in seen or len(seen) >= CONFIRMED_MAX:
                continue
            seen.add(kind)
            said = await bulk.again(candidate)
            if said:
                findings.append(said)
                say(said)
        return findings
    finally:
        await bulk.stop()


class Bulk:
    """The process that forks a block at a time; see `cost_bulk`."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name("cost_bulk.py")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )

    async def stop(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def block(self, first: int, count: int, advance: Advance) -> tuple[list[dict[str, Any]], int]:
        """Run requests on a new node; return what was found, and the index behind the last that was tried."""
        found: list[dict[str, Any]] = []
        # A folder in memory where there is one: the disk is not what is measured.
        with tempfile.TemporaryDirectory(prefix="cost-", dir=IN_MEMORY) as folder:
            meter = Meter(Path(folder) / "meter")
            order = {"seed": self._seed, "first": first, "count": count, "folder": folder}
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            watchdog = asyncio.create_task(asyncio.sleep(0))
            at = first
            killed: list[float] = []
            async for line in self._lines():
                if "started" in line:
                    watchdog = asyncio.create_task(_watch(meter, line["started"], killed))
                elif "found" in line:
                    found.append(line | {"index": line["found"]})
                elif "at" in line:
                    advance(max(line["at"] - at, 0))
                    at = max(line["at"], at)
                elif "ended" in line:
                    advance(line["ended"] - at)
                    at = line["ended"]
                elif "broken" in line:
                    found.append(
                        {"index": meter.index, "what": "bytes", "kind": "harness", "said": line["broken"], "bytes": 0}
                    )
                elif "done" in line:
                    break
            watchdog.cancel()
            if killed or at < first + count:
                said = (
                    f"ended after {killed[0]:.1f} s of CPU in one turn ({meter.where})"
                    if killed
                    else "the node stopped"
                )
                if not any(each["index"] >= meter.index - 100 for each in found):
                    found.append({"index": meter.index, "what": "bytes", "kind": "answer", "said": said, "bytes": 0})
                at = max(at, meter.index + 1)
        return found, at

    async def _lines(self) -> Any:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            yield json.loads(line)

    async def again(self, candidate: dict[str, Any]) -> str:
        """Try what was found once more: alone, then with the requests of its block before it."""
        index = candidate["index"]
        for first in (index, index - index % BLOCK):
            # What is looked at now and then only is looked at behind a hundred more.
            found, _ = await self.block(
                first, index - first + (1 if candidate["kind"] == "turn" else 100), lambda _: None
            )
            for each in found:
                if each["kind"] == candidate["kind"] and (each["index"] == index or each["kind"] != "turn"):
                    alone = "alone" if first == index else "behind the requests before it"
                    what = f"request {self._seed}:{index} {each['what']}"
                    return f"{what}: {each['bytes']} bytes sent: {each['said']} [{alone}]"
        return ""


async def _watch(meter: Meter, pid: int, killed: list[float]) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(0.05)
        spent = meter.current(pid)
        if spent > TURN_SECONDS_KILLED or time.monotonic() - began > BLOCK_SECONDS_MAX:
            killed.append(spent)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return


# Several parts at once, and how far they are.


def _in_process(order: Order, queue: Any) -> None:
    try:
        findings = asyncio.run(
            run_part(order, lambda text: queue.put(("say", order, text)), lambda count: queue.put(("at", order, count)))
        )
        queue.put(("done", order, findings))
    except BaseException as error:
        queue.put(("done", order, [f"{order.part}: the fuzzer itself failed: {error!r}"]))
        raise


def run_all(
    orders: list[Order], jobs: int, *, advance: Callable[[Order, int], object], say: Callable[[str], object]
) -> dict[Order, list[str]]:
    """Run the orders, so many at a time, and return what each found."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    waiting = list(orders)
    running: dict[Order, Any] = {}
    findings: dict[Order, list[str]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            order = waiting.pop(0)
            running[order] = context.Process(target=_in_process, args=(order, queue))
            running[order].start()
        for kind, order, what in _received(queue):
            if kind == "at":
                advance(order, what)
            elif kind == "say":
                say(f"{order.part}: {what}")
            else:
                findings[order] = what
        for order, process in list(running.items()):
            if not process.is_alive() and (order in findings or process.exitcode):
                findings.setdefault(order, [f"{order.part}: the fuzzer itself ended with {process.exitcode}"])
                del running[order]
    return findings


def _received(queue: Any) -> Iterator[tuple[str, Order, Any]]:
    with suppress(Empty):
        yield queue.get(timeout=0.2)
        while True:
            yield queue.get_nowait()
