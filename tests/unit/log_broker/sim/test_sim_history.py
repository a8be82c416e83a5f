"""What the history of simulated clients takes for committed offsets."""

import pytest

from log_broker.sim.checks.history import History
from log_broker.sim.kernel.kernel import InvariantError

PLACE = ("in", 1)


def test_an_offset_whose_commit_had_no_answer_counts_once_it_is_found() -> None:
    history = History()
    history.offset_asked("group", PLACE, 30)
    assert history.commits == {}
    history.offset_found("member", "group", PLACE, 30, at_least=0)
    assert history.commits == {("group", PLACE): 30}


def test_an_offset_that_was_found_may_not_be_gone_later() -> None:
    history = History()
    for offset in (28, 30):
        history.offset_asked("group", PLACE, offset)
    history.offset_found("one", "group", PLACE, 30, at_least=0)
    with pytest.raises(InvariantError, match="offsets never regress"):
        history.offset_found("other", "group", PLACE, 28, at_least=history.commits["group", PLACE])


def test_an_offset_that_nobody_committed_is_not_found() -> None:
    history = History()
    history.offset_asked("group", PLACE, 28)
    with pytest.raises(InvariantError, match="offsets are those that were committed"):
        history.offset_found("member", "group", PLACE, 30, at_least=0)


def test_a_group_without_an_offset_has_committed_nothing() -> None:
    history = History()
    history.offset_found("member", "group", PLACE, -1, at_least=0)
    assert history.commits == {}
