"""How many brokers a load takes, by each limit, and what follows: network, partitions, controllers, recovery."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf

from tests.bench.capacity.profile import MACHINE, MEASURED, Demand, Machine, Profile

MIB = 2**20
KIB = 2**10
BROKERS_OF_THREE_VOTERS = 100


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """A cluster for a load. All rates are of the whole cluster unless they say `a broker`."""

    demand: Demand
    profile: Profile = MEASURED
    machine: Machine = MACHINE
    given: int | None = None  # so many brokers, whatever the limits say
    partners: int = 5  # brokers that share a partition with another, as the product places them

    @property
    def written_us(self) -> float:
        """Microseconds of CPU for a record on all its copies; copies between one and three are interpolated."""
        if not self.demand.in_batches:
            return self.profile.single_us.value
        one = self.profile.one_copy_us.at(self.demand.record_bytes)
        return one + (self.demand.copies - 1) * self._copy_us

    @property
    def _copy_us(self) -> float:
        at = self.demand.record_bytes
        return (self.profile.three_copies_us.at(at) - self.profile.one_copy_us.at(at)) / 2

    @property
    def cores(self) -> float:
        """Cores that are busy."""
        read_us = self.demand.consumers * self.profile.read_us.at(self.demand.record_bytes)
        return self.demand.records * (self.written_us + read_us) / 1e6

    @property
    def logged_bytes(self) -> float:
        """Bytes of a record in the log and on the wire."""
        return self.demand.record_bytes + self.profile.framing_bytes.value

    @property
    def produced(self) -> float:
        return self.demand.records * self.logged_bytes

    @property
    def stored_a_second(self) -> float:
        return self.produced * self.demand.copies

    @property
    def network_in(self) -> float:
        """What producers send, and what followers fetch."""
        return self.stored_a_second

    @property
    def network_out(self) -> float:
        """What followers and consumers fetch."""
        return self.produced * (self.demand.copies - 1 + self.demand.consumers)

    @property
    def stored_bytes(self) -> float:
        return self.stored_a_second * self.demand.retention_seconds

    @cached_property
    def limits(self) -> Mapping[str, int]:
        """How many brokers each limit asks for."""
        machine, profile = self.machine, self.profile
        network = machine.network_bytes * machine.network_most
        return {
            "CPU": ceil(self.cores / (profile.cores_a_broker.value * profile.busy_most.value)),
            "disk bandwidth": ceil(self.stored_a_second / (profile.disk_bytes.value * machine.disk_most)),
            "disk space": ceil(self.stored_bytes / (machine.space_bytes * machine.disk_most)),
            "network in": ceil(self.network_in / network),
            "network out": ceil(self.network_out / network),
            "partitions": ceil(self._partitions_by_load * self.demand.copies / self.demand.replicas_most),
            "copies": self.demand.copies,
        }

    @property
    def binding(self) -> str:
        """The limit that asks for most brokers."""
        return max(self.limits, key=self.limits.__getitem__)

    @property
    def brokers(self) -> int:
        return self.given or self.limits[self.binding]

    @property
    def busy(self) -> float:
        """How much of its core a broker needs."""
        return self.cores / self.brokers

    @property
    def busy_of_heir(self) -> float:
        """How much a broker needs that leads its part of what a lost one has led: its followers take turns."""
        size, copies = self.demand.record_bytes, self.demand.copies
        led_us = self.profile.one_copy_us.at(size) if self.demand.in_batches else self.written_us / copies
        led_us += self.demand.consumers * self.profile.read_us.at(size)
        heirs = max(copies - 1, 1)
        return self.busy + self.demand.records / self.brokers * led_us / heirs / 1e6

    @property
    def _partitions_by_load(self) -> int:
        return ceil(self.produced / self.demand.partition_bytes)

    @property
    def partitions(self) -> int:
        """Enough for the load, and for each broker to lead some."""
        return max(self._partitions_by_load, self.brokers * self.demand.partitions_least)

    @property
    def replicas_a_broker(self) -> float:
        return self.partitions * self.demand.copies / self.brokers

    @property
    def memory_bytes(self) -> float:
        """Memory of a broker's process; the page cache is the system's."""
        return self.profile.base_mib.value * MIB + self.replicas_a_broker * self.profile.partition_kib.value * KIB

    @property
    def voters(self) -> int:
        return 3 if self.brokers <= BROKERS_OF_THREE_VOTERS else 5

    @property
    def controller_share(self) -> float:
        """Of a core, at rest; over 1 there is no such cluster."""
        return self.profile.rest_share.at(self.brokers)

    @property
    def partition_seconds(self) -> float:
        """Of the controller's core, for each partition of a change."""
        return self.brokers * self.profile.partition_us.value / 1e6

    def loss_seconds(self, lost: int = 1) -> float:
        """Of the controller's core, for the loss of so many brokers at once with all that they hold."""
        rounds = ceil(lost / self.profile.changes_a_round.value)
        told = rounds * self.profile.change_seconds.at(self.brokers)
        return told + lost * self.replicas_a_broker * self.partition_seconds

    @property
    def clusters(self) -> int:
        """How many clusters the brokers must be, so that each controller has half of its core to itself."""
        return ceil(self.brokers / self.profile.rest_share.reaches(0.5))

    @property
    def bytes_a_broker(self) -> float:
        return self.stored_bytes / self.brokers

    @property
    def spare_bytes(self) -> float:
        """What a broker can copy a second beside its load: the least that CPU, disk and network leave."""
        return min(self.spares.values())

    @property
    def spares(self) -> Mapping[str, float]:
        """What each part of a broker has left for copies, in bytes a second."""
        machine, profile = self.machine, self.profile
        idle = max(profile.cores_a_broker.value - self.busy, 0.0)
        return {
            "CPU": idle * 1e6 / self._copy_us * self.logged_bytes if self._copy_us else inf,
            "disk": profile.disk_bytes.value - self.stored_a_second / self.brokers,
            "network": machine.network_bytes - max(self.network_in, self.network_out) / self.brokers,
        }

    @property
    def rebuild_alone_seconds(self) -> float:
        """Until an empty broker in the place of a lost one has copied all that it shall hold."""
        return self.bytes_a_broker / self.spare_bytes

    @property
    def rebuild_shared_seconds(self) -> float:
        """Until others have the copies of a lost broker, which are read from its partners alone."""
        return self.rebuild_alone_seconds / min(max(self.brokers - 1, 1), self.partners)

    @property
    def failover_seconds(self) -> float:
        """From the loss of a machine that falls silent until every broker knows its partitions' new leaders."""
        return self.demand.session_seconds + self.profile.told_seconds.at(self.brokers)
