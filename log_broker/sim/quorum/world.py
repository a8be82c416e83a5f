"""
The metadata quorum in simulation: replicas, clients that append, operators who change the voters, a stranger.

One run goes through five acts: trouble; healing, after which everything must come to rest and go on; the return of a
node that was cut off, which must not disturb a leader that works; the loss of the leader to all others, who must go on
without it while it gives up; and the end, at which all replicas are equal and all that was acknowledged is there once.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

from log_broker.core.raft.leader import Leader
from log_broker.core.raft.raft import Raft
from log_broker.core.raft.replica import RaftConfig, epoch_bound
from log_broker.core.raft.voters import ReplicaKey, Voter, VoterSet
from log_broker.errors import ErrorCode
from log_broker.sim.kernel.kernel import InvariantError, Kernel
from log_broker.sim.kernel.nemesis import Fault, Nemesis, draw_faults
from log_broker.sim.kernel.network import Message, Network
from log_broker.sim.kernel.node import Node
from log_broker.sim.quorum.checks import QuorumChecks
from log_broker.sim.quorum.process import Change, Command, Outcome, QuorumProcess, WatchedDriver
from log_broker.sim.quorum.stranger import Stranger, directory_of
from log_broker.storage.quorum_store import QuorumStore

SECOND_US = 1_000_000
TROUBLE_US = 9 * SECOND_US
PATIENCE_US = 60 * SECOND_US  # virtual, after healing: far more than elections with the timeouts below need
COMMANDS_MIN = 100
BEGAN_UNIX_S = 1_800_000_000

_STRANGERS = 0.6  # so many seeds have one
_CLIENT_ADDRESS = 100
_OPERATOR_ADDRESS = 200


def draw_config(chance: random.Random) -> RaftConfig:
    """Draw timeouts for all replicas: the shorter, the more elections, and the more of them at the same time."""
    election_ms = chance.choice((20, 60, 300))
    fetch_ms = chance.choice((150, 300, 600))
    return RaftConfig(
        election_timeout_ms=election_ms,
        election_backoff_max_ms=election_ms,
        fetch_timeout_ms=fetch_ms,
        request_timeout_ms=fetch_ms * 2 // 3,
        retry_backoff_ms=20,
        fetch_wait_ms_max=fetch_ms // 3,
        observer_fetch_wait_ms_max=fetch_ms // 2,
        add_voter_timeout_ms=2_000,
        snapshot_entries=40,
        snapshot_trailing_entries=10,
        snapshot_part_bytes=24,
    )


class Caller(ABC):
    """Asks the leader for one thing at a time, over and over until it is answered."""

    def __init__(self, world: "QuorumWorld", address: int) -> None:
        self.world = world
        self.address = address
        self.random = world.kernel.stream(f"caller/{address}")
        self._id = 0
        self._target = self.random.choice(list(world.nodes))
        world.network.attach(address, self._receive)

    def ask(self, body: Command | Change, timeout_us: int) -> None:
        """Send; `answered` or `gave_up` follows, once."""
        self._id += 1
        asked = self._id
        self.world.network.send(Message(self.address, self._target, False, asked, 0, body))
        self.world.kernel.after(timeout_us, lambda: self._timed_out(asked))

    @abstractmethod
    def answered(self, outcome: Outcome) -> None:
        """Take the answer."""

    @abstractmethod
    def gave_up(self) -> None:
        """Go on without an answer."""

    def _timed_out(self, asked: int) -> None:
        if asked == self._id:
            self._id += 1
            self._target = self.random.choice(list(self.world.nodes))
            self.gave_up()

    def _receive(self, message: Message) -> None:
        if message.id != self._id:
            return
        self._id += 1
        outcome: Outcome = message.body
        if outcome.error is ErrorCode.NOT_CONTROLLER:
            known = outcome.leader in self.world.nodes and self.random.random() < 0.9
            self._target = outcome.leader if known else self.random.choice(list(self.world.nodes))
        self.answered(outcome)


class Client(Caller):
    """Appends commands numbered from 1."""

    def __init__(self, world: "QuorumWorld", address: int) -> None:
        super().__init__(world, address)
        self.acknowledged = 0
        self.next()

    def next(self) -> None:
        self.ask(Command(self.address, self.acknowledged + 1), 500_000)

    def gave_up(self) -> None:
        self.next()

    def answered(self, outcome: Outcome) -> None:
        if outcome.error is ErrorCode.NONE:
            self.acknowledged += 1
            self.world.checks.acknowledged(Command(self.address, self.acknowledged))
        self.world.kernel.after(self.random.randint(5_000, 200_000), self.next)


class Operator(Caller):
    """Changes the voters by whim in times of trouble, impatiently; after them only puts back what was lost."""

    def __init__(self, world: "QuorumWorld", address: int) -> None:
        super().__init__(world, address)
        self.changes = 0
        self._pause()

    def answered(self, outcome: Outcome) -> None:
        if outcome.error is ErrorCode.NONE:
            self.changes += 1
        if outcome.error is ErrorCode.NOT_CONTROLLER:
            self.world.kernel.after(self.random.randint(1_000, 30_000), self._act)
        else:
            self._pause()

    def gave_up(self) -> None:
        self._pause()

    def _pause(self) -> None:
        self.world.kernel.after(self.random.randint(50_000, 600_000), self._act)

    def _act(self) -> None:
        calm = self.world.is_calm
        change = self.world.repairing_change() if calm else self._whim()
        if change is None:
            self._pause()
        else:
            patience_us = 3 * SECOND_US if calm else self.random.randint(5_000, SECOND_US)
            self.ask(change._replace(lost_disks=self.world.checks.lost_disks), patience_us)

    def _whim(self) -> Change | None:
        world = self.world
        voters = world.voters()
        lost = sorted(key for key in voters.keys if world.keys[key.node_id] != key)
        if lost:
            return Change(remove=lost[0])
        if self.random.random() < 0.1:
            return Change()
        joinable = [key for key in world.keys.values() if key not in voters]
        if joinable and (len(voters) <= world.voters_at_first or self.random.random() < 0.5):
            return Change(add=self.random.choice(joinable))
        if len(voters) >= world.voters_at_first:
            return Change(remove=self.random.choice(sorted(voters.keys)))
        return None


class QuorumWorld:
    """Everything of one run."""

    def __init__(self, seed: int, *, trace_lines_max: int = 0) -> None:
        self.kernel = Kernel(seed, trace_lines_max=trace_lines_max)
        self.network = Network(self.kernel)
        chance = self.kernel.stream("world")
        self.config = draw_config(chance)
        self.voters_at_first = chance.choice((3, 3, 5))
        addresses = range(1, self.voters_at_first + 1 + chance.randint(1, 2))
        self.keys = {address: ReplicaKey(address, directory_of(address, 0)) for address in addresses}
        self.bootstrap = VoterSet(Voter(key=self.keys[address]) for address in range(1, self.voters_at_first + 1))
        self.checks = QuorumChecks(self)
        self._nodes = {address: Node(self.kernel, self.network, address, self._boot) for address in addresses}
        self.is_calm = False
        self.kernel.after_event = self._check
        for node in self._nodes.values():
            node.start()
        self.clients = [Client(self, _CLIENT_ADDRESS + number) for number in range(2)]
        self.operators = [Operator(self, _OPERATOR_ADDRESS + number) for number in range(2)]
        self.stranger = Stranger(self) if chance.random() < _STRANGERS else None

    @property
    def nodes(self) -> Mapping[int, Node]:
        return self._nodes

    @property
    def acknowledged(self) -> int:
        return sum(client.acknowledged for client in self.clients)

    def draw_faults(self) -> list[Fault]:
        """Draw this seed's schedule."""
        chance = self.kernel.stream("nemesis")
        return draw_faults(
            chance,
            list(self._nodes),
            count=chance.randint(10, 24),
            until_us=TROUBLE_US - SECOND_US,
            lasts_us=(SECOND_US // 20, 3 * SECOND_US // 2),
        )

    def epoch_max(self) -> int:
        """Return the highest epoch that is believed now: all have the same clock on the wall."""
        return epoch_bound(BEGAN_UNIX_S + self.kernel.now_us // SECOND_US)

    def process(self, address: int) -> QuorumProcess | None:
        process = self._nodes[address].process
        assert process is None or isinstance(process, QuorumProcess)
        return process

    def leader(self) -> int | None:
        """Return the address of the leader of the highest epoch that has one."""
        leading = [
            (process.raft.replica.epoch, address)
            for address in self._nodes
            if (process := self.process(address)) is not None and isinstance(process.raft.role, Leader)
        ]
        return max(leading)[1] if leading else None

    def voters(self) -> VoterSet:
        """Return the voters as the replica with the longest log has them."""
        up = [process.raft for address in self._nodes if (process := self.process(address)) is not None]
        best = max(up, key=lambda raft: (raft.replica.log.last_epoch, raft.replica.log.end_offset), default=None)
        return self.bootstrap if best is None else best.replica.voters.current

    def may_lose_disk(self, address: int) -> bool:
        """A quorum of n survives (n - 1) / 2 lost disks; leave it the rest, also while the set is changing."""
        rafts = [process.raft for number in self._nodes if (process := self.process(number)) is not None]
        if any(isinstance(raft.role, Leader) and raft.role.changes_voters for raft in rafts):
            return False
        sets = [raft.replica.voters.current for raft in rafts]
        whole = len(sets) == len(self._nodes) and all(
            self.keys[key.node_id] == key for voters in sets for key in voters.keys
        )
        return whole and len(set(sets)) == 1 and len(sets[0]) >= 3

    def disk_lost(self, address: int) -> None:
        """A machine with another disk is another replica."""
        self.checks.lost_disks += 1
        self.keys[address] = ReplicaKey(address, directory_of(address, self.checks.lost_disks))

    def repairing_change(self) -> Change | None:
        """Return what is missing to have as many living voters as at first."""
        voters = self.voters()
        lost = sorted(key for key in voters.keys if self.keys[key.node_id] != key)
        if lost:
            return Change(remove=lost[0])
        if len(voters) < self.voters_at_first:
            return Change(add=min(key for key in self.keys.values() if key not in voters))
        return None

    def run(self, faults: list[Fault]) -> None:
        """Go through the acts; raises InvariantError."""
        nemesis = Nemesis(self, faults)
        self.faults_done = nemesis.done
        self.kernel.run_until(TROUBLE_US)
        nemesis.heal()
        self._heal()
        self._expect(self._has_settled, "progress after healing")
        wanted = max(COMMANDS_MIN, self.acknowledged + 10)
        self._expect(lambda: self.acknowledged >= wanted, "progress after healing")
        self._return_of_a_follower()
        self._loss_of_the_leader()
        self._end()

    def _boot(self, node: Node) -> QuorumProcess:
        key = self.keys[node.address]
        store = QuorumStore(node.disk.files, Path("quorum"))
        found = store.recover()
        self.checks.recovered(key, found)
        process = QuorumProcess(node, key, store, self.checks)
        raft = Raft(
            key,
            self.config,
            bootstrap=self.bootstrap,
            recovered=found,
            jitter=self.kernel.stream(f"jitter/{node.address}/{node.incarnation}").randrange,
            now_ms=node.now_ms(),
            epoch_max=self.epoch_max,
        )
        driver = WatchedDriver(raft, store, process, process)
        driver.watcher = self.checks
        driver.process = process
        process.driver = driver
        return process

    def _check(self) -> None:
        for node in self._nodes.values():
            if node.touched:
                node.touched = False
                process = node.process
                if isinstance(process, QuorumProcess):
                    self.checks.after(process)

    def _heal(self) -> None:
        self.kernel.trace("world", "all is healed")
        self.is_calm = True
        for node in self._nodes.values():
            node.start()

    def _expect(self, done: Callable[[], bool], what: str) -> None:
        if not self.kernel.run_until(self.kernel.now_us + PATIENCE_US, done):
            raise InvariantError(what, f"nothing within {PATIENCE_US // SECOND_US} virtual seconds")

    def _has_settled(self) -> bool:
        """Whether a leader leads that all others follow, the voters are as many as at first and all are there."""
        leader = self.leader()
        if leader is None or self.repairing_change() is not None:
            return False
        return all(
            (process := self.process(address)) is not None and process.raft.leader_id == leader
            for address in self._nodes
        )

    def _return_of_a_follower(self) -> None:
        """A voter that was cut off for long comes back, and the leader stays (pre-vote)."""
        leader = self.leader()
        assert leader is not None
        epoch = self._epoch(leader)
        voters = self.voters()
        node = next(key.node_id for key in sorted(voters.keys) if key.node_id != leader)
        self._cut_off(node)
        self.kernel.run_until(self.kernel.now_us + 5 * SECOND_US // 2)
        self._let_back(node)
        self.kernel.run_until(self.kernel.now_us + 3 * SECOND_US // 2)
        if self.leader() != leader or self._epoch(leader) != epoch:
            raise InvariantError(
                "a returning node disturbs nobody", f"n{node} came back and n{leader} lost epoch {epoch}"
            )
        self._expect(self._has_settled, "progress after a return")

    def _loss_of_the_leader(self) -> None:
        """A leader that nobody hears gives up, and the others go on."""
        leader = self.leader()
        assert leader is not None
        epoch = self._epoch(leader)
        self._cut_off(leader)
        wanted = self.acknowledged + 5
        self._expect(lambda: self.acknowledged >= wanted, "progress without the old leader")
        self.kernel.run_until(self.kernel.now_us + 2 * SECOND_US)
        process = self.process(leader)
        if process is not None and isinstance(process.raft.role, Leader) and process.raft.replica.epoch == epoch:
            raise InvariantError("a leader without quorum resigns", f"n{leader} still leads in epoch {epoch}")
        self._let_back(leader)
        self._expect(self._has_settled, "progress after the leader's return")

    def _end(self) -> None:
        for client in self.clients:
            client.next = lambda: None  # type: ignore[method-assign]
        self.kernel.run_until(self.kernel.now_us + SECOND_US)
        for address in self._nodes:
            process = self.process(address)
            assert process is not None
            self.checks.complete(process, self.acknowledged)

    def _epoch(self, address: int) -> int:
        process = self.process(address)
        assert process is not None
        return process.raft.replica.epoch

    def _cut_off(self, address: int) -> None:
        self.kernel.trace("world", f"n{address} is cut off")
        for other in self._nodes:
            if other != address:
                self.network.cut_link(address, other)
                self.network.cut_link(other, address)

    def _let_back(self, address: int) -> None:
        self.kernel.trace("world", f"n{address} is let back")
        for other in self._nodes:
            if other != address:
                self.network.repair_link(address, other)
                self.network.repair_link(other, address)
