"""Offsets that are committed in a transaction: kept aside, applied or dropped, and in the order of the log."""

import pytest

from log_broker.core.groups.group import Group
from log_broker.core.groups.offsets import GroupOffsets
from log_broker.core.groups.protocol import Commit, Delete, Join, JoinAnswer, Persist, Persisted, Reply, Sync
from log_broker.core.groups.records import CommittedOffset
from log_broker.errors import ErrorCode

P, Q = ("t", 0), ("t", 1)


def at(offset: int) -> CommittedOffset:
    return CommittedOffset(offset=offset)


def committed(offsets: GroupOffsets) -> dict[tuple[str, int], int]:
    return {place: found.offset for place in (P, Q) if (found := offsets.get(place)) is not None}


@pytest.mark.parametrize("commits", [True, False])
def test_they_count_once_the_transaction_is_committed(commits) -> None:
    offsets = GroupOffsets("g")
    offsets.apply({P: at(1)})
    offsets.hold(7, {P: at(5), Q: at(6)})
    assert committed(offsets) == {P: 1}
    assert offsets.is_held(P)
    assert offsets.is_held(Q)
    offsets.decide(8, committed=True)
    assert committed(offsets) == {P: 1}, "another producer's marker"
    offsets.decide(7, committed=commits)
    assert committed(offsets) == ({P: 5, Q: 6} if commits else {P: 1})
    assert not offsets.is_held(P)


def test_what_stands_last_in_the_log_counts() -> None:
    offsets = GroupOffsets("g")
    offsets.hold(7, {P: at(5), Q: at(5)})
    offsets.apply({P: at(9)})
    offsets.decide(7, committed=True)
    assert committed(offsets) == {P: 9, Q: 5}
    offsets.hold(7, {P: at(10)})
    offsets.hold(8, {P: at(11)})
    offsets.decide(8, committed=True)
    offsets.decide(7, committed=True)
    assert committed(offsets)[P] == 11
    offsets.hold(7, {P: at(12)})
    offsets.hold(8, {P: at(13)})
    offsets.decide(7, committed=True)
    assert (committed(offsets)[P], offsets.is_held(P)) == (12, True)
    offsets.decide(8, committed=False)
    assert committed(offsets)[P] == 12


def test_a_group_with_undecided_offsets_is_not_forgotten() -> None:
    group = Group("g")
    group.offsets.hold(7, {P: at(5)})
    assert not group.is_forgettable
    group.offsets.decide(7, committed=False)
    assert group.is_forgettable


def commit(group: Group, **values) -> object:
    fields = {"member_id": "", "generation": -1, "instance_id": None, "producer": (7, 0)} | values
    (effect,) = group.handle(Commit(token="commit", offsets={P: at(5)}, **fields), 0)
    return effect.answer if isinstance(effect, Reply) else effect


def with_a_member() -> tuple[Group, JoinAnswer]:
    group = Group("g")
    join = Join(
        token="join",
        member_id="",
        fresh_id="m",
        instance_id=None,
        client_id="c",
        client_host="h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=(("range", b""),),
    )
    (reply,) = group.handle(join, 0)
    assert isinstance(reply, Reply)
    assert isinstance(reply.answer, JoinAnswer)
    return group, reply.answer


def test_a_producer_commits_for_a_member_of_the_present_generation() -> None:
    group, joined = with_a_member()
    good = {"member_id": joined.member_id, "generation": joined.generation}
    assert isinstance(commit(group, **good), Persist), "also while the members wait for their assignment"
    assert commit(group, member_id="m", generation=joined.generation + 1) is ErrorCode.ILLEGAL_GENERATION
    assert commit(group, member_id="gone", generation=joined.generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(group, **good, instance_id="other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert isinstance(commit(group), Persist), "a producer that does not know of members is believed"
    group.handle(Sync(token="sync", member_id="m", generation=joined.generation, assignments={}), 0)
    assert isinstance(commit(group, **good), Persist)


def test_nothing_is_held_before_it_is_durable() -> None:
    group = Group("g")
    effect = commit(group)
    assert isinstance(effect, Persist)
    assert effect.producer == (7, 0)
    assert not group.offsets.is_held(P)
    (reply,) = group.handle(Persisted(number=effect.number), 0)
    assert reply == Reply("commit", ErrorCode.NONE)
    assert group.offsets.is_held(P)
    failed = commit(group)
    assert isinstance(failed, Persist)
    (reply,) = group.handle(Persisted(number=failed.number, error=ErrorCode.KAFKA_STORAGE_ERROR), 0)
    assert reply == Reply("commit", ErrorCode.NOT_COORDINATOR)


def test_a_deleted_group_does_not_come_back_with_a_marker() -> None:
    group = Group("g")
    group.offsets.hold(7, {P: at(5)})
    (persist,) = group.handle(Delete(token="delete"), 0)
    assert isinstance(persist, Persist)
    group.handle(Persisted(number=persist.number), 0)
    group.offsets.decide(7, committed=True)
    assert committed(group.offsets) == {}
