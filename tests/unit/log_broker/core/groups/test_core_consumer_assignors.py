"""The server-side assignors, by the rules that Kafka states for its own."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from log_broker.core.groups.consumer_assignors import ASSIGNORS, MemberSpec, assign_range, assign_uniform
from log_broker.core.groups.consumer_group_records import TopicIdPartitions

TOPICS = ("0a", "0b", "0c", "0d")


@st.composite
def groups(draw: st.DrawFn, *, alike: bool | None = None) -> tuple[dict[str, MemberSpec], dict[str, int]]:
    """Members with subscriptions, and targets of an earlier assignment, maybe of others."""
    counts = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), min_size=1))
    names = draw(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=6, unique=True))
    if alike is None:
        alike = draw(st.booleans())
    some = st.frozensets(st.sampled_from(sorted(counts)), min_size=1)
    common = draw(some)
    free = [(topic, number) for topic in TOPICS for number in range(counts.get(topic, 3) + 1)]
    owners = draw(st.lists(st.sampled_from([*names, ""]), min_size=len(free), max_size=len(free)))
    members = {
        name: MemberSpec(
            topics=common if alike else draw(some),
            target=frozenset(place for place, owner in zip(free, owners, strict=True) if owner == name),
            instance_id=draw(st.none() | st.just(f"i-{name}")),
        )
        for name in names
    }
    return members, counts


def check_covers(
    members: Mapping[str, MemberSpec], counts: Mapping[str, int], given: Mapping[str, TopicIdPartitions]
) -> None:
    read = {topic for spec in members.values() for topic in spec.topics}
    wanted = sorted((topic, number) for topic in read for number in range(counts[topic]))
    assert sorted(place for places in given.values() for place in places) == wanted, "each partition once"
    for name, places in given.items():
        assert {topic for topic, _ in places} <= members[name].topics
    assert given.keys() == members.keys()


def again(members: Mapping[str, MemberSpec], given: Mapping[str, TopicIdPartitions]) -> dict[str, MemberSpec]:
    return {
        name: MemberSpec(topics=spec.topics, target=given[name], instance_id=spec.instance_id)
        for name, spec in members.items()
    }


@pytest.mark.parametrize("assignor", ASSIGNORS)
@settings(max_examples=50)
@given(groups())
def test_each_partition_has_one_subscriber_and_a_second_time_nothing_moves(
    assignor: str, group: tuple[dict[str, MemberSpec], dict[str, int]]
) -> None:
    members, counts = group
    assigned = ASSIGNORS[assignor](members, counts)
    check_covers(members, counts, assigned)
    assert ASSIGNORS[assignor](again(members, assigned), counts) == assigned


@settings(max_examples=50)
@given(groups())
def test_range_spreads_each_topic_evenly_and_moves_no_more_than_that_needs(
    group: tuple[dict[str, MemberSpec], dict[str, int]],
) -> None:
    members, counts = group
    assigned = assign_range(members, counts)
    for topic, count in counts.items():
        readers = [name for name, spec in members.items() if topic in spec.topics]
        if not readers:
            continue
        sizes = {name: sum(1 for place in assigned[name] if place[0] == topic) for name in readers}
        assert set(sizes.values()) <= {count // len(readers), -(-count // len(readers))}
        had = {name: {p for p in members[name].target if p[0] == topic and p[1] < count} for name in readers}
        least, extra = divmod(count, len(readers))
        # With k extra ones, k members may keep one more than the rest: nobody could keep more than that.
        keepable = sum(min(len(one), least) for one in had.values())
        keepable += min(extra, sum(1 for one in had.values() if len(one) > least))
        assert sum(len(had[name] & assigned[name]) for name in readers) == keepable


def test_range_gives_the_same_numbers_of_topics_of_one_size() -> None:
    members = {name: MemberSpec(topics=frozenset({"0a", "0b"})) for name in "xyz"}
    assigned = assign_range(members, {"0a": 7, "0b": 7})
    for places in assigned.values():
        numbers = {topic: {number for one, number in places if one == topic} for topic in ("0a", "0b")}
        assert numbers["0a"] == numbers["0b"]
    first = sorted(number for topic, number in assigned["x"] if topic == "0a")
    assert first == list(range(len(first))), "a range of numbers, from the first on"


@settings(max_examples=50)
@given(groups(alike=True))
def test_uniform_with_one_subscription_is_even_over_all_topics_and_sticky(
    group: tuple[dict[str, MemberSpec], dict[str, int]],
) -> None:
    members, counts = group
    assigned = assign_uniform(members, counts)
    sizes = [len(places) for places in assigned.values()]
    assert max(sizes) - min(sizes) <= 1
    least, extra = divmod(sum(sizes), len(sizes))
    wanted = {place for places in assigned.values() for place in places}
    had = {name: members[name].target & wanted for name in members}
    keepable = sum(min(len(one), least) for one in had.values())
    keepable += min(extra, sum(1 for one in had.values() if len(one) > least))
    assert sum(len(had[name] & assigned[name]) for name in members) == keepable


@settings(max_examples=50)
@given(groups(alike=False))
def test_uniform_with_other_subscriptions_leaves_no_move_that_would_help(
    group: tuple[dict[str, MemberSpec], dict[str, int]],
) -> None:
    members, counts = group
    assigned = assign_uniform(members, counts)
    for places in assigned.values():
        for topic in {topic for topic, _ in places}:
            for other, spec in members.items():
                if topic in spec.topics:
                    assert len(places) - len(assigned[other]) < 2


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_a_member_that_comes_or_goes_moves_only_its_share(assignor: str) -> None:
    topics = frozenset({"0a"})
    members = {name: MemberSpec(topics=topics) for name in "abcd"}
    before = ASSIGNORS[assignor](members, {"0a": 12})
    joined = ASSIGNORS[assignor]({**again(members, before), "e": MemberSpec(topics=topics)}, {"0a": 12})
    assert sum(len(before[name] - joined[name]) for name in "abcd") == 2
    left = {name: spec for name, spec in again(members, before).items() if name != "a"}
    assert all(before[name] <= places for name, places in ASSIGNORS[assignor](left, {"0a": 12}).items())


def test_a_restart_of_all_static_members_under_other_ids_gives_the_same() -> None:
    topics = frozenset({"0a"})
    first = {name: MemberSpec(topics=topics, instance_id=f"i{number}") for number, name in enumerate("xyz")}
    second = {name: MemberSpec(topics=topics, instance_id=f"i{number}") for number, name in enumerate("cba")}
    before, after = assign_range(first, {"0a": 7}), assign_range(second, {"0a": 7})
    assert list(before.values()) == list(after.values())


def test_without_topics_or_members_there_is_nothing_to_give() -> None:
    assert assign_uniform({}, {"0a": 3}) == {}
    assert assign_range({}, {"0a": 3}) == {}
    assert assign_uniform({"a": MemberSpec(topics=frozenset())}, {}) == {"a": frozenset()}


def test_many_partitions_and_members_take_no_time_to_speak_of() -> None:
    counts = {f"{number:02x}": 100 for number in range(100)}
    topics = sorted(counts)
    members = {f"m{number}": MemberSpec(topics=frozenset(topics[number % 10 :])) for number in range(200)}
    assigned = assign_uniform(members, counts)
    check_covers(members, counts, assigned)
