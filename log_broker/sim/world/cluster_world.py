"""
A whole cluster in simulation: brokers as they run in production, and clients that speak to them over the network.

One run goes through four acts: the cluster comes up and gets its topics; trouble, under load; healing, after which
every partition must take records again; and a disk that is full while all else is well, after which others must lead.
In the end every replica must be equal, and every record have the fate that was promised.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from log_broker.core.cluster.image import ClusterImage
from log_broker.sim.checks.cluster_checks import ClusterChecks
from log_broker.sim.checks.cost_checks import check_numbers
from log_broker.sim.checks.group_history import GroupHistory
from log_broker.sim.checks.history import History
from log_broker.sim.clients.classic_members import ClassicMember
from log_broker.sim.clients.client_link import Client
from log_broker.sim.clients.consumer_members import ConsumerMember, Seat
from log_broker.sim.clients.copiers import Copier
from log_broker.sim.clients.producers import NOW, OLD, UNKNOWN, Producer
from log_broker.sim.clients.readers import Reader
from log_broker.sim.kernel.kernel import InvariantError, Kernel
from log_broker.sim.kernel.nemesis import Fault, Nemesis, draw_faults
from log_broker.sim.world.cluster import Cluster
from log_broker.sim.world.cluster_nemesis import CLUSTER_KINDS, CLUSTER_WEIGHTS
from log_broker.sim.world.cluster_operators import ClusterOperator
from log_broker.sim.world.full_disks import FullDisk, disks_without_room
from log_broker.sim.world.topics import LOSSY, TOPICS, Founder, Renewer

SECOND_US = 1_000_000
FOUNDING_US = 20 * SECOND_US
TROUBLE_US = 8 * SECOND_US
PATIENCE_US = 90 * SECOND_US
CLASSIC, MODERN, MIXED = "classic", "modern", "mixed"  # groups, by what their members speak
SLOW_SHARE = 0.05  # of what disks do
SIZES = ((3, 3), (4, 3), (5, 3), (5, 5))  # how many brokers, and how many of them vote


class ClusterWorld(Cluster):
    """Everything of one run."""

    def __init__(self, seed: int, *, trace_lines_max: int = 0) -> None:
        chance = Kernel(seed).stream("world")
        brokers, voters = chance.choice(SIZES)
        super().__init__(
            seed,
            brokers=brokers,
            voters=voters,
            settings=draw_settings(chance),
            trace_lines_max=trace_lines_max,
        )
        self.history = History(LOSSY)
        self.groups = GroupHistory(lambda: self.kernel.now_us, mixed={MIXED})
        self.checks = ClusterChecks(self)
        self.client_seconds = chance.choice((0.5, 1.0, 2.0))
        self.disks_lost = 0
        self._full_disks = self.kernel.stream("full disks")
        self.is_calm = False
        self.producers_stop = False
        self.copiers_stop = False
        self.readers_stop = False
        self.faults_done: list[Fault] = []
        self.clients: list[Client] = []
        self.kernel.after_event = self._check
        for machine in self.machines.values():
            machine.disk.slow_share = SLOW_SHARE

    @property
    def acknowledged(self) -> int:
        return self.history.acknowledged_count

    def partitions_of(self, topic: str) -> int:
        return TOPICS[topic].partitions

    def homes_of(self, topic: str) -> range:
        """
        Return the brokers that may have replicas of a topic: of one that is not safe only those who keep their disks.

        The last of those that go at once is taken for the one that has everything. Where one replica may go on alone
        that can be one whose disk is gone, and then nobody leads until somebody asks for it.
        """
        return range(len(self.machines)) if TOPICS[topic].is_safe else self.voters

    def draw_faults(self) -> list[Fault]:
        """Draw this seed's schedule; its times count from the end of the founding."""
        chance, until_us = self.kernel.stream("nemesis"), TROUBLE_US - SECOND_US
        faults = draw_faults(
            chance,
            list(self.machines),
            count=chance.randint(8, 16),
            from_us=100_000,
            until_us=until_us,
            lasts_us=(SECOND_US // 20, 2 * SECOND_US),
            kinds=CLUSTER_WEIGHTS,
        )
        return faults + disks_without_room(self._full_disks, list(self.machines), until_us)

    def noted(self, who: str, kind: str, fields: Mapping[str, Any]) -> None:
        if kind in {"truncated", "records_lost", "records_in_doubt"}:
            place = (fields["topic"], fields["partition"])
            self.history.lost_range(place, fields["first_offset"], fields["end_offset"])
            self.kernel.trace(who, f"{kind} {place} {fields['first_offset']} … {fields['end_offset']}")

    def replayed(self, version_before: int, image: ClusterImage) -> None:
        try:
            self.checks.images.after(version_before, image)
        except InvariantError as error:
            self.failures.append(error)

    def may_lose_disk(self, address: int) -> bool:
        """One broker that is no voter may, once, while others are in sync wherever it is."""
        return (
            address not in self.voters
            and not self.disks_lost
            and not any(
                partition.isr == (address,) or partition.leader < 0
                for topic in self.checks.images.newest.topics.values()
                for partition in topic.partitions
            )
        )

    def disk_lost(self, address: int) -> None:
        """Take note that the disk of a machine is an empty one."""
        self.disks_lost += 1
        self.checks.disk_lost(self.machines[address])

    def run(self, faults: list[Fault]) -> None:
        """Go through the acts; raises InvariantError."""
        with self.running():
            self._run(faults)

    def _run(self, faults: list[Fault]) -> None:
        self.start()
        founder = self._add(Founder(self, "founder"))
        if not self.kernel.run_until(FOUNDING_US, lambda: founder.task is not None and founder.task.done()):
            raise InvariantError("a cluster comes up", f"no topics after {FOUNDING_US // SECOND_US} virtual seconds")
        began_us = self.kernel.now_us
        self.kernel.trace("world", "trouble begins")
        self._add_load()
        nemesis = Nemesis(self, [_later(fault, began_us) for fault in faults], CLUSTER_KINDS)
        self.faults_done = nemesis.done
        self.kernel.run_until(began_us + TROUBLE_US)
        nemesis.heal()
        self.is_calm = True
        self.kernel.trace("world", "all is healed")
        self.start()
        wanted = self.acknowledged + 20
        self.expect(lambda: self.acknowledged >= wanted, "progress after healing")
        FullDisk(self, self._full_disks, self.expect).run()
        self._end()

    def _add(self, client: Client) -> Client:
        self.clients.append(client)
        self.client_loop.run(client.start, self.client_loop)
        return client

    def _add_load(self) -> None:
        self._add(Producer(self, "safe1", "safe", acks=-1, idempotent=True, ages=(OLD,)))
        self._add(Producer(self, "safe2", "safe", acks=-1, idempotent=True))
        self._add(Producer(self, "plain", "safe", acks=-1, idempotent=False, ages=(UNKNOWN,)))
        self._add(Producer(self, "one", "loose", acks=1, idempotent=False, ages=(UNKNOWN,)))
        self._add(Producer(self, "zero", "loose", acks=0, idempotent=False, ages=(UNKNOWN,)))
        self._add(Reader(self, "reader", "safe", isolation_level=0))
        self._add(Reader(self, "committed", "safe", isolation_level=1))
        self._add(Reader(self, "loosely", "loose", isolation_level=0))
        for topic in LOSSY:
            self._add(Producer(self, f"{topic}-all", topic, acks=-1, idempotent=False, pace=2.5))
            self._add(Producer(self, f"{topic}-one", topic, acks=1, idempotent=False, pace=2.5, ages=(UNKNOWN, OLD)))
            self._add(Reader(self, f"{topic}-reader", topic, isolation_level=0, pause_s=0.6))
        self._add(Producer(self, "feeder", "in", acks=-1, idempotent=True, ages=(NOW, OLD, UNKNOWN)))
        for partition in range(2):
            for instance in "ab":
                copies = f"copy{partition}"
                self._add(Copier(self, f"{copies}{instance}", copies, ("in", partition), "out"))
        self._add(Reader(self, "copies", "out", isolation_level=1))
        self._add(Reader(self, "raw", "out", isolation_level=0))
        self._add(ClusterOperator(self, "operator"))
        self._add(Renewer(self, "renewer"))
        for number in range(3):
            self._add(ClassicMember(self, f"classic{number}", CLASSIC, "in"))
            self._add(ConsumerMember(self, f"modern{number}", MODERN, "in"))
            self._add(Seat(self, f"seat{number}", MIXED, "in"))

    def _end(self) -> None:
        self.producers_stop = True
        self.expect(lambda: self._are_done(Producer), "producers end")
        self.expect(self._copies_are_made, "copiers reach the end")
        self.copiers_stop = True
        self.expect(lambda: self._are_done(Copier), "copiers end")
        self.expect(lambda: _have_read_all(self.clients, self.history), "readers reach the end")
        self.expect(self._groups_are_done, "groups reach the end")
        self.readers_stop = True
        self.expect(lambda: self._are_done(Client), "clients end")
        self.expect(self.checks.has_settled, "replicas come to be equal")
        self.checks.complete()
        self.history.check_losses()
        self._check_copies()
        for machine in self.machines.values():
            if machine.broker is not None:
                check_numbers(machine.name, machine.broker)

    def _are_done(self, kind: type[object]) -> bool:
        return all(_done(client) for client in self.clients if isinstance(client, kind))

    def _copies_are_made(self) -> bool:
        """Whether each copier has committed all that there is to be copied."""
        return all(
            self.history.commits.get((client.copies, client.source), 0) >= self.history.log(client.source).end_offset
            for client in self.clients
            if isinstance(client, Copier)
        )

    def _groups_are_done(self) -> bool:
        return all(
            self.history.commits.get((group, ("in", partition)), 0) >= self.history.log(("in", partition)).end_offset
            for group in (CLASSIC, MODERN, MIXED)
            for partition in range(self.partitions_of("in"))
        )

    def _check_copies(self) -> None:
        """Each record of the source is there once among the committed copies, and nothing else."""
        reader = next(client for client in self.clients if client.name == "copies")
        assert isinstance(reader, Reader)
        for copies, source in {(c.copies, c.source): None for c in self.clients if isinstance(c, Copier)}:
            made = [identity.number for identity in reader.records if identity.writer == copies]
            if len(made) != len(set(made)):
                twice = sorted(number for number in set(made) if made.count(number) > 1)
                raise InvariantError("copied exactly once", f"{copies} has copied {twice[:5]} of {source} twice")
            log = self.history.log(source)
            wanted = {base + at for base, batch in log.contents.items() for at in range(len(batch.ids))}
            if set(made) != wanted:
                odd = sorted(set(made) ^ wanted)
                raise InvariantError("copied exactly once", f"{copies}: {odd[:5]} of {source} are copied or not")

    def expect(self, done: Callable[[], bool], what: str, within_us: int = PATIENCE_US) -> None:
        """Go on until something is so; raises InvariantError if it does not come to be."""
        if not self.kernel.run_until(self.kernel.now_us + within_us, done):
            raise InvariantError(what, f"nothing within {within_us // SECOND_US} virtual seconds")

    def _check(self) -> None:
        if self.failures:
            raise self.failures[0]
        for machine in self.machines.values():
            if machine.touched:
                machine.touched = False
                self.checks.after(machine)

    def client_failed(self, who: str, error: BaseException) -> None:
        """A client found a promise broken, or is itself in error."""
        self.kernel.trace(who, f"FAILED: {error!r}")
        self.failures.append(error if isinstance(error, InvariantError) else AssertionError(f"{who}: {error!r}"))


def _have_read_all(clients: Sequence[Client], history: History) -> bool:
    return all(
        position >= history.log((client.topic, partition)).end_offset
        for client in clients
        if isinstance(client, Reader)
        for partition, position in client.positions.items()
    )


def draw_settings(chance: random.Random) -> dict[str, str]:
    """Draw the brokers' settings: times far shorter than in production, so that much happens in a few seconds."""
    session_ms = chance.choice((600, 1_500, 3_000))
    fetch_ms = chance.choice((300, 600, 1_000))
    election_ms = chance.choice((100, 300))
    lag_ms = chance.choice((400, 1_000, 2_000))
    return {
        "broker.session.timeout.ms": str(session_ms),
        "broker.heartbeat.interval.ms": str(session_ms // 5),
        "controller.quorum.election.timeout.ms": str(election_ms),
        "controller.quorum.election.backoff.max.ms": str(election_ms),
        "controller.quorum.fetch.timeout.ms": str(fetch_ms),
        "controller.quorum.request.timeout.ms": str(fetch_ms),
        "replica.lag.time.max.ms": str(lag_ms),
        "leader.imbalance.check.interval.seconds": "2",
        "offsets.topic.num.partitions": "2",
        "transaction.state.log.num.partitions": "2",
        "log.flush.offset.checkpoint.interval.ms": "100",
        "log.retention.check.interval.ms": "300",
        "group.min.session.timeout.ms": "500",
        "group.consumer.min.session.timeout.ms": "500",
        "group.consumer.session.timeout.ms": "1500",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "500",
        "group.initial.rebalance.delay.ms": "100",
    }


def _later(fault: Fault, by_us: int) -> Fault:
    return Fault(
        at_us=fault.at_us + by_us, lasts_us=fault.lasts_us, kind=fault.kind, targets=fault.targets, amount=fault.amount
    )


def _done(client: Client) -> bool:
    """Whether a client has ended; raises what ended it."""
    task = client.task
    if task is None or not task.done():
        return False
    task.result()
    return True
