"""
What happened in the cluster, in plain words: told from two images of it, one before and one after a change.

A broker that fails takes thousands of partitions with it, so what befell many partitions in the same way is one event
that lists them. The words are for people; programs read `kind` and `fields`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from log_broker.core.cluster.image import NO_LEADER, BrokerImage, ClusterImage, PartitionImage, TopicImage

SAFETY_SETTINGS = ("min.insync.replicas", "unclean.leader.election.enable", "fluvial.durability")
PARTITIONS_MAX = 500  # of one event: its record stays far below the largest that a topic takes
_NAMED_MAX = 3


class Fencing(Enum):
    """Why a broker was fenced."""

    LEFT = "left"  # it stopped in order
    ENDED = "ended"  # its process is gone
    SILENT = "silent"  # it was not heard of for the session timeout


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened. `fields` are what JSON can hold; partitions are objects `{topic, partition, …}`."""

    kind: str
    text: str
    fields: Mapping[str, Any]


class View(NamedTuple):
    """What of an image is looked at; kept from one change to the next."""

    brokers: Mapping[int, BrokerImage]
    topics: Mapping[str, TopicImage]
    levels: Mapping[str, int]


def view_of(image: ClusterImage) -> View:
    """Return what the image shows now and goes on showing when the image changes."""
    return View(dict(image.brokers), dict(image.topics), image.levels)


def events_between(
    before: View, after: View, *, session_timeout_ms: int, fenced_because: Callable[[int], Fencing]
) -> Iterator[Event]:
    """
    Yield what happened, brokers first: they are why leaders change. Topics that came or went are no events.

    `fenced_because` is asked for what no image shows: why a broker is fenced now.
    """
    for event in _broker_events(before, after):
        if event.kind == "broker_fenced" and "why" not in event.fields:
            yield _with_reason(event, fenced_because(event.fields["broker"]), session_timeout_ms)
        else:
            yield event
    yield from _level_events(before, after)
    yield from _setting_events(before, after)
    yield from _partition_events(before, after)


def places_text(places: Sequence[str]) -> str:
    """Name a few places and count the others: `x-0, x-1, x-2 and 7 more`."""
    named = ", ".join(places[:_NAMED_MAX])
    more = len(places) - _NAMED_MAX
    return f"{named} and {more} more" if more > 0 else named


def nodes_text(node_ids: Iterable[int]) -> str:
    """Name nodes: `node 1`, `nodes 1, 2`, `no node`."""
    words = [str(node_id) for node_id in node_ids]
    if not words:
        return "no node"
    return f"node{'s' if len(words) > 1 else ''} {', '.join(words)}"


def _broker_events(before: View, after: View) -> Iterator[Event]:
    for node_id, broker in after.brokers.items():
        was = before.brokers.get(node_id)
        if was is broker:
            continue
        if was is None or was.epoch != broker.epoch:
            yield _registered(was, broker)
        if was is None:
            continue
        if broker.is_leaving and not was.is_leaving:
            text = f"node {node_id} is about to stop and hands over what it leads"
            yield Event(kind="broker_leaving", text=text, fields={"broker": node_id})
        if broker.is_fenced and not was.is_fenced:
            yield _fenced(was, broker)
        elif was.is_fenced and not broker.is_fenced:
            text = f"node {node_id} takes part again" if was.epoch else f"node {node_id} takes part"
            yield Event(kind="broker_returned", text=text, fields={"broker": node_id, "broker_epoch": broker.epoch})
    for node_id in before.brokers.keys() - after.brokers.keys():
        text = f"node {node_id} was struck off the cluster"
        yield Event(kind="broker_removed", text=text, fields={"broker": node_id})


def _registered(was: BrokerImage | None, broker: BrokerImage) -> Event:
    if was is None:
        how = "joined the cluster"
    elif was.incarnation != broker.incarnation:
        how = "was started again and registered"
    else:
        how = "registered again"
    rack = f" in rack {broker.rack}" if broker.rack else ""
    return Event(
        kind="broker_registered",
        text=f"node {broker.node_id} {how} at {broker.host}:{broker.port}{rack}",
        fields={
            "broker": broker.node_id,
            "broker_epoch": broker.epoch,
            "host": broker.host,
            "port": broker.port,
            "rack": broker.rack,
        },
    )


def _fenced(was: BrokerImage, broker: BrokerImage) -> Event:
    fields: dict[str, Any] = {"broker": broker.node_id, "broker_epoch": broker.epoch}
    text = f"node {broker.node_id} is fenced until it has caught up with the cluster's metadata"
    if was.epoch != broker.epoch:
        return Event(kind="broker_fenced", text=text, fields={**fields, "why": "registered"})
    return Event(kind="broker_fenced", text="", fields=fields)


def _with_reason(event: Event, why: Fencing, session_timeout_ms: int) -> Event:
    what = {
        Fencing.LEFT: "stopped in order",
        Fencing.ENDED: "is gone, its process has ended,",
        Fencing.SILENT: f"was not heard of for {session_timeout_ms / 1000:g} s",
    }[why]
    text = f"node {event.fields['broker']} {what} and was fenced"
    return Event(kind=event.kind, text=text, fields={**event.fields, "why": why.value})


def _level_events(before: View, after: View) -> Iterator[Event]:
    for feature, level in after.levels.items():
        was = before.levels.get(feature, 0)
        if was != level:
            text = f"the cluster is at {feature} {level} now (was {was})"
            fields = {"feature": feature, "was": was, "is": level}
            yield Event(kind="feature_level_changed", text=text, fields=fields)


def _setting_events(before: View, after: View) -> Iterator[Event]:
    """Yield the changes of what decides which acknowledged records an outage may take."""
    for name, topic in after.topics.items():
        was = before.topics.get(name)
        if was is topic or was is None or was.topic_id != topic.topic_id or was.overrides == topic.overrides:
            continue
        for setting in SAFETY_SETTINGS:
            old, new = was.overrides.get(setting), topic.overrides.get(setting)
            if old != new:
                now = "is at the brokers' default now" if new is None else f"is {new} now"
                text = f"topic {name}: {setting} {now} (was {'at their default' if old is None else old})"
                yield Event(
                    kind="setting_changed", text=text, fields={"topic": name, "setting": setting, "was": old, "is": new}
                )


class _Change(NamedTuple):
    """One partition before and after."""

    topic: str
    partition: int
    was: PartitionImage
    now: PartitionImage

    @property
    def place(self) -> str:
        return f"{self.topic}-{self.partition}"


def _changes(before: View, after: View) -> Iterator[_Change]:
    for name, topic in after.topics.items():
        was = before.topics.get(name)
        if was is topic or was is None or was.topic_id != topic.topic_id:
            continue
        for partition, (old, new) in enumerate(zip(was.partitions, topic.partitions, strict=False)):
            if old is not new and old != new:
                yield _Change(name, partition, old, new)


def _partition_events(before: View, after: View) -> Iterator[Event]:
    """Changes of the same kind with the same nodes are gathered, in the order in which the first of them came."""
    gathered: dict[tuple[Any, ...], list[_Change]] = defaultdict(list)
    for change in _changes(before, after):
        for sort in _sorts(change):
            gathered[sort].append(change)
    for sort in sorted(gathered, key=lambda sort: _ORDER.index(sort[0])):
        changes = gathered[sort]
        for start in range(0, len(changes), PARTITIONS_MAX):
            yield _event(sort, changes[start : start + PARTITIONS_MAX])


_ORDER = (
    "reassignment_began",
    "isr_shrunk",
    "leader_lost",
    "unclean_election",
    "leader_elected",
    "isr_expanded",
    "reassignment_ended",
)


def _sorts(change: _Change) -> Iterator[tuple[Any, ...]]:
    """Yield what befell a partition, each with what the words about it depend on."""
    was, now = change.was, change.now
    if now.leader != was.leader or now.leader_epoch != was.leader_epoch:
        if now.leader == NO_LEADER:
            if was.leader != NO_LEADER:
                yield "leader_lost", was.leader
        elif now.recovering and not was.recovering:
            yield "unclean_election", now.leader, _former(was)
        else:
            yield "leader_elected", now.leader, _former(was)
    if lost := tuple(sorted(set(was.isr) - set(now.isr))):
        yield "isr_shrunk", lost
    if gained := tuple(sorted(set(now.isr) - set(was.isr))):
        yield "isr_expanded", gained
    moves, moved = bool(now.adding or now.removing), bool(was.adding or was.removing)
    if moves and not moved:
        target = tuple(node for node in now.replicas if node not in now.removing)
        yield "reassignment_began", was.replicas, target
    elif moved and not moves:
        target = tuple(node for node in was.replicas if node not in was.removing)
        yield "reassignment_ended", now.replicas, set(now.replicas) == set(target)


def _former(was: PartitionImage) -> int:
    return was.leader if was.leader != NO_LEADER else was.last_known_leader


def _event(sort: tuple[Any, ...], changes: Sequence[_Change]) -> Event:
    partitions = [
        {
            "topic": change.topic,
            "partition": change.partition,
            "leader_epoch": change.now.leader_epoch,
            "isr": list(change.now.isr),
        }
        for change in changes
    ]
    text, fields = _words(sort, changes)
    return Event(kind=sort[0], text=text, fields={**fields, "partitions": partitions})


def _words(sort: tuple[Any, ...], changes: Sequence[_Change]) -> tuple[str, dict[str, Any]]:
    where = places_text([change.place for change in changes])
    match sort:
        case "leader_elected" | "unclean_election" as kind, leader, former:
            epochs = {change.now.leader_epoch for change in changes}
            since = f" from epoch {epochs.pop()} on" if len(epochs) == 1 else ""
            before = "had no leader" if former == NO_LEADER else f"was node {former}"
            risk = "" if kind == "leader_elected" else "; it was not in sync, so acknowledged records may be lost"
            if former == leader:
                before = "as before"
            return f"node {leader} leads {where}{since} ({before}){risk}", {"leader": leader, "former": former}
        case "leader_lost", former:
            text = f"{where}: no leader any more (was node {former}): no other replica that is in sync is up"
            return text, {"former": former}
        case "isr_shrunk" | "isr_expanded" as kind, nodes:
            how = "fell out of the in-sync replicas of" if kind == "isr_shrunk" else "caught up and in sync with"
            verb = "" if kind == "isr_shrunk" else "is " if len(nodes) == 1 else "are "
            isrs = {change.now.isr for change in changes}
            left = f" (now {', '.join(map(str, isrs.pop())) or 'none'})" if len(isrs) == 1 else ""
            return f"{nodes_text(nodes)} {verb}{how} {where}{left}", {"brokers": list(nodes)}
        case "reassignment_began", origin, target:
            text = f"{where}: moving from {nodes_text(origin)} to {nodes_text(target)}"
            return text, {"from": list(origin), "to": list(target)}
        case "reassignment_ended", replicas, done:
            how = "moved to" if done else "the move was called off; back on"
            return f"{where}: {how} {nodes_text(replicas)}", {"to": list(replicas), "done": done}
    raise AssertionError(f"a kind of event without words: {sort}")
