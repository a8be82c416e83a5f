"""
Moving replicas from broker to broker while the cluster works: asked for, throttled, watched, called off.

The controller keeps what was asked for, so a move goes on whoever asked goes away or not. A throttle is made of dynamic
settings that outlive the moves; whoever finds that nothing moves any more takes them off.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluvial.cluster.picture import Broker, LogDirs, Move, Picture, TopicPartition, log_dirs_of, moves_of
from fluvial.cluster.wire import ClusterLink, RefusedError, is_passing
from fluvial.errors import FluvialError
from log_broker.errors import ErrorCode
from log_broker.wire.apis import ApiKey

REQUEST_MS = 30_000
PARTITIONS_AT_ONCE = 1_000  # of one request
POLL_SECONDS = 0.5
_TOPIC = 2
_BROKER = 4
_DYNAMIC = frozenset({1, 2})  # DYNAMIC_TOPIC_CONFIG, DYNAMIC_BROKER_CONFIG
_SET = 0
_DELETE = 1
_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


class MoveError(FluvialError):
    """Some partitions cannot be moved as was asked."""


def begin(cluster: ClusterLink, targets: Mapping[TopicPartition, Sequence[int] | None]) -> None:
    """
    Have partitions moved to these replicas, the preferred leader first; None calls a move off.

    Raises MoveError saying what was refused, and why; the others have begun.
    """
    refused: dict[TopicPartition, str] = {}
    tps = list(targets)
    for start in range(0, len(tps), PARTITIONS_AT_ONCE):
        refused |= _ask(cluster, {tp: targets[tp] for tp in tps[start : start + PARTITIONS_AT_ONCE]})
    if refused:
        tp, why = next(iter(refused.items()))
        others = f" (and {len(refused) - 1} more partitions)" if len(refused) > 1 else ""
        raise MoveError(f"{tp} cannot be moved: {why}{others}")


def _ask(cluster: ClusterLink, targets: Mapping[TopicPartition, Sequence[int] | None]) -> dict[TopicPartition, str]:
    by_topic: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for tp, replicas in targets.items():
        nodes = None if replicas is None else tuple(replicas)
        by_topic[tp.topic].append({"partition_index": tp.partition, "replicas": nodes})
    topics = tuple({"name": name, "partitions": tuple(each)} for name, each in by_topic.items())
    values = {"timeout": REQUEST_MS, "topics": topics}
    deadline = time.monotonic() + REQUEST_MS / 1000
    while True:
        answer = cluster.settled("move replicas", ApiKey.ALTER_PARTITION_REASSIGNMENTS, values)
        errors = {
            TopicPartition(topic.name, each.partition_index): each
            for topic in answer.responses
            for each in topic.partitions
            # A move that is called off may have ended in the same moment.
            if each.error_code not in (ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        }
        if not any(is_passing(each.error_code) for each in errors.values()) or time.monotonic() > deadline:
            return {tp: each.error_message or ErrorCode(each.error_code).name for tp, each in errors.items()}
        time.sleep(POLL_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a move is: bytes that the new replicas hold, of what they will have to."""

    move: Move
    copied_bytes: int
    wanted_bytes: int

    @property
    def share(self) -> float:
        """From 0 to 1; what holds nothing yet is at 0, also where there is little to copy."""
        return min(self.copied_bytes / self.wanted_bytes, 1.0) if self.wanted_bytes else 0.0


def progress_of(moves: Iterable[Move], stored: Mapping[int, LogDirs | None]) -> dict[TopicPartition, Progress]:
    """Compare each new replica with the largest old one; a broker that does not answer holds nothing."""
    found = {}
    for move in moves:
        sizes = {
            node: 0 if (dirs := stored.get(node)) is None else dirs.sizes.get(move.tp, 0) for node in move.replicas
        }
        largest = max((size for node, size in sizes.items() if node not in move.adding), default=0)
        found[move.tp] = Progress(
            move=move,
            copied_bytes=sum(min(sizes[node], largest) for node in move.adding),
            wanted_bytes=largest * len(move.adding),
        )
    return found


def watch(
    cluster: ClusterLink,
    brokers: Mapping[int, Broker],
    tps: Iterable[TopicPartition] | None,
    report: Callable[[Mapping[TopicPartition, Progress]], None],
) -> None:
    """
    Report the progress of moves until none is left, of `places` or of all; raises WireError or RefusedError.

    Moves that were begun by somebody else meanwhile count only when `places` is None.
    """
    wanted = None if tps is None else set(tps)
    while True:
        moves = {tp: move for tp, move in moves_of(cluster).items() if wanted is None or tp in wanted}
        nodes = sorted({node for move in moves.values() for node in move.replicas})
        stored = {node: log_dirs_of(cluster, brokers[node]) for node in nodes if node in brokers}
        report(progress_of(moves.values(), stored))
        if not moves:
            return
        time.sleep(POLL_SECONDS)


def throttle(
    cluster: ClusterLink, picture: Picture, targets: Mapping[TopicPartition, Sequence[int]], rate: int
) -> None:
    """
    Let each broker send and take at most `rate` bytes a second of the partitions that are about to be moved.

    As Kafka's tools do: the rate is a setting of brokers, what it holds for one of topics. Raises RefusedError.
    """
    leaders: dict[str, set[str]] = defaultdict(set)
    followers: dict[str, set[str]] = defaultdict(set)
    nodes: set[int] = set()
    for tp, target in targets.items():
        before = picture.partitions[tp].replicas
        fresh = set(target) - set(before)
        leaders[tp.topic] |= {f"{tp.partition}:{node}" for node in before}
        followers[tp.topic] |= {f"{tp.partition}:{node}" for node in fresh}
        nodes |= {*before, *target}
    for node in sorted(nodes & picture.brokers.keys()):
        _configure(cluster, picture.brokers[node], str(node), dict.fromkeys(_RATES, str(rate)))
    for topic in topics_of(targets):
        own = {_REPLICAS[0]: ",".join(sorted(leaders[topic])), _REPLICAS[1]: ",".join(sorted(followers[topic]))}
        _configure(cluster, None, topic, own)


def lift_throttle(cluster: ClusterLink, picture: Picture) -> bool:
    """Take off what `throttle` has set, wherever it is set; say whether it was anywhere. Raises RefusedError."""
    found = False
    for broker in picture.brokers.values():
        for name in _set_on(cluster, broker, [str(broker.node_id)], _RATES):
            _configure(cluster, broker, name, dict.fromkeys(_RATES))
            found = True
    for topic in _set_on(cluster, None, topics_of(picture.partitions), _REPLICAS):
        _configure(cluster, None, topic, dict.fromkeys(_REPLICAS))
        found = True
    return found


def topics_of(tps: Iterable[TopicPartition]) -> list[str]:
    """Return the topics of places, each once."""
    return sorted({tp.topic for tp in tps})


def _set_on(cluster: ClusterLink, broker: Broker | None, names: Sequence[str], settings: Sequence[str]) -> list[str]:
    """Return which topics, or of a broker whether it, has a value of its own for any of the settings."""
    wanted = tuple({**_resource(broker, name), "configuration_keys": tuple(settings)} for name in names)
    values = {"resources": wanted, "include_synonyms": False, "include_documentation": False}
    try:
        answer = _ask_about(cluster, broker, ApiKey.DESCRIBE_CONFIGS, values)
    except OSError:
        return []
    return [
        result.resource_name
        for result in answer.results
        if any(each.value and each.config_source in _DYNAMIC for each in result.configs)
    ]


def _configure(cluster: ClusterLink, broker: Broker | None, name: str, settings: Mapping[str, str | None]) -> None:
    configs = tuple(
        {"name": key, "config_operation": _DELETE if text is None else _SET, "value": text}
        for key, text in settings.items()
    )
    values = {"resources": ({**_resource(broker, name), "configs": configs},), "validate_only": False}
    where = f"topic {name}" if broker is None else f"node {name}"
    try:
        answer = _ask_about(cluster, broker, ApiKey.INCREMENTAL_ALTER_CONFIGS, values)
    except OSError as error:
        raise MoveError(f"cannot set a throttle on {where}: it does not answer: {error.strerror or error}") from error
    for each in answer.responses:
        if each.error_code:
            raise RefusedError(f"set a throttle on {where}", each.error_code, each.error_message)


def _resource(broker: Broker | None, name: str) -> dict[str, Any]:
    return {"resource_type": _TOPIC if broker is None else _BROKER, "resource_name": name}


def _ask_about(cluster: ClusterLink, broker: Broker | None, api: ApiKey, values: Mapping[str, Any]) -> Any:
    """Kafka takes requests about a broker's settings only at that broker."""
    return cluster.ask(api, values) if broker is None else cluster.ask_at(broker.address, api, values)
