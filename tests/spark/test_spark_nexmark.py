"""
Nexmark's queries over a few thousand events: each table has the answer of the batch query in SQL after each batch.
"""

from dataclasses import replace
from typing import Any

import pytest

from fluvial.config import Settings
from fluvial.testing.embedded import embedded_platform
from tests.bench.nexmark.answers import differences, refresh, write_batch
from tests.bench.nexmark.auction_house import AuctionHouse
from tests.bench.nexmark.generator import Generator
from tests.bench.nexmark.queries import QUERIES
from tests.by_changes import refreshed_by_changes

EVENTS, RATE = 1500, 200
ROADS = {
    **dict.fromkeys(("q0", "q1", "q2", "q13", "q14"), "rows"),
    **dict.fromkeys(("q3", "q7", "q8", "q9", "q11", "q20"), "keys"),
    "q4": "keys+parts",
    "q5": "parts+keys",
}


@pytest.mark.rota
@pytest.mark.spark
def test_tables_that_follow_have_the_answers_of_batch_queries(warehouse_settings: Settings, spark: Any) -> None:
    with embedded_platform() as platform, refreshed_by_changes():
        settings = replace(
            warehouse_settings, bootstrap_servers=platform.bootstrap_servers, registry_url=platform.registry_url
        )
        house = AuctionHouse(platform=platform, spark=spark, settings=settings, generator=Generator(rate=RATE))
        house.open()
        for number in range(2):
            house.send(EVENTS)
            house.refresh()
            roads = {name: refresh(house, query).roads for name, query in QUERIES.items()}
            for query in QUERIES.values():
                write_batch(house, query)
            found = {name: differences(house, query) for name, query in QUERIES.items()}
            assert not any(found.values()), found
            if number:
                assert roads == ROADS
        empty = [name for name, query in QUERIES.items() if house.read(query.marts[-1].table).isEmpty()]
        assert not empty


def test_the_same_seed_gives_the_same_events_however_many_come_at_once() -> None:
    at_once, in_parts = Generator(), Generator()
    parts = [in_parts.take(777) for _ in range(5)]
    whole = at_once.take(5 * 777)
    assert {kind: [event for part in parts for event in part[kind]] for kind in whole} == whole
