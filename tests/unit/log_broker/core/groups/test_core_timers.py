"""Timers against a dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from log_broker.core.groups.timers import Timers

names = st.sampled_from("abcde")
steps = st.lists(st.tuples(st.sampled_from(["set", "drop", "due", "clear"]), names, st.integers(0, 20)), max_size=300)


@given(steps)
def test_timers_are_a_dictionary_that_knows_its_least_value(steps) -> None:
    timers, known = Timers(), {}
    for what, name, at in steps:
        if what == "set":
            timers.set(name, at)
            known[name] = at
        elif what == "drop":
            timers.drop(name)
            known.pop(name, None)
        elif what == "clear" and at > 18:
            timers.clear()
            known.clear()
        elif what == "due":
            due = timers.due(at)
            assert sorted(due) == sorted(each for each, deadline in known.items() if deadline <= at)
            assert [known[each] for each in due] == sorted(known[each] for each in due)
        assert timers.earliest_ms() == min(known.values(), default=None)
        assert len(timers) == len(known)
        assert (name in timers) == (name in known)


def test_what_was_set_before_is_not_kept() -> None:
    timers = Timers()
    for at in range(10_000):
        timers.set("a", at)
        timers.set("b", 0)
    assert len(timers._heap) < 200
    assert timers.earliest_ms() == 0
