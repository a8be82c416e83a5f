"""A copier that hangs in a call of its client is given up, and does nothing more when the call returns."""

import threading

import pytest
from chaos_copying import CALL_SECONDS_MAX, Copying, GivenUpError, Life
from chaos_history import History

NOWHERE = "127.0.0.1:1"


def a_life(monkeypatch: pytest.MonkeyPatch) -> Life:
    monkeypatch.setattr("chaos_copying.GRACE_SECONDS", -float(CALL_SECONDS_MAX))
    copier = Copying(NOWHERE, History(), "source", "target", 1, name="copier 1", seed=1)
    return Life(copier, threading.Event())


def test_a_life_in_a_call_that_does_not_return_is_given_up_and_calls_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    life = a_life(monkeypatch)
    begun, returned, outcomes = threading.Event(), threading.Event(), list[str]()

    def hang() -> None:
        begun.set()
        returned.wait(30)

    def live() -> None:
        for what in (hang, lambda: outcomes.append("called")):
            try:
                life.call(what)
            except GivenUpError:
                outcomes.append("given up")

    assert not life.give_up_if_stuck(), "it is in no call"
    thread = threading.Thread(target=live)
    thread.start()
    assert begun.wait(30)
    assert life.give_up_if_stuck()
    returned.set()
    thread.join(30)
    assert outcomes == ["given up", "given up"]


@pytest.mark.parametrize(("commit_began", "outcome"), [(None, "fail"), (1.0, "info")])
def test_an_attempt_given_up_before_its_commit_failed_and_after_it_is_in_doubt(
    commit_began: float | None, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = a_life(monkeypatch)
    life.doing = life.copier.history.begin("copier 1", transaction=True)
    life.doing.commit_began = commit_began
    with pytest.raises(GivenUpError):
        life.call(life.give_up_if_stuck)
    assert [op.outcome for op in life.copier.history.ops] == [outcome]
