"""`fluvial cluster status`: nodes, quorum, partitions and what is wrong with them."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fluvial.cli import terminal
from fluvial.cli.options import AnswerFormat, Form, with_cluster
from fluvial.config import Settings

if TYPE_CHECKING:
    from fluvial.cluster.picture import LogDirs, Partition, Picture
    from fluvial.local.node_metrics import NodeMetrics

_NAMED_MAX = 20
_TOPICS_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """One node, up or down."""

    id: int
    address: str | None
    rack: str | None
    up: bool
    roles: tuple[str, ...]
    leads: int
    preferred: int
    replicas: int
    in_sync: int
    stored_bytes: int | None
    usable_bytes: int | None
    failed_log_dirs: tuple[str, ...]
    quorum_lag: int | None
    unsynced_records: int | None


@with_cluster
def status(
    *,
    settings: Settings,
    answer_format: AnswerFormat = Form.TABLE,
) -> None:
    """
    Show the cluster's state: nodes, quorum, and partitions that lack replicas or a leader.

    If a node does not lead exactly its preferred partitions, both numbers are shown: `2, due 5`. Unflushed records and
    producers without idempotence are shown for nodes of the local platform that serve metrics.
    """
    from fluvial.cluster.picture import log_dirs_of, picture_of
    from fluvial.cluster.wire import ClusterLink
    from fluvial.local.node_metrics import node_metrics_of

    with ClusterLink(settings.cluster) as cluster:
        picture = picture_of(cluster)
        stored = {node: log_dirs_of(cluster, broker) for node, broker in picture.brokers.items()}
        floors = _min_isr(cluster, picture)
    metrics = node_metrics_of(settings.data_dir) if settings.local else {}
    nodes = node_lines(picture, stored, metrics)
    offline = [each for each in picture.partitions.values() if each.is_offline]
    under = [each for each in picture.partitions.values() if each.is_under_replicated and not each.is_offline]
    short = [each for each in under if len(each.isr) < floors.get(each.tp.topic, 1)]
    if answer_format is Form.JSON:
        terminal.answer(
            json.dumps(_as_json(picture, nodes, metrics, offline=offline, under=under, short=short), indent=2)
        )
        return
    quorum = picture.quorum
    terminal.answer(f"cluster     {picture.cluster_id}")
    terminal.answer(f"controller  {_controller(picture)}")
    if quorum is not None:
        terminal.answer(f"voters      {_named(sorted(quorum.voters))}")
        if quorum.observers:
            terminal.answer(f"observers   {_named(sorted(quorum.observers))}")
    terminal.answer(f"partitions  {len(picture.partitions)}{_worst(offline, under, short)}")
    if picture.moves:
        terminal.answer(f"moving      {len(picture.moves)}; see `fluvial cluster moves`")
    if metrics:
        terminal.answer(f"at risk     {_at_risk(metrics)}")
        terminal.answer(f"producers   {_producers(metrics)}")
    rows = [_row(node) for node in nodes]
    # Where nobody names racks their column would be empty.
    shown = [name for name in rows[0] if name != "rack" or any(node.rack for node in nodes)] if rows else []
    terminal.table(shown, ([row[name] for name in shown] for row in rows))
    _tell_partitions([*offline, *under], {each.tp for each in short})


def node_lines(
    picture: "Picture", stored: Mapping[int, "LogDirs | None"], metrics: Mapping[int, "NodeMetrics"]
) -> list[NodeLine]:
    """Return every node that is alive, votes, or should hold a replica."""
    leads = Counter(each.leader for each in picture.partitions.values())
    preferred = Counter(each.replicas[0] for each in picture.partitions.values() if each.replicas)
    replicas = Counter(node for each in picture.partitions.values() for node in each.replicas)
    in_sync = Counter(node for each in picture.partitions.values() for node in each.isr)
    quorum = picture.quorum
    voters = quorum.voters if quorum is not None else {}
    lags = {**quorum.observers, **quorum.voters} if quorum is not None else {}
    found = []
    for node in sorted({*picture.brokers, *voters, *replicas}):
        broker = picture.brokers.get(node)
        dirs = stored.get(node)
        roles = ["controller"] if quorum is not None and quorum.leader == node else []
        roles += ["voter"] if node in voters else []
        found.append(
            NodeLine(
                id=node,
                address=None if broker is None else broker.address,
                rack=None if broker is None else broker.rack,
                up=broker is not None,
                roles=(*roles, *(["broker"] if broker is not None or node in replicas else [])),
                leads=leads[node],
                preferred=preferred[node],
                replicas=replicas[node],
                in_sync=in_sync[node],
                stored_bytes=None if dirs is None else dirs.size,
                usable_bytes=None if dirs is None else dirs.usable_bytes,
                failed_log_dirs=() if dirs is None else dirs.failed,
                quorum_lag=lags.get(node),
                unsynced_records=metrics[node].unsynced_records if node in metrics else None,
            )
        )
    return found


def size_text(size: float | None) -> str:
    """Write a number of bytes as people read it."""
    if size is None:
        return ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _min_isr(cluster: Any, picture: "Picture") -> dict[str, int]:
    """Return min.insync.replicas of the topics that lack replicas."""
    from log_broker.wire.apis import ApiKey

    topics = {each.tp.topic for each in picture.partitions.values() if each.is_under_replicated}
    if not topics:
        return {}
    key = "min.insync.replicas"
    wanted = tuple(
        {"resource_type": 2, "resource_name": topic, "configuration_keys": (key,)} for topic in sorted(topics)
    )
    answer = cluster.ask(
        ApiKey.DESCRIBE_CONFIGS, {"resources": wanted, "include_synonyms": False, "include_documentation": False}
    )
    return {result.resource_name: int(each.value) for result in answer.results for each in result.configs if each.value}


def _controller(picture: "Picture") -> str:
    quorum = picture.quorum
    if quorum is None or quorum.leader < 0:
        return "none now: nothing can be decided until a majority of the voters is up"
    return f"node {quorum.leader}, epoch {quorum.epoch}"


def _worst(offline: Sequence[Any], under: Sequence[Any], short: Sequence[Any]) -> str:
    words = [
        f"{len(offline)} without a leader" if offline else "",
        f"{len(under)} lack replicas" if under else "",
        f"{len(short)} of them too many for acks=all" if short else "",
    ]
    metrics = ", ".join(word for word in words if word)
    return f", {metrics}" if metrics else ", all replicas in sync"


def _row(node: NodeLine) -> dict[str, object]:
    """Name each column and its text; the first role says the most."""
    state = "up" if node.up else "down"
    if node.failed_log_dirs:
        state = f"disk failed: {', '.join(node.failed_log_dirs)}"
    return {
        "node": node.id,
        "address": node.address or "",
        "rack": node.rack or "",
        "state": state,
        "role": node.roles[0] if node.roles else "",
        "leads": node.leads if node.leads == node.preferred else f"{node.leads}, due {node.preferred}",
        "replicas": node.replicas if node.replicas == node.in_sync else f"{node.replicas}, in sync {node.in_sync}",
        "stored": size_text(node.stored_bytes),
        "free": size_text(node.usable_bytes),
        "lag": "" if node.quorum_lag is None else node.quorum_lag,
    }


def _tell_partitions(bad: Sequence["Partition"], short: set[Any]) -> None:
    rows = [
        (
            each.tp.topic,
            each.tp.partition,
            "none" if each.is_offline else each.leader,
            _named(each.replicas),
            _named(each.isr),
            "no leader" if each.is_offline else "below min ISR" if each.tp in short else "lacks replicas",
        )
        for each in bad[:_NAMED_MAX]
    ]
    terminal.table(("topic", "partition", "leader", "replicas", "in sync", "state"), rows)
    if len(bad) > _NAMED_MAX:
        terminal.say(f"and {len(bad) - _NAMED_MAX} more; --format json lists all")


def _at_risk(metrics: Mapping[int, "NodeMetrics"]) -> str:
    records = sum(each.unsynced_records for each in metrics.values())
    if not records:
        return "nothing: all that was acknowledged is on disk"
    return (
        f"{records} records ({size_text(sum(each.unsynced_bytes for each in metrics.values()))}) not synced to disk yet"
    )


def _producers(metrics: Mapping[int, "NodeMetrics"]) -> str:
    found = _unsequenced(metrics)
    if not found:
        return "all idempotent"
    topics = [f"{topic} ({count} batches)" for topic, count in found.most_common(_TOPICS_MAX)]
    more = f" and {len(found) - _TOPICS_MAX} more topics" if len(found) > _TOPICS_MAX else ""
    return f"some are not idempotent, so a retry may be stored twice: {', '.join(topics)}{more}"


def _unsequenced(metrics: Mapping[int, "NodeMetrics"]) -> Counter[str]:
    """Add up over the nodes how many batches each topic has got from producers that are not idempotent."""
    total: Counter[str] = Counter()
    for each in metrics.values():
        total.update(each.unsequenced_batches)
    return total


def _named(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes))


def _as_json(
    picture: "Picture", nodes: Sequence[NodeLine], metrics: Mapping[int, "NodeMetrics"], **bad: Sequence["Partition"]
) -> dict[str, Any]:
    quorum = picture.quorum
    return {
        "cluster_id": picture.cluster_id,
        "controller": None if quorum is None or quorum.leader < 0 else quorum.leader,
        "controller_epoch": None if quorum is None else quorum.epoch,
        "voters": [] if quorum is None else sorted(quorum.voters),
        "observers": [] if quorum is None else sorted(quorum.observers),
        "nodes": [{name: getattr(node, name) for name in NodeLine.__slots__} for node in nodes],
        "partitions": len(picture.partitions),
        "offline": [_partition_json(each) for each in bad["offline"]],
        "under_replicated": [_partition_json(each) for each in bad["under"]],
        "under_min_isr": [_partition_json(each) for each in bad["short"]],
        "moving": len(picture.moves),
        "unsequenced_batches": dict(_unsequenced(metrics)),
    }


def _partition_json(each: "Partition") -> dict[str, Any]:
    return {
        "topic": each.tp.topic,
        "partition": each.tp.partition,
        "leader": each.leader,
        "replicas": list(each.replicas),
        "isr": list(each.isr),
    }
