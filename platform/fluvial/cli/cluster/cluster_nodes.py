"""`fluvial cluster remove`: remove a node from a cluster permanently."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fluvial.cli import terminal
from fluvial.cli.cluster.cluster_moves import (
    Throttle,
    carry_out,
    rate_of,
    show_layout,
    size_of,
    stuck_error,
    without_leader,
)
from fluvial.cli.cluster.cluster_status import size_text
from fluvial.cli.options import AnswerFormat, Form, with_cluster
from fluvial.config import Settings

if TYPE_CHECKING:
    from fluvial.cluster.picture import Picture
    from fluvial.cluster.wire import ClusterLink
    from fluvial.local.state import Platform


@with_cluster
def remove(
    *,
    settings: Settings,
    node: Annotated[int, typer.Argument(metavar="NODE", min=0, help="Id of the node.", show_default=False)],
    execute: Annotated[bool, typer.Option("--execute", help="Do what is shown; without it nothing changes.")] = False,
    throttle: Throttle = None,
    at_once: Annotated[int, typer.Option("--at-once", min=1, help="Partitions that are copied at the same time.")] = 50,
    answer_format: AnswerFormat = Form.TABLE,
) -> None:
    """
    Remove a node permanently: other nodes copy its replicas, it leaves the quorum, and the cluster unregisters it.

    A node of the local platform is stopped as well, and its folder stays. Stop a node elsewhere by hand once it has no
    replicas, and run the same command again to unregister it. An interrupted command continues when run again.
    """
    from fluvial.cluster.picture import log_dirs_of, picture_of
    from fluvial.cluster.placement import copies, drained, moved
    from fluvial.cluster.wire import ClusterLink

    rate = rate_of(throttle)
    platform = _platform_with(settings, node)
    with ClusterLink(settings.cluster) as cluster:
        picture = picture_of(cluster)
        _require_member(picture, platform, node)
        before = {tp: picture.replicas_of(tp) for tp in picture.partitions}
        changes = moved(before, drained(before, node, tuple(picture.brokers), picture.racks))
        stored = {each: log_dirs_of(cluster, broker) for each, broker in picture.brokers.items()}
        size = sum(size_of(tp, before[tp], stored) for tp in copies(before, {**before, **changes}))
        show_layout(before, changes, answer_format)
        terminal.say(f"{len(changes)} partitions have a replica on node {node}; {size_text(size)} to copy")
        if not execute:
            terminal.say("nothing was changed; --execute does it")
            return
        if stuck := without_leader(picture, changes):
            raise stuck_error(stuck)
        if changes:
            carry_out(settings, cluster, picture, changes, rate=rate, at_once=at_once)
        _leave(settings, cluster, picture, platform, node)


def _platform_with(settings: Settings, node: int) -> "Platform | None":
    """Return the local platform if the node belongs to it; raises LocalPlatformError when the node is indispensable."""
    from fluvial.local.errors import LocalPlatformError
    from fluvial.local.state import Platform

    platform = Platform.load(settings.data_dir) if settings.local else None
    if platform is None or node not in {each.id for each in platform.nodes}:
        return None
    if all(each.registry_port is None for each in platform.nodes if each.id != node):
        raise LocalPlatformError(
            f"node {node} serves the schema registry of the platform in {settings.data_dir}, and no other node does; "
            "remove another one"
        )
    return platform


def _require_member(picture: "Picture", platform: "Platform | None", node: int) -> None:
    from fluvial.kafka.admin import ClusterError

    quorum = picture.quorum
    holders = {each for partition in picture.partitions.values() for each in partition.replicas}
    voters = set(quorum.voters) if quorum is not None else set()
    if node not in {*picture.brokers, *holders, *voters} and platform is None:
        members = ", ".join(map(str, sorted({*picture.brokers, *holders, *voters})))
        # One that was struck off already is no member either; that it is gone is what was wanted.
        raise ClusterError(f"node {node} is no member of the cluster; its members are {members}")
    if set(picture.brokers) <= {node}:
        raise ClusterError(f"node {node} is the last one that is up; stop it with `fluvial down`")
    if quorum is None or quorum.leader < 0:
        raise ClusterError("the cluster has no active controller; start its voters first")


def _leave(
    settings: Settings, cluster: "ClusterLink", picture: "Picture", platform: "Platform | None", node: int
) -> None:
    """Remove the voter, stop the process if it is of the local platform, and unregister the node."""
    from fluvial.cluster.membership import add_voter, remove_voter, strike_off
    from fluvial.local.state import VOTERS

    quorum = picture.quorum
    assert quorum is not None, "a cluster without a controller is refused before"
    if node in quorum.voters:
        spare = sorted(set(quorum.observers) & set(picture.brokers) - {node})
        if spare and len(quorum.voters) <= VOTERS:
            add_voter(cluster, picture, spare[0])
            terminal.say(f"node {spare[0]} votes in its place")
        remove_voter(cluster, picture, node)
        terminal.say(f"node {node} votes no more")
    if platform is not None:
        _stop_local(settings.data_dir, platform, node)
    elif node in picture.brokers:
        terminal.say(f"node {node} holds nothing any more; stop it, then run this again to have the cluster forget it")
        return
    if node in picture.brokers:
        cluster.forget(picture.brokers[node].address)
    strike_off(cluster, node)
    terminal.say(f"node {node} is no member any more")


def _stop_local(data_dir: Path, platform: "Platform", node: int) -> None:
    from fluvial.local.stop import stop

    stop(data_dir, node_id=node)
    platform.without(node).save(data_dir)
    folder = next(each.data_dir for each in platform.nodes if each.id == node)
    terminal.say(f"node {node} was stopped; its data is still in {data_dir / folder}")
