"""Disks that are full: as trouble among other trouble, and as the only one while all else is well."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from log_broker.core.cluster.image import NO_LEADER, PartitionImage
from log_broker.sim.checks.cluster_checks import ClusterChecks
from log_broker.sim.kernel.kernel import Kernel
from log_broker.sim.kernel.nemesis import Fault, draw_faults, fill_disk
from log_broker.sim.world.broker_process import BrokerMachine
from log_broker.sim.world.cluster_nemesis import NO_ROOM
from log_broker.sim.world.topics import TOPICS

_SECOND_US = 1_000_000
_HAND_OVER_US = 20 * _SECOND_US  # longer than the longest session and an election
_PATIENCE_US = 90 * _SECOND_US


class World(Protocol):
    """The cluster whose leader's disk is filled."""

    kernel: Kernel
    checks: ClusterChecks

    @property
    def machines(self) -> Mapping[int, BrokerMachine]: ...

    @property
    def acknowledged(self) -> int: ...


def disks_without_room(chance: random.Random, nodes: Sequence[int], until_us: int) -> list[Fault]:
    """Draw disks that run out of room, for half of the seeds none: those are the runs that they are without these."""
    return draw_faults(
        chance,
        nodes,
        count=chance.choice((0, 0, 1, 2)),
        from_us=100_000,
        until_us=until_us,
        lasts_us=(_SECOND_US, 5 * _SECOND_US),
        kinds={NO_ROOM: 1},
    )


class FullDisk:
    """The act in which the disk of a leader is full: others lead in its place, and go on."""

    def __init__(
        self, world: World, chance: random.Random, expect: Callable[[Callable[[], bool], str, int], None]
    ) -> None:
        self._world = world
        self._chance = chance
        self._expect = expect

    def run(self) -> None:
        """Fill a disk, and make room again when others have led; raises InvariantError."""
        world = self._world
        self._expect(self._all_are_in_sync, "all come to be in sync", _PATIENCE_US)
        victim = world.machines[self._chance.choice(sorted({each.leader for each in self._partitions()}))]
        world.kernel.trace("world", f"the disk of {victim.name} is full")
        undo = fill_disk(victim, 0)
        self._expect(lambda: self._has_handed_over(victim), "who cannot write hands over", _HAND_OVER_US)
        wanted = world.acknowledged + 20
        self._expect(lambda: world.acknowledged >= wanted, "progress beside a full disk", _PATIENCE_US)
        world.kernel.trace("world", f"the disk of {victim.name} has room again")
        undo()

    def _partitions(self) -> list[PartitionImage]:
        topics = self._world.checks.images.newest.topics
        return [partition for name in TOPICS for partition in topics[name].partitions]

    def _all_are_in_sync(self) -> bool:
        return all(set(each.isr) == set(each.replicas) and each.leader >= 0 for each in self._partitions())

    def _has_handed_over(self, victim: BrokerMachine) -> bool:
        return all(partition.leader not in {victim.address, NO_LEADER} for partition in self._partitions())
