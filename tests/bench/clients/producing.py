"""What a producer's choices cost: acks and copies, linger, batches, compression, waiting, exactly once."""

import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import TopicPartition

from tests.bench.clients.measure import Figure, Nodes, nodes, one_by_one, paced, producer, quantile, rate, reader

TRANSACTION_RECORDS = 1_000


def acks(size: float) -> Iterator[Figure]:
    """Acknowledgement by copies: rate of a bulk load, and the time of one record at a time."""
    bulk, single = int(100_000 * size), int(300 * size)
    with nodes(3) as running:
        for copies in (1, 2, 3):
            for how in ("0", "1", "all"):
                choice = f"acks={how}, {copies} cop{'y' if copies == 1 else 'ies'}"
                topic = running.topic(copies=copies)
                yield Figure(group="acks", choice=choice, what="records/s", value=rate(running, topic, bulk, acks=how))
                times = one_by_one(running, topic, single, acks=how)
                for share in (0.5, 0.99):
                    what = f"p{share * 100:.0f} ms"
                    yield Figure(group="acks", choice=choice, what=what, value=quantile(times, share))


def linger(size: float) -> Iterator[Figure]:
    """How long a batch may wait to be filled: 2,000 records a second, and what each waits for its answer."""
    with nodes(1) as running:
        for wait_ms in (0, 1, 5, 20, 50, 100):
            topic = running.topic()
            client = producer(running, linger_ms=wait_ms)
            times: list[float] = []

            def send(_: int, client: Any = client, topic: str = topic, times: list[float] = times) -> None:
                began = time.perf_counter()
                client.produce(
                    topic, b"x" * 100, on_delivery=lambda *_: times.append((time.perf_counter() - began) * 1000)
                )
                client.poll(0)

            paced(max(200, int(3_000 * size)), 2_000, send)
            client.flush(30)
            times.sort()
            choice = f"linger.ms={wait_ms}"
            batches = _requests(running, topic)
            yield Figure(group="linger", choice=choice, what="p50 ms", value=quantile(times, 0.5))
            yield Figure(group="linger", choice=choice, what="p99 ms", value=quantile(times, 0.99))
            yield Figure(group="linger", choice=choice, what="records a batch", value=len(times) / batches)
            bulk = rate(running, running.topic(), int(100_000 * size), linger_ms=wait_ms)
            yield Figure(group="linger", choice=choice, what="records/s, as fast as it goes", value=bulk)


def _requests(running: Nodes, topic: str) -> int:
    """How many batches a topic of one partition holds, by the files of its leader."""
    from log_broker.records import batches_in

    (member,) = running.members
    files = sorted((member.data_dir / f"{topic}-0").glob("*.log"))
    return sum(1 for file in files for _ in batches_in(file.read_bytes()))


def batching(size: float) -> Iterator[Figure]:
    """Records of 100 bytes, one by one or in batches, plain or compressed: rate and bytes in the log."""
    with nodes(1) as running:
        for batch, name in ((1, "one record a batch"), (10_000, "batches")):
            for codec in ("none", "zstd"):
                topic = running.topic()
                count = int((20_000 if batch == 1 else 200_000) * size)
                found = rate(
                    running,
                    topic,
                    count,
                    compressible=True,
                    batch_num_messages=batch,
                    linger_ms=5,
                    compression_type=codec,
                )
                choice = f"{name}, {codec if codec != 'none' else 'not compressed'}"
                yield Figure(group="batching", choice=choice, what="records/s", value=found)
                (member,) = running.members
                stored = sum(file.stat().st_size for file in (member.data_dir / f"{topic}-0").glob("*.log"))
                yield Figure(group="batching", choice=choice, what="bytes a record in the log", value=stored / count)


def awaiting(size: float) -> Iterator[Figure]:
    """The same records, waiting for each answer or for all of them at the end; both give the same offsets."""
    count = int(3_000 * size)
    with nodes(1) as running:
        ends = []
        for choice in ("each", "all at the end"):
            topic = running.topic()
            client = producer(running)
            began = time.perf_counter()
            for _ in range(count):
                client.produce(topic, b"x" * 100)
                if choice == "each":
                    client.flush(30)
            client.flush(60)
            value = count / (time.perf_counter() - began)
            yield Figure(group="awaiting", choice=f"wait for {choice}", what="records/s", value=value)
            asked = reader(running, topic)
            ends.append(asked.get_watermark_offsets(TopicPartition(topic, 0), timeout=30))
            asked.close()
        if ends != [(0, count)] * 2:
            raise RuntimeError(f"the offsets differ: {ends}")


def exactly_once(size: float) -> Iterator[Figure]:
    """What idempotence and transactions cost, beside neither."""
    count = int(150_000 * size) // TRANSACTION_RECORDS * TRANSACTION_RECORDS or TRANSACTION_RECORDS
    with nodes(1) as running:
        plain = rate(running, running.topic(), count, enable_idempotence=False)
        idempotent = rate(running, running.topic(), count, enable_idempotence=True)
        topic = running.topic()
        client = producer(running, transactional_id="bench")
        client.init_transactions(60)
        began = time.perf_counter()
        for first in range(0, count, TRANSACTION_RECORDS):
            client.begin_transaction()
            for _ in range(first, first + TRANSACTION_RECORDS):
                client.produce(topic, b"x" * 100)
            client.commit_transaction(60)
        transactional = count / (time.perf_counter() - began)
    for choice, value in (
        ("neither", plain),
        ("idempotent", idempotent),
        (f"transactions of {TRANSACTION_RECORDS}", transactional),
    ):
        yield Figure(group="exactly once", choice=choice, what="records/s", value=value)
        yield Figure(group="exactly once", choice=choice, what="% slower than neither", value=(1 - value / plain) * 100)
