"""What a broker and a controller cost, each figure with the row of docs/benchmarks.md that it is taken from."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import NamedTuple

GB = 1e9
MB = 1e6


class Measured(NamedTuple):
    """A figure, and the row that says how it was measured."""

    value: float
    row: str


class Curve(NamedTuple):
    """A figure that was measured at several sizes; between them and beyond it is a straight line."""

    points: Sequence[tuple[float, float]]
    row: str

    def at(self, size: float) -> float:
        """Return the figure at a size, beyond the last point by the slope of the last two."""
        sizes = [point for point, _ in self.points]
        upper = min(max(bisect_left(sizes, size), 1), len(sizes) - 1)
        (low, at_low), (high, at_high) = self.points[upper - 1], self.points[upper]
        return max(at_low + (at_high - at_low) * (size - low) / (high - low), 0.0)

    def reaches(self, value: float) -> float:
        """Return the size at which the figure is `value`."""
        for (low, at_low), (high, at_high) in pairwise(self.points):
            if value <= at_high or (high, at_high) == self.points[-1]:
                return low + (value - at_low) * (high - low) / (at_high - at_low)
        raise AssertionError("the last pair returns")


ONE = "The broker beside Apache Kafka"
THREE = "Three nodes beside three of Apache Kafka"
METADATA = "Metadata for a thousand brokers"
DENSITY = "docs/scale.md, How many partitions a broker carries"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What was measured. Costs of records are microseconds of CPU, by bytes of a record."""

    one_copy_us: Curve
    three_copies_us: Curve
    read_us: Curve
    single_us: Measured
    framing_bytes: Measured
    disk_bytes: Measured  # a second of one disk, synced
    cores_a_broker: Measured
    busy_most: Measured
    base_mib: Measured
    partition_kib: Measured
    killed_seconds: Measured
    rest_share: Curve
    change_seconds: Curve
    changes_a_round: Measured  # that come at the same moment
    partition_us: Measured  # of the controller's core, for each partition of a change and each broker that is told
    told_seconds: Curve

    def rows(self) -> Mapping[str, str]:
        """Return where each figure is from."""
        return {each.name: getattr(self, each.name).row for each in fields(self)}


MEASURED = Profile(
    one_copy_us=Curve(((100, 0.44), (1_000, 3.06)), f"{ONE}: bulk produce, fsync before ack"),
    three_copies_us=Curve(((100, 1.62), (1_000, 7.85)), f"{THREE}: bulk produce, 30 partitions"),
    read_us=Curve(((100, 0.06), (1_000, 0.30)), f"{ONE}: consume"),
    single_us=Measured(286, f"{THREE}: single records, 16x4"),
    framing_bytes=Measured(10, "What choices cost: batches, 110 bytes a record of 100"),
    disk_bytes=Measured(
        3 * 92_384 * 1_010, f"{THREE}: bulk produce, 1000 B, 30 partitions; three synced copies on one disk"
    ),
    cores_a_broker=Measured(1, "More clients, more cores, more brokers: Cores"),
    busy_most=Measured(0.66, "More clients, more cores, more brokers: the last step before the knee"),
    base_mib=Measured(51.2, f"{DENSITY}: RSS at 10,000 and at 100 partitions, as a straight line"),
    partition_kib=Measured(18.4, f"{DENSITY}: RSS at 10,000 and at 100 partitions, as a straight line"),
    killed_seconds=Measured(1.5, f"{THREE}: SIGKILL of a leader: s to the first ack"),
    rest_share=Curve(((10, 0.002), (100, 0.011), (300, 0.0285), (1_000, 0.077)), f"{METADATA}: a core at rest"),
    change_seconds=Curve(((10, 0.0044), (100, 0.012), (300, 0.033), (1_000, 0.138)), f"{METADATA}: CPU ms a change"),
    changes_a_round=Measured(3, f"{METADATA}: twelve at once"),
    partition_us=Measured(
        (38_000 - 12_000) / (300 - 30) / 100, f"{METADATA}: a change with 100 partitions led, beside 10, 100 brokers"
    ),
    told_seconds=Curve(((10, 0.010), (100, 0.041), (300, 0.184), (1_000, 0.481)), f"{METADATA}: all replayed"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a broker runs on; assumed, not measured."""

    network_bytes: float = 10e9 / 8  # a second and direction: 10 Gbit/s
    network_most: float = 0.7
    disk_most: float = 0.7  # of its bandwidth, and of its space
    space_bytes: float = 8e12


MACHINE = Machine()


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is asked of a cluster."""

    records: float  # a second
    record_bytes: float = 100
    copies: int = 3
    consumers: int = 2  # groups that read everything
    retention_seconds: float = 86_400
    in_batches: bool = True
    partition_bytes: float = 30 * MB  # a second of one partition: what `fluvial cluster doctor` advises
    partitions_least: int = 10  # a broker leads at least so many, so that a lost one is shared by others
    replicas_most: int = 4_000  # of a broker: beyond, `fluvial cluster doctor` warns
    session_seconds: float = 9.0  # `broker.session.timeout.ms`
