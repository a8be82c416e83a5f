"""
What must hold on the brokers after every event, checked at those that did something.

A check looks at what has changed since it last looked: its cost does not grow with the run.
"""

from typing import TYPE_CHECKING, NamedTuple

from log_broker.core.cluster.image import METADATA_TOPIC
from log_broker.records.batch import batches_in
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.sim.checks.disk_checks import DiskChecks
from log_broker.sim.checks.history import CommittedLog
from log_broker.sim.checks.image_checks import NO_ELECTION, ImageChecks
from log_broker.sim.clients.client_link import TopicPartition
from log_broker.sim.kernel.kernel import InvariantError
from log_broker.sim.world.broker_process import BrokerMachine, BrokerProcess
from log_broker.sim.world.topics import LOSSY, POWER_CUT, RENEWED, UNCLEAN_ELECTION

if TYPE_CHECKING:
    from log_broker.server.node import Node
    from log_broker.sim.world.cluster_world import ClusterWorld

READ_BYTES = 1 << 20


class Held(NamedTuple):
    """How far a machine held a partition, and how often it had lost power by then."""

    end: int
    power_cuts: int


class Seen:
    """What was last seen of one replica in one process."""

    __slots__ = ("end", "high_watermark", "leader_epoch", "leads", "recovery_point", "runtime", "state")

    def __init__(self, runtime: PartitionRuntime) -> None:
        self.runtime = runtime
        self.high_watermark = -1
        self.leader_epoch = -1
        self.end = 0
        self.recovery_point = 0
        self.state: tuple[object, ...] = ()
        self.leads = -1  # the epoch in which it was last seen to lead


class ClusterChecks:
    """The invariants of a whole cluster."""

    def __init__(self, world: "ClusterWorld") -> None:
        self._world = world
        self._seen: dict[tuple[BrokerProcess, TopicPartition], Seen] = {}
        self._leaders: dict[tuple[TopicPartition, int], str] = {}  # (partition, epoch) -> who led first
        self._on_disk: dict[
            tuple[str, TopicPartition], int
        ] = {}  # how far each machine holds a partition, when last seen
        self._held: dict[tuple[str, TopicPartition], Held] = {}  # likewise, whatever it is on
        self._gone: dict[tuple[str, TopicPartition], int] = {}  # how far the disk held it that a machine has lost
        self.images = ImageChecks(world, self._on_disk)
        self._latest_epoch: dict[TopicPartition, int] = {}  # in which anybody has led
        self.elections = 0
        self._disks = DiskChecks()

    def after(self, machine: BrokerMachine) -> None:
        """Check the replicas of a machine on which something has happened; raises InvariantError."""
        process = machine.broker_process
        if process is None or process.broker is None:
            return
        seen = self._seen
        for runtime in process.broker.logs.partitions():
            place = (runtime.topic, runtime.partition)
            if place[0] == METADATA_TOPIC:
                continue
            known = seen.get((process, place))
            if known is None or known.runtime is not runtime:
                known = seen[process, place] = Seen(runtime)
                self._disks.begun(machine.name, runtime)
            replica = runtime.replica.core.state
            ends = replica.log_start_offset, replica.high_watermark, replica.written_end, replica.synced_end
            state = *ends, runtime.recovery_point, replica.leader_epoch, replica.is_leader
            if state != known.state:
                known.state = state
                known.recovery_point = self._disks.after(machine, runtime, known.recovery_point)
                if place[0] == RENEWED:
                    known.end = self._disks.renewed(machine.name, runtime, min(known.end, replica.written_end))
                else:
                    self._check_replica(machine.name, place, runtime, known)
        self._check_lease(machine.name, process.broker)

    def disk_lost(self, machine: BrokerMachine) -> None:
        """Take note that what a machine held is gone; what nobody else had nobody will tell of."""
        for key in [key for key in self._on_disk if key[0] == machine.name]:
            self._gone[key] = self._on_disk.pop(key)
            self._held.pop(key)
        self.images.disk_lost(machine.address)

    def _check_replica(self, name: str, place: TopicPartition, runtime: PartitionRuntime, known: Seen) -> None:
        epoch = runtime.leader_epoch
        if epoch != known.leader_epoch:
            if epoch < known.leader_epoch:
                raise InvariantError("leader epochs only grow", f"{name} {place} went {known.leader_epoch} → {epoch}")
            known.leader_epoch = epoch
        self._on_disk[name, place] = runtime.replica.state.synced_end
        self._note_end(name, place, runtime, known)
        if runtime.is_leader and known.leads != epoch:
            known.leads = epoch
            self._began_to_lead(name, place, runtime, epoch)
        high_watermark = runtime.high_watermark
        if high_watermark == known.high_watermark:
            return
        cut_epoch = self._world.history.log(place).cut_epoch
        if epoch < cut_epoch:
            known.high_watermark = high_watermark
            return  # others go on without what it commits
        if high_watermark < known.high_watermark and cut_epoch < 0:
            raise InvariantError(
                "high watermarks only grow", f"{name} {place} went {known.high_watermark} → {high_watermark}"
            )
        if high_watermark > runtime.log_end_offset:
            raise InvariantError(
                "a high watermark lies within the log", f"{name} {place}: {high_watermark} of {runtime.log_end_offset}"
            )
        self._note_committed(name, place, runtime, max(known.high_watermark, runtime.log_start_offset), high_watermark)
        known.high_watermark = high_watermark
        if runtime.is_leader and runtime.has_followers:
            self._check_isr(name, place, runtime)
            self._check_copies(name, place, runtime)

    def _note_end(self, name: str, place: TopicPartition, runtime: PartitionRuntime, known: Seen) -> None:
        """Take note of how far a log goes, and where records may be lost of what is new in it or gone."""
        end, power_cuts = runtime.log_end_offset, self._machine(name).power_cuts
        if place[0] in LOSSY:
            held = self._held.get((name, place))
            if held is not None and held.power_cuts < power_cuts and end < held.end:
                self._world.history.power_took(place, end, held.end)
            if end != known.end:
                self._world.history.wrote(name, place, _read(runtime, min(known.end, end), end))
                known.end = end
        self._held[name, place] = Held(end, power_cuts)

    def _check_isr(self, name: str, place: TopicPartition, runtime: PartitionRuntime) -> None:
        """Whoever is in sync holds all that is committed, on its disk where the topic asks for that."""
        synced = runtime.config.fluvial_durability == "fsync-quorum"
        for replica in runtime.leading.isr:
            broker = self._world.machines[replica].broker
            if broker is None or not self._is_known(name, replica):
                continue
            other = broker.logs.get(*place)
            if other is None or other.leader_epoch > runtime.leader_epoch:
                continue
            if not synced and self._machine(f"n{replica}").power_cuts:
                continue
            end = other.replica.state.synced_end if synced else other.log_end_offset
            if end < runtime.high_watermark:
                raise InvariantError(
                    "who is in sync holds what is committed",
                    f"{name} says that {place} is committed up to {runtime.high_watermark}, and n{replica} of its "
                    f"ISR {runtime.leading.isr} holds it up to {end}",
                )

    def _machine(self, name: str) -> BrokerMachine:
        return next(machine for machine in self._world.machines.values() if machine.name == name)

    def _is_known(self, name: str, other: int) -> bool:
        """Whether a machine's broker knows the disk that another has, and not only one that is lost."""
        broker = self._machine(name).broker
        return broker is None or self.images.knows_of_loss(broker.cluster, other)

    def _check_copies(self, name: str, place: TopicPartition, runtime: PartitionRuntime) -> None:
        """As many machines hold what is committed as the topic asks for, whoever is in sync."""
        leading = runtime.replica.core.state.leading
        assert leading is not None, "it has followers"
        if runtime.config.fluvial_durability == "memory":
            return
        wanted = min(runtime.config.min_insync_replicas, len(leading.replicas))
        have = [
            machine.name
            for machine in self._world.machines.values()
            if self._on_disk.get((machine.name, place), 0) >= runtime.high_watermark
            or (
                not self._is_known(name, machine.address)
                and self._gone.get((machine.name, place), 0) >= runtime.high_watermark
            )
        ]
        if len(have) < wanted:
            raise InvariantError(
                "what is committed is on as many disks as was asked for",
                f"{name} has {place} committed up to {runtime.high_watermark}, which only {have} hold",
            )

    def complete(self) -> None:
        """At the end, all being well: every replica of a partition is the same, and all are in sync."""
        for place in self._world.history.logs:
            runtimes = {
                machine.name: runtime
                for machine in self._world.machines.values()
                if machine.broker is not None and (runtime := machine.broker.logs.get(*place)) is not None
            }
            leaders = [name for name, runtime in runtimes.items() if runtime.is_leader]
            if len(leaders) != 1:
                raise InvariantError("one leader in the end", f"{place} is led by {leaders}")
            for name, runtime in runtimes.items():
                self._note_committed(name, place, runtime, runtime.log_start_offset, runtime.high_watermark)
            ends = {name: (runtime.log_end_offset, runtime.high_watermark) for name, runtime in runtimes.items()}
            if len(set(ends.values())) > 1:
                raise InvariantError("replicas are equal in the end", f"{place}: {ends}")

    def has_settled(self) -> bool:
        """Whether every partition has a leader with all its replicas in sync and as far as it is itself."""
        for place in self._world.history.logs:
            runtimes = {
                address: runtime
                for address, machine in self._world.machines.items()
                if machine.broker is not None and (runtime := machine.broker.logs.get(*place)) is not None
            }
            leading = [runtime for runtime in runtimes.values() if runtime.is_leader]
            if len(leading) != 1 or set(leading[0].leading.isr) != set(runtimes):
                return False
            if len({(runtime.log_end_offset, runtime.high_watermark) for runtime in runtimes.values()}) > 1:
                return False
        return True

    def _check_lease(self, name: str, broker: "Node") -> None:
        """
        Who is fenced has noticed by then, and takes nothing more that rests on it alone; nor does who was replaced.

        The latter has until the others no longer wait for it.
        """
        if not broker.lease.valid or not (led := self._led(broker)):
            return
        images = [machine.broker.cluster for machine in self._world.machines.values() if machine.broker is not None]
        newest, node_id = max(images, key=lambda image: image.version), broker.config.node_id
        known = newest.brokers.get(node_id)
        if known is not None and known.is_fenced:
            raise InvariantError("who is fenced takes nothing alone", f"{name} holds a lease and leads {led}")
        for topic, index in led:
            partition = newest.topics[topic].partitions[index]
            if node_id in partition.replicas and node_id not in partition.isr:
                raise InvariantError(
                    "who was replaced takes nothing alone", f"{name} holds a lease and leads {topic}-{index}"
                )

    def _led(self, broker: "Node") -> list[TopicPartition]:
        """Return what a broker leads by its own light, and others have led since."""
        places = [((runtime.topic, runtime.partition), runtime) for runtime in broker.logs.partitions()]
        return [
            place
            for place, runtime in places
            if runtime.is_leader and runtime.leader_epoch < self._latest_epoch.get(place, -1)
        ]

    def _began_to_lead(self, name: str, place: TopicPartition, runtime: PartitionRuntime, epoch: int) -> None:
        first = self._leaders.setdefault((place, epoch), name)
        if first != name:
            raise InvariantError("one leader per epoch", f"{first} and {name} lead {place} in epoch {epoch}")
        self._latest_epoch[place] = max(self._latest_epoch.get(place, -1), epoch)
        self.elections += 1
        committed = self._world.history.log(place)
        if place[0] in LOSSY:
            self._note_losses(name, place, runtime, epoch)
        if runtime.log_end_offset < committed.end_offset:
            raise InvariantError(
                "committed is for ever",
                f"{name} leads {place} in epoch {epoch} with a log up to {runtime.log_end_offset}, "
                f"and {committed.end_offset} was committed",
            )
        self._note_committed(name, place, runtime, runtime.log_start_offset, committed.end_offset)

    def _note_losses(self, name: str, place: TopicPartition, runtime: PartitionRuntime, epoch: int) -> None:
        """A leader of a topic that may lose records begins: see what it lacks, and that it may."""
        history = self._world.history
        committed = history.log(place)
        eligible, _ = self.images.elections.get((place, epoch), NO_ELECTION)
        end = _common_end(_read(runtime, runtime.log_start_offset, runtime.log_end_offset), committed)
        if self._is_unclean(place, epoch):
            history.cut(place, end, epoch, UNCLEAN_ELECTION)
        if end >= committed.end_offset:
            return
        if LOSSY[place[0]] != POWER_CUT:
            raise InvariantError(
                "committed is for ever",
                f"{name} leads {place} in epoch {epoch} by right and differs from what is committed at {end}",
            )
        holding = [address for address in eligible if self._holds(f"n{address}", place, committed.end_offset)]
        if holding:
            raise InvariantError(
                "memory loses by power cuts of all that are in sync",
                f"{name} leads {place} in epoch {epoch} with {end} of {committed.end_offset}; of {eligible}, who were "
                f"in sync or eligible, {holding} have it all",
            )
        history.cut(place, end, epoch, POWER_CUT)

    def _is_unclean(self, place: TopicPartition, epoch: int) -> bool:
        """Whether a leader was elected uncleanly, or after one that was and never began to lead."""
        while epoch >= 0:
            if self.images.elections.get((place, epoch), NO_ELECTION)[1]:
                return True
            epoch -= 1
            if (place, epoch) in self._leaders:
                return False
        return False

    def _holds(self, name: str, place: TopicPartition, end: int) -> bool:
        held = self._held.get((name, place))
        return held is not None and held.end >= end and held.power_cuts == self._machine(name).power_cuts

    def _note_committed(
        self, name: str, place: TopicPartition, runtime: PartitionRuntime, start: int, end: int
    ) -> None:
        history = self._world.history
        log = runtime.replica.log
        while start < end:
            data = log.read(start, READ_BYTES, end, at_least_one=True)
            if not data:
                raise InvariantError("what is committed can be read", f"{name} {place} has nothing at {start} of {end}")
            before = start
            history.committed(name, place, start, data)
            start = _end_of(data)
            assert start > before, "a read goes on"


def _end_of(data: bytes) -> int:
    end = 0
    for _, header in batches_in(data):
        end = header.last_offset + 1
    return end


def _read(runtime: PartitionRuntime, start: int, end: int) -> bytes:
    """Return the batches of a log from that which holds `start` up to `end`."""
    parts = []
    while start < end and (data := runtime.replica.log.read(start, READ_BYTES, end, at_least_one=True)):
        parts.append(bytes(data))
        start = _end_of(parts[-1])
    return b"".join(parts)


def _common_end(data: bytes, committed: CommittedLog) -> int:
    """Return how far a log and what is committed are the same."""
    end = 0
    for position, header in batches_in(data):
        known = committed.batches.get(header.base_offset)
        if known is None or known.data != data[position : position + header.size]:
            break
        end = header.last_offset + 1
    return end
