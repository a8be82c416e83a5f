"""Broken requests over sockets to a broker process, and a good client beside that must not notice."""

from pathlib import Path

from fuzz_node import NodeUnderFire, fire

REQUESTS = 1_500
SEED = 20_261


async def test_a_good_client_notices_nothing_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with NodeUnderFire(tmp_path) as node:
        report = await fire(node, SEED, REQUESTS)

    assert not report.findings, "\n".join(report.findings)
    assert report.outcomes["answered"] > REQUESTS // 5, report
    assert report.outcomes["closed"] > REQUESTS // 50, report
