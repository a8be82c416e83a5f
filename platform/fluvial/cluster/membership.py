"""Who belongs to a cluster and who votes in it: one node is added or taken out at a time."""

import time
from collections.abc import Callable

from fluvial.cluster.picture import Picture, Quorum, quorum_of
from fluvial.cluster.wire import ClusterLink, RefusedError
from fluvial.errors import FluvialError
from log_broker.errors import ErrorCode
from log_broker.wire.apis import ApiKey

CHANGE_SECONDS_MAX = 60.0
_CONTROLLER_LISTENER = "CONTROLLER"
_POLL_SECONDS = 0.2
# Another change is under way, or the node has not caught up with the metadata yet: both pass.
_WAITING = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.INVALID_REQUEST, ErrorCode.NOT_LEADER_OR_FOLLOWER})


class MembershipError(FluvialError):
    """A node cannot become a voter, or stop being one, in time."""


def add_voter(cluster: ClusterLink, picture: Picture, node_id: int) -> None:
    """Have a node that follows the metadata vote as well; raises MembershipError, WireError or RefusedError."""
    broker = picture.brokers[node_id]
    listener = {"name": _CONTROLLER_LISTENER, "host": broker.host, "port": broker.port}

    def change(quorum: Quorum) -> None:
        cluster.settled(
            f"make node {node_id} a voter",
            ApiKey.ADD_RAFT_VOTER,
            {
                "cluster_id": picture.cluster_id,
                "timeout": 10_000,
                "voter_id": node_id,
                "voter_directory_id": quorum.directories.get(node_id),
                "listeners": (listener,),
                "ack_when_committed": True,
            },
        )

    _until(
        cluster,
        lambda quorum: node_id in quorum.voters,
        lambda quorum: change(quorum) if node_id in quorum.observers else None,
        f"node {node_id} does not become a voter",
    )


def remove_voter(cluster: ClusterLink, picture: Picture, node_id: int) -> None:
    """Have a voter vote no more; raises MembershipError, WireError or RefusedError."""

    def change(quorum: Quorum) -> None:
        cluster.settled(
            f"take the vote from node {node_id}",
            ApiKey.REMOVE_RAFT_VOTER,
            {
                "cluster_id": picture.cluster_id,
                "voter_id": node_id,
                "voter_directory_id": quorum.directories.get(node_id),
            },
        )

    _until(
        cluster,
        lambda quorum: node_id not in quorum.voters,
        change,
        f"node {node_id} does not stop being a voter",
    )


def strike_off(cluster: ClusterLink, node_id: int) -> None:
    """Have the cluster forget a broker that is gone for good; raises WireError or RefusedError."""
    try:
        cluster.settled(f"strike node {node_id} off", ApiKey.UNREGISTER_BROKER, {"broker_id": node_id})
    except RefusedError as error:
        if error.code != ErrorCode.BROKER_ID_NOT_REGISTERED:
            raise


def _until(
    cluster: ClusterLink, reached: Callable[[Quorum], bool], change: Callable[[Quorum], None], late: str
) -> None:
    """Ask for a change, again after what passes, until the quorum shows it; a repeated one is told by the quorum."""
    deadline = time.monotonic() + CHANGE_SECONDS_MAX
    why = "the cluster has no controller"
    while time.monotonic() < deadline:
        quorum = quorum_of(cluster)
        if quorum is not None:
            if reached(quorum):
                return
            why = "the quorum does not show it"
            try:
                change(quorum)
            except RefusedError as error:
                if error.code not in _WAITING:
                    raise
                why = str(error)
        time.sleep(_POLL_SECONDS)
    raise MembershipError(f"{late} within {CHANGE_SECONDS_MAX:.0f} s: {why}")
