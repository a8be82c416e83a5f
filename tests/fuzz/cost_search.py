"""
The search: each mutation of each field is turned up until a bound is passed or its last size is reached.

What is asked of every step: no turn of the loop above 50 ms of CPU, memory within the budget of requests and 16 MiB,
disk, files and numbers that last in proportion to what was sent, and an answer for another client.
"""

import asyncio
import contextlib
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from cost_corpus import LAST, VARIANTS, World, make_world, values_of
from cost_meter import COLLECTION_SECONDS_MAX, is_long
from cost_mutations import (
    CONNECTIONS,
    GROWTH,
    NO_REQUEST,
    PIPELINED,
    REQUEST_BYTES_MAX,
    Case,
    Mutation,
    frames_of,
    growths_of,
    places_of,
    random_case,
    request_of,
    versions_of,
)
from cost_node import (
    BUDGET_BYTES,
    MEMORY_SLACK,
    CostNode,
    DeadNodeError,
)
from fuzz_node import Wire, framed
from fuzz_requests import RequestFuzzer

from log_broker.records import build_batch
from log_broker.wire.apis import APIS, ApiKey

PATIENCE_SECONDS = 0.15  # a request may well be one that waits
PROBE_SECONDS = 60.0
STEPS_A_NODE = 1_500
VOLLEY = 64
LANES = 8
SEARCHED_SHARE = 0.1  # of the requests of volleys come from the search
PING = framed(struct.pack(">hhih", ApiKey.API_VERSIONS, 0, 0x70696E67, -1))
CPU_SECONDS_MAX = 2.0  # of the whole process, for one step
CPU_SECONDS_A_BYTE = 20e-6
DISK_BYTES_LEAST = 8 << 20
DISK_A_BYTE = 20
FILES_LEAST = 500
OFFSETS_LEAST = 1 << 20
# What one request may add to a number that lasts.
# What stands in docs/reliability.md among the limits.
KNOWN = {
    "CREATE_TOPICS topics.num_partitions": {"turn", "collection", "files", "memory", "cpu", "disk", "partitions"},
    "CREATE_PARTITIONS topics.count": {"turn", "collection", "files", "memory", "cpu", "disk", "partitions"},
    "state partitions x 1000": {"files"},
    "state topics x 10000": {"cpu"},
    "schema protobuf messages to the power of 3 x 10000": {"memory"},
    "WRITE_TXN_MARKERS markers": {"turn"},
    "ALTER_PARTITION topics": {"turn"},
    "ALTER_PARTITION topics.partitions": {"turn"},
    "ALTER_PARTITION_REASSIGNMENTS topics": {"turn"},
    "ALTER_PARTITION_REASSIGNMENTS topics.partitions": {"turn"},
}
STEPS_OF_NUMBERS = {
    "quorum epoch": 5,
    "leader epoch": 5,
    "partition epoch": 5,
    "broker epoch": 100_000,
    "next producer id": 100_000,
    "partitions": 1_000,
    "topics": 25_000,
    "brokers": 3,
    "leaderEpoch": 5,
}


@dataclass
class Cost:
    """What a step took."""

    sent: int = 0
    requests: int = 1
    turn: float = 0.0
    collection: float = 0.0
    where: str = ""
    cpu: float = 0.0
    memory: int = 0
    disk: int = 0
    files: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    failure: str = ""

    def broken(self) -> dict[str, str]:
        """Return what is out of bounds: the kind and a sentence."""
        found: dict[str, str] = {}
        if self.failure:
            found["answer"] = self.failure
        if is_long(self.turn):
            found["turn"] = f"a turn of {self.turn * 1000:.0f} ms ({self.where})"
        if self.collection > COLLECTION_SECONDS_MAX:
            found["collection"] = f"a full garbage collection of {self.collection * 1000:.0f} ms"
        if self.memory > BUDGET_BYTES + MEMORY_SLACK:
            found["memory"] = f"{self.memory >> 20} MiB of memory"
        if self.cpu > CPU_SECONDS_MAX + self.sent * CPU_SECONDS_A_BYTE:
            found["cpu"] = f"{self.cpu:.1f} s of CPU in all"
        if self.disk > DISK_BYTES_LEAST + self.sent * DISK_A_BYTE:
            found["disk"] = f"{self.disk >> 20} MiB on the disk"
        if self.files > FILES_LEAST + self.sent:
            found["files"] = f"{self.files} files"
        for name, most in STEPS_OF_NUMBERS.items():
            if self.numbers.get(name, 0) > most * self.requests + self.sent // 10 * (name in ("topics", "partitions")):
                found[name] = f"{name} went up by {self.numbers[name]}"
        if self.numbers.get("offsets", 0) > OFFSETS_LEAST * self.requests + self.sent:
            found["offsets"] = f"offsets went up by {self.numbers['offsets']}"
        return found


@dataclass
class Finding:
    """A step out of bounds; `kinds` is what is wrong, by kind."""

    what: str
    kinds: dict[str, str]
    cost: Cost
    place: str

    def __str__(self) -> str:
        return f"{self.what}: {self.cost.sent} bytes sent: {'; '.join(self.kinds.values())} [{self.place}]"


class Bench:
    """A node with its world, started again whenever it must be."""

    def __init__(self) -> None:
        self.node: CostNode | None = None
        self.world = World()
        self.steps = 0
        self.starts = 0
        self._probe: Wire | None = None
        self._probed = 0
        self._numbers: dict[str, int] = {}
        self._files = (0, 0)

    async def ready(self, *, fresh: bool = False) -> CostNode:
        if self.node is not None and (fresh or not self.node.is_running or self.steps >= STEPS_A_NODE):
            await self.close()
        if self.node is None:
            self.starts += 1
            self.steps = 0
            self.node = CostNode()
            await self.node.start()
            self.world = await make_world(self.node.port)
            self._probe = await Wire.open(self.node.port)
            self._probed = 0
            await self._warm_up()
        return self.node

    async def close(self) -> None:
        if self._probe is not None:
            await self._probe.close()
        if self.node is not None:
            await self.node.stop()
            self.node.remove()
        self.node = self._probe = None

    async def _warm_up(self) -> None:
        """Have every handler loaded, which happens once and is no cost of a request."""
        assert self.node is not None
        for api in APIS.values():
            if api.key in LAST:
                continue
            for version in {versions_of(api.key)[0], versions_of(api.key)[-1]}:
                case = Case(api.key, version)
                values = values_of(self.world, api.key, version)
                if api.inter_broker:
                    values = {**values, "cluster_id": "another"} if "cluster_id" in values else values
                await self._exchange([framed(request_of(self.world, case, values))], 0.02)
        await self.probe()
        self._numbers = await self._all_numbers()
        self._files = self.node.files()

    async def _all_numbers(self) -> dict[str, int]:
        assert self.node is not None
        return await self.node.numbers() | self.node.saved_numbers()

    async def probe(self) -> None:
        """Be another client, whose records must be taken and read back."""
        assert self._probe is not None
        async with asyncio.timeout(PROBE_SECONDS):
            batch = bytes(build_batch([(self.world.now_ms, b"k", b"%d" % self._probed, ())]))
            asked: dict[str, Any] = {
                "transactional_id": None, "acks": -1, "timeout": 30_000,
                "topic_data": [{"name": "good", "partition_data": [{"index": 0, "records": batch}]}],
            }  # fmt: skip
            answer = await self._probe.ask(ApiKey.PRODUCE, 9, asked)
            found = answer.responses[0].partition_responses[0]
            if (found.error_code, found.base_offset) != (0, self._probed):
                raise DeadNodeError(f"another client's produce: error {found.error_code} at {found.base_offset}")
            self._probed += 1

    async def _exchange(self, frames: Sequence[bytes], patience: float) -> None:
        """Send each frame on a connection of its own, and wait a moment for what comes back."""
        assert self.node is not None
        wires: list[Wire] = []
        try:
            for _ in frames:
                wires.append(await Wire.open(self.node.port))
            for wire, frame in zip(wires, frames, strict=True):
                wire.writer.write(frame)
            with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
                async with asyncio.timeout(patience):
                    for wire in wires:
                        await wire.writer.drain()
                    for wire in wires:
                        await wire.frame()
        except OSError:
            pass
        finally:
            for wire in wires:
                await wire.close()

    @contextlib.asynccontextmanager
    async def measured(self, sent: int, *, requests: int = 1, files: bool = False) -> AsyncIterator[Cost]:
        """Measure what happens in the block and in its wake."""
        node = await self.ready()
        self.steps += 1
        cost = Cost(sent=sent, requests=requests)
        node.reset()
        cpu = node.cpu()
        try:
            yield cost
            await self.probe()
            await self._settle(cpu)
            numbers = await self._all_numbers()
            cost.numbers = {name: value - self._numbers.get(name, 0) for name, value in numbers.items()}
            self._numbers = numbers
            await self.probe()
        except (DeadNodeError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            await asyncio.sleep(0.1)
            cost.failure = (
                f"the node {node.why()}"
                if not node.is_running
                else f"another client's probe: {str(error) or repr(error)}"
            )
        cost.turn = max(node.meter.longest, node.killed_at)
        cost.collection = node.meter.longest_collection
        cost.where = node.meter.where
        cost.cpu = max(node.cpu() - cpu, 0.0)
        cost.memory = node.growth()
        if files and node.is_running:
            before, self._files = self._files, node.files()
            cost.files, cost.disk = self._files[0] - before[0], self._files[1] - before[1]
        if cost.failure:
            await self.close()

    async def _settle(self, cpu: float) -> None:
        """Wait for work that goes on in other threads."""
        assert self.node is not None
        for _ in range(400):
            now = self.node.cpu()
            if now - cpu < 0.1:
                return
            cpu = now - 0.08
            await asyncio.sleep(0.05)
            if self.node.cpu() == now:
                return

    async def volley(self, frames: Sequence[bytes]) -> Cost:
        """Send each frame by one of a few connections, and an ApiVersions behind it that shows that it got through."""
        async with self.measured(sum(map(len, frames)), requests=len(frames)) as cost:
            await asyncio.gather(*(self._lane(frames[lane::LANES]) for lane in range(LANES)))
        return cost

    async def _lane(self, frames: Sequence[bytes]) -> None:
        assert self.node is not None
        wire: Wire | None = None
        for frame in frames:
            try:
                wire = wire or await Wire.open(self.node.port)
                wire.writer.write(frame + PING)
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while (await wire.frame())[:4] != PING[8:12]:
                        pass
            except (TimeoutError, OSError, asyncio.IncompleteReadError):
                if wire is not None:
                    await wire.close()
                wire = None
        if wire is not None:
            await wire.close()

    async def send(self, frames: Sequence[bytes], *, requests: int = 1, files: bool = False) -> Cost:
        async with self.measured(sum(map(len, frames)), requests=requests, files=files) as cost:
            await self._exchange(frames, PATIENCE_SECONDS)
        return cost

    def frames_of(self, case: Case) -> list[bytes]:
        """See `cost_mutations.frames_of`."""
        return frames_of(self.world, case)


class Search:
    """What was tried and what came of it."""

    def __init__(self, *, say: Callable[[str], object] = print) -> None:
        self.bench = Bench()
        self.findings: list[Finding] = []
        self.once: list[str] = []  # out of bounds, but not when tried again
        self.counts: Counter[str] = Counter()
        self.dearest: dict[str, tuple[float, str]] = {}  # the longest turn of each api
        self._say = say

    async def grow(self, place: str, cases: Iterable[Case], *, files: bool = False) -> None:
        """Try each case until one is out of bounds, which is tried once more on a node of its own."""
        for case in cases:
            await self.bench.ready()
            try:
                frames = self.bench.frames_of(case)
            except NO_REQUEST:
                continue
            if len(frames[0]) > REQUEST_BYTES_MAX:
                return
            if await self.tried(place, case, files=files):
                return

    async def tried(self, place: str, case: Case, *, files: bool = False) -> bool:
        """Send and say whether it was out of bounds twice."""
        what, requests = str(case), case.pipelined * case.connections
        cost = await self.bench.send(self.bench.frames_of(case), requests=requests, files=files)
        self.note(what, cost)
        if not cost.broken():
            return False
        # Some cost only once, as topics that are made then exist: those are tried again on another node.
        for fresh in (False, True):
            await self.bench.ready(fresh=fresh)
            again = await self.bench.send(self.bench.frames_of(case), requests=requests, files=files)
            kinds = {kind: said for kind, said in again.broken().items() if kind in cost.broken()}
            if kinds:
                await self.keep(Finding(what, kinds, again, place))
                return True
        self.counts["out of bounds once"] += 1
        self.once.append(f"{what}: {cost.broken()}")
        return False

    async def tried_frame(self, place: str, what: str, frame: bytes) -> bool:
        """As `tried`, for bytes of which nothing more is known."""
        costs = []
        for fresh in (False, False, True):
            await self.bench.ready(fresh=fresh)
            costs.append(await self.bench.send([frame]))
            if not fresh and not costs[-1].broken():
                return False
            kinds = {kind: said for kind, said in costs[-1].broken().items() if kind in costs[0].broken()}
            if len(costs) > 1 and kinds:
                await self.keep(Finding(what, kinds, costs[-1], place))
                return True
        return False

    async def keep(self, found: Finding) -> None:
        if found.place in KNOWN and found.kinds.keys() <= KNOWN[found.place]:
            self._say(f"known (docs/reliability.md): {found}")
        else:
            self.findings.append(found)
            self._say(str(found))
        if found.kinds.keys() - {"turn", "memory", "cpu"}:
            await self.bench.close()

    def note(self, what: str, cost: Cost) -> None:
        self.counts["steps"] += 1
        api = what.split(maxsplit=1)[0]
        if cost.turn > self.dearest.get(api, (0.0, ""))[0]:
            self.dearest[api] = (cost.turn, what)


def grid(keys: Iterable[ApiKey]) -> Iterator[tuple[str, list[Case]]]:
    """Yield every mutation of every field of the newest version, and of the oldest where that is laid out otherwise."""
    for key in keys:
        api = APIS[key]
        newest = versions_of(key)[-1]
        yield f"{key.name} frame", [Case(key, newest, bytes_sent=8, connections=count) for count in (1, *CONNECTIONS)]
        yield f"{key.name} in a row", [Case(key, newest, pipelined=count) for count in PIPELINED]
        yield f"{key.name} connections", [Case(key, newest, connections=count) for count in CONNECTIONS]
        if api.flexible_from <= newest:
            yield f"{key.name} tags", [Case(key, newest, (Mutation("tags", (), size),)) for size in GROWTH]
        for variant in VARIANTS.get(key, {}):
            yield f"{key.name} {variant}", [Case(key, newest, variant=variant, connections=count) for count in (1, 16)]
            for place in places_of(key, newest):
                for growth in growths_of(key, place) if place.kind != "records" else ():
                    cases = [Case(key, newest, (mutation,), variant=variant) for mutation in growth]
                    yield f"{key.name} {variant} {'.'.join(place.path)}", cases
        for place in places_of(key, newest):
            for growth in growths_of(key, place):
                cases = [Case(key, newest, (mutation,)) for mutation in growth]
                if place.kind == "records":
                    for topic in ("plain", "compacted", "bounded", "validated", "quarantined", "appended"):
                        yield f"{key.name} {'.'.join(place.path)}", [case._replace(topic=topic) for case in cases]
                else:
                    yield f"{key.name} {'.'.join(place.path)}", cases


async def run_grid(
    search: Search, keys: Sequence[ApiKey], at_each: Callable[[int], object] = lambda count: None
) -> None:
    for place, cases in grid(keys):
        await search.grow(place, cases, files=any("edge" in str(case) or "distinct" in str(case) for case in cases))
        at_each(len(cases))


async def run_random(search: Search, seed: int, indexes: range) -> None:
    for index in indexes:
        case = random_case(Random(seed << 40 | index))
        if case.key in LAST:
            continue
        await search.grow(f"random {seed}:{index}", [case], files=index % 20 == 0)


async def run_volleys(
    search: Search, seed: int, indexes: range, at_each: Callable[[int], object] = lambda count: None
) -> None:
    """
    Throw many requests over a few connections at once; of those that pass a bound together each is tried alone.

    Most are broken in their bytes, the others are those of the search.
    """
    fuzzer = RequestFuzzer(seed)
    for first in range(indexes.start, indexes.stop, VOLLEY):
        numbers = range(first, min(first + VOLLEY, indexes.stop))
        await search.bench.ready()
        requests = [_of_volley(search, fuzzer, seed, index) for index in numbers]
        cost = await search.bench.volley([frame for _, frame in requests])
        search.counts["requests over sockets"] += len(numbers)
        if cost.broken():
            before = len(search.findings)
            for index, (what, frame) in zip(numbers, requests, strict=True):
                await search.tried_frame(f"volley {seed}:{index}", what, frame)
            # Turns in which several lanes' requests met are no finding, nor what all left behind; what was broken
            # otherwise is.
            together = {"turn", "cpu", "collection"}
            if len(search.findings) == before and cost.broken().keys() - together:
                kinds = {kind: said for kind, said in cost.broken().items() if kind not in together}
                await search.keep(Finding(f"requests {first} to {numbers.stop} of seed {seed}", kinds, cost, "volley"))
        at_each(len(numbers))


def _of_volley(search: Search, fuzzer: RequestFuzzer, seed: int, index: int) -> tuple[str, bytes]:
    rng = Random(seed << 40 | index)
    if rng.random() < SEARCHED_SHARE:
        case = random_case(rng)._replace(connections=1)
        if case.key not in LAST:
            with contextlib.suppress(*NO_REQUEST):
                (frame,) = search.bench.frames_of(case)
                if len(frame) <= REQUEST_BYTES_MAX:
                    return str(case), frame
    frame = framed(fuzzer.request(index))
    return f"bytes {frame[4:40].hex()}", frame
