"""
Three replicas under every order of appends, fetches, answers, crashes and elections from the ISR.

What must hold: what was acknowledged by all, with two in sync at least, is in the log of every later leader; what one
replica shows as committed, all that come later show the same; a batch that an idempotent producer repeats is stored
once. When everything is well again the replicas become equal, in their logs and in what they know of producers.
"""

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from partition_bench import without_times
from replica_cluster import LAG_MS_MAX, NODES, Replica, ReplicaCluster

from log_broker.config.broker import TopicConfig
from log_broker.errors import ErrorCode
from log_broker.records import build_batch
from log_broker.records.batch import TRANSACTIONAL

PRODUCER, TRANSACTION = 7, 8
nodes = st.sampled_from(NODES)


class ReplicaMachine(RuleBasedStateMachine):
    """`committed` is what any replica has ever shown below its high watermark."""

    @initialize(min_insync=st.sampled_from(["1", "2"]))
    def begin(self, min_insync: str) -> None:
        config = {"segment.bytes": "500", "index.interval.bytes": "100", "min.insync.replicas": min_insync}
        self.cluster = ReplicaCluster(TopicConfig.from_overrides(config))
        self.committed: list[bytes | None] = []
        self.acked: dict[bytes, int] = {}  # value -> offset, acks=all
        self.number = 0
        self.sent: dict[bytes, int] = {}  # of the idempotent producer: value -> sequence
        self.waiting: bytes | None = None  # for its answer
        for node in NODES:
            self.cluster.learn(node)

    # Clients.

    @rule(node=nodes, acks=st.sampled_from([-1, -1, 1, 0]))
    def produce(self, node: int, acks: int) -> None:
        """Write to whoever may think that it leads."""
        replica = self.cluster.up.get(node)
        if replica is not None:
            value = b"%d" % self.number
            self.number += 1
            replica.append(build_batch([(1, b"k", value, ())]), (acks, value), acks)

    @precondition(lambda self: self.cluster.leading is not None)
    @rule()
    def produce_once(self) -> None:
        """Send the next batch of the idempotent producer, or the last again while it has no answer."""
        if self.waiting is None:
            self.waiting = b"once %d" % len(self.sent)
            self.sent[self.waiting] = len(self.sent)
        self.send_again()

    def send_again(self) -> None:
        replica = self.cluster.leading
        if replica is not None and self.waiting is not None:
            sequence = self.sent[self.waiting]
            producer = {"producer_id": PRODUCER, "producer_epoch": 0, "base_sequence": sequence}
            replica.append(build_batch([(1, b"k", self.waiting, ())], **producer), (-1, self.waiting), -1)

    @precondition(lambda self: self.cluster.leading is not None)
    @rule(end=st.sampled_from([None, True, False]))
    def transact(self, end: bool | None) -> None:
        replica = self.cluster.leading
        assert replica is not None
        if end is not None:
            self.cluster.end_transaction(replica, TRANSACTION, committed=end)
            return
        known = replica.core.state.producers.get(TRANSACTION)
        sequence = known.batches[-1].last_sequence + 1 if known is not None and known.batches else 0
        replica.core.state.transactions.expect(TRANSACTION, 0, sequence)
        replica.core.state.transactions.allow(TRANSACTION, 0)
        producer = {"producer_id": TRANSACTION, "producer_epoch": 0, "base_sequence": sequence}
        batch = build_batch([(1, b"k", b"in transaction", ())], attributes=TRANSACTIONAL, **producer)
        replica.append(batch, (1, b"in transaction"), 1)
        replica.core.state.transactions.answered(TRANSACTION)

    # Nodes and messages.

    @rule(node=nodes)
    def write_in_part(self, node: int) -> None:
        replica = self.cluster.up.get(node)
        if replica is not None:
            replica.begin_write() if replica.job is None else replica.finish_write()

    @rule(node=nodes)
    def settle(self, node: int) -> None:
        replica = self.cluster.up.get(node)
        if replica is not None:
            replica.settle()

    @rule(node=nodes)
    def fetch(self, node: int) -> None:
        if node in self.cluster.up:
            self.cluster.fetch(node)

    @rule(node=nodes)
    def deliver(self, node: int) -> None:
        if node in self.cluster.in_flight:
            self.cluster.deliver(node)

    @rule(node=nodes)
    def learn(self, node: int) -> None:
        if node in self.cluster.up:
            self.cluster.learn(node)

    @rule(node=nodes, answer_lost=st.booleans())
    def decide_isr(self, node: int, answer_lost: bool) -> None:
        replica = self.cluster.up.get(node)
        if replica is not None and replica.proposals:
            self.cluster.decide_isr(node, answer_lost=answer_lost)

    @rule(ms=st.sampled_from([10, LAG_MS_MAX // 2, 2 * LAG_MS_MAX]))
    def pass_time(self, ms: int) -> None:
        self.cluster.pass_time(ms)

    @rule(node=nodes)
    def crash(self, node: int) -> None:
        if node in self.cluster.up:
            self.cluster.crash(node)

    @rule(node=nodes)
    def start(self, node: int) -> None:
        if node not in self.cluster.up:
            self.cluster.start(node)
            self.cluster.learn(node)

    @rule(node=nodes)
    def fence(self, node: int) -> None:
        self.cluster.fence(node)

    @rule(node=nodes)
    def unfence(self, node: int) -> None:
        if node in self.cluster.up and node not in self.cluster.unfenced:
            self.cluster.unfence(node)

    # What must hold.

    @invariant()
    def committed_stays(self) -> None:
        for replica in self.cluster.up.values():
            self.take_answers(replica)
            state = replica.core.state
            assert state.log_start_offset <= state.last_stable_offset <= state.high_watermark <= state.written_end
            assert state.synced_end <= state.written_end <= state.next_offset
            shown = replica.values(state.high_watermark)
            both = min(len(shown), len(self.committed))
            assert shown[:both] == self.committed[:both], "two truths below the high watermark"
            if state.is_leader:
                self.committed += shown[both:]
            else:
                assert len(shown) <= len(self.committed), "a follower knows more than any leader said"

    @invariant()
    def all_in_sync_have_what_is_committed(self) -> None:
        leader = self.cluster.leading
        if leader is not None:
            ends = [
                self.cluster.up[node].core.state.written_end for node in self.cluster.isr if node in self.cluster.up
            ]
            assert leader.core.state.high_watermark <= min(ends)

    @invariant()
    def acked_is_there(self) -> None:
        leader = self.cluster.leading
        if leader is not None:
            values = leader.values(leader.core.state.written_end)
            for value, offset in self.acked.items():
                assert values[offset] == value, "acknowledged by all, and gone"

    def take_answers(self, replica: Replica) -> None:
        for token, result in replica.answers:
            if isinstance(token, tuple) and result.error is ErrorCode.NONE:
                acks, value = token
                if acks == -1:
                    self.acked[value] = result.base_offset
                    assert result.base_offset < replica.core.state.high_watermark
                    if value == self.waiting:
                        self.waiting = None
        replica.answers.clear()

    def teardown(self) -> None:
        """Heal, and demand progress."""
        if not hasattr(self, "cluster"):
            return
        cluster = self.cluster
        for node in NODES:
            if node not in cluster.up:
                cluster.start(node)
            cluster.unfence(node)
        for _ in range(400):
            for node, replica in cluster.up.items():
                cluster.learn(node)
                replica.settle()
                if node in cluster.in_flight:
                    cluster.deliver(node)
                cluster.fetch(node)
                while replica.proposals:
                    cluster.decide_isr(node, answer_lost=False)
            cluster.pass_time(100)
            self.committed_stays()
            self.acked_is_there()
            if self.waiting is not None:
                self.send_again()
            elif set(cluster.isr) == set(NODES) and self.is_quiet():
                break
        leader = cluster.leading
        assert leader is not None
        assert self.waiting is None, "no progress"
        assert set(cluster.isr) == set(NODES), "not all come back"
        ends = {replica.core.state.written_end for replica in cluster.up.values()}
        assert ends == {leader.core.state.high_watermark}
        logs = [replica.values(replica.core.state.written_end) for replica in cluster.up.values()]
        assert logs[0] == logs[1] == logs[2]
        assert [value for value in logs[0] if value in self.sent] == list(self.sent), "stored once, in order"
        for replica in cluster.up.values():
            assert without_times(replica.core.state.producers) == without_times(leader.core.state.producers)
            assert replica.core.state.last_stable_offset == leader.core.state.last_stable_offset
            assert all(
                replica.core.state.epochs.epoch_at(offset) == leader.core.state.epochs.epoch_at(offset)
                for offset in range(leader.core.state.written_end)
            )

    def is_quiet(self) -> bool:
        leader = self.cluster.leading
        return leader is not None and all(
            (replica.core.state.written_end, replica.core.state.high_watermark)
            == (leader.core.state.written_end, leader.core.state.written_end)
            for replica in self.cluster.up.values()
        )


TestReplicas = ReplicaMachine.TestCase
TestReplicas.settings = settings(
    max_examples=int(os.environ.get("FLUVIAL_TEST_REPLICA_EXAMPLES", "120")), stateful_step_count=50
)
