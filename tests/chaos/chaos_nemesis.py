"""Faults at random, one after the other, each undone again: which, where and for how long follows from a seed."""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from random import Random

from chaos_cluster import Cluster
from chaos_links import CLIENTS
from chaos_nodes import OurNode

FAULT_SECONDS = (2.0, 9.0)
CALM_SECONDS = (1.0, 5.0)
CLOCK_MS_MAX = 120_000


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: what it is, how it begins and how it ends."""

    text: str
    begin: Callable[[], None]
    end: Callable[[], None]


class Nemesis:
    """
    Hurts one cluster, never so that a majority of the metadata voters or of the replicas of a partition is gone for
    longer than a fault lasts.
    """

    def __init__(
        self,
        cluster: Cluster,
        seed: int,
        say: Callable[[str], None] = lambda _line: None,
        *,
        kinds: Collection[str] = (),
    ) -> None:
        """`kinds` are the names of the faults to draw from ("kill", "pause", ...); every kind unless given."""
        self.cluster = cluster
        self.rng = Random(seed)
        self.say = say
        self.faults = 0
        self._makers = [
            self._kill,
            self._kill,
            self._stop,
            self._pause,
            self._isolate,
            self._isolate,
            self._isolate_one_way,
            self._cut_pair,
            self._slow,
            self._cut_clients,
            self._kill_controller,
            self._kill_two,
        ]
        if isinstance(cluster.node(cluster.brokers[0]), OurNode):
            self._makers += [self._skew, self._full_disk]
        if kinds:
            wanted = {f"_{kind.replace(' ', '_')}" for kind in kinds}
            self._makers = [make for make in self._makers if make.__name__ in wanted]

    def run(self, seconds: float) -> None:
        """Go on for so long, and leave everything whole."""
        began = time.monotonic()
        for fault in self._faults():
            if time.monotonic() - began > seconds:
                return
            lasting = self.rng.uniform(*FAULT_SECONDS)
            self.say(f"{time.monotonic() - began:6.1f} s  {fault.text} for {lasting:.1f} s")
            fault.begin()
            self._wait(lasting)
            fault.end()
            self.faults += 1
            self._wait(self.rng.uniform(*CALM_SECONDS))

    def _faults(self) -> Iterator[Fault]:
        """Every kind once in random order, again and again."""
        while True:
            for make in self.rng.sample(self._makers, len(self._makers)):
                yield make()

    def _wait(self, seconds: float) -> None:
        time.sleep(seconds)
        for node in self.cluster.nodes.values():
            died = node.died()
            assert died is None, died

    def _broker(self) -> int:
        return self.rng.choice(self.cluster.brokers)

    def _kill(self) -> Fault:
        number = self.rng.choice(list(self.cluster.nodes))
        node = self.cluster.node(number)
        return Fault(f"kill node {number}", node.kill, node.start)

    def _kill_controller(self) -> Fault:
        number = self.cluster.controller()
        if number < 0:
            return self._kill()
        node = self.cluster.node(number)
        return Fault(f"kill the active controller, node {number},", node.kill, node.start)

    def _kill_two(self) -> Fault:
        pair = [self.cluster.node(number) for number in self.rng.sample(self.cluster.brokers, 2)]

        def kill() -> None:
            for node in pair:
                node.kill()

        def start() -> None:
            for node in pair:
                node.start()

        return Fault(f"kill nodes {pair[0].name} and {pair[1].name}", kill, start)

    def _stop(self) -> Fault:
        node = self.cluster.node(self._broker())
        return Fault(f"stop node {node.name} in order", node.stop, node.start)

    def _pause(self) -> Fault:
        node = self.cluster.node(self.rng.choice(list(self.cluster.nodes)))
        return Fault(f"pause node {node.name}", node.pause, node.resume)

    def _isolate(self) -> Fault:
        number = self._broker()
        return Fault(
            f"isolate node {number}, clients reach it,", lambda: self.cluster.isolate(number), self.cluster.links.heal
        )

    def _isolate_one_way(self) -> Fault:
        number = self._broker()
        return Fault(
            f"let nothing out of node {number} to the others",
            lambda: self.cluster.isolate(number, both_ways=False),
            self.cluster.links.heal,
        )

    def _cut_pair(self) -> Fault:
        a, b = self.cluster.names(self.rng.sample(self.cluster.brokers, 2))
        return Fault(
            f"cut nodes {a} and {b} from each other", lambda: self.cluster.links.cut([a], [b]), self.cluster.links.heal
        )

    def _slow(self) -> Fault:
        number = self._broker()
        rate = self.rng.choice((5_000.0, 50_000.0))

        def slow() -> None:
            for other in self.cluster.nodes:
                if other != number:
                    self.cluster.links.rule(str(other), str(number), bytes_per_second=rate, delay_seconds=0.05)

        return Fault(f"slow the links to node {number} down to {rate:,.0f} bytes/s", slow, self.cluster.links.heal)

    def _cut_clients(self) -> Fault:
        name = str(self._broker())
        return Fault(
            f"cut the clients from node {name}",
            lambda: self.cluster.links.cut([CLIENTS], [name]),
            self.cluster.links.heal,
        )

    def _skew(self) -> Fault:
        node = self.cluster.node(self._broker())
        assert isinstance(node, OurNode)
        off = self.rng.randint(-CLOCK_MS_MAX, CLOCK_MS_MAX)
        return Fault(
            f"set the clock of node {node.name} off by {off / 1000:.1f} s",
            lambda: node.fault(clock_ms=off),
            lambda: node.fault(clock_ms=0),
        )

    def _full_disk(self) -> Fault:
        node = self.cluster.node(self._broker())
        assert isinstance(node, OurNode)
        return Fault(
            f"fill the disk of node {node.name}",
            lambda: node.fault(disk_full=True),
            lambda: node.fault(disk_full=False),
        )
