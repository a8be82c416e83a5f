"""
A group whose clients are exchanged while it works: classic and new members come, go and crash, the
group changes its kind with them, the coordinator begins again from its log.

Always: no partition is read by two members. In the end: every partition is read, and the kind is that of its members.
"""

from classic_group_client import SESSION_MS, EagerMember
from consumer_group_driver import Client, GroupDriver
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from log_broker.core.groups.consumer_group_records import NO_PARTITIONS
from log_broker.core.groups.protocol import Leave

NEW_SESSION_MS = 45_000


class MixedGroupModel(RuleBasedStateMachine):
    classic = Bundle("classic")
    new = Bundle("new")

    def __init__(self) -> None:
        super().__init__()
        self.driver = GroupDriver()
        self.driver.create_topic("t", 5)
        self.old_ones: list[EagerMember] = []
        self.new_ones: list[Client] = []
        self.heard: dict[str, int] = {}
        self.count = 0

    def deliver(self) -> None:
        for member in self.old_ones:
            member.take()

    def step(self, member: EagerMember) -> None:
        if member.waits_for is None:
            member.heartbeat()
        self.deliver()

    def beat(self, client: Client) -> None:
        client.beat()
        self.heard[client.member_id] = self.driver.now
        self.deliver()

    @rule(target=classic, static=st.booleans())
    def a_classic_member_joins(self, static: bool) -> EagerMember:
        self.count += 1
        member = EagerMember(self.driver, self.count, "t", f"i{self.count}" if static else None)
        self.old_ones.append(member)
        self.step(member)
        return member

    @rule(target=new, static=st.booleans())
    def a_new_member_joins(self, static: bool) -> Client:
        self.count += 1
        client = Client(
            self.driver, f"n{self.count}", frozenset({"t"}), instance_id=f"i{self.count}" if static else None
        )
        self.new_ones.append(client)
        self.beat(client)
        return client

    @rule(member=classic)
    def a_classic_member_goes_on(self, member: EagerMember) -> None:
        if member in self.old_ones:
            self.step(member)

    @rule(client=new)
    def a_new_member_goes_on(self, client: Client) -> None:
        if client in self.new_ones:
            self.beat(client)

    @rule(member=classic)
    def a_classic_member_leaves(self, member: EagerMember) -> None:
        if member in self.old_ones and member.member_id:
            self.old_ones.remove(member)
            self.driver.ask(Leave, members=((member.member_id, member.instance_id),))
            self.deliver()

    @rule(client=new)
    def a_new_member_leaves(self, client: Client) -> None:
        if client in self.new_ones:
            self.new_ones.remove(client)
            client.leave()
            self.deliver()

    @rule()
    def all_new_members_leave(self) -> None:
        for client in list(self.new_ones):
            self.a_new_member_leaves(client)

    @rule(member=classic)
    def a_classic_member_is_rolled_over(self, member: EagerMember) -> None:
        """It stops and comes back with the new protocol, as the same instance where it is one."""
        if member not in self.old_ones:
            return
        if member.instance_id is None:
            self.a_classic_member_leaves(member)
        if member in self.old_ones:
            self.old_ones.remove(member)
        self.count += 1
        client = Client(self.driver, f"n{self.count}", frozenset({"t"}), instance_id=member.instance_id)
        self.new_ones.append(client)
        self.beat(client)

    @rule()
    def everyone_goes_on(self) -> None:
        for member in list(self.old_ones):
            self.step(member)
        for client in self.new_ones:
            self.beat(client)

    @rule(member=classic)
    def a_classic_member_crashes(self, member: EagerMember) -> None:
        if member in self.old_ones:
            self.old_ones.remove(member)

    @rule(client=new)
    def a_new_member_crashes(self, client: Client) -> None:
        if client in self.new_ones:
            self.new_ones.remove(client)

    @rule(milliseconds=st.integers(1, 9_000))
    def time_passes(self, milliseconds: int) -> None:
        self.driver.advance(milliseconds)
        self.deliver()
        for member in self.old_ones:
            if self.driver.now - member.heard_ms >= SESSION_MS:
                # By its own clock; a coordinator that has begun again may not have missed it, so it must join again.
                member.owned, member.is_in = NO_PARTITIONS, False
        for client in list(self.new_ones):
            if self.driver.now - self.heard[client.member_id] >= NEW_SESSION_MS:
                self.new_ones.remove(client)

    @rule()
    def the_disk_fails_once(self) -> None:
        self.driver.fails = True
        for client in self.new_ones:
            client.beat()
        self.deliver()
        self.driver.fails = False

    @rule()
    def the_coordinator_restarts(self) -> None:
        for member in self.old_ones:
            member.lose_connection()
            member.seen = -1
        self.driver.restart()

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        reading = [place for member in (*self.old_ones, *self.new_ones) for place in member.owned]
        assert len(reading) == len(set(reading))

    def teardown(self) -> None:
        everyone = [*self.old_ones, *self.new_ones]
        for _ in range(max(16, 3 * len(everyone))):
            for member in self.old_ones:
                self.step(member)
            for client in self.new_ones:
                self.beat(client)
            self.driver.advance(SESSION_MS // 2)
            self.deliver()
        if everyone:
            assert frozenset().union(*(member.owned for member in everyone)) == self.driver.places("t")
            assert self.driver.group.kind == ("consumer" if self.new_ones else "classic")


MixedGroupModel.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
test_a_group_whose_clients_are_exchanged = MixedGroupModel.TestCase


def test_who_gave_up_after_the_coordinator_began_again_joins_again() -> None:
    group = MixedGroupModel()
    group.a_classic_member_joins(static=False)
    group.time_passes(milliseconds=1_997)
    group.the_coordinator_restarts()
    group.time_passes(milliseconds=8_003)
    group.teardown()


def test_who_gave_up_before_the_last_other_member_left_makes_the_group_classic() -> None:
    group = MixedGroupModel()
    group.a_classic_member_joins(static=False)
    group.a_new_member_joins(static=False)
    group.time_passes(milliseconds=1_000)
    group.time_passes(milliseconds=9_000)
    group.all_new_members_leave()
    group.teardown()
