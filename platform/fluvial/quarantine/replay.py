"""
Replaying: repaired records are appended to their topic, each once, in the order in which each partition had them.

They go back in a transaction that also holds how far the quarantine has been replayed, as offsets of a consumer group.
So a replay that is killed anywhere leaves nothing, and one that is run again goes on behind the last that ended.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fluvial.config import Settings
from fluvial.quarantine.reading import reader_of, records_from, replay_group, replayed_to
from fluvial.quarantine.records import Quarantined, quarantine_of
from fluvial.quarantine.repair import RepairError, Repairing

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer, TopicPartition

TRANSACTION_RECORDS_MAX = 10_000
SECONDS_MAX = 60.0
POSITION_HEADER = "fluvial.replayed.from"
"""Where a record would have been, `topic-partition@offset`."""

Said = Callable[[Quarantined, Quarantined | None, RepairError | None], None]
"""Told of each record: as it was, as it goes back (None: not), and why it cannot."""


@dataclass(slots=True)
class Replayed:
    """What a replay did, in records."""

    appended: int = 0
    dropped: int = 0
    left_out: int = 0


def replay(
    settings: Settings,
    topic: str,
    partitions: int,
    repairing: Repairing,
    *,
    leave_out: bool = False,
    dry_run: bool = False,
    say: Said = lambda was, now, error: None,
) -> Replayed:
    """
    Append what has not been replayed yet; with `leave_out` pass over what cannot be repaired.

    Raises RepairError before anything of the same transaction is there, ClusterError and KafkaException.
    """
    done = Replayed()
    consumer = reader_of(settings, topic)
    producer: Producer | None = None
    try:
        if not dry_run:
            # Whoever began before is fenced from here on, so that the offsets read now are the last word.
            producer = transactional_producer(settings, replay_group(topic))
        quarantine = quarantine_of(topic)
        starts = replayed_to(consumer, quarantine, partitions)
        for chunk in _chunks(records_from(consumer, quarantine, starts)):
            repaired: list[Quarantined] = []
            for record in chunk:
                _decide(record, repairing, repaired, done, leave_out=leave_out, say=say)
            if producer is not None:
                append_once(producer, consumer, repaired, _positions(quarantine, chunk))
            done.appended += len(repaired)
        return done
    finally:
        consumer.close()


def _decide(
    record: Quarantined,
    repairing: Repairing,
    repaired: list[Quarantined],
    done: Replayed,
    *,
    leave_out: bool,
    say: Said,
) -> None:
    try:
        now = repairing.repaired(record)
    except RepairError as error:
        if not leave_out:
            raise
        say(record, None, error)
        done.left_out += 1
        return
    say(record, now, None)
    if now is None:
        done.dropped += 1
    else:
        repaired.append(now)


def transactional_producer(settings: Settings, name: str) -> "Producer":
    """
    A producer of transactions under this id, which has fenced whoever used it before. Raises KafkaException.
    """
    from confluent_kafka import Producer

    producer = Producer(
        settings.cluster.client(**{"transactional.id": name, "linger.ms": 5, "compression.type": "lz4"})
    )
    producer.init_transactions(SECONDS_MAX)
    return producer


def append_once(
    producer: "Producer", consumer: "Consumer", repaired: Sequence[Quarantined], positions: "list[TopicPartition]"
) -> None:
    """
    Append records in one transaction with these offsets of the consumer's group. Raises KafkaException.
    """
    from confluent_kafka import KafkaException

    failures: list[object] = []
    producer.begin_transaction()
    try:
        for record in repaired:
            producer.produce(
                record.topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                timestamp=record.timestamp_ms,
                headers=[*record.headers, (POSITION_HEADER, record.position.encode())],
                on_delivery=lambda error, _: failures.append(error) if error is not None else None,
            )
            producer.poll(0)
        producer.flush(SECONDS_MAX)
        if failures:
            raise KafkaException(failures[0])
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), SECONDS_MAX)
        producer.commit_transaction(SECONDS_MAX)
    except KafkaException:
        producer.abort_transaction(SECONDS_MAX)
        raise


def _positions(quarantine: str, chunk: list[Quarantined]) -> "list[TopicPartition]":
    from confluent_kafka import TopicPartition

    ends = {place[0]: place[1] + 1 for place in (record.place for record in chunk)}
    return [TopicPartition(quarantine, partition, end) for partition, end in ends.items()]


def _chunks(records: Iterable[Quarantined]) -> Iterable[list[Quarantined]]:
    chunk: list[Quarantined] = []
    for record in records:
        chunk.append(record)
        if len(chunk) == TRANSACTION_RECORDS_MAX:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
