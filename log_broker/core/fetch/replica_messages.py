"""
What a replica and its leader say to each other, as values: Fetch between brokers without its wire form.

A session (KIP-227) lets each side name only what has changed. Between our own nodes one rule is added to it: a
partition of which the leader has sent records, an error or a divergence is asleep, and is read again only when a later
request names it. So an answer is never repeated while the replica still writes what came with the one before.
"""

from collections.abc import Sequence
from typing import NamedTuple

from log_broker.core.fetch.session import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION
from log_broker.errors import ErrorCode
from log_broker.records.batch import Buffer

TopicIdPartition = tuple[bytes, int]  # the 16 bytes of a topic's id, and the partition
UNKNOWN = -1  # an offset or epoch that nobody has named

__all__ = [
    "FINAL_EPOCH",
    "INITIAL_EPOCH",
    "NO_SESSION",
    "UNKNOWN",
    "Diverging",
    "FetchFrom",
    "ReplicaAnswer",
    "ReplicaFetchRequest",
    "ReplicaFetchResponse",
    "TopicIdPartition",
]


class FetchFrom(NamedTuple):
    """What a replica asks of one partition; it holds everything before `offset` as durably as the topic demands."""

    place: TopicIdPartition
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    bytes_max: int


class ReplicaFetchRequest(NamedTuple):
    """A request as it goes to one leader. Times in ms, sizes in bytes."""

    replica_id: int
    broker_epoch: int
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    session_id: int
    session_epoch: int
    partitions: Sequence[FetchFrom]
    forgotten: Sequence[TopicIdPartition] = ()


class Diverging(NamedTuple):
    """The largest epoch up to the replica's last one that the leader knows, and where it ends in the leader's log."""

    epoch: int
    end_offset: int


class ReplicaAnswer(NamedTuple):
    """
    One partition of an answer.

    Of a partition that is led here `log_end_offset` is the leader's, also beside OFFSET_OUT_OF_RANGE. `leader` is
    (node id, leader epoch) where the one that was asked does not lead.
    """

    place: TopicIdPartition
    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = UNKNOWN
    log_end_offset: int = UNKNOWN
    log_start_offset: int = UNKNOWN
    records: Sequence[Buffer] = ()
    diverging: Diverging | None = None
    leader: tuple[int, int] | None = None


class ReplicaFetchResponse(NamedTuple):
    """An answer; with an `error` there are no partitions in it."""

    answers: Sequence[ReplicaAnswer]
    session_id: int = NO_SESSION
    error: ErrorCode = ErrorCode.NONE
