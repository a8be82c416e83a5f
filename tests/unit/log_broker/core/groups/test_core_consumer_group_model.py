"""
A KIP-848 group under everything at once: clients that come, go, crash and lose answers, topics that grow, a disk that
fails, a coordinator that begins again from its log, time.

Always: no partition is read by two clients; epochs only grow. In the end: every partition is read, evenly.
"""

from consumer_group_driver import Client, GroupDriver, settle
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from log_broker.core.groups.consumer_group_records import NO_PARTITIONS
from log_broker.core.groups.consumer_group_state import ConsumerGroupState, ConsumerState
from log_broker.errors import ErrorCode

TOPICS = ("t", "u", "v")
SESSION_MS = 45_000


class ConsumerGroupModel(RuleBasedStateMachine):
    """Clients keep the protocol: what they are told to give up they no longer read when they next say a word."""

    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.driver = GroupDriver()
        self.alive: list[Client] = []
        self.heard: dict[str, int] = {}
        self.count = 0
        self.group_epoch = 0
        self.epochs: dict[str, int] = {}

    @initialize(counts=st.lists(st.integers(1, 5), min_size=3, max_size=3))
    def begin(self, counts: list[int]) -> None:
        for name, count in zip(TOPICS, counts, strict=True):
            self.driver.create_topic(name, count)

    @rule(
        target=clients,
        topics=st.frozensets(st.sampled_from(TOPICS), min_size=1),
        assignor=st.sampled_from([None, "range", "uniform"]),
        static=st.booleans(),
    )
    def join(self, topics: frozenset[str], assignor: str | None, static: bool) -> Client:
        self.count += 1
        instance_id = f"i{self.count}" if static else None
        client = Client(self.driver, f"m{self.count}", topics, instance_id=instance_id, assignor=assignor)
        self.alive.append(client)
        self.beat(client)
        return client

    @rule(client=clients)
    def beat(self, client: Client) -> None:
        if client in self.alive:
            self._heard(client, client.send())

    @rule(client=clients)
    def beat_and_lose_the_answer(self, client: Client) -> None:
        if client in self.alive:
            client.send()
            client.is_unsure = True

    @rule(client=clients, topics=st.frozensets(st.sampled_from(TOPICS), min_size=1))
    def resubscribe(self, client: Client, topics: frozenset[str]) -> None:
        if client in self.alive and client.epoch > 0:
            token = client.send(topics=topics)
            if self.driver.answers[token].error is ErrorCode.NONE:
                client.topics = topics
            self._heard(client, token)

    @rule(client=clients)
    def leave(self, client: Client) -> None:
        if client in self.alive:
            client.leave()
            self.alive.remove(client)

    @rule(client=clients)
    def crash(self, client: Client) -> None:
        """It no longer reads, and the group is not told."""
        if client in self.alive:
            client.owned = NO_PARTITIONS
            self.alive.remove(client)

    @rule(client=clients)
    def static_member_restarts(self, client: Client) -> None:
        if client in self.alive and client.instance_id is not None and client.epoch > 0:
            client.leave(-2)
            self.count += 1
            client.member_id = f"m{self.count}"
            self.beat(client)

    @rule(milliseconds=st.integers(1, 30_000))
    def time_passes(self, milliseconds: int) -> None:
        self.driver.advance(milliseconds)
        for client in list(self.alive):
            # A client that could not reach its coordinator for a session stops reading by itself.
            if self.driver.now - self.heard.get(client.member_id, self.driver.now) >= SESSION_MS:
                client.owned = NO_PARTITIONS
                self.alive.remove(client)

    @rule(topic=st.sampled_from(TOPICS))
    def add_partitions(self, topic: str) -> None:
        if len(self.driver.cluster.topics[topic].partitions) < 8:
            self.driver.add_partitions(topic, 1)

    @rule()
    def recreate_topic(self) -> None:
        old = self.driver.cluster.topics["v"].topic_id
        self.driver.delete_topic("v")
        for client in self.alive:
            client.owned = frozenset(place for place in client.owned if place[0] != old)
        self.driver.create_topic("v", 2)

    @rule()
    def the_disk_fails_once(self) -> None:
        self.driver.fails = True
        for client in self.alive:
            self._heard(client, client.send())
        self.driver.fails = False

    @precondition(lambda self: self.driver.group.consumer is not None)
    @rule()
    def the_coordinator_restarts(self) -> None:
        before = self.driver.consumer.state
        self.driver.restart()
        assert self.driver.consumer.state == before, "the log is all there is to know"

    def _heard(self, client: Client, token: int) -> None:
        self.heard[client.member_id] = self.driver.now
        client.take(self.driver.answers[token])

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        reading = [place for client in self.alive for place in client.owned]
        assert len(reading) == len(set(reading))

    @invariant()
    def epochs_only_grow(self) -> None:
        for client in self.alive:
            if client.epoch:
                assert client.epoch >= self.epochs.get(client.member_id, 0)
                self.epochs[client.member_id] = client.epoch
            else:
                self.epochs.pop(client.member_id, None)
        if self.driver.group.consumer is not None:
            state = self.driver.consumer.state
            assert state.epoch >= self.group_epoch
            assert state.target_epoch <= state.epoch
            self.group_epoch = state.epoch
            check_owners(state)
        else:
            self.group_epoch = 0

    def teardown(self) -> None:
        """Whoever is left ends with everything, evenly, and is told nothing more."""
        for client in self.alive:
            client.beat()
        self.driver.advance(SESSION_MS - 1)
        settle(self.alive, 3)
        self.driver.advance(2)
        settle(self.alive, 2 * len(self.alive) + 4)
        if not self.alive:
            return
        state = self.driver.consumer.state
        assert state.subscriptions.keys() == {client.member_id for client in self.alive}
        assert state.state is ConsumerGroupState.STABLE
        read = sorted(place for client in self.alive for place in client.owned)
        topics = frozenset().union(*(client.topics for client in self.alive))
        assert read == sorted(self.driver.places(*topics))
        log = len(self.driver.log)
        settle(self.alive, 2)
        assert len(self.driver.log) == log, "at rest nothing is written"


def check_owners(state: ConsumerState) -> None:
    owned: dict[object, str] = {}
    for member_id, current in state.current.items():
        for place in current.assigned | current.revoking:
            assert place not in owned, "a partition has one owner"
            owned[place] = member_id
    assert owned == state.owners


ConsumerGroupModel.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
test_a_group_under_everything_at_once = ConsumerGroupModel.TestCase
