"""What is held against what: neither broker syncs, or both do before they acknowledge."""

from collections.abc import Callable

from tests.bench.broker.arena import ALL_SIDES, KAFKA_DEFAULT, KAFKA_FLUSH, OURS_FSYNC, OURS_MEMORY, Arena, Side
from tests.bench.broker.measuring import Sample
from tests.bench.broker.rows import Row, throughput_rows
from tests.bench.broker.servers import Broker

PAIRS = ((OURS_MEMORY, KAFKA_DEFAULT), (OURS_FSYNC, KAFKA_FLUSH))


def compared(
    arena: Arena, group: str, what: str, run: Callable[[Broker, Side], Sample], unit: str = "messages/s"
) -> list[Row]:
    """Measure a load in rounds and return its rows, those of each pair by themselves."""
    found = arena.rounds(what, ALL_SIDES, run)
    rows = []
    for ours, kafka in PAIRS:
        load = f"{what}: {ours.level} : Kafka {kafka.level}"
        rows += throughput_rows(group, load, found[ours], found[kafka], aim=1.0, unit=unit)
    return rows
