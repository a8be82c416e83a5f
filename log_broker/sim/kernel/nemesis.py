"""
What goes wrong, and when: a schedule of faults drawn from the seed.

The schedule is drawn before the run, so a failing run can be told again with fewer faults. A fault names nodes by
address, or by LEADER whoever leads when it begins. Each kind is a function that does the harm and returns how to undo
it, or None where it did none.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from log_broker.sim.kernel.kernel import Action, Kernel
from log_broker.sim.kernel.network import Network
from log_broker.sim.kernel.node import Node

LEADER = -1


class Victims(Protocol):
    """What the nemesis may harm."""

    kernel: Kernel
    network: Network

    @property
    def nodes(self) -> Mapping[int, Node]: ...

    def leader(self) -> int | None:
        """Return the address of a node that leads, if any does."""
        ...

    def may_lose_disk(self, address: int) -> bool:
        """Whether the promises of the system cover the loss of this disk now."""
        ...

    def disk_lost(self, address: int) -> None:
        """Take note that this disk is an empty one now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`kind` is a key of KINDS; `amount` in 0 … 1 says how bad, where the kind knows degrees."""

    at_us: int
    lasts_us: int
    kind: str
    targets: tuple[int, ...]
    amount: float

    def __str__(self) -> str:
        whom = ",".join("leader" if target == LEADER else f"n{target}" for target in self.targets)
        return f"{self.at_us / 1e6:.3f}s +{self.lasts_us / 1e6:.3f}s {self.kind} {whom} ({self.amount:.2f})"


class Nemesis:
    """Carries a schedule out."""

    def __init__(self, victims: Victims, faults: Iterable[Fault], kinds: "Mapping[str, Harm] | None" = None) -> None:
        self.done: list[Fault] = []
        self._kinds = KINDS if kinds is None else kinds
        self._victims = victims
        self._under_way: dict[int, Action] = {}
        self._faults = list(faults)
        for number, fault in enumerate(self._faults):
            victims.kernel.at(fault.at_us, lambda number=number, fault=fault: self._begin(number, fault))  # type: ignore[misc]

    def heal(self) -> None:
        """Undo all that is still wrong, and do no more harm."""
        self._faults.clear()
        for number in list(self._under_way):
            self._end(number)

    def _begin(self, number: int, fault: Fault) -> None:
        if not self._faults:
            return
        victims = self._victims
        leader = victims.leader() or min(victims.nodes)
        nodes = [victims.nodes[leader if target == LEADER else target] for target in fault.targets]
        victims.kernel.trace("nemesis", f"{fault.kind} {' '.join(node.name for node in nodes)} {fault.amount:.2f}")
        undo = self._kinds[fault.kind](victims, nodes, fault.amount)
        if undo is None:
            return
        self.done.append(fault)
        self._under_way[number] = undo
        victims.kernel.after(fault.lasts_us, lambda: self._end(number))

    def _end(self, number: int) -> None:
        undo = self._under_way.pop(number, None)
        if undo is not None:
            self._victims.kernel.trace("nemesis", "undoes a fault")
            undo()


Harm = Callable[[Victims, Sequence[Node], float], Action | None]


def _kill(victims: Victims, nodes: Sequence[Node], amount: float) -> Action:
    nodes[0].kill()
    return nodes[0].start


def _cut_power(victims: Victims, nodes: Sequence[Node], amount: float) -> Action:
    nodes[0].cut_power()
    return nodes[0].start


def _cut_power_of_all(victims: Victims, nodes: Sequence[Node], amount: float) -> Action:
    everyone = list(victims.nodes.values())
    for node in everyone:
        node.cut_power()

    def undo() -> None:
        for node in everyone:
            node.start()

    return undo


def lose_disk(victims: Victims, node: Node) -> Action | None:
    """Have a node that may lose its disk lose it, and its process with it; return how to start it on an empty one."""
    if not victims.may_lose_disk(node.address):
        return None
    node.stop("loses its disk", node.disk.lose)
    node.disk.lose()
    victims.disk_lost(node.address)
    return node.start


def _lose_disk(victims: Victims, nodes: Sequence[Node], amount: float) -> Action | None:
    return lose_disk(victims, nodes[0])


def _pause(victims: Victims, nodes: Sequence[Node], amount: float) -> Action:
    nodes[0].pause()
    return nodes[0].resume


def _jump_clock(victims: Victims, nodes: Sequence[Node], amount: float) -> Action:
    nodes[0].jump_clock(int((amount - 0.3) * 5_000_000))
    return lambda: None


def _cut(victims: Victims, links: Sequence[tuple[Node, Node]]) -> Action:
    network = victims.network
    for source, target in links:
        network.cut_link(source.address, target.address)

    def undo() -> None:
        for source, target in links:
            network.repair_link(source.address, target.address)

    return undo


def _isolate(victims: Victims, nodes: Sequence[Node], amount: float) -> Action:
    """Cut a node from all others, in both directions or in one."""
    node = nodes[0]
    others = [other for other in victims.nodes.values() if other is not node]
    out = [(node, other) for other in others]
    back = [(other, node) for other in others]
    return _cut(victims, out + back if amount < 0.5 else out if amount < 0.75 else back)


def _cut_one_way(victims: Victims, nodes: Sequence[Node], amount: float) -> Action | None:
    if nodes[0] is nodes[1]:
        return None
    return _cut(victims, [(nodes[0], nodes[1])])


def _cut_both_ways(victims: Victims, nodes: Sequence[Node], amount: float) -> Action | None:
    if nodes[0] is nodes[1]:
        return None
    return _cut(victims, [(nodes[0], nodes[1]), (nodes[1], nodes[0])])


def _split(victims: Victims, nodes: Sequence[Node], amount: float) -> Action:
    """Cut the nodes in two groups; the first holds `nodes`."""
    ours = set(nodes)
    links = [
        (one, other)
        for one in victims.nodes.values()
        for other in victims.nodes.values()
        if (one in ours) != (other in ours)
    ]
    return _cut(victims, links)


def _storm(victims: Victims, nodes: Sequence[Node], amount: float) -> Action:
    weather = victims.network.weather
    weather.loss += amount * 0.3
    weather.duplication += amount * 0.3
    weather.straggling += amount * 0.1
    undo_delay = _delay(victims, int(amount * 30_000))

    def undo() -> None:
        undo_delay()
        weather.loss -= amount * 0.3
        weather.duplication -= amount * 0.3
        weather.straggling -= amount * 0.1

    return undo


def _delay(victims: Victims, by_us_max: int) -> Action:
    """Have some messages take up to so much longer."""
    weather = victims.network.weather
    low, high = weather.delay_us
    weather.delay_us = (low, high + by_us_max)

    def undo() -> None:
        low, high = weather.delay_us
        weather.delay_us = (low, high - by_us_max)

    return undo


def _slow_disk(victims: Victims, nodes: Sequence[Node], amount: float) -> Action:
    disk = nodes[0].disk
    disk.job_us = (1_000, 1_000 + int(amount * 800_000))

    def undo() -> None:
        disk.job_us = (100, 2_000)

    return undo


def fill_disk(node: Node, room_max: int) -> Action:
    """Leave a disk up to so many bytes of room with each of its jobs; return how to make room."""
    node.disk.room_max = room_max

    def undo() -> None:
        node.disk.room_max = None
        node.start()

    return undo


def _fill_disk(victims: Victims, nodes: Sequence[Node], amount: float) -> Action:
    return fill_disk(nodes[0], 100)


def _ambush(victims: Victims, nodes: Sequence[Node], amount: float) -> Action:
    return lie_in_ambush(victims, AMBUSHES, amount)


def lie_in_ambush(victims: Victims, ambushes: Sequence[str], amount: float) -> Action:
    """
    On a slow network, cut the power of whoever does a certain thing just as it has begun; give it back at once.

    `amount` chooses what, of the names that a node's spy is told.
    """
    awaited = ambushes[int(amount * len(ambushes))]
    everyone = list(victims.nodes.values())
    kernel = victims.kernel
    left = [6]
    undo_delay = _delay(victims, 30_000)

    def strike(node: Node) -> None:
        if node.is_up and left[0]:
            left[0] -= 1
            node.cut_power()
            kernel.after(1_000 + int(amount * 9_973) % 100 * 200, node.start)

    def lie_in_wait(node: Node) -> None:
        def spy(name: str) -> None:
            if name == awaited and left[0]:
                # Not at once: the state machine is in the middle of its effects, some of which must still come about.
                kernel.after(int(amount * 997) % 97 * 10, lambda: strike(node))

        node.spy = spy

    def undo() -> None:
        undo_delay()
        for node in everyone:
            node.spy = None
            node.start()

    for node in everyone:
        lie_in_wait(node)
    return undo


# What a node may be ambushed at: the names of messages, or a job of its disk.
AMBUSHES = ("VoteResponse", "VoteResponse", "VoteRequest", "BeginQuorumEpochRequest", "job", "job")

KINDS: Mapping[str, Harm] = {
    "kill": _kill,
    "cut power": _cut_power,
    "cut power of all": _cut_power_of_all,
    "lose disk": _lose_disk,
    "pause": _pause,
    "jump clock": _jump_clock,
    "isolate": _isolate,
    "cut one way": _cut_one_way,
    "cut both ways": _cut_both_ways,
    "split": _split,
    "storm": _storm,
    "slow disk": _slow_disk,
    "fill disk": _fill_disk,
    "ambush": _ambush,
}

_WEIGHTS = {"kill": 3, "cut power": 4, "isolate": 3, "split": 2, "pause": 2, "storm": 2, "lose disk": 2, "ambush": 4}


def draw_faults(
    chance: random.Random,
    addresses: Sequence[int],
    *,
    count: int,
    until_us: int,
    lasts_us: tuple[int, int],
    from_us: int = 500_000,
    kinds: Mapping[str, int] | None = None,
) -> list[Fault]:
    """
    Draw a schedule: `count` faults that begin before `until_us`, two in five aimed at the leader.

    `kinds` are those to draw from, each with its weight.
    """
    weights = {kind: _WEIGHTS.get(kind, 1) for kind in KINDS if kind != "cut both ways"} if kinds is None else kinds
    faults = []
    for _ in range(count):
        kind = chance.choices(list(weights), list(weights.values()))[0]
        first = LEADER if chance.random() < 0.4 else chance.choice(addresses)
        targets: tuple[int, ...] = (first,)
        if kind in {"cut one way", "cut both ways"}:
            targets = (first, chance.choice(addresses))
        elif kind == "split":
            targets = tuple(chance.sample(addresses, chance.randint(1, len(addresses) // 2)))
        fault = Fault(
            at_us=chance.randint(from_us, until_us),
            lasts_us=chance.randint(*lasts_us),
            kind=kind,
            targets=targets,
            amount=chance.random(),
        )
        faults.append(fault)
    return sorted(faults, key=lambda fault: fault.at_us)
