"""A consumer that waits at 1,000 partitions beside steady producers: what it costs them and the broker."""

from contextlib import ExitStack

from tests.bench.broker.arena import KAFKA_DEFAULT, OURS_FSYNC, OURS_MEMORY, PROGRESS, Arena, Side
from tests.bench.broker.measuring import Sample, drive, topic
from tests.bench.broker.rows import Row
from tests.bench.broker.servers import Broker

PARTITIONS = 1_000
RECORDS_A_SECOND = 1_000
MIN_BYTES = (0, 1, 1_000_000)  # 0: no consumer
WARM_UP_RUNS = 3
P99_AIM = 1.5  # of produce with the last of these, to that with 1


def waiting(arena: Arena) -> list[Row]:
    """Every side with each `fetch.min.bytes` in every round; fetches cost what the broker needs beyond no consumer."""
    partitions = arena.scale.count(PARTITIONS)
    load = {
        "partitions": partitions,
        "records_a_second": RECORDS_A_SECOND,
        "producers": 2,
        "value_bytes": 100,
        "seconds": arena.scale.seconds(10),
    }
    asked = {
        Side(side.broker, f"{side.level}, {_named(min_bytes)}", side.config): (side, min_bytes)
        for side in (OURS_MEMORY, KAFKA_DEFAULT, OURS_FSYNC)
        for min_bytes in MIN_BYTES
    }
    with ExitStack() as stack:
        names = {
            side: stack.enter_context(topic(arena.broker(side.broker), arena.topic_name(), partitions, side.config))
            for side in (OURS_MEMORY, KAFKA_DEFAULT, OURS_FSYNC)
        }

        def run(broker: Broker, at: Side) -> Sample:
            side, min_bytes = asked[at]
            return drive(broker, "waiting_load", {"topic": names[side], "fetch_min_bytes": min_bytes, **load})

        for at, (side, min_bytes) in asked.items():  # Kafka's JVM learns this load for as long as half a minute
            if min_bytes == 1 and side.broker == "Kafka":
                PROGRESS.print(f"warming up {arena.broker(side.broker).name} …", style="dim")
                for _ in range(WARM_UP_RUNS):
                    run(arena.broker(side.broker), at)
        by_name = arena.rounds(f"{partitions:,} partitions, {RECORDS_A_SECOND:,} records/s", tuple(asked), run)
    found = {asked[at]: sample for at, sample in by_name.items()}
    rows = []
    for ours in (OURS_MEMORY, OURS_FSYNC):
        rows += _rows(f"{partitions:,} partitions: {ours.level} : Kafka default", found, ours)
    return rows


def _named(min_bytes: int) -> str:
    return f"fetch.min.bytes={min_bytes}" if min_bytes else "no consumer"


def _rows(what: str, found: dict[tuple[Side, int], Sample], ours: Side) -> list[Row]:
    kafka = KAFKA_DEFAULT
    rows = [
        Row(
            group="waiting",
            load=f"{what}, {_named(min_bytes)}",
            unit="p99 ms of produce",
            ours=found[ours, min_bytes].p99_ms,
            kafka=found[kafka, min_bytes].p99_ms,
        )
        for min_bytes in MIN_BYTES
    ]
    least, most = MIN_BYTES[1:]
    rows.append(
        Row(
            group="waiting",
            load=f"{what}, p99 of produce with {_named(most)} beside {_named(least)}",
            unit="times",
            ours=found[ours, most].p99_ms / found[ours, least].p99_ms,
            kafka=found[kafka, most].p99_ms / found[kafka, least].p99_ms,
            ours_at_most=P99_AIM,
        )
    )
    for min_bytes in MIN_BYTES[1:]:
        mine, theirs = (
            max(found[side, min_bytes].cpu_micros - found[side, 0].cpu_micros, 0.0) for side in (ours, kafka)
        )
        rows.append(
            Row(
                group="waiting",
                load=f"{what}, {_named(min_bytes)}",
                unit="server CPU µs of fetches/record",
                ours=mine,
                kafka=theirs,
                aim=1.0,
                at_most=True,
            )
        )
    return rows
