"""
The server-side assignors of consumer groups (KIP-848): who is to read which partition.

Both are sticky: a partition stays with its member unless the assignor's own rule needs it elsewhere.

    range     topic by topic: every subscriber gets ⌊n/m⌋ or ⌈n/m⌉ partitions of it, with the same numbers in topics of
              the same size
    uniform   over all topics: no two members with the same subscription differ by more than one partition; with other
              subscriptions, no partition could move to a subscriber that has at least two fewer
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace

from log_broker.core.groups.consumer_group_records import NO_PARTITIONS, TopicIdPartition, TopicIdPartitions


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """A member for an assignor: the ids of its topics that exist, and its target so far."""

    topics: frozenset[str]
    target: TopicIdPartitions = NO_PARTITIONS
    instance_id: str | None = None


Members = Mapping[str, MemberSpec]
Counts = Mapping[str, int]  # topic id -> partitions
Assignor = Callable[[Members, Counts], dict[str, TopicIdPartitions]]


def assign_range(members: Members, counts: Counts) -> dict[str, TopicIdPartitions]:
    """Return everyone's partitions by the rule of `range`."""
    assigned: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in members}
    ordered = _ordered(members)
    for topic_id in sorted(counts):
        readers = [member_id for member_id in ordered if topic_id in members[member_id].topics]
        if readers:
            _assign_topic(topic_id, counts[topic_id], readers, members, assigned)
    return {member_id: frozenset(places) for member_id, places in assigned.items()}


def _assign_topic(
    topic_id: str, count: int, readers: list[str], members: Members, assigned: dict[str, set[TopicIdPartition]]
) -> None:
    least, extra = divmod(count, len(readers))
    kept: dict[str, list[int]] = {}
    for reader in readers:
        # The lowest are kept, so that members keep the same numbers of topics that are read together.
        owned = sorted(number for topic, number in members[reader].target if topic == topic_id and number < count)
        quota = least
        if extra and len(owned) > least:
            quota += 1
            extra -= 1
        kept[reader] = owned[:quota]
    taken = {number for numbers in kept.values() for number in numbers}
    free = [number for number in range(count) if number not in taken]
    position = 0
    for reader in readers:
        missing = least - len(kept[reader])
        if extra and missing >= 0:
            missing += 1
            extra -= 1
        numbers = kept[reader] + free[position : position + max(missing, 0)]
        position += max(missing, 0)
        assigned[reader].update((topic_id, number) for number in numbers)


def assign_uniform(members: Members, counts: Counts) -> dict[str, TopicIdPartitions]:
    """Return everyone's partitions by the rule of `uniform`."""
    if not members:
        return {}
    subscriptions = {spec.topics for spec in members.values()}
    if len(subscriptions) == 1:
        return _assign_alike(members, counts)
    return _assign_mixed(members, counts)


def _assign_alike(members: Members, counts: Counts) -> dict[str, TopicIdPartitions]:
    """All members read the same topics: each keeps what it has up to its quota, and the rest fills the gaps."""
    topics = next(iter(members.values())).topics
    places = _places_of(topics, counts)
    least, extra = divmod(len(places), len(members))
    owned = {member_id: members[member_id].target & places for member_id in members}
    # Who has the most keeps the extra ones: no partition moves only because of the order of members.
    ordered = sorted(_ordered(members), key=lambda member_id: -len(owned[member_id]))
    quotas = {member_id: least + 1 if rank < extra else least for rank, member_id in enumerate(ordered)}
    kept = {
        member_id: places if len(places) <= quotas[member_id] else frozenset(sorted(places)[: quotas[member_id]])
        for member_id, places in owned.items()
    }
    free = sorted(places.difference(*kept.values()))
    position = 0
    assigned = {}
    for member_id in ordered:
        missing = quotas[member_id] - len(kept[member_id])
        assigned[member_id] = kept[member_id].union(free[position : position + missing])
        position += missing
    return assigned


def _assign_mixed(members: Members, counts: Counts) -> dict[str, TopicIdPartitions]:
    """Members read different topics: give what is free to the least loaded, then even out while that helps."""
    ordered = _ordered(members)
    readers = {
        topic_id: [member_id for member_id in ordered if topic_id in members[member_id].topics]
        for topic_id in sorted({topic for spec in members.values() for topic in spec.topics} & counts.keys())
    }
    held: dict[str, dict[str, list[int]]] = {topic_id: {} for topic_id in readers}
    loads = dict.fromkeys(ordered, 0)
    for member_id in ordered:
        for topic_id, number in sorted(members[member_id].target):
            if topic_id in members[member_id].topics and number < counts.get(topic_id, 0):
                held[topic_id].setdefault(member_id, []).append(number)
                loads[member_id] += 1
    # Topics with few readers first: their partitions have the least choice.
    for topic_id in sorted(readers, key=lambda topic: (len(readers[topic]), topic)):
        _give_out(readers[topic_id], counts[topic_id], held[topic_id], loads)
    while sum(_even_out(readers[topic_id], held[topic_id], loads) for topic_id in readers):
        pass
    assigned: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in members}
    for topic_id, holdings in held.items():
        for member_id, numbers in holdings.items():
            assigned[member_id].update((topic_id, number) for number in numbers)
    return {member_id: frozenset(found) for member_id, found in assigned.items()}


def _give_out(readers: list[str], count: int, held: dict[str, list[int]], loads: dict[str, int]) -> None:
    """Give the partitions of one topic that nobody has to whoever has the least."""
    taken = {number for numbers in held.values() for number in numbers}
    heap = [(loads[member_id], rank) for rank, member_id in enumerate(readers)]
    heapify(heap)
    for number in range(count):
        if number not in taken:
            load, rank = heap[0]
            heapreplace(heap, (load + 1, rank))
            held.setdefault(readers[rank], []).append(number)
            loads[readers[rank]] += 1


def _even_out(readers: list[str], held: dict[str, list[int]], loads: dict[str, int]) -> int:
    """
    Move partitions of one topic to readers with at least two fewer in all; return how many were moved.

    Each move lowers the sum of the squares of `loads`, so moving comes to an end.
    """
    moved = 0
    while True:
        giver = max((member_id for member_id in readers if held.get(member_id)), key=loads.__getitem__, default=None)
        taker = min(readers, key=loads.__getitem__)
        if giver is None or loads[giver] - loads[taker] < 2:
            return moved
        held.setdefault(taker, []).append(held[giver].pop())
        loads[giver] -= 1
        loads[taker] += 1
        moved += 1


def _places_of(topics: Iterable[str], counts: Counts) -> TopicIdPartitions:
    return frozenset((topic_id, number) for topic_id in topics for number in range(counts.get(topic_id, 0)))


def _ordered(members: Members) -> list[str]:
    """Static members first, by instance id, so that a restart of all changes nothing; then the others by member id."""
    return sorted(
        members,
        key=lambda member_id: (
            members[member_id].instance_id is None,
            members[member_id].instance_id or "",
            member_id,
        ),
    )


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
