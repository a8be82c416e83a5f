"""
A classic group under everything at once: members that come, go, crash and restart, a disk that fails, a coordinator
that begins again from its log, time.

Always: no partition is read by two members; generations only grow. In the end: every partition is read.
"""

from classic_group_client import SESSION_MS, EagerMember
from consumer_group_driver import GroupDriver
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from log_broker.core.groups.classic_group import GroupState
from log_broker.core.groups.protocol import Leave


class ClassicGroupModel(RuleBasedStateMachine):
    members = Bundle("members")

    def __init__(self) -> None:
        super().__init__()
        self.driver = GroupDriver()
        self.driver.create_topic("t", 5)
        self.alive: list[EagerMember] = []
        self.count = 0
        self.generation = 0

    def step(self, member: EagerMember) -> None:
        if member.waits_for is None:
            member.heartbeat()
        self.deliver()

    def deliver(self) -> None:
        for member in self.alive:
            member.take()

    @rule(target=members, static=st.booleans())
    def begin(self, static: bool) -> EagerMember:
        self.count += 1
        member = EagerMember(self.driver, self.count, "t", f"i{self.count}" if static else None)
        self.alive.append(member)
        self.step(member)
        return member

    @rule(member=members)
    def go_on(self, member: EagerMember) -> None:
        if member in self.alive:
            self.step(member)

    @rule(member=members)
    def leave(self, member: EagerMember) -> None:
        if member in self.alive and member.member_id:
            self.alive.remove(member)
            self.driver.ask(Leave, members=((member.member_id, member.instance_id),))
            self.deliver()

    @rule(member=members)
    def crash(self, member: EagerMember) -> None:
        if member in self.alive:
            self.alive.remove(member)

    @rule(member=members)
    def static_member_restarts(self, member: EagerMember) -> None:
        if member in self.alive and member.instance_id is not None:
            member.lose_connection()
            member.member_id = ""
            member.join()
            self.deliver()

    @rule(milliseconds=st.integers(1, 9_000))
    def time_passes(self, milliseconds: int) -> None:
        self.driver.advance(milliseconds)
        self.deliver()
        for member in self.alive:
            if self.driver.now - member.heard_ms >= SESSION_MS:
                member.owned = frozenset()  # it could not reach its coordinator for a session

    @rule()
    def the_disk_fails_once(self) -> None:
        self.driver.fails = True
        for member in list(self.alive):
            self.step(member)
        self.driver.fails = False

    @precondition(lambda self: self.driver.group.classic.state is not GroupState.DEAD)
    @rule()
    def the_coordinator_restarts(self) -> None:
        for member in self.alive:
            member.lose_connection()
            member.seen = -1  # a generation that was not finished was not stored either, and its number comes again
        self.driver.restart()
        self.generation = self.driver.group.classic.generation

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        reading = [number for member in self.alive for number in member.owned]
        assert len(reading) == len(set(reading))

    @invariant()
    def generations_only_grow(self) -> None:
        assert self.driver.group.classic.generation >= self.generation
        self.generation = self.driver.group.classic.generation

    def teardown(self) -> None:
        for _ in range(12):
            for member in self.alive:
                self.step(member)
            self.driver.advance(SESSION_MS // 2)
            self.deliver()
        if self.alive:
            assert self.driver.group.classic.state is GroupState.STABLE
            assert frozenset().union(*(member.owned for member in self.alive)) == self.driver.places("t")
            assert self.driver.group.classic.members.keys() == {member.member_id for member in self.alive}


ClassicGroupModel.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
test_a_classic_group_under_everything_at_once = ClassicGroupModel.TestCase
