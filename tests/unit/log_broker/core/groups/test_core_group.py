"""The group machine: every event in every state, then the stories of a rebalance."""

import itertools
from collections import Counter
from typing import Any

import pytest

from log_broker.core.groups.classic_group import NEW_MEMBER_TIMEOUT_MS, GroupState
from log_broker.core.groups.group import Group
from log_broker.core.groups.protocol import (
    Commit,
    Delete,
    DeleteOffsets,
    Heartbeat,
    Join,
    JoinAnswer,
    Leave,
    Persist,
    Persisted,
    Reply,
    Sync,
    SyncAnswer,
)
from log_broker.core.groups.records import CommittedOffset, GroupKey, OffsetKey, decode_group, decode_key
from log_broker.errors import ErrorCode

SESSION_MS = 10_000
REBALANCE_MS = 60_000
PLACE = ("t", 0)
OFFSETS = {PLACE: CommittedOffset(offset=7, metadata="m", timestamp_ms=1)}


class Driver:
    """Runs effects as a broker would, with a log that is as quick or as slow as a test wants."""

    def __init__(self, **settings: int) -> None:
        self.group = Group("g", **settings)
        self.now = 0
        self.answers: dict[Any, Any] = {}
        self.log: list[tuple[bytes, bytes | None]] = []
        self.held: list[int] | None = None
        self._tokens = itertools.count()
        self._ids = itertools.count(1)

    def send(self, event_type: type[Any], **fields: Any) -> Any:
        """Hand an event in and return the token that its answer will have."""
        token = next(self._tokens)
        self.run(self.group.handle(event_type(token=token, **fields), self.now))
        return token

    def run(self, effects: Any) -> None:
        for effect in effects:
            match effect:
                case Reply(token, answer):
                    assert token not in self.answers, "an event is answered once"
                    self.answers[token] = answer
                case Persist(number, records):
                    self.log.extend(records)
                    if self.held is not None:
                        self.held.append(number)
                    else:
                        self.persisted(number)
        self.check()

    def persisted(self, number: int, error: ErrorCode = ErrorCode.NONE) -> None:
        self.run(self.group.handle(Persisted(number=number, error=error), self.now))

    def advance(self, ms: int) -> None:
        """Let time pass, with a tick at each deadline on the way."""
        end = self.now + ms
        while (deadline := self.group.next_deadline_ms()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.run(self.group.tick(self.now))
            after = self.group.next_deadline_ms()
            assert after is None or after > self.now, "a tick deals with what is due"
        self.now = end

    def check(self) -> None:
        group = self.group.classic
        assert group.leader is None or group.leader in group.members
        assert set(group.roster.statics.values()) <= set(group.members)
        for member in group.members.values():
            assert member.join_token is None or group.state is GroupState.PREPARING
            assert member.sync_token is None or group.state is GroupState.COMPLETING
        if group.state in {GroupState.EMPTY, GroupState.DEAD}:
            assert not group.members
        roster, members = group.roster, group.members.values()
        assert roster.joined == sum(member.join_token is not None for member in members)
        assert roster.synced == sum(member.sync_token is not None for member in members)
        known = Counter(name for member in members for name in {name for name, _ in member.protocols})
        assert roster._speakers == known
        expiring = {m.member_id: m.deadline_ms for m in members if m.is_new or not m.is_waiting}
        assert roster.timers._at == expiring | roster.invited

    def join(self, member_id: str = "", **fields: Any) -> Any:
        defaults: dict[str, Any] = {
            "fresh_id": f"m{next(self._ids)}",
            "instance_id": None,
            "client_id": "c",
            "client_host": "/h",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": (("range", b"sub"),),
        }
        return self.send(Join, member_id=member_id, **{**defaults, **fields})

    def sync(self, member_id: str, generation: int | None = None, **assignments: bytes) -> Any:
        generation = self.group.classic.generation if generation is None else generation
        return self.send(Sync, member_id=member_id, generation=generation, assignments=assignments)

    def heartbeat(self, member_id: str, generation: int | None = None, instance_id: str | None = None) -> ErrorCode:
        generation = self.group.classic.generation if generation is None else generation
        return self.answers[self.send(Heartbeat, member_id=member_id, generation=generation, instance_id=instance_id)]

    def commit(self, member_id: str = "", generation: int = -1) -> ErrorCode:
        return self.answers[
            self.send(Commit, member_id=member_id, generation=generation, instance_id=None, offsets=OFFSETS)
        ]

    def stable(self, *, members: int = 1, instance_id: str | None = None) -> list[str]:
        """Bring the group to STABLE with so many members and return their ids, the leader first."""
        tokens = [self.join(instance_id=instance_id)]
        tokens += [self.join() for _ in range(members - 1)]
        ids = list(self.group.classic.members)
        if members > 1:
            self.join(ids[0])
        for member_id in reversed(ids):
            self.sync(member_id, **{one: one.encode() for one in ids})
        assert self.group.classic.state is GroupState.STABLE
        return ids


def in_state(state: GroupState) -> Driver:
    """A group in a state, with the member m1 where the state has members."""
    driver = Driver()
    if state is GroupState.DEAD:
        driver.held = []
        driver.send(Delete)
    elif state is GroupState.COMPLETING:
        driver.join()
    elif state is GroupState.STABLE:
        driver.stable()
    elif state is GroupState.PREPARING:
        driver.stable()
        driver.join()  # m1 has not joined yet
    assert driver.group.classic.state is state
    return driver


E = ErrorCode
S = GroupState
STATES = (S.EMPTY, S.PREPARING, S.COMPLETING, S.STABLE, S.DEAD)


def join_known(driver: Driver) -> Any:
    return driver.join("m1")


def join_unknown(driver: Driver) -> Any:
    return driver.join("nobody")


def join_other_protocol(driver: Driver) -> Any:
    return driver.join(protocols=(("sticky", b""),))


def sync_known(driver: Driver) -> Any:
    return driver.sync("m1")


def sync_old(driver: Driver) -> Any:
    return driver.sync("m1", driver.group.classic.generation - 1)


def beat_known(driver: Driver) -> Any:
    return driver.send(Heartbeat, member_id="m1", generation=driver.group.classic.generation)


def beat_old(driver: Driver) -> Any:
    return driver.send(Heartbeat, member_id="m1", generation=99)


def leave_known(driver: Driver) -> Any:
    return driver.send(Leave, members=(("m1", None),))


def commit_known(driver: Driver) -> Any:
    return driver.send(
        Commit, member_id="m1", generation=driver.group.classic.generation, instance_id=None, offsets=OFFSETS
    )


def commit_old(driver: Driver) -> Any:
    return driver.send(Commit, member_id="m1", generation=99, instance_id=None, offsets=OFFSETS)


def commit_outside(driver: Driver) -> Any:
    return driver.send(Commit, member_id="", generation=-1, instance_id=None, offsets=OFFSETS)


def delete_offsets(driver: Driver) -> Any:
    return driver.send(DeleteOffsets, partitions=(PLACE,))


def delete(driver: Driver) -> Any:
    return driver.send(Delete)


WAITS = "waits"
GONE = E.COORDINATOR_NOT_AVAILABLE
# What each event is answered with in EMPTY, PREPARING, COMPLETING, STABLE and DEAD.
TABLE: list[tuple[Any, tuple[Any, ...]]] = [
    (join_known, (E.UNKNOWN_MEMBER_ID, E.NONE, E.NONE, E.NONE, GONE)),
    (join_unknown, (E.UNKNOWN_MEMBER_ID,) * 4 + (GONE,)),
    (join_other_protocol, (E.NONE, *(E.INCONSISTENT_GROUP_PROTOCOL,) * 3, GONE)),
    (sync_known, (E.UNKNOWN_MEMBER_ID, E.REBALANCE_IN_PROGRESS, E.NONE, E.NONE, GONE)),
    (sync_old, (E.UNKNOWN_MEMBER_ID, *(E.ILLEGAL_GENERATION,) * 3, GONE)),
    (beat_known, (E.UNKNOWN_MEMBER_ID, E.REBALANCE_IN_PROGRESS, E.NONE, E.NONE, GONE)),
    (beat_old, (E.UNKNOWN_MEMBER_ID, *(E.ILLEGAL_GENERATION,) * 3, GONE)),
    (leave_known, (E.UNKNOWN_MEMBER_ID, E.NONE, E.NONE, E.NONE, GONE)),
    (commit_known, (E.UNKNOWN_MEMBER_ID, E.NONE, E.REBALANCE_IN_PROGRESS, E.NONE, GONE)),
    (commit_old, (E.UNKNOWN_MEMBER_ID, *(E.ILLEGAL_GENERATION,) * 3, GONE)),
    (commit_outside, (E.NONE, *(E.UNKNOWN_MEMBER_ID,) * 3, GONE)),
    (delete_offsets, (E.NONE, *(E.GROUP_SUBSCRIBED_TO_TOPIC,) * 3, E.NONE)),  # what its member says is not readable
    (delete, (E.NONE, *(E.NON_EMPTY_GROUP,) * 3, E.GROUP_ID_NOT_FOUND)),
]


@pytest.mark.parametrize(
    ("state", "event", "expected"),
    [
        pytest.param(state, event, expected[STATES.index(state)], id=f"{state.name}-{event.__name__}")
        for event, expected in TABLE
        for state in STATES
    ],
)
def test_every_event_in_every_state(state: GroupState, event: Any, expected: Any) -> None:
    driver = in_state(state)
    token = event(driver)
    answer = driver.answers.get(token, WAITS)
    if isinstance(answer, JoinAnswer | SyncAnswer):
        answer = answer.error
    elif isinstance(answer, tuple):
        (answer,) = (left.error for left in answer)
    elif isinstance(answer, dict):
        (answer,) = answer.values()
    assert answer == expected


def test_the_first_round_of_two_members() -> None:
    driver = Driver()
    first = driver.join()
    assert driver.answers[first].generation == 1
    second = driver.join()
    assert second not in driver.answers, "the first member must join again"
    assert driver.heartbeat("m1") is E.REBALANCE_IN_PROGRESS
    again = driver.join("m1", protocols=(("range", b"new"),))
    leader, follower = driver.answers[again], driver.answers[second]
    assert (leader.generation, follower.generation) == (2, 2)
    assert (leader.leader, follower.leader) == ("m1", "m1")
    assert [member.metadata for member in leader.members] == [b"new", b"sub"]
    assert follower.members == ()
    waiting = driver.sync("m2")
    assert waiting not in driver.answers
    driver.sync("m1", m1=b"a", m2=b"b")
    assert driver.answers[waiting].assignment == b"b"
    assert driver.group.classic.state is S.STABLE


def test_an_assignment_is_told_only_when_it_is_durable() -> None:
    driver = Driver()
    driver.join()
    driver.held = []
    token = driver.sync("m1", m1=b"a")
    assert token not in driver.answers
    (number,) = driver.held
    driver.persisted(number)
    assert driver.answers[token].assignment == b"a"


def test_an_assignment_that_cannot_be_stored_is_worked_out_again() -> None:
    driver = Driver()
    driver.join()
    driver.held = []
    token = driver.sync("m1", m1=b"a")
    driver.persisted(driver.held[0], E.KAFKA_STORAGE_ERROR)
    assert driver.answers[token].error is E.NOT_COORDINATOR
    assert driver.group.classic.state is S.PREPARING


def test_an_assignment_of_a_past_generation_is_dropped() -> None:
    driver = Driver()
    driver.join()
    driver.held = []
    token = driver.sync("m1", m1=b"a")
    driver.join()
    assert driver.answers[token].error is E.REBALANCE_IN_PROGRESS
    driver.persisted(driver.held[0])
    assert driver.group.classic.state is S.PREPARING


def test_a_newcomer_is_told_its_id_first_and_is_waited_for() -> None:
    driver = Driver()
    token = driver.join(id_round_trip=True)
    assert (driver.answers[token].error, driver.answers[token].member_id) == (E.MEMBER_ID_REQUIRED, "m1")
    assert driver.group.classic.state is S.EMPTY
    assert not driver.group.is_forgettable
    assert driver.answers[driver.join("m1")].error is E.NONE


def test_an_invitation_that_is_not_taken_up_ends() -> None:
    driver = Driver()
    driver.join(id_round_trip=True)
    driver.advance(SESSION_MS)
    assert driver.group.is_forgettable
    assert driver.answers[driver.join("m1")].error is E.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_lost_and_the_rest_rebalance() -> None:
    driver = Driver()
    one, two = driver.stable(members=2)
    driver.advance(SESSION_MS - 1)
    assert driver.heartbeat(one) is E.NONE
    driver.advance(1)
    assert list(driver.group.classic.members) == [one]
    assert driver.heartbeat(one) is E.REBALANCE_IN_PROGRESS
    assert driver.heartbeat(two) is E.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_rejoin_in_time_is_left_out() -> None:
    driver = Driver()
    one, _two = driver.stable(members=2)
    token = driver.join(one)
    for _ in range(REBALANCE_MS // 5000):
        driver.advance(5000)
        driver.heartbeat("m2")
    assert driver.answers[token].error is E.NONE
    assert list(driver.group.classic.members) == [one]


def test_a_member_that_joins_but_never_syncs_is_left_out() -> None:
    driver = Driver()
    driver.join()
    for _ in range(REBALANCE_MS // 5000):
        driver.heartbeat("m1")
        driver.advance(5000)
    assert driver.group.classic.state is S.EMPTY


def test_an_assignment_may_take_longer_to_be_stored_than_members_may_take_to_sync() -> None:
    """Found in simulation: nobody was overdue, and the deadline that had passed was asked for again and again."""
    driver = Driver()
    driver.join()
    driver.held = []
    token = driver.sync("m1", m1=b"all")
    driver.advance(REBALANCE_MS * 2)
    assert driver.group.next_deadline_ms() is None
    assert driver.group.classic.state is S.COMPLETING
    (number,) = driver.held
    driver.persisted(number)
    assert (driver.answers[token].error, driver.answers[token].assignment) == (E.NONE, b"all")
    assert driver.group.classic.state is S.STABLE


def test_a_newcomer_that_vanishes_while_waiting_does_not_stay() -> None:
    driver = Driver()
    driver.stable()
    driver.join(rebalance_timeout_ms=NEW_MEMBER_TIMEOUT_MS * 2)
    for _ in range(NEW_MEMBER_TIMEOUT_MS // 5000):
        driver.advance(5000)
        driver.heartbeat("m1")
    assert "m2" not in driver.group.classic.members


def test_the_last_member_leaves_and_the_group_is_empty_again() -> None:
    driver = Driver()
    (one,) = driver.stable()
    driver.commit(one, 1)
    driver.send(Leave, members=((one, None),))
    assert (driver.group.classic.state, driver.group.classic.leader, driver.group.classic.protocol) == (
        S.EMPTY,
        None,
        None,
    )
    key, value = driver.log[-1]
    assert decode_key(key) == GroupKey(group="g")
    assert value is not None
    assert decode_group(value).members == ()


def test_the_leader_leaves_and_another_leads() -> None:
    driver = Driver()
    one, two = driver.stable(members=2)
    driver.send(Leave, members=((one, None),))
    answer = driver.answers[driver.join(two)]
    assert (answer.leader, len(answer.members)) == (two, 1)


def test_a_repeated_join_of_a_follower_is_answered_without_a_rebalance() -> None:
    driver = Driver()
    _one, two = driver.stable(members=2)
    answer = driver.answers[driver.join(two)]
    assert (answer.error, answer.generation, driver.group.classic.state) == (E.NONE, 2, S.STABLE)


def test_a_leader_that_joins_again_asks_for_a_rebalance() -> None:
    driver = Driver()
    one, _two = driver.stable(members=2)
    driver.join(one)
    assert driver.group.classic.state is S.PREPARING


def test_the_assignor_that_most_prefer_is_chosen() -> None:
    driver = Driver()
    both = (("range", b""), ("sticky", b""))
    driver.join(protocols=both)
    driver.join(protocols=both[::-1])
    driver.join(protocols=(("sticky", b""), ("other", b"")))
    driver.join("m1", protocols=both)
    assert driver.group.classic.protocol == "sticky"


def test_a_static_member_takes_its_place_over_without_a_rebalance() -> None:
    driver = Driver()
    (old,) = driver.stable(instance_id="i")
    token = driver.join(instance_id="i", skips_assignment=True)
    answer = driver.answers[token]
    assert (answer.error, answer.generation, driver.group.classic.state) == (E.NONE, 1, S.STABLE)
    assert answer.skip_assignment
    assert answer.member_id != old
    synced = driver.answers[driver.sync(answer.member_id)]
    assert synced.assignment == old.encode()
    assert driver.heartbeat(old, instance_id="i") is E.FENCED_INSTANCE_ID


def test_an_older_static_leader_is_not_told_that_it_leads() -> None:
    driver = Driver()
    (old,) = driver.stable(instance_id="i")
    answer = driver.answers[driver.join(instance_id="i")]
    assert (answer.leader, answer.members) == (old, ())


def test_a_static_member_with_another_subscription_rebalances() -> None:
    driver = Driver()
    driver.stable(instance_id="i")
    answer = driver.answers[driver.join(instance_id="i", protocols=(("range", b"other"),))]
    assert (answer.generation, driver.group.classic.state) == (2, S.COMPLETING)


def test_a_static_member_stays_through_a_rebalance_until_its_session_ends() -> None:
    driver = Driver()
    driver.join(instance_id="i", session_timeout_ms=REBALANCE_MS * 3)
    driver.sync("m1")
    token = driver.join()
    driver.advance(REBALANCE_MS)
    assert (driver.answers[token].leader, set(driver.group.classic.members)) == ("m2", {"m1", "m2"})


def test_an_administrator_sends_a_static_member_away_by_its_instance() -> None:
    driver = Driver()
    driver.stable(instance_id="i")
    ((_, _, error),) = driver.answers[driver.send(Leave, members=(("", "i"),))]
    assert (error, driver.group.classic.state) == (E.NONE, S.EMPTY)


def test_who_leaves_a_group_that_is_being_deleted_does_not_bring_it_back() -> None:
    driver = Driver()
    driver.held = []
    invited = driver.answers[driver.join(id_round_trip=True)].member_id
    driver.send(Delete)
    ((_, _, error),) = driver.answers[driver.send(Leave, members=((invited, None),))]
    assert (error, driver.group.classic.state) == (E.NONE, S.DEAD)
    assert len(driver.held) == 1, "nothing is written behind the end of the group"


def test_a_full_group_takes_nobody_in() -> None:
    driver = Driver(members_max=1)
    driver.stable()
    assert driver.answers[driver.join()].error is E.GROUP_MAX_SIZE_REACHED


def test_a_new_group_waits_for_more_members_if_it_is_told_to() -> None:
    driver = Driver(initial_delay_ms=3000)
    first = driver.join()
    driver.advance(2000)
    second = driver.join()
    driver.advance(2999)
    assert first not in driver.answers
    driver.advance(1)
    assert {driver.answers[first].generation, driver.answers[second].generation} == {1}


def test_offsets_change_only_when_they_are_durable() -> None:
    driver = Driver()
    driver.held = []
    token = driver.send(Commit, member_id="", generation=-1, instance_id=None, offsets=OFFSETS)
    assert driver.group.offsets.get(PLACE) is None
    assert decode_key(driver.log[0][0]) == OffsetKey(group="g", topic="t", partition=0)
    driver.persisted(driver.held.pop())
    assert (driver.answers[token], driver.group.offsets.get(PLACE)) == (E.NONE, OFFSETS[PLACE])
    token = driver.send(Delete)
    driver.persisted(driver.held.pop(), E.KAFKA_STORAGE_ERROR)
    assert (driver.answers[token], driver.group.classic.state) == (E.NOT_COORDINATOR, S.EMPTY)
    assert driver.group.offsets.get(PLACE) == OFFSETS[PLACE]


def test_offsets_of_a_group_without_members_expire() -> None:
    driver = Driver()
    assert driver.commit() is E.NONE
    driver.now = 1000
    driver.run(driver.group.expire_offsets(driver.now, retention_ms=1000))
    assert PLACE in driver.group.offsets
    driver.now = 1002
    driver.run(driver.group.expire_offsets(driver.now, retention_ms=1000))
    assert driver.group.is_forgettable
    assert driver.log[-1][1] is None


def test_offsets_of_a_topic_that_is_read_are_not_deleted() -> None:
    driver = Driver()
    subscription = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff"
    driver.join(protocols=(("range", subscription),))
    driver.sync("m1")
    driver.commit("m1", 1)
    token = driver.send(DeleteOffsets, partitions=(PLACE, ("other", 0)))
    assert driver.answers[token] == {PLACE: E.GROUP_SUBSCRIBED_TO_TOPIC, ("other", 0): E.NONE}


def test_a_restarted_coordinator_goes_on_with_the_last_finished_generation() -> None:
    driver = Driver()
    one, two = driver.stable(members=2)
    _, value = driver.log[-1]
    assert value is not None
    restarted = Driver()
    restarted.group.classic.restore(decode_group(value), 0)
    assert restarted.group.classic.state is S.STABLE
    assert restarted.heartbeat(one, 2) is E.NONE
    assert restarted.answers[restarted.sync(two, 2)].assignment == two.encode()
    restarted.advance(SESSION_MS)
    assert restarted.group.classic.state is S.EMPTY


def test_in_a_rebalance_of_a_full_group_the_seats_go_to_who_comes_first() -> None:
    driver = Driver(members_max=2)
    one, two = driver.stable(members=2)
    driver.join(one)
    newcomer = driver.join()
    late = driver.answers[driver.join(two)]
    assert late.error is E.GROUP_MAX_SIZE_REACHED
    assert driver.answers[newcomer].error is E.NONE
    assert len(driver.group.classic.members) == 2


def test_an_empty_group_is_kept_until_its_offsets_are_checked() -> None:
    driver = Driver()
    (member,) = driver.stable()
    driver.send(Leave, members=((member, None),))
    assert driver.group.classic.state is S.EMPTY
    assert not driver.group.is_forgettable, "an administrator finds it"
    driver.run(driver.group.expire_offsets(driver.now, retention_ms=1_000))
    assert driver.group.is_forgettable
    assert driver.log[-1][1] is None


def test_offsets_of_a_group_that_is_read_go_when_their_topic_is_read_no_more() -> None:
    driver = Driver()
    read = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff"
    driver.sync(driver.answers[driver.join(protocols=(("range", read),))].member_id)
    member = driver.group.classic.leader
    assert member is not None
    offsets = {(topic, 0): CommittedOffset(offset=1, timestamp_ms=0) for topic in ("t", "u")}
    driver.send(Commit, member_id=member, generation=1, instance_id=None, offsets=offsets)
    driver.run(driver.group.expire_offsets(5_000, retention_ms=1_000))
    assert driver.group.offsets.partitions() == [("t", 0)]


def test_offsets_committed_to_an_empty_group_count_from_their_commit() -> None:
    driver = Driver()
    (member,) = driver.stable()
    driver.send(Leave, members=((member, None),))
    offsets = {PLACE: CommittedOffset(offset=1, timestamp_ms=9_000)}
    driver.send(Commit, member_id="", generation=-1, instance_id=None, offsets=offsets)
    driver.run(driver.group.expire_offsets(9_500, retention_ms=1_000))
    assert PLACE in driver.group.offsets
    driver.run(driver.group.expire_offsets(10_001, retention_ms=1_000))
    assert PLACE not in driver.group.offsets
    assert driver.group.is_forgettable


def test_the_offsets_of_a_deleted_topic_are_taken_away() -> None:
    driver = Driver()
    driver.commit()
    driver.run(driver.group.forget_topic("other"))
    assert PLACE in driver.group.offsets
    driver.run(driver.group.forget_topic(PLACE[0]))
    assert PLACE not in driver.group.offsets


def test_a_group_is_not_deleted_under_a_commit_that_is_being_stored() -> None:
    driver = Driver()
    driver.commit()
    driver.held = []
    driver.send(Commit, member_id="", generation=-1, instance_id=None, offsets=OFFSETS)
    assert driver.answers[driver.send(Delete)] is E.COORDINATOR_LOAD_IN_PROGRESS
    driver.run(driver.group.expire_offsets(10**9, retention_ms=1))
    assert driver.group.classic.state is S.EMPTY
