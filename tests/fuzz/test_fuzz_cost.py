"""
A small part of the search for cost, the same each time: what once stopped a broker, and its neighbours.

The whole is `make fuzz`. CPU of the node's own thread is measured, and what passes a bound is tried again.
"""

import asyncio
import gc
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from cost_corpus import LAST, values_of
from cost_meter import TURN_SECONDS_MAX, Meter, MeteredLoop
from cost_mutations import Case, Mutation, versions_of
from cost_pairs import run_pairs
from cost_run import Amounts, Order, run_part
from cost_schemas import run_schemas
from cost_search import Search
from cost_states import run_states
from fuzz_node import Wire

from log_broker.wire.apis import APIS, ApiKey

SEED = 20_262
RECORDS = ("topic_data", "partition_data", "records")
# One of every kind; each is turned up until a bound is passed.
GROWN = {
    "lengths promised": [Case(ApiKey.API_VERSIONS, 4, bytes_sent=8, connections=count) for count in (4, 16)],
    "records of a batch": [
        Case(ApiKey.PRODUCE, 12, (Mutation("bomb", RECORDS, size, "ZSTD keyed"),), topic="compacted")
        for size in (10_000, 1_000_000)
    ],
    "records of a late batch": [
        Case(ApiKey.PRODUCE, 12, (Mutation("bomb", RECORDS, size, "GZIP late"),)) for size in (10_000, 1_000_000)
    ],
    "a partition named again": [
        Case(ApiKey.LIST_OFFSETS, 10, (Mutation("repeat", ("topics", "partitions"), size),)) for size in (100, 20_000)
    ],
    "an epoch": [
        Case(ApiKey.END_QUORUM_EPOCH, 1, (Mutation("edge", ("topics", "partitions", "leader_epoch"), 2**31 - 1),))
    ],
    "an epoch of a fetch": [
        Case(
            ApiKey.FETCH,
            18,
            (Mutation("edge", ("topics", "partitions", "current_leader_epoch"), 2**31 - 1),),
            variant="quorum",
        )
    ],
    "a pattern": [
        Case(ApiKey.LIST_TRANSACTIONS, 2, (Mutation("pattern", ("transactional_id_pattern",), 1),), variant="all")
    ],
    "a count": [Case(ApiKey.CREATE_PARTITIONS, 3, (Mutation("edge", ("topics", "count"), 100_000),))],
    "an id": [Case(ApiKey.OFFSET_COMMIT, 9, (Mutation("long", ("group_id",), size),)) for size in (30_000, 1_000_000)],
    "requests in a row": [Case(ApiKey.DESCRIBE_CONFIGS, 4, pipelined=count) for count in (100, 500)],
}


class Searching:
    """A search and the loop that all tests run it in."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.search = Search(say=lambda text: None)
        self._runner = runner

    def run(self, work: Coroutine[Any, Any, object]) -> None:
        self._runner.run(work)

    def none_of(self) -> None:
        findings, self.search.findings = self.search.findings, []
        assert not findings, "\n".join(map(str, findings))


@pytest.fixture(scope="module")
def searching() -> Iterator[Searching]:
    with asyncio.Runner() as runner:
        searching = Searching(runner)
        try:
            yield searching
        finally:
            searching.run(searching.search.bench.close())


def test_every_api_has_a_request_that_the_node_answers(searching: Searching) -> None:
    answered: dict[ApiKey, Any] = {}

    async def ask() -> None:
        node = await searching.search.bench.ready()
        wire = await Wire.open(node.port)
        for api in APIS.values():
            if api.key not in LAST:
                version = versions_of(api.key)[-1]
                values = values_of(searching.search.bench.world, api.key, version)
                async with asyncio.timeout(60):
                    answered[api.key] = await wire.ask(api.key, version, values)
        await wire.close()

    searching.run(ask())

    fine = {key for key, answer in answered.items() if getattr(answer, "error_code", 0) == 0}
    assert len(answered) == len(APIS) - len(LAST)
    assert len(fine) > 50, set(answered) - fine


@pytest.mark.parametrize("name", GROWN)
def test_no_request_costs_more_than_its_bounds(searching: Searching, name: str) -> None:
    searching.run(searching.search.grow(name, GROWN[name], files=True))

    searching.none_of()


def test_no_request_that_waits_costs_more_when_it_is_woken(searching: Searching) -> None:
    searching.run(run_pairs(searching.search, SEED, range(3)))

    searching.none_of()


def test_what_is_stored_does_not_cost_its_readers(searching: Searching) -> None:
    readers = (ApiKey.LIST_OFFSETS, ApiKey.FETCH, ApiKey.DESCRIBE_PRODUCERS)
    searching.run(run_states(searching.search, ["zstd same records"], readers))

    searching.none_of()


def test_schemas_cost_no_more_than_their_shape(searching: Searching) -> None:
    shapes = ["avro records to the power of 8", "json references to the power of 8"]
    searching.run(run_schemas(searching.search, shapes))

    searching.none_of()


async def test_requests_through_decoders_and_handlers_stay_within_bounds() -> None:
    order = Order("bulk", Amounts(seed=SEED, requests=3_000))

    findings = await run_part(order, lambda text: None, lambda count: None)

    assert not findings, "\n".join(findings)


def test_a_long_turn_is_measured_and_where_it_was_is_told(tmp_path: Path) -> None:
    meter = Meter(tmp_path / "meter")

    def burn() -> None:
        end = time.thread_time() + 3 * TURN_SECONDS_MAX
        while time.thread_time() < end:
            pass

    async def main() -> None:
        meter.watch_this_thread()
        await asyncio.sleep(0)
        meter.reset()
        asyncio.get_running_loop().call_soon(burn)
        await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=lambda: MeteredLoop(meter)) as runner:
        runner.run(main())

    assert meter.longest >= 3 * TURN_SECONDS_MAX


def test_a_full_collection_is_no_part_of_the_turn_that_it_falls_on(tmp_path: Path) -> None:
    meter = Meter(tmp_path / "meter")
    held = [[number] for number in range(300_000)]

    async def main() -> None:
        meter.watch_this_thread()
        await asyncio.sleep(0)
        meter.reset()
        asyncio.get_running_loop().call_soon(gc.collect)
        await asyncio.sleep(0.01)

    try:
        with asyncio.Runner(loop_factory=lambda: MeteredLoop(meter)) as runner:
            runner.run(main())
    finally:
        gc.callbacks.remove(meter._collects)
    assert held
    assert 0 < meter.longest < meter.longest_collection
