"""
What the controller decides, against logs that grow and diverge: whoever is in sync or eligible has what is committed.

Brokers see the image late, leaders go on in epochs that have ended, minimums and replicas change under way. Logs are
lists; leaders and followers keep Kafka's rules and nothing else: a follower fetches in the epoch that both know, a
high watermark counts everybody in the ISR and everybody asked into it, and moves only with an ISR of its minimum.
"""

from dataclasses import dataclass, field
from typing import Any

from cluster_driver import ClusterDriver
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from log_broker.core.cluster import elections
from log_broker.core.cluster.image import ClusterImage, PartitionImage
from log_broker.core.cluster.isr_changes import IsrMember
from log_broker.errors import BrokerError

BROKERS = (1, 2, 3, 4, 5)
Entry = tuple[int, int]  # the epoch in which it was appended, and a number

one = st.sampled_from(BROKERS)


@dataclass
class Broker:
    """One process: what it holds, what it has seen, and what it knows as a leader."""

    view: ClusterImage
    epoch: int
    log: list[Entry] = field(default_factory=list)
    leader_epoch: int = -1  # in which it became leader
    start: int = 0  # where its log ended then
    high_watermark: int = 0
    ends: dict[int, tuple[int, int]] = field(default_factory=dict)  # follower -> (end, its broker epoch)
    asked: set[int] = field(default_factory=set)  # into the ISR, under `asked_epoch`
    asked_epoch: int = -1

    @property
    def partition(self) -> PartitionImage:
        return self.view.topics["t"].partitions[0]


class ClusterOfLogs(RuleBasedStateMachine):
    """One partition on three of five brokers."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = ClusterDriver()
        for node_id in BROKERS:
            self.cluster.start(node_id, directory=f"d{node_id}")
        self.cluster.create(assignments={0: (1, 2, 3)})
        self.brokers = {
            node_id: Broker(self.cluster.image.draft(), self.cluster.image.brokers[node_id].epoch)
            for node_id in BROKERS
        }
        self.committed: list[Entry] = []
        self.count = 0
        for node_id in BROKERS:
            self.learns(node_id)
        self.the_leader_is_followed({2, 3}, 2)

    @rule(node_id=one)
    def learns(self, node_id: int) -> None:
        broker = self.brokers[node_id]
        broker.view = self.cluster.image.draft()
        now = broker.partition
        if now.leader == node_id and now.leader_epoch > broker.leader_epoch:
            broker.leader_epoch, broker.start, broker.ends = now.leader_epoch, len(broker.log), {}
        if now.partition_epoch > broker.asked_epoch:
            broker.asked = set()

    @rule(count=st.integers(1, 3), data=st.data())
    def a_leader_appends(self, count: int, data: Any) -> None:
        if leaders := self.believers():
            self.append(data.draw(st.sampled_from(leaders), "leader"), count)

    @rule(followers=st.sets(one), count=st.integers(0, 2))
    def the_leader_is_followed(self, followers: set[int], count: int) -> None:
        """All goes as it should, but for those who are not among the followers."""
        leader_id = self.cluster.image.topics["t"].partitions[0].leader
        if leader_id not in self.brokers:
            return
        self.learns(leader_id)
        self.append(leader_id, count)
        for node_id in sorted(followers - {leader_id}):
            self.learns(node_id)
            self.fetch(node_id, 10)
            self.fetch(node_id, 0)
        self.moves_high_watermark(leader_id)

    @rule(node_id=one, count=st.integers(0, 6))
    def fetches(self, node_id: int, count: int) -> None:
        self.fetch(node_id, count)

    def append(self, node_id: int, count: int) -> None:
        broker = self.brokers[node_id]
        for _ in range(count):
            self.count += 1
            broker.log.append((broker.leader_epoch, self.count))

    def fetch(self, node_id: int, count: int) -> None:
        follower = self.brokers[node_id]
        leader_id = follower.partition.leader
        if leader_id not in self.brokers or leader_id == node_id or node_id not in follower.partition.replicas:
            return
        leader = self.brokers[leader_id]
        if not self.leads(leader_id) or leader.leader_epoch != follower.partition.leader_epoch:
            return
        same = next(
            (at for at, pair in enumerate(zip(follower.log, leader.log, strict=False)) if pair[0] != pair[1]),
            min(len(follower.log), len(leader.log)),
        )
        del follower.log[same:]
        leader.ends[node_id] = (same, follower.epoch)
        follower.log += leader.log[same : same + count]
        follower.high_watermark = min(max(follower.high_watermark, leader.high_watermark), len(follower.log))
        self.moves_high_watermark(leader_id)

    def moves_high_watermark(self, node_id: int) -> None:
        broker = self.brokers[node_id]
        now = broker.partition
        if not self.leads(node_id) or len(now.isr) < broker.view.topics["t"].min_isr(0):
            return
        others = {*now.isr, *broker.asked} - {node_id}
        end = min([len(broker.log), *(broker.ends.get(other, (0, 0))[0] for other in others)])
        broker.high_watermark = max(broker.high_watermark, end)
        if broker.high_watermark > len(self.committed):
            self.committed = broker.log[: broker.high_watermark]

    @rule()
    def leaders_count(self) -> None:
        for node_id in self.believers():
            self.moves_high_watermark(node_id)

    @rule(data=st.data())
    def a_leader_asks_for_an_isr(self, data: Any) -> None:
        if not (leaders := self.believers()):
            return
        node_id = data.draw(st.sampled_from(leaders), "leader")
        broker = self.brokers[node_id]
        now = broker.partition
        known = {each: epoch for each, (_, epoch) in broker.ends.items()}
        caught_up = {
            each
            for each, (end, _) in broker.ends.items()
            if each in now.replicas and end >= max(broker.high_watermark, broker.start)
        }
        may_be = sorted(({*now.isr} | caught_up) - {node_id})
        members = {node_id, *data.draw(st.sets(st.sampled_from(may_be)) if may_be else st.just(set()), "ISR")}
        isr = tuple(IsrMember(each, known.get(each, -1)) for each in sorted(members, key=now.replicas.index))
        # An earlier wish may have been granted and the answer lost: it counts until the image says what became of it.
        is_first = not broker.asked
        broker.asked, broker.asked_epoch = broker.asked | members, now.partition_epoch
        try:
            self.cluster.want_isr(
                node_id=node_id, leader_epoch=now.leader_epoch, partition_epoch=now.partition_epoch, isr=isr
            )
        except BrokerError:
            if is_first:
                broker.asked = set()

    @rule(node_id=one)
    def is_fenced(self, node_id: int) -> None:
        self.cluster.fence(node_id)

    @rule(node_id=one)
    def leaves(self, node_id: int) -> None:
        if self.cluster.image.may_lead(node_id):
            self.cluster.commit(elections.leave(self.cluster.image, node_id))

    @rule(node_id=one, is_up=st.booleans())
    def registers_again(self, node_id: int, is_up: bool) -> None:
        """Be it after a fencing, or as a new process with the same disk."""
        incarnation = f"after {self.cluster.image.version} records"
        epoch = self.cluster.register(node_id, incarnation, directory=f"d{node_id}")
        broker = self.brokers[node_id]
        broker.epoch, broker.ends, broker.asked, broker.high_watermark = epoch, {}, set(), 0
        self.learns(node_id)
        if is_up:
            self.cluster.beat(node_id, epoch)

    @rule()
    def all_beat(self) -> None:
        for node_id, broker in self.brokers.items():
            known = self.cluster.image.brokers[node_id]
            if not known.has_ended and known.epoch == broker.epoch:
                self.cluster.beat(node_id, broker.epoch, replayed=broker.view.version)

    @rule(least=st.integers(1, 3))
    def the_minimum_changes(self, least: int) -> None:
        self.cluster.configure("t", min_insync_replicas=str(least))

    @rule(replicas=st.none() | st.lists(one, min_size=1, max_size=3, unique=True))
    def is_moved(self, replicas: list[int] | None) -> None:
        try:
            self.cluster.reassign(None if replicas is None else tuple(replicas))
        except BrokerError:
            return

    @rule()
    def the_preferred_leader_is_elected(self) -> None:
        self.cluster.commit(elections.level(self.cluster.image, 0))

    @invariant()
    def whoever_may_lead_has_all_that_is_committed(self) -> None:
        now = self.cluster.image.topics["t"].partitions[0]
        for node_id in {*now.isr, *now.elr}:
            log = self.brokers[node_id].log
            assert log[: len(self.committed)] == self.committed, (node_id, log, self.committed, now)

    def believers(self) -> list[int]:
        return [node_id for node_id in BROKERS if self.leads(node_id)]

    def leads(self, node_id: int) -> bool:
        """Whether a broker believes that it leads; a process that was replaced believes nothing of before."""
        broker = self.brokers[node_id]
        return broker.partition.leader == node_id and broker.partition.leader_epoch == broker.leader_epoch


ClusterOfLogs.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
test_whoever_may_lead_has_all_that_is_committed = ClusterOfLogs.TestCase
