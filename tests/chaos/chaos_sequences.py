"""
What brokers promise an idempotent producer (KIP-98): in a partition the batches of one producer id and epoch lie once
each, in the order of their sequences and without a gap.

A client may begin a new epoch, after a gap that it made itself, and send again what it was not told to be there, as
librdkafka does (`rd_kafka_idemp_drain_epoch_bump`). What lies twice by that is told apart from what a broker doubled.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from chaos_history import Record

from log_broker.core.partition.producers import SEQUENCE_MAX
from log_broker.records.batch import batches_in

Epoch = tuple[int, int]  # producer id and epoch


class Written(NamedTuple):
    """One batch as it lies in a log."""

    first_offset: int
    epoch: Epoch
    first_sequence: int
    count: int


def read_log(folder: Path) -> list[Written]:
    """Every batch of a partition, from the files of a replica."""
    return [
        Written(
            header.base_offset,
            (header.producer_id, header.producer_epoch),
            header.base_sequence,
            header.last_offset_delta + 1,
        )
        for path in sorted(folder.glob("*.log"))
        for _, header in batches_in(path.read_bytes())
    ]


def sequences_that_are_wrong(key: str, log: Iterable[Written]) -> Iterator[str]:
    """Say where a batch does not follow on the one before it of its producer and epoch; the log is whole."""
    expected: dict[Epoch, int] = {}
    for batch in log:
        wanted = expected.get(batch.epoch, 0)
        if batch.first_sequence != wanted:
            yield (
                f"{key} has at offset {batch.first_offset} sequence {batch.first_sequence} of producer {batch.epoch[0]}"
                f" in its epoch {batch.epoch[1]}, where {wanted} comes next"
            )
        expected[batch.epoch] = (batch.first_sequence + batch.count) & SEQUENCE_MAX


def sent_again(end: Iterable[Record], logs: Mapping[str, Sequence[Written]]) -> frozenset[str]:
    """The values of which every copy is of an epoch of its own: their client sent them again."""
    epochs: dict[str, list[Epoch]] = {}
    starts = {key: [batch.first_offset for batch in log] for key, log in logs.items()}
    for record in end:
        if record.key in logs and record.offset is not None:
            batch = logs[record.key][bisect_right(starts[record.key], record.offset) - 1]
            epochs.setdefault(record.value, []).append(batch.epoch)
    return frozenset(value for value, of in epochs.items() if len(of) > 1 and len(set(of)) == len(of))
