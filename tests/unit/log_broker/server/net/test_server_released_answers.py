"""A sent answer is let go of at once: what is in a circle stays until the collector looks at everything."""

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from node_client import client_of, running

from log_broker.records import build_batch
from log_broker.server.handlers.data.fetch_reader import FetchReader
from log_broker.wire.apis import ApiKey

BATCH = bytes(build_batch([(1, b"k", bytes(100_000), ())]))


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def fetched(offset: int, wait_ms: int) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    return {
        "replica_id": -1,
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": "t", "partitions": [partition]}],
        "forgotten_topics_data": (),
        "rack_id": "",
    }


def readers() -> int:
    """How many fetches there are, each with what it has read."""
    return sum(isinstance(each, FetchReader) for each in gc.get_objects())


@pytest.mark.parametrize("comes", [True, False])
async def test_nothing_stays_of_a_fetch_that_has_waited(tmp_path: Path, comes: bool) -> None:
    async with running(tmp_path) as (node, client), client_of(node) as other:
        await client.create("t", fluvial_durability="memory")
        for offset in range(3):
            waiting = asyncio.create_task(
                client.ask(ApiKey.FETCH, fetched(offset, 60_000 if comes else 20), version=11)
            )
            while not node.waiting_fetches and not waiting.done():  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.001)
            if comes:
                assert readers() == 1
                await other.produce("t", BATCH)
            answer = await waiting
            assert len(answer.responses[0].partitions[0].records or b"") == (len(BATCH) if comes else 0)
            del answer, waiting
            assert readers() == 0
