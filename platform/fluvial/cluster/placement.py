"""
Where replicas and leaders should be, so that brokers share them evenly with the fewest moves.

Rules, the first before the next: a partition has no two replicas on one broker; it is spread over as many racks as
there are, evenly; brokers hold the same number of replicas within one; they are the preferred leader of the same number
of partitions within one. What is right already stays where it is. Pure: the same picture gives the same plan, so a plan
that was stopped half-way is gone on with by making it again.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from fluvial.cluster.picture import TopicPartition
from fluvial.errors import FluvialError

Replicas = tuple[int, ...]
Layout = Mapping[TopicPartition, Replicas]

_CANDIDATES_MAX = 500  # of partitions that could be moved as well as another; more are not compared


class PlacementError(FluvialError):
    """No placement has what is asked for."""


class Spread(NamedTuple):
    """How many replicas a broker holds, and of how many partitions it is the preferred leader."""

    replicas: int
    leaders: int


def spread_of(layout: Layout, brokers: Iterable[int]) -> dict[int, Spread]:
    """Count for each broker, those that have nothing as well."""
    held = Counter(node for replicas in layout.values() for node in replicas)
    led = Counter(replicas[0] for replicas in layout.values())
    return {node: Spread(held[node], led[node]) for node in sorted({*brokers, *held})}


def balanced(
    layout: Layout, brokers: Sequence[int], racks: Mapping[int, str | None], *, factor: int | None = None
) -> dict[TopicPartition, Replicas]:
    """
    Return the replicas of each partition over `brokers` alone, `factor` of them or as many as it has.

    Raises PlacementError when a partition has more replicas than there are brokers.
    """
    plan = _Plan(layout, brokers, racks, factor)
    plan.fill()
    plan.repair_racks()
    plan.level_replicas()
    return plan.with_leaders(layout)


def drained(
    layout: Layout, node: int, brokers: Sequence[int], racks: Mapping[int, str | None]
) -> dict[TopicPartition, Replicas]:
    """
    Return the replicas when what is on `node` is shared among the other brokers, and nothing else moves.

    Raises PlacementError when a partition has more replicas than there are other brokers.
    """
    # A broker that is down keeps what it holds: its replicas are not what is being moved.
    others = sorted({held for replicas in layout.values() for held in replicas} | set(brokers))
    plan = _Plan(layout, [other for other in others if other != node], racks, None)
    plan.fill([other for other in brokers if other != node])
    return plan.with_leaders(layout, level=False)


def moved(before: Layout, after: Layout) -> dict[TopicPartition, Replicas]:
    """Return the partitions whose replicas differ, in order or at all."""
    return {tp: replicas for tp, replicas in after.items() if replicas != before[tp]}


def copies(before: Layout, after: Layout) -> dict[TopicPartition, tuple[int, ...]]:
    """Return which brokers get a copy of what: the part of a plan that costs time."""
    fresh = {tp: tuple(node for node in replicas if node not in before[tp]) for tp, replicas in after.items()}
    return {tp: nodes for tp, nodes in fresh.items() if nodes}


class _Plan:
    """Replicas as sets while they are moved about; the order of each, and so its leader, comes last."""

    def __init__(
        self, layout: Layout, brokers: Sequence[int], racks: Mapping[int, str | None], factor: int | None
    ) -> None:
        self._brokers = sorted(set(brokers))
        # Brokers that name no rack are one rack.
        self._rack = {node: racks.get(node) or "" for node in self._brokers}
        self._wanted = {tp: factor or len(replicas) for tp, replicas in layout.items()}
        for tp, wanted in self._wanted.items():
            if wanted > len(self._brokers):
                raise PlacementError(
                    f"{tp} has {wanted} replicas and only {len(self._brokers)} brokers may hold them; "
                    "name more brokers, or have fewer replicas with --replication-factor"
                )
        self._held = {tp: {node for node in replicas if node in self._rack} for tp, replicas in sorted(layout.items())}
        self._on: dict[int, dict[TopicPartition, None]] = {node: {} for node in self._brokers}
        self._load = Counter(dict.fromkeys(self._brokers, 0))
        self._topic_load: Counter[tuple[str, int]] = Counter()
        for tp, nodes in self._held.items():
            for node in nodes:
                self._on[node][tp] = None
                self._count(tp, node, 1)

    def fill(self, onto: Sequence[int] | None = None) -> None:
        """Give each partition the replicas that it lacks, on the emptiest brokers that suit it, or take some off."""
        free = set(self._brokers if onto is None else onto)
        for tp, nodes in self._held.items():
            while len(nodes) > self._wanted[tp]:
                gone = max(nodes, key=lambda node: self._cost(tp, node))
                nodes.discard(gone)
                del self._on[gone][tp]
                self._count(tp, gone, -1)
            while len(nodes) < self._wanted[tp]:
                options = free - nodes
                if not options:
                    raise PlacementError(
                        f"{tp} has {self._wanted[tp]} replicas and no other broker is up that could hold one; "
                        "add a broker, or have fewer replicas with `fluvial cluster reassign --replication-factor`"
                    )
                self._put(tp, min(options, key=lambda node: self._cost(tp, node)))

    def repair_racks(self) -> None:
        """Move replicas that share a rack while another rack has fewer of the partition."""
        for tp, nodes in self._held.items():
            while True:
                options = [
                    (self._cost(tp, to), origin, to)
                    for origin in nodes
                    for to in self._brokers
                    if to not in nodes and self._crowding(tp, origin, to) < 0
                ]
                if not options:
                    break
                _, origin, to = min(options)
                self._shift(tp, origin, to)

    def level_replicas(self) -> None:
        """Move single replicas, along a chain of brokers where need be, until all hold the same within one."""

        def movable(origin: int, to: int) -> TopicPartition | None:
            """The partition that goes: of the topic that is most crowded on the one and rarest on the other."""
            fits = (
                (self._topic_load[tp.topic, to] - self._topic_load[tp.topic, origin], tp)
                for tp in self._on[origin]
                if to not in self._held[tp] and self._crowding(tp, origin, to) <= 0
            )
            best = min(islice(fits, _CANDIDATES_MAX), default=None)
            return None if best is None else best[1]

        _level(self._load, self._brokers, movable, self._shift)

    def with_leaders(self, before: Layout, *, level: bool = True) -> dict[TopicPartition, Replicas]:
        """Put the replicas into an order, as it was as far as can be, and with `level` with leaders shared evenly."""
        ordered: dict[TopicPartition, Replicas] = {}
        led = Counter(dict.fromkeys(self._brokers, 0))
        led_partitions: dict[int, dict[TopicPartition, None]] = {node: {} for node in self._brokers}
        leaderless = []
        for tp, nodes in self._held.items():
            stay = [node for node in before[tp] if node in nodes]
            ordered[tp] = (*stay, *sorted(nodes - set(stay), key=lambda node: (self._load[node], node)))
            if before[tp][0] in nodes:
                led[before[tp][0]] += 1
                led_partitions[before[tp][0]][tp] = None
            else:
                leaderless.append(tp)
        for tp in leaderless:
            leader = min(ordered[tp], key=lambda node: (led[node], ordered[tp].index(node)))
            ordered[tp] = _led_by(ordered[tp], leader)
            led[leader] += 1
            led_partitions[leader][tp] = None

        def movable(origin: int, to: int) -> TopicPartition | None:
            return next((tp for tp in led_partitions[origin] if to in ordered[tp]), None)

        def shift(tp: TopicPartition, origin: int, to: int) -> None:
            ordered[tp] = _led_by(ordered[tp], to)
            del led_partitions[origin][tp]
            led_partitions[to][tp] = None
            led[origin] -= 1
            led[to] += 1

        if level:
            _level(led, self._brokers, movable, shift)
        return ordered

    def _cost(self, tp: TopicPartition, node: int) -> tuple[int, int, int, int]:
        """What speaks against one more replica there: neighbours in the rack, then load."""
        neighbours = sum(self._rack[other] == self._rack[node] for other in self._held[tp])
        return neighbours, self._load[node], self._topic_load[tp.topic, node], node

    def _crowding(self, tp: TopicPartition, origin: int, to: int) -> int:
        """How much more crowded the racks of a partition are after a move; below 0 it is better spread."""
        here, there = self._rack[origin], self._rack[to]
        if here == there:
            return 0
        counts = Counter(self._rack[node] for node in self._held[tp])
        return counts[there] + 1 - counts[here]

    def _put(self, tp: TopicPartition, node: int) -> None:
        self._held[tp].add(node)
        self._on[node][tp] = None
        self._count(tp, node, 1)

    def _shift(self, tp: TopicPartition, origin: int, to: int) -> None:
        self._held[tp].discard(origin)
        del self._on[origin][tp]
        self._count(tp, origin, -1)
        self._put(tp, to)

    def _count(self, tp: TopicPartition, node: int, by: int) -> None:
        self._load[node] += by
        self._topic_load[tp.topic, node] += by


def _led_by(replicas: Replicas, leader: int) -> Replicas:
    return (leader, *(node for node in replicas if node != leader))


def _level(
    load: "Counter[int]",
    brokers: Sequence[int],
    movable: Callable[[int, int], TopicPartition | None],
    shift: Callable[[TopicPartition, int, int], None],
) -> None:
    """
    Shift one after the other from the fullest brokers towards the emptiest until nothing makes it more even.

    Where nothing can go straight from one to the other, what can go to a third makes room there: the shortest such
    chain is looked for. Each round brings the sum of squares down, so it ends.
    """
    while (chain := _chain(load, brokers, movable)) is not None:
        for origin, to, tp in chain:
            shift(tp, origin, to)


def _chain(
    load: Mapping[int, int], brokers: Sequence[int], movable: Callable[[int, int], TopicPartition | None]
) -> list[tuple[int, int, TopicPartition]] | None:
    for origin in sorted(brokers, key=lambda node: (-load[node], node)):
        if load[origin] - min(load[node] for node in brokers) < 2:
            return None
        came: dict[int, tuple[int, TopicPartition] | None] = {origin: None}
        queue = deque([origin])
        while queue:
            at = queue.popleft()
            for to in sorted(brokers, key=lambda node: (load[node], node)):
                if to in came or (tp := movable(at, to)) is None:
                    continue
                came[to] = at, tp
                if load[origin] - load[to] >= 2:
                    return _walked(came, to)
                queue.append(to)
    return None


def _walked(came: Mapping[int, tuple[int, TopicPartition] | None], end: int) -> list[tuple[int, int, TopicPartition]]:
    """Return the steps to `end`, the last one first: room is made before something comes."""
    steps = []
    while (step := came[end]) is not None:
        origin, tp = step
        steps.append((origin, end, tp))
        end = origin
    return steps
