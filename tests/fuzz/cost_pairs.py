"""
Requests that meet: many that wait, and what happens to wake them.

A request waits if its fields for patience say so; each api is tried as the one that waits and as what happens.
"""

import asyncio
import contextlib
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from cost_corpus import LAST, VARIANTS
from cost_meter import is_long
from cost_mutations import NO_REQUEST, REQUEST_BYTES_MAX, Case, Mutation, places_of, versions_of
from cost_node import DeadNodeError
from cost_search import PATIENCE_SECONDS, Cost, Finding, Search
from fuzz_node import Wire

from log_broker.wire.apis import APIS, ApiKey

# Those that have something to wait for are tried more often.
WAITING = (
    ApiKey.FETCH,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.PRODUCE,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.LIST_OFFSETS,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_RECORDS,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.OFFSET_COMMIT,
)
EVENTS = (
    ApiKey.PRODUCE,
    ApiKey.LEAVE_GROUP,
    ApiKey.JOIN_GROUP,
    ApiKey.END_TXN,
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_TOPICS,
)
PATIENT = {"max_wait": 60_000, "min_bytes": 2**31 - 1, "timeout": 60_000, "rebalance_timeout": 60_000}
SIZES = (10, 100, 1_000)


class Pair(NamedTuple):
    """`waiting` is sent first and left unanswered if it waits; then comes `event`."""

    waiting: Case
    event: Case

    def __str__(self) -> str:
        return f"{self.waiting} | then {self.event}"


def pairs(seed: int, index: int) -> list[Pair]:
    """Return the pair of an index in its sizes. The first ones go through what waits and what happens in order."""
    rng = Random(seed << 40 | index)
    everything = [api.key for api in APIS.values() if api.key not in LAST]
    ordered = len(WAITING) * len(EVENTS)
    if index < ordered:
        first, second = WAITING[index // len(EVENTS)], EVENTS[index % len(EVENTS)]
    else:
        first = rng.choice(WAITING if rng.random() < 0.5 else everything)
        second = rng.choice(EVENTS if rng.random() < 0.5 else everything)
    waiting = _patient(rng, first, index < ordered)
    event = _drawn(rng, second, index < ordered)
    arrays = [place.path for place in places_of(first, waiting.version) if place.kind == "array" and not place.tagged]
    path = max(arrays, key=len) if arrays and index < ordered else (rng.choice(arrays) if arrays else None)
    what = "distinct" if index >= ordered and rng.random() < 0.4 else "repeat"
    connections = 1 if path and rng.random() < 0.7 else 0
    return [
        Pair(
            waiting._replace(
                mutations=(*waiting.mutations, *((Mutation(what, path, size),) if path and connections else ())),
                connections=connections or min(size, 200),
            ),
            event,
        )
        for size in SIZES
    ]


def _patient(rng: Random, key: ApiKey, newest: bool) -> Case:
    case = _drawn(rng, key, newest)
    patience = tuple(
        Mutation("edge", place.path, PATIENT[place.path[-1]])
        for place in places_of(key, case.version)
        if place.path[-1] in PATIENT
    )
    return case._replace(mutations=patience)


def _drawn(rng: Random, key: ApiKey, newest: bool) -> Case:
    versions = versions_of(key)
    version = versions[-1] if newest else rng.choice(versions)
    case = Case(key, version)
    if newest:
        return case
    arrays = [place.path for place in places_of(key, version) if place.kind == "array" and not place.tagged]
    if arrays and rng.random() < 0.5:
        case = case._replace(mutations=(Mutation("distinct", rng.choice(arrays), rng.choice((2, 10, 100))),))
    return case._replace(
        topic="wide" if rng.random() < 0.7 else "plain",
        variant=rng.choice(["", "", *VARIANTS.get(key, {})]),
        pipelined=rng.choice((1, 1, 1, 5)),
    )


async def run_pairs(
    search: Search, seed: int, indexes: range, at_each: Callable[[int], object] = lambda count: None
) -> None:
    for index in indexes:
        for pair in pairs(seed, index):
            if await _tried(search, f"pair {seed}:{index}", pair):
                break
        at_each(1)


async def _tried(search: Search, place: str, pair: Pair) -> bool:
    costs: list[Cost] = []
    for fresh in (False, False, True):
        await search.bench.ready(fresh=fresh)
        try:
            first, then = search.bench.frames_of(pair.waiting), search.bench.frames_of(pair.event)
        except NO_REQUEST:
            return True
        if len(first[0]) > REQUEST_BYTES_MAX:
            return True
        cost, alone = await _met(search, first, then)
        if not costs:
            search.note(str(pair), cost)
        if is_long(alone) or not cost.broken():
            # The first by itself is for the search of single requests.
            if costs:
                continue
            return is_long(alone)
        costs.append(cost)
        if len(costs) == 2:
            kinds = {kind: said for kind, said in cost.broken().items() if kind in costs[0].broken()}
            if kinds:
                await search.keep(Finding(str(pair), kinds, cost, place))
                return True
    search.counts["out of bounds once"] += 1
    search.once.append(f"{pair}: {costs[0].broken()}")
    return False


async def _met(search: Search, first: list[bytes], then: list[bytes]) -> tuple[Cost, float]:
    """Return what both cost, and the longest turn that the first took alone."""
    bench = search.bench
    waiting: list[Wire] = []
    alone = 0.0
    sent = sum(map(len, first)) + sum(map(len, then))
    async with bench.measured(sent, requests=len(first) + len(then)) as cost:
        node = bench.node
        assert node is not None
        try:
            for frame in first:
                wire = await Wire.open(node.port)
                wire.writer.write(frame)
                waiting.append(wire)
            await bench.probe()
            await asyncio.sleep(0.01)
            await bench.probe()
            alone = node.meter.longest
            wire = await Wire.open(node.port)
            waiting.append(wire)
            with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError, ConnectionError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    for frame in then:
                        wire.writer.write(frame)
                    await wire.frame()
            await bench.probe()
        except OSError as error:
            raise DeadNodeError(str(error)) from error
        finally:
            for wire in waiting:
                await wire.close()
    return cost, alone
