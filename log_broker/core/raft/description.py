"""What a leader says of its quorum: the content of DescribeQuorum."""

from typing import NamedTuple

from log_broker.core.raft.leader import Leader
from log_broker.core.raft.raft import Raft
from log_broker.core.raft.voters import ReplicaKey


class ReplicaProgress(NamedTuple):
    """How far a replica is, as the leader knows; `caught_up_ms_ago` is None if it never was. The leader's own are 0."""

    key: ReplicaKey
    is_voter: bool
    log_end_offset: int
    fetched_ms_ago: int
    caught_up_ms_ago: int | None


class QuorumDescription(NamedTuple):
    """The leader of an epoch, what is committed, and every replica that fetches or votes."""

    leader_id: int
    epoch: int
    high_watermark: int
    replicas: tuple[ReplicaProgress, ...]


def describe_quorum(raft: Raft, now_ms: int) -> QuorumDescription | None:
    """Return how far everyone is, None where this replica does not lead."""
    role, replica = raft.role, raft.replica
    if not isinstance(role, Leader):
        return None
    voters = replica.voters.current
    rows = [ReplicaProgress(replica.key, replica.is_voter, replica.log.end_offset, 0, 0)]
    for key, progress in sorted(role.followers.all.items()):
        caught_up = None if progress.caught_up_ms is None else now_ms - progress.caught_up_ms
        rows.append(ReplicaProgress(key, key in voters, progress.match, now_ms - progress.fetched_ms, caught_up))
    return QuorumDescription(replica.key.node_id, replica.epoch, replica.high_watermark, tuple(rows))
