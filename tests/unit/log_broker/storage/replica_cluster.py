"""
Three replicas of one partition on disks that lose power, a controller, and messages that come late or never.

The cores and the logs are the real ones; the controller is the few rules of it that a partition depends on.
"""

from collections.abc import Sequence

from partition_bench import Bench

from log_broker.config.broker import TopicConfig
from log_broker.core.partition.protocol import Effect, EndTransaction, IsrWanted
from log_broker.core.partition.replication import IsrProposal, Leadership
from log_broker.errors import ErrorCode
from log_broker.records import batches_in, iterate_records
from log_broker.records.control import EndMarker
from log_broker.server.partitions.readers import ReplicaRead, read_for_replica
from log_broker.storage.memory_files import MemoryFileSystem

NODES = (1, 2, 3)
LAG_MS_MAX = 1_000


class Replica(Bench):
    """One replica, following nobody until it is told."""

    def __init__(self, files: MemoryFileSystem, config: TopicConfig, node_id: int) -> None:
        self.node_id = node_id
        self.proposals: list[IsrProposal] = []
        super().__init__(files, config, leads=False)

    def _take(self, effects: Sequence[Effect]) -> None:
        self.proposals += [effect.proposal for effect in effects if isinstance(effect, IsrWanted)]
        super()._take(effects)

    def values(self, end: int) -> list[bytes | None]:
        """The values before `end`, None for a marker."""
        found: list[bytes | None] = []
        offset = 0
        while offset < end:
            data = self.log.read(offset, 1 << 20, end, at_least_one=True)
            for position, header in batches_in(data):
                records = iterate_records(data[position : position + header.size])
                found += [None if header.is_control else record.value for record in records]
                offset = header.last_offset + 1
        return found


class ReplicaCluster:
    """The replicas, and the image of them that the controller has."""

    def __init__(self, config: TopicConfig) -> None:
        self.config = config
        self.now_ms = 0
        self.disks = {node: MemoryFileSystem() for node in NODES}
        self.up = {node: Replica(self.disks[node], config, node) for node in NODES}
        self.unfenced = set(NODES)
        self.leader, self.epoch, self.version = 1, 1, 1
        self.isr: tuple[int, ...] = NODES
        self.in_flight: dict[int, tuple[int, int, ReplicaRead]] = {}  # to a follower: epoch, watermark, answer

    @property
    def leading(self) -> Replica | None:
        """The replica that leads by the controller's word, and knows it."""
        replica = self.up.get(self.leader)
        if replica is None or not replica.core.state.is_leader or replica.core.state.leader_epoch != self.epoch:
            return None
        return replica

    # The controller.

    def fence(self, node: int) -> None:
        self.unfenced.discard(node)
        if node in self.isr and len(self.isr) > 1:
            self.isr = tuple(other for other in self.isr if other != node)
            self.version += 1
        if self.leader == node:
            self.leader, self.epoch, self.version = -1, self.epoch + 1, self.version + 1
            self.elect()

    def unfence(self, node: int) -> None:
        self.unfenced.add(node)
        if self.leader < 0:
            self.elect()

    def elect(self) -> None:
        able = [node for node in self.isr if node in self.unfenced]
        if able:
            self.leader, self.epoch, self.version = able[0], self.epoch + 1, self.version + 1

    def learn(self, node: int) -> None:
        """Tell a node what the image is now."""
        replica = self.up[node]
        if self.leader == node:
            self.take(
                replica,
                replica.core.roles.become_leader(
                    self.leadership(), node_id=node, lag_ms_max=LAG_MS_MAX, steady_ms=self.now_ms
                ),
            )
        else:
            self.take(replica, replica.core.roles.become_follower(self.epoch, self.leader))

    def leadership(self) -> Leadership:
        return Leadership(leader_epoch=self.epoch, partition_epoch=self.version, replicas=NODES, isr=self.isr)

    def decide_isr(self, node: int, *, answer_lost: bool) -> None:
        """Take the oldest proposal of a leader."""
        replica = self.up[node]
        proposal = replica.proposals.pop(0)
        if (self.leader, self.epoch) != (node, proposal.leader_epoch):
            error = ErrorCode.FENCED_LEADER_EPOCH
        elif proposal.partition_epoch != self.version:
            error = ErrorCode.INVALID_UPDATE_VERSION
        elif not set(proposal.isr) <= self.unfenced:
            error = ErrorCode.INELIGIBLE_REPLICA
        else:
            error = ErrorCode.NONE
            self.isr, self.version = proposal.isr, self.version + 1
        if answer_lost:
            error = ErrorCode.REQUEST_TIMED_OUT
        core = replica.core
        if error is ErrorCode.NONE:
            self.take(replica, core.roles.isr_settled(self.leadership(), steady_ms=self.now_ms))
        else:
            self.take(replica, core.roles.isr_refused(error, steady_ms=self.now_ms))

    # The nodes.

    def crash(self, node: int) -> None:
        replica = self.up.pop(node)
        self.in_flight.pop(node, None)
        self.disks[node] = replica.files.crash()

    def start(self, node: int) -> None:
        """Start a node; that it registers tells the controller that its last life is over."""
        self.fence(node)
        self.up[node] = Replica(self.disks[node], self.config, node)
        self.unfence(node)

    def fetch(self, node: int) -> None:
        """Ask the leader that this follower knows, if it is one in the epoch that the follower knows."""
        replica = self.up[node]
        leader = self.up.get(replica.core.state.leader_id)
        core = replica.core
        if core.state.is_leader or leader is None or not core.writes.is_idle or node in self.in_flight:
            return
        if not leader.core.state.is_leader or leader.core.state.leader_epoch != core.state.leader_epoch:
            return
        offset = core.state.written_end
        read = read_for_replica(leader.core.state, leader.log, offset, 300, core.state.epochs.latest, min_one=True)
        if read.error is ErrorCode.NONE and read.diverging is None:
            effects = leader.core.roles.follower_fetched(node, 1, offset, 0, steady_ms=self.now_ms)
            self.take(leader, effects)
        self.in_flight[node] = (core.state.leader_epoch, leader.core.state.high_watermark, read)

    def deliver(self, node: int) -> None:
        """Bring a follower the answer to its fetch."""
        replica = self.up[node]
        epoch, watermark, read = self.in_flight.pop(node)
        core = replica.core
        if core.state.is_leader or core.state.leader_epoch != epoch or not core.writes.is_idle:
            return
        assert read.error is ErrorCode.NONE, "nothing leaves these logs"
        if read.diverging is not None:
            known, end = read.diverging
            own, own_end = core.state.epochs.end_offset(known, core.state.written_end)
            replica.truncate(min(end, own_end) if own == known else max(own_end, 0))
            return
        self.take(
            replica,
            core.following.append_fetched(memoryview(b"".join(read.chunks)), epoch, watermark, 0, "fetched", now_ms=0),
        )
        replica.settle()
        answered = [result.error for token, result in replica.answers if token == "fetched"]
        assert set(answered) <= {ErrorCode.NONE}
        replica.answers = [answer for answer in replica.answers if answer[0] != "fetched"]

    def end_transaction(self, replica: Replica, producer_id: int, *, committed: bool) -> None:
        event = EndTransaction(producer_id, 0, EndMarker(committed, 1), "marker")
        self.take(replica, replica.core.handle(event, replica.now_ms))

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        for replica in self.up.values():
            self.take(replica, replica.core.roles.check_followers(self.now_ms))

    def take(self, replica: Replica, effects: Sequence[Effect]) -> None:
        replica._take(effects)
