"""
What is rehearsed: the shapes of a cluster's topics, the faults, and what the settings claim of each beside what came.

Nothing here starts a process. A claim is read from the settings as Kafka means them: with `acks=all` a record is on
`min.insync.replicas` copies, and a topic takes records as long as so many are in sync.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from fluvial.cluster.doctor import TopicFacts

BROKERS_MAX = 5
"""Nodes of a copy, unless a topic has more replicas: a sixth tells nothing that five do not."""
SHAPES_MAX = 8

# What decides how a topic stands a fault; what it keeps for how long does not.
_DECISIVE = ("min.insync.replicas", "unclean.leader.election.enable", "fluvial.durability")


class Fault(Enum):
    """What is done to one broker of the copy, the one that leads most partitions."""

    BROKER_KILLED = "broker killed"
    CONTROLLER_KILLED = "controller killed"
    BROKER_CUT_OFF = "broker cut off"
    DISK_FULL = "disk full"
    DISK_LOST = "disk lost"

    @property
    def what(self) -> str:
        """What is done, for people."""
        return _DONE[self]


_DONE = {
    Fault.BROKER_KILLED: "SIGKILL to the broker that leads most partitions, which starts again later",
    Fault.CONTROLLER_KILLED: "SIGKILL to the node that leads the metadata quorum",
    Fault.BROKER_CUT_OFF: "a broker answers nobody until its session is over, and then goes on as if nothing was",
    Fault.DISK_FULL: "each write of a broker fails, as on a full disk, until there is space again",
    Fault.DISK_LOST: "SIGKILL to a broker, whose partitions are gone when it starts again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Topics with the same replication factor and decisive settings, and how their records are produced."""

    name: str
    topics: tuple[str, ...]
    replicas: int
    settings: Mapping[str, str] = field(default_factory=dict)
    producer: Mapping[str, str] = field(default_factory=lambda: {"acks": "all"})

    @property
    def min_isr(self) -> int:
        """How many copies `acks=all` asks for: never more than there are."""
        text = self.settings.get("min.insync.replicas", "1")
        return min(int(text) if text.isdigit() else 1, self.replicas)

    @property
    def claims_to_go_on(self) -> bool:
        """Whether it takes records while one broker is not there, or has no space."""
        return self.replicas > self.min_isr

    def claims_to_keep(self, fault: Fault) -> bool:
        """Whether each acknowledged record is there after the fault."""
        if self.producer.get("acks", "all") not in {"all", "-1"}:
            return False
        return fault is not Fault.DISK_LOST or self.replicas > 1


class Verdict(Enum):
    """What a shape made of a fault."""

    SURVIVED = "survived"
    STOPPED = "stopped"
    LOST = "lost records"
    BROKE_ITS_CLAIM = "broke its claim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    One shape under one fault.

    `lost` of the `acknowledged` records could not be read afterwards. `paused_seconds` passed until each partition had
    taken a record again, None where one had not before the fault was over.
    """

    fault: Fault
    shape: Shape
    acknowledged: int
    lost: int
    paused_seconds: float | None

    @property
    def verdict(self) -> Verdict:
        """Records lost and stops against what the settings claim."""
        if (self.lost and self.shape.claims_to_keep(self.fault)) or (
            self.paused_seconds is None and self.shape.claims_to_go_on
        ):
            return Verdict.BROKE_ITS_CLAIM
        if self.lost:
            return Verdict.LOST
        return Verdict.STOPPED if self.paused_seconds is None else Verdict.SURVIVED

    @property
    def text(self) -> str:
        """What happened, in a line."""
        kept = (
            f"lost {self.lost} of {self.acknowledged} acknowledged records"
            if self.lost
            else f"kept all {self.acknowledged} acknowledged records"
        )
        if self.paused_seconds is None:
            return f"{kept}; a partition took none until the fault was over"
        return f"{kept}; each partition took records again after {self.paused_seconds:.1f} s"


def shapes_of(topics: Iterable[TopicFacts], clients: Mapping[str, Mapping[str, str]]) -> tuple[Shape, ...]:
    """
    Return the shapes of topics, the most common first, each with a producer of `acks=all` and with those of `clients`.

    At most `SHAPES_MAX`; of more, the least common are left out.
    """
    found: dict[tuple[int, tuple[tuple[str, str], ...]], list[str]] = {}
    for topic in topics:
        decisive = tuple((name, topic.settings[name]) for name in _DECISIVE if name in topic.settings)
        found.setdefault((max(topic.replicas, 1), decisive), []).append(topic.name)
    producers = [{"acks": "all"}, *({"acks": acks} for acks in sorted(_acks_of(clients)))]
    shapes: list[Shape] = []
    for (replicas, decisive), names in sorted(found.items(), key=lambda each: -len(each[1])):
        for producer in producers:
            number = len(shapes)
            shape = Shape(
                name=f"rehearsal-{number}",
                topics=tuple(sorted(names)),
                replicas=replicas,
                settings=dict(decisive),
                producer=producer,
            )
            shapes.append(shape)
    return tuple(shapes[:SHAPES_MAX])


def _acks_of(clients: Mapping[str, Mapping[str, str]]) -> set[str]:
    """The acks of clients that are not `all`, which is always tried."""
    return {client["acks"] for client in clients.values() if client.get("acks") in {"0", "1"}}


def brokers_of(brokers: int, shapes: Iterable[Shape]) -> int:
    """How many nodes the copy has: as many as the cluster, up to what tells more, and never fewer than replicas."""
    return max([min(brokers, BROKERS_MAX), 1, *(shape.replicas for shape in shapes)])
