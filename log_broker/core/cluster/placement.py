"""
Where the replicas of new partitions go.

No broker holds a partition twice. Brokers that are not up are taken last. A partition is on as many racks as it can be,
and then on the brokers that hold fewest replicas; of those, the one that leads fewest is its preferred leader. While
brokers stay the same, so do the shares: no broker holds two replicas more than another, and none leads two partitions
more. A broker that was added gets its share of every new topic and the first pick, but not all that is new: how much
less than others it has does not count. The followers take turns in being the next to lead, so that what a lost broker
has led is shared among those that have its partitions too.

A topic that prefers racks for its leaders has its replicas where they would be anyway, and of each partition one in
those racks leads, if one is there.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from log_broker.config.leaders import ANYWHERE, LeadersPreference
from log_broker.core.cluster.image import BrokerImage, ClusterImage
from log_broker.errors import BrokerError, ErrorCode

Replicas = tuple[int, ...]


class _Turn(NamedTuple):
    """A broker's place among those of its rack: the least is chosen first."""

    is_down: bool
    held: int
    less_led: int
    node_id: int


def place(
    image: ClusterImage, count: int, factor: int, preference: LeadersPreference = ANYWHERE
) -> tuple[Replicas, ...]:
    """
    Choose the brokers of `count` new partitions with `factor` replicas each, the preferred leader first.

    `preference` is where leaders should be; the replicas are chosen without it.

    Raises BrokerError(INVALID_REPLICATION_FACTOR) when there are too few brokers, or none is up to lead.
    """
    brokers = list(image.brokers.values())
    if factor > len(brokers):
        raise BrokerError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The target replication factor of {factor} cannot be reached because only {len(brokers)} broker(s) are"
            " registered.",
        )
    if not any(broker.may_lead for broker in brokers):
        raise BrokerError(ErrorCode.INVALID_REPLICATION_FACTOR, "All brokers are currently fenced.")
    shares = _Shares(image, brokers)
    placed = []
    for _ in range(count):
        leader, *followers = _led_where_wanted(image, _place_one(shares, factor), shares, preference)
        replicas = (leader, *sorted(followers, key=partial(shares.turn_to_inherit, leader)))
        shares.take(replicas)
        placed.append(replicas)
    return tuple(placed)


class _Shares:
    """
    What each broker has: replicas, and partitions of which it is the preferred leader, or the next to lead (`inherits`,
    by leader and heir).

    The brokers are kept in the order in which they are chosen, so that a choice looks at few of a thousand.
    """

    def __init__(self, image: ClusterImage, brokers: Sequence[BrokerImage]) -> None:
        held: Counter[int] = Counter()
        led: Counter[int] = Counter()
        self.inherits: Counter[Replicas] = Counter()
        for topic in image.topics.values():
            for partition in topic.partitions:
                held.update(partition.replicas)
                led[partition.replicas[0]] += 1
                self.inherits[partition.replicas[:2]] += 1
        self.brokers = {broker.node_id: broker for broker in brokers}
        up = [broker.node_id for broker in brokers if broker.may_lead]
        self.held = _beyond_least(held, up)
        self.led = _beyond_least(led, up)
        self.of_rack: dict[str | None, list[_Turn]] = {}
        for broker in brokers:
            self.of_rack.setdefault(broker.rack, []).append(self._turn(broker.node_id))
        for turns in self.of_rack.values():
            turns.sort()
        self.leaders = sorted(map(self._leading_turn, up))

    def take(self, replicas: Replicas) -> None:
        """Take note of another partition."""
        self.inherits[replicas[:2]] += 1
        for node_id in replicas:
            broker = self.brokers[node_id]
            turns = self.of_rack[broker.rack]
            del turns[bisect_left(turns, self._turn(node_id))]
            if broker.may_lead:
                del self.leaders[bisect_left(self.leaders, self._leading_turn(node_id))]
            self.held[node_id] += 1
            self.led[node_id] += node_id == replicas[0]
            insort(turns, self._turn(node_id))
            if broker.may_lead:
                insort(self.leaders, self._leading_turn(node_id))

    def turn_to_inherit(self, leader: int, follower: int) -> tuple[bool, int]:
        """Return what orders the followers of a leader: the least is the next to lead."""
        return not self.brokers[follower].may_lead, self.inherits[leader, follower]

    def weight(self, node_id: int) -> tuple[bool, int]:
        return not self.brokers[node_id].may_lead, self.held[node_id]

    def weights(self, chosen: Iterable[int]) -> list[tuple[bool, int]]:
        return sorted(map(self.weight, chosen))

    def _turn(self, node_id: int) -> _Turn:
        # Of those that hold equally little, one that leads much: whoever leads little shall lead soon.
        return _Turn(*self.weight(node_id), -self.led[node_id], node_id)

    def _leading_turn(self, node_id: int) -> tuple[int, int, int]:
        # Of those that lead fewest, one that holds most: the others will be picked for what they lack.
        return self.led[node_id], -self.held[node_id], node_id


def _led_where_wanted(
    image: ClusterImage, replicas: Replicas, shares: _Shares, preference: LeadersPreference
) -> Replicas:
    """Put the replica first that is in the best rack, of several the one that leads fewest."""
    if preference == ANYWHERE:
        return replicas
    first = min(
        (node_id for node_id in replicas if image.may_lead(node_id)),
        key=lambda node_id: (preference.rank(image.brokers[node_id].rack), shares.led[node_id]),
    )
    return (first, *(node_id for node_id in replicas if node_id != first))


def _beyond_least(counts: Counter[int], node_ids: list[int]) -> Counter[int]:
    """Return who has more than the least, as 1: more than one new round cannot and need not level."""
    least = min(counts[node_id] for node_id in node_ids)
    return Counter({node_id: 1 for node_id, count in counts.items() if count > least})


def _place_one(shares: _Shares, factor: int) -> Replicas:
    lightest = shares.weights(_choose(shares, factor, None))
    for _, _, leader in shares.leaders:
        if shares.weight(leader) in lightest:  # else no choice with it is as light
            chosen = _choose(shares, factor, leader)
            if shares.weights(chosen) == lightest:
                return tuple(chosen)
    raise AssertionError("the first of the lightest choice is up, and with it at the head the choice is as light")


def _choose(shares: _Shares, factor: int, leader: int | None) -> list[int]:
    """Choose `factor` brokers, `leader` first if one is given; each is the next of the rack with the fewest so far."""
    chosen = [] if leader is None else [leader]
    racks = Counter(shares.brokers[node_id].rack for node_id in chosen)
    waiting = {rack: (turn for turn in turns if turn.node_id != leader) for rack, turns in shares.of_rack.items()}
    heads = {rack: head for rack, turns in waiting.items() if (head := next(turns, None)) is not None}
    while len(chosen) < factor:
        rack, head = min(heads.items(), key=lambda each: (each[1].is_down, racks[each[0]], each[1]))
        chosen.append(head.node_id)
        racks[rack] += 1
        following = next(waiting[rack], None)
        if following is None:
            del heads[rack]
        else:
            heads[rack] = following
    return chosen
