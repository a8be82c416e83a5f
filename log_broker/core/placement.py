"""
Where the replicas of new partitions go.

No broker holds a partition twice. Brokers that are not up are taken last. A partition is on as many racks as it can be,
and then on the brokers that hold fewest replicas; of those, the one that leads fewest is its preferred leader. While
brokers stay the same, so do the shares: no broker holds two replicas more than another, and none leads two partitions
more. A broker that was added gets its share of every new topic and the first pick, but not all that is new: how much
less than others it has does not count.

A topic that prefers racks for its leaders has its replicas where they would be anyway, and of each partition one in
those racks leads, if one is there.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from log_broker.config_leaders import ANYWHERE, LeadersPreference
from log_broker.core.cluster import BrokerImage, ClusterImage
from log_broker.errors import BrokerError, ErrorCode

Replicas = tuple[int, ...]


class _Shares(NamedTuple):
    """What each broker has: replicas, and partitions of which it is the preferred leader."""

    held: Counter[int]
    led: Counter[int]


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
    shares = _shares(image, brokers)
    placed = []
    for _ in range(count):
        replicas = _led_where_wanted(image, _place_one(brokers, factor, shares), shares, preference)
        shares.held.update(replicas)
        shares.led[replicas[0]] += 1
        placed.append(replicas)
    return tuple(placed)


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


def _shares(image: ClusterImage, brokers: Iterable[BrokerImage]) -> _Shares:
    held: Counter[int] = Counter()
    led: Counter[int] = Counter()
    for topic in image.topics.values():
        for partition in topic.partitions:
            held.update(partition.replicas)
            led[partition.replicas[0]] += 1
    up = [broker.node_id for broker in brokers if broker.may_lead]
    return _Shares(_beyond_least(held, up), _beyond_least(led, up))


def _beyond_least(counts: Counter[int], node_ids: list[int]) -> Counter[int]:
    """Return who has more than the least, as 1: more than one new round cannot and need not level."""
    least = min(counts[node_id] for node_id in node_ids)
    return Counter({node_id: 1 for node_id, count in counts.items() if count > least})


def _place_one(brokers: list[BrokerImage], factor: int, shares: _Shares) -> Replicas:
    held, led = shares
    lightest = _weights(_choose(brokers, factor, shares, None), held)
    # Of those that lead fewest, one that holds most: the others will be picked for what they lack.
    leaders = sorted(
        (broker for broker in brokers if broker.may_lead),
        key=lambda broker: (led[broker.node_id], -held[broker.node_id], broker.node_id),
    )
    for leader in leaders:
        chosen = _choose(brokers, factor, shares, leader)
        if _weights(chosen, held) == lightest:
            return tuple(broker.node_id for broker in chosen)
    raise AssertionError("the first of the lightest choice is up, and with it at the head the choice is as light")


def _choose(brokers: list[BrokerImage], factor: int, shares: _Shares, leader: BrokerImage | None) -> list[BrokerImage]:
    """Choose `factor` brokers, `leader` first if one is given."""
    held, led = shares
    chosen = [] if leader is None else [leader]
    left = [broker for broker in brokers if broker is not leader]
    racks = Counter(broker.rack for broker in chosen)
    while len(chosen) < factor:
        # Of those that hold equally little, one that leads much: whoever leads little shall lead soon.
        following = min(
            left,
            key=lambda broker: (
                not broker.may_lead,
                racks[broker.rack],
                held[broker.node_id],
                -led[broker.node_id],
                broker.node_id,
            ),
        )
        left.remove(following)
        racks[following.rack] += 1
        chosen.append(following)
    return chosen


def _weights(chosen: Iterable[BrokerImage], held: Counter[int]) -> list[tuple[bool, int]]:
    return sorted((not broker.may_lead, held[broker.node_id]) for broker in chosen)
