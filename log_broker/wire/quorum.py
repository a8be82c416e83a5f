"""
The talk of the metadata quorum's replicas in Kafka's messages.

    core.raft_messages        api, version
    Vote…                     Vote 2                with pre-vote and voters' directories (KIP-996, KIP-853)
    BeginQuorumEpoch…         BeginQuorumEpoch 1
    EndQuorumEpoch…           EndQuorumEpoch 1
    Fetch…                    Fetch 18              of `__cluster_metadata`, with the high watermark known (KIP-1166)
    FetchSnapshot…            FetchSnapshot 1

A directory's id is 32 hex digits here and a UUID there; none is the empty string here and zeros there. A part of a
snapshot is followed by the voters record that belongs to it and that record's length: Kafka has both in the snapshot
itself, of whose layout our core knows nothing.
"""

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from log_broker.core.cluster.image import METADATA_TOPIC
from log_broker.core.raft.codec import decode_entries, encode_entry
from log_broker.core.raft.log import OffsetAndEpoch
from log_broker.core.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumEpochResponse,
    RaftRequest,
    RaftResponse,
    VoteRequest,
    VoteResponse,
)
from log_broker.core.raft.replica import EPOCH_MAX
from log_broker.core.raft.voters import ReplicaKey, Voter
from log_broker.errors import BrokerError, ErrorCode
from log_broker.wire.apis import ApiKey

METADATA_TOPIC_ID = UUID(int=1)
FETCH_VERSION = 18
LISTENER = "PLAINTEXT"
HOST_LENGTH_MAX = 255  # of a name in the DNS
_BYTES_MAX = 64 << 20
_VOTERS_LENGTH = struct.Struct(">I")
_NONE = -1
# All replicas ask for the same entries. There is room for all that a log keeps between snapshots: of a run of entries
# that is longer, each would push out the next.
_encoded = lru_cache(maxsize=16_384)(encode_entry)

Values = Mapping[str, Any]


class Question(NamedTuple):
    """A request as it goes on the wire."""

    api: ApiKey
    version: int
    values: dict[str, Any]


def as_uuid(directory_id: str) -> UUID | None:
    """Return a directory's id as the protocol has it."""
    return UUID(hex=directory_id) if directory_id else None


def as_directory_id(value: UUID | None) -> str:
    """Return a directory's id as the core has it."""
    return value.hex if value is not None else ""


def question(body: RaftRequest, *, cluster_id: str | None, endpoint: tuple[str, int]) -> Question:
    """Write a request; `endpoint` is where this replica listens."""
    listeners = ({"name": LISTENER, "host": endpoint[0], "port": endpoint[1]},)
    match body:
        case VoteRequest():
            partition: dict[str, Any] = {
                "partition_index": 0,
                "replica_epoch": body.epoch,
                "replica_id": body.candidate.node_id,
                "replica_directory_id": as_uuid(body.candidate.directory_id),
                "voter_directory_id": as_uuid(body.voter.directory_id),
                "last_offset_epoch": body.log_end.epoch,
                "last_offset": body.log_end.offset,
                "pre_vote": body.pre_vote,
            }
            values: dict[str, Any] = {
                "cluster_id": cluster_id,
                "voter_id": body.voter.node_id,
                "topics": _topics(partition),
            }
            return Question(ApiKey.VOTE, 2, values)
        case BeginQuorumEpochRequest():
            partition = {
                "partition_index": 0,
                "voter_directory_id": as_uuid(body.voter.directory_id),
                "leader_id": body.leader_id,
                "leader_epoch": body.epoch,
            }
            values = {"cluster_id": cluster_id, "voter_id": body.voter.node_id, "topics": _topics(partition)}
            return Question(ApiKey.BEGIN_QUORUM_EPOCH, 1, {**values, "leader_endpoints": listeners})
        case EndQuorumEpochRequest():
            partition = {
                "partition_index": 0,
                "leader_id": body.leader_id,
                "leader_epoch": body.epoch,
                "preferred_candidates": [
                    {"candidate_id": key.node_id, "candidate_directory_id": as_uuid(key.directory_id)}
                    for key in body.preferred_successors
                ],
            }
            values = {"cluster_id": cluster_id, "topics": _topics(partition), "leader_endpoints": listeners}
            return Question(ApiKey.END_QUORUM_EPOCH, 1, values)
        case FetchRequest():
            partition = {
                "partition": 0,
                "current_leader_epoch": body.epoch,
                "fetch_offset": body.log_end.offset,
                "last_fetched_epoch": body.log_end.epoch,
                "partition_max_bytes": _BYTES_MAX,
                "replica_directory_id": as_uuid(body.replica.directory_id),
                "high_watermark": body.high_watermark,
            }
            values = {
                "cluster_id": cluster_id,
                "replica_state": {"replica_id": body.replica.node_id},
                "max_wait": body.wait_ms,
                "min_bytes": 0,
                "max_bytes": _BYTES_MAX,
                "topics": ({"topic_id": METADATA_TOPIC_ID, "partitions": (partition,)},),
                "forgotten_topics_data": (),
            }
            return Question(ApiKey.FETCH, FETCH_VERSION, values)
        case FetchSnapshotRequest():
            partition = {
                "partition": 0,
                "current_leader_epoch": body.epoch,
                "snapshot_id": {"end_offset": body.snapshot_id.offset, "epoch": body.snapshot_id.epoch},
                "position": body.position,
                "replica_directory_id": as_uuid(body.replica.directory_id),
            }
            topics = ({"name": METADATA_TOPIC, "partitions": (partition,)},)
            values = {"cluster_id": cluster_id, "replica_id": body.replica.node_id, "topics": topics}
            return Question(ApiKey.FETCH_SNAPSHOT, 1, values)


def read_voter(request: Any) -> Voter:
    """Read whom AddRaftVoter and UpdateRaftVoter name; raises BrokerError(INVALID_REQUEST) if nobody can be there."""
    if not request.listeners:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "A voter needs an address.")
    listener = request.listeners[0]
    if request.voter_id < 0 or not is_address(listener.host, listener.port):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "A voter's id and port are positive, and its host has a name.")
    key = ReplicaKey(request.voter_id, as_directory_id(request.voter_directory_id))
    return Voter(key=key, host=listener.host, port=listener.port)


def is_address(host: str, port: int) -> bool:
    """Whether a node can be reached there, as far as that can be seen: all nodes keep what one of them says."""
    return 0 < len(host) <= HOST_LENGTH_MAX and 0 < port < 2**16


def is_of_cluster(api: int, named: str | None, cluster_id: str | None) -> bool:
    """
    Whether a request that names a cluster may be one of this, whose id is None until it is known.

    A replica with an empty disk learns the id by fetching. Whoever can win an election has it in its log.
    """
    if cluster_id is None or named == cluster_id:
        return True
    return named is None and api in {ApiKey.FETCH, ApiKey.FETCH_SNAPSHOT}


def read_question(api: int, request: Any) -> RaftRequest:
    """
    Read a request.

    Raises BrokerError(INVALID_REQUEST) for one of something else than the metadata partition, and for a number that no
    replica has: a negative epoch, offset or node, an epoch above EPOCH_MAX, the end of a log of a later epoch.
    """
    body = _read_question(api, request)
    match body:
        case VoteRequest():
            # Who stands for election does so in an epoch above that of its log; who only asks may be in the same.
            latest = body.epoch if body.pre_vote else body.epoch - 1
            is_sound = body.candidate.node_id >= 0 and _is_end(body.log_end, latest)
        case FetchRequest():
            is_sound = body.replica.node_id >= 0 and _is_end(body.log_end, EPOCH_MAX)
        case FetchSnapshotRequest():
            is_sound = body.replica.node_id >= 0 and body.position >= 0 and _is_end(body.snapshot_id, EPOCH_MAX)
        case _:
            is_sound = body.leader_id >= 0
    if not is_sound or not 0 <= body.epoch <= EPOCH_MAX:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a number is out of range")
    return body


def _is_end(end: OffsetAndEpoch, epoch_max: int) -> bool:
    return end.offset >= 0 and 0 <= end.epoch <= epoch_max


def _read_question(api: int, request: Any) -> RaftRequest:
    try:
        (topic,) = request.topics
        (partition,) = topic.partitions
        index = partition.partition if api in {ApiKey.FETCH, ApiKey.FETCH_SNAPSHOT} else partition.partition_index
    except (ValueError, AttributeError):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "not of one partition") from None
    if index != 0 or (api != ApiKey.FETCH and _name_of(topic) != METADATA_TOPIC):
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"not of {METADATA_TOPIC}")
    if api == ApiKey.VOTE:
        return VoteRequest(
            epoch=partition.replica_epoch,
            candidate=ReplicaKey(partition.replica_id, as_directory_id(partition.replica_directory_id)),
            voter=ReplicaKey(request.voter_id, as_directory_id(partition.voter_directory_id)),
            log_end=OffsetAndEpoch(partition.last_offset, partition.last_offset_epoch),
            pre_vote=partition.pre_vote,
        )
    if api == ApiKey.BEGIN_QUORUM_EPOCH:
        voter = ReplicaKey(request.voter_id, as_directory_id(partition.voter_directory_id))
        return BeginQuorumEpochRequest(epoch=partition.leader_epoch, leader_id=partition.leader_id, voter=voter)
    if api == ApiKey.END_QUORUM_EPOCH:
        successors = tuple(
            ReplicaKey(each.candidate_id, as_directory_id(each.candidate_directory_id))
            for each in partition.preferred_candidates
        )
        return EndQuorumEpochRequest(
            epoch=partition.leader_epoch, leader_id=partition.leader_id, preferred_successors=successors
        )
    directory_id = as_directory_id(partition.replica_directory_id)
    if api == ApiKey.FETCH:
        return FetchRequest(
            epoch=partition.current_leader_epoch,
            replica=ReplicaKey(request.replica_state.replica_id, directory_id),
            log_end=OffsetAndEpoch(partition.fetch_offset, partition.last_fetched_epoch),
            high_watermark=partition.high_watermark,
            wait_ms=max(request.max_wait, 0),
        )
    return FetchSnapshotRequest(
        epoch=partition.current_leader_epoch,
        replica=ReplicaKey(request.replica_id, directory_id),
        snapshot_id=OffsetAndEpoch(partition.snapshot_id.end_offset, partition.snapshot_id.epoch),
        position=partition.position,
    )


def answer(body: RaftResponse, base_offset: int, leader_at: tuple[str, int] | None) -> Values:
    """Write an answer; `base_offset` is that of a Fetch's first entry, `leader_at` where its leader listens."""
    leader = [{"node_id": body.leader_id, "host": leader_at[0], "port": leader_at[1]}] if leader_at else []
    head = {"error_code": ErrorCode.NONE, "node_endpoints": leader}
    current = {"leader_id": body.leader_id, "leader_epoch": body.epoch}
    match body:
        case VoteResponse():
            granted = {"partition_index": 0, "error_code": body.error, "vote_granted": body.vote_granted}
            return {**head, "topics": _topics({**granted, **current})}
        case QuorumEpochResponse():
            return {**head, "topics": _topics({"partition_index": 0, "error_code": body.error, **current})}
        case FetchResponse():
            partition = {
                "partition_index": 0,
                "error_code": body.error,
                "high_watermark": body.high_watermark,
                "last_stable_offset": body.high_watermark,
                "current_leader": current,
                "aborted_transactions": None,
                "records": b"".join(_encoded(base_offset + at, entry) for at, entry in enumerate(body.entries)),
            }
            if body.diverging is not None:
                partition["diverging_epoch"] = {"epoch": body.diverging.epoch, "end_offset": body.diverging.offset}
            if body.snapshot_id is not None:
                partition["snapshot_id"] = {"end_offset": body.snapshot_id.offset, "epoch": body.snapshot_id.epoch}
            return {**head, "responses": ({"topic_id": METADATA_TOPIC_ID, "partitions": (partition,)},)}
        case FetchSnapshotResponse():
            partition = {
                "index": 0,
                "error_code": body.error,
                "snapshot_id": {"end_offset": body.snapshot_id.offset, "epoch": body.snapshot_id.epoch},
                "current_leader": current,
                "size": body.size,
                "position": body.position,
                "unaligned_records": body.part + body.voters + _VOTERS_LENGTH.pack(len(body.voters)),
            }
            return {**head, "topics": ({"name": METADATA_TOPIC, "partitions": (partition,)},)}


def refusal(api: int, error: ErrorCode) -> Values:
    """Write an answer that says nothing of the partition."""
    return {"error_code": error, "responses" if api == ApiKey.FETCH else "topics": ()}


class Answer(NamedTuple):
    """An answer as read, and where the nodes listen that it names."""

    body: RaftResponse
    endpoints: Mapping[int, tuple[str, int]]


def read_answer(asked: RaftRequest, response: Any) -> Answer:
    """Read the answer to a request; raises BrokerError when it holds none."""
    if response.error_code:
        raise BrokerError(ErrorCode(response.error_code), "the quorum's request was refused")
    endpoints = {each.node_id: (each.host, each.port) for each in response.node_endpoints}
    try:
        (topic,) = response.responses if isinstance(asked, FetchRequest) else response.topics
        (partition,) = topic.partitions
        current = getattr(partition, "current_leader", partition)
        body = _read_partition(asked, partition, current.leader_epoch, current.leader_id)
    except (ValueError, AttributeError, struct.error) as error:
        raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, f"an answer to {type(asked).__name__}: {error}") from error
    return Answer(body, endpoints)


def _read_partition(asked: RaftRequest, partition: Any, epoch: int, leader_id: int) -> RaftResponse:
    error = ErrorCode(partition.error_code)
    if not 0 <= epoch <= EPOCH_MAX:
        raise BrokerError(error or ErrorCode.UNKNOWN_SERVER_ERROR, "an answer without an epoch")
    match asked:
        case VoteRequest():
            granted = bool(partition.vote_granted)
            return VoteResponse(error=error, epoch=epoch, leader_id=leader_id, voter=asked.voter, vote_granted=granted)
        case BeginQuorumEpochRequest() | EndQuorumEpochRequest():
            return QuorumEpochResponse(error=error, epoch=epoch, leader_id=leader_id)
        case FetchRequest():
            records = partition.records or b""
            entries = tuple(each.entry for each in decode_entries(records, asked.log_end.offset, asked.log_end.epoch))
            diverging = OffsetAndEpoch(partition.diverging_epoch.end_offset, partition.diverging_epoch.epoch)
            snapshot_id = OffsetAndEpoch(partition.snapshot_id.end_offset, partition.snapshot_id.epoch)
            return FetchResponse(
                error=error,
                epoch=epoch,
                leader_id=leader_id,
                entries=entries,
                high_watermark=max(partition.high_watermark, 0),
                diverging=None if diverging.epoch == _NONE else diverging,
                snapshot_id=None if snapshot_id.epoch == _NONE else snapshot_id,
            )
        case FetchSnapshotRequest():
            content = partition.unaligned_records or b""
            size, voters_end = 0, max(len(content) - _VOTERS_LENGTH.size, 0)
            if content:
                (size,) = _VOTERS_LENGTH.unpack_from(content, voters_end)
            return FetchSnapshotResponse(
                error=error,
                epoch=epoch,
                leader_id=leader_id,
                snapshot_id=OffsetAndEpoch(partition.snapshot_id.end_offset, partition.snapshot_id.epoch),
                size=partition.size,
                position=partition.position,
                part=bytes(content[: voters_end - size]),
                voters=bytes(content[voters_end - size : voters_end]),
            )


def _topics(partition: Values) -> Sequence[Values]:
    return ({"topic_name": METADATA_TOPIC, "partitions": (partition,)},)


def _name_of(topic: Any) -> str:
    name: str = topic.name if hasattr(topic, "name") else topic.topic_name
    return name
