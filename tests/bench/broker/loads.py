"""The loads that run on warm brokers: bulk produce, single-record requests, consumption, compressed batches."""

from tests.bench.broker.arena import (
    ALL_SIDES,
    KAFKA_DEFAULT,
    KAFKA_FLUSH,
    OURS_FSYNC,
    OURS_MEMORY,
    Arena,
    Side,
)
from tests.bench.broker.measuring import Sample, drive, topic
from tests.bench.broker.rows import Row, throughput_rows
from tests.bench.broker.servers import Broker

# (connections, in flight): (aim without fsync, aim with fsync against flush.messages=1)
SHAPES = {(1, 1): (1.5, 3), (16, 1): (1.5, 2), (64, 1): (1.2, 3), (4, 8): (2.5, 4), (16, 16): (2, 8)}
SINGLE_PARTITIONS = 4
# (bytes of a value, messages, partitions, bytes of a partition in a fetch), of which librdkafka's default is the first
FETCHES = (
    (100, 2_000_000, 1, 1 << 20),
    (1000, 500_000, 1, 1 << 20),
    (1000, 500_000, 1, 4 << 20),
    (1000, 500_000, 4, 4 << 20),
)


def bulk(arena: Arena) -> list[Row]:
    rows = []
    for value_bytes, messages, aim in ((1000, 400_000, 1.3), (100, 2_000_000, 1.1)):
        load = {"mode": "produce", "messages": arena.scale.count(messages), "value_bytes": value_bytes}

        def run(broker: Broker, side: Side, load: dict[str, object] = load) -> Sample:
            return arena.produce(broker, side, "bulk", load)

        what = f"bulk produce, {value_bytes} B"
        found = arena.rounds(what, ALL_SIDES, run)
        for ours, kafka, least in (
            (OURS_MEMORY, KAFKA_DEFAULT, aim),
            (OURS_FSYNC, KAFKA_DEFAULT, 1.0),
            (OURS_FSYNC, KAFKA_FLUSH, 3.0),
        ):
            rows += throughput_rows("bulk", _named(what, ours, kafka), found[ours], found[kafka], aim=least)
    return rows


def single(arena: Arena) -> list[Row]:
    rows = []
    for (connections, in_flight), (aim, aim_fsync) in SHAPES.items():
        load = {
            "connections": connections,
            "in_flight": in_flight,
            "acks": 1,
            "value_bytes": 100,
            "seconds": arena.scale.seconds(2),
        }

        def run(broker: Broker, side: Side, load: dict[str, object] = load) -> Sample:
            return arena.produce(broker, side, "raw_requests", load, partitions=SINGLE_PARTITIONS)

        what = f"single records, {connections}x{in_flight}"
        found = arena.rounds(what, ALL_SIDES, run)
        for ours, kafka, least in ((OURS_MEMORY, KAFKA_DEFAULT, aim), (OURS_FSYNC, KAFKA_FLUSH, aim_fsync)):
            rows += throughput_rows("single", _named(what, ours, kafka), found[ours], found[kafka], aim=least)
    return rows


def consume(arena: Arena) -> list[Row]:
    """One consumer of all partitions, by librdkafka's default of 1 MiB a partition and fetch, and by larger ones."""
    rows = []
    for value_bytes, messages, partitions, fetch_bytes in FETCHES:
        count = arena.scale.count(messages)
        filling = {"mode": "produce", "messages": count, "value_bytes": value_bytes, "partitions": partitions}
        name = arena.topic_name()
        reading = {**filling, "topic": name, "mode": "consume"}
        reading["client"] = {"fetch.message.max.bytes": str(fetch_bytes)}
        with (
            topic(arena.broker("ours"), name, partitions, OURS_FSYNC.config),
            topic(arena.broker("Kafka"), name, partitions, KAFKA_DEFAULT.config),
        ):
            for broker in ("ours", "Kafka"):
                drive(arena.broker(broker), "bulk", {**filling, "topic": name})

            def run(broker: Broker, side: Side, load: dict[str, object] = reading) -> Sample:
                return drive(broker, "bulk", load)

            what = f"consume, {value_bytes} B"
            if fetch_bytes != FETCHES[0][-1]:
                what += f", {fetch_bytes >> 20} MiB a fetch, {partitions} partition{'s' if partitions > 1 else ''}"
            found = arena.rounds(what, (OURS_FSYNC, KAFKA_DEFAULT), run)
        rows += throughput_rows("consume", what, found[OURS_FSYNC], found[KAFKA_DEFAULT], aim=1.1)
    return rows


def compressed(arena: Arena) -> list[Row]:
    rows = []
    for codec in ("lz4", "zstd"):
        load = {
            "mode": "produce",
            "messages": arena.scale.count(400_000),
            "value_bytes": 1000,
            "compression": codec,
        }

        def run(broker: Broker, side: Side, load: dict[str, object] = load) -> Sample:
            return arena.produce(broker, side, "bulk", load)

        what = f"bulk produce, 1000 B, {codec}"
        sides = (OURS_MEMORY, KAFKA_DEFAULT, OURS_FSYNC)
        found = arena.rounds(what, sides, run)
        for ours in (OURS_MEMORY, OURS_FSYNC):
            title = _named(what, ours, KAFKA_DEFAULT)
            rows += throughput_rows("compressed", title, found[ours], found[KAFKA_DEFAULT], aim=1.0)
    return rows


def _named(what: str, ours: Side, kafka: Side) -> str:
    return f"{what}: {ours.level} : Kafka {kafka.level}"
