"""
No number or name in a request lasts longer than it should: a part of what `make fuzz` sends, and what finds it.
"""

from pathlib import Path
from random import Random

from fuzz_persistent import cases, out_of_bounds, run, running, surroundings

from log_broker.core.cluster.records import ProducerIdsReserved
from log_broker.wire.apis import APIS

SEED = 20_263


async def test_nothing_that_is_kept_leaves_its_bounds_and_the_node_starts_again(tmp_path: Path) -> None:
    report = await run(tmp_path, SEED, share=0.1)

    assert not report.findings, "\n".join(report.findings)
    assert report.requests > 400


async def test_every_api_is_asked_at_the_edges_of_each_of_its_fields(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        found = list(cases(await surroundings(node), Random(SEED)))

    assert {case.api for case in found} == set(APIS)
    assert {"a batch's producer_id", "markers.coordinator_epoch", "topics.partitions.replica_epoch"} <= {
        case.field for case in found
    }


async def test_a_number_out_of_its_bounds_is_noticed(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await surroundings(node)
        assert out_of_bounds(node) == []
        await node.authority.submit(lambda image: [ProducerIdsReserved(end=2**62)])
        assert out_of_bounds(node) == [f"producer ids are reserved up to {2**62}"]
