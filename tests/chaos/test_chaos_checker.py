"""The checker finds each anomaly where one was planted, only that one, and none in clean histories."""

import random
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from chaos_checker import ALLOWED_BY_KAFKA, Kind, check
from chaos_cycles import Dependency, cycles
from chaos_history import History, Op, Outcome, Record, of_lines, to_line

K, L = "topic-0", "topic-1"
Place = tuple[str, int | None, str]


class Story:
    """A history written by hand: every operation takes one unit of time and follows the last."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self._numbers = count(1)

    def add(
        self,
        process: str,
        *,
        sends: tuple[Place, ...] = (),
        polls: tuple[Place, ...] = (),
        outcome: Outcome = "ok",
        transaction: bool = False,
        moved: tuple[str, ...] = (),
        to_end: tuple[str, ...] = (),
        lasting: float = 0.5,
    ) -> "Story":
        number = next(self._numbers)
        self.ops.append(
            Op(
                number=number,
                process=process,
                began=float(number),
                ended=number + lasting,
                outcome=outcome,
                transaction=transaction,
                commit_began=number + lasting - 0.1 if transaction else None,
                sends=tuple(Record(key=key, offset=offset, value=value) for key, offset, value in sends),
                polls=tuple(Record(key=key, offset=offset, value=value) for key, offset, value in polls),
                moved=moved,
                to_end=to_end,
            )
        )
        return self

    def kinds(self) -> set[Kind]:
        return {anomaly.kind for anomaly in check(self.ops)}


def sent(*values: str, key: str = K, outcome: Outcome = "ok") -> Story:
    """Values at offsets 0, 1, …, each sent by the process "p"."""
    story = Story()
    for offset, value in enumerate(values):
        story.add("p", sends=((key, offset, value),), outcome=outcome)
    return story


def lost_below_what_was_polled() -> Story:
    return sent("a", "b", "c").add("q", polls=((K, 0, "a"),)).add("r", polls=((K, 2, "c"),))


def lost_at_the_end() -> Story:
    return sent("a", "b").add("q", polls=((K, 0, "a"),), to_end=(K,))


def lost_without_a_known_offset() -> Story:
    return Story().add("p", sends=((K, None, "a"),)).add("q", polls=(), to_end=(K,))


def lost_part_of_a_transaction_of_unknown_outcome() -> Story:
    story = Story().add("p", sends=((K, 0, "a"), (L, 0, "b")), outcome="info", transaction=True)
    return story.add("q", polls=((K, 0, "a"),), to_end=(K, L))


def aborted_read() -> Story:
    story = Story().add("p", sends=((K, 0, "a"),), outcome="fail", transaction=True)
    return story.add("q", polls=((K, 0, "a"),))


def refused_and_yet_read() -> Story:
    return sent("a", outcome="fail").add("q", polls=((K, 0, "a"),))


def two_values_at_an_offset() -> Story:
    story = Story().add("p", sends=((K, 0, "a"),)).add("p", sends=((L, 0, "b"),))
    return story.add("q", polls=((K, 0, "a"),)).add("r", polls=((K, 0, "x"),))


def one_value_at_two_offsets() -> Story:
    return sent("a").add("q", polls=((K, 0, "a"), (K, 1, "b"), (K, 2, "a")), moved=(K,))


def went_on_too_far() -> Story:
    story = sent("a", "b", "c").add("q", polls=((K, 0, "a"),)).add("q", polls=((K, 2, "c"),))
    return story.add("r", polls=((K, 0, "a"), (K, 1, "b"), (K, 2, "c")))


def went_back() -> Story:
    story = sent("a", "b", "c").add("q", polls=((K, 0, "a"), (K, 1, "b")))
    return story.add("q", polls=((K, 0, "a"), (K, 1, "b"), (K, 2, "c")))


def skipped_within_a_poll() -> Story:
    story = sent("a", "b", "c").add("q", polls=((K, 0, "a"), (K, 2, "c")))
    return story.add("r", polls=((K, 0, "a"), (K, 1, "b"), (K, 2, "c")))


def went_back_within_a_poll() -> Story:
    return sent("a", "b").add("q", polls=((K, 1, "b"), (K, 0, "a")))


def sends_in_the_wrong_order() -> Story:
    return Story().add("p", sends=((K, 1, "a"),)).add("p", sends=((K, 0, "b"),))


def sends_of_a_transaction_in_the_wrong_order() -> Story:
    return Story().add("p", sends=((K, 1, "a"), (K, 0, "b")), transaction=True)


def sent_too_late_for_its_place() -> Story:
    return Story().add("p", sends=((K, 1, "a"),)).add("q", sends=((K, 0, "b"),))


def sent_after_what_lies_behind_was_polled() -> Story:
    story = Story().add("p", sends=((K, 1, "a"),), lasting=4.0).add("q", polls=((K, 1, "a"),))
    story.add("r", sends=((K, 0, "b"),))
    return story.add("s", polls=((K, 0, "b"), (K, 1, "a")))


def read_of_its_own() -> Story:
    return Story().add("p", sends=((K, 0, "a"),), polls=((K, 0, "a"),), transaction=True)


def read_before_the_commit() -> Story:
    story = Story().add("p", sends=((K, 0, "a"),), transaction=True, lasting=5.0)
    return story.add("q", polls=((K, 0, "a"),))


def wrote_before_each_other() -> Story:
    story = Story().add("p", sends=((K, 0, "a"), (L, 1, "b")), transaction=True, lasting=2.0)
    return story.add("q", sends=((K, 1, "c"), (L, 0, "d")), transaction=True)


def read_of_each_other() -> Story:
    story = Story().add("p", sends=((K, 0, "a"),), polls=((L, 0, "b"),), transaction=True)
    return story.add("q", sends=((L, 0, "b"),), polls=((K, 0, "a"),), transaction=True)


PLANTED: tuple[tuple[Kind, Callable[[], Story]], ...] = (
    (Kind.LOST_WRITE, lost_below_what_was_polled),
    (Kind.LOST_WRITE, lost_at_the_end),
    (Kind.LOST_WRITE, lost_without_a_known_offset),
    (Kind.LOST_WRITE, lost_part_of_a_transaction_of_unknown_outcome),
    (Kind.ABORTED_READ, aborted_read),
    (Kind.ABORTED_READ, refused_and_yet_read),
    (Kind.INCONSISTENT_OFFSETS, two_values_at_an_offset),
    (Kind.DUPLICATE, one_value_at_two_offsets),
    (Kind.POLL_SKIP, went_on_too_far),
    (Kind.NONMONOTONIC_POLL, went_back),
    (Kind.INTERNAL_POLL_SKIP, skipped_within_a_poll),
    (Kind.INTERNAL_NONMONOTONIC_POLL, went_back_within_a_poll),
    (Kind.NONMONOTONIC_SEND, sends_in_the_wrong_order),
    (Kind.INTERNAL_NONMONOTONIC_SEND, sends_of_a_transaction_in_the_wrong_order),
    (Kind.LATE_WRITE, sent_too_late_for_its_place),
    (Kind.LATE_WRITE, sent_after_what_lies_behind_was_polled),
    (Kind.PRECOMMITTED_READ, read_of_its_own),
    (Kind.PRECOMMITTED_READ, read_before_the_commit),
    (Kind.WRITE_CYCLE, wrote_before_each_other),
    (Kind.INFORMATION_CYCLE, read_of_each_other),
)
# What cannot be had alone: two transactions that read of each other have read before the other's commit.
BESIDE = {read_of_each_other: {Kind.PRECOMMITTED_READ}}


@pytest.mark.parametrize(("kind", "story"), PLANTED, ids=[story.__name__ for _, story in PLANTED])
def test_a_planted_anomaly_is_found_and_nothing_else(kind: Kind, story: Callable[[], Story]) -> None:
    found = story().kinds()
    assert kind in found
    assert found - BESIDE.get(story, set()) == {kind}


def test_every_anomaly_has_been_planted() -> None:
    assert {kind for kind, _ in PLANTED} == set(Kind)
    assert set(Kind) >= ALLOWED_BY_KAFKA


def polled_in_order() -> Story:
    story = sent("a", "b", "c").add("q", polls=((K, 0, "a"), (K, 1, "b"))).add("q", polls=((K, 2, "c"),))
    return story.add("r", polls=((K, 0, "a"), (K, 1, "b"), (K, 2, "c")), to_end=(K,))


def a_rebalance_goes_back() -> Story:
    story = sent("a", "b").add("q", polls=((K, 0, "a"), (K, 1, "b")))
    return story.add("q", polls=((K, 0, "a"),), moved=(K,)).add("q", polls=((K, 1, "b"),))


def an_aborted_transaction_leaves_a_gap() -> Story:
    story = sent("a").add("p", sends=((K, 1, "b"),), outcome="fail", transaction=True)
    story.add("p", sends=((K, 3, "c"),))
    return story.add("q", polls=((K, 0, "a"),)).add("q", polls=((K, 3, "c"),), to_end=(K,))


def an_unknown_send_may_be_there() -> Story:
    story = sent("a").add("p", sends=((K, None, "b"),), outcome="info")
    return story.add("q", polls=((K, 0, "a"), (K, 1, "b")), to_end=(K,))


def an_unknown_send_may_be_missing() -> Story:
    story = sent("a").add("p", sends=((K, None, "b"),), outcome="info")
    return story.add("q", polls=((K, 0, "a"),), to_end=(K,))


def what_was_sent_later_need_not_have_been_polled() -> Story:
    return sent("a").add("q", polls=((K, 0, "a"),), to_end=(K,)).add("p", sends=((K, 1, "b"),))


def a_transaction_reads_committed_ones_and_writes() -> Story:
    story = Story().add("p", sends=((K, 0, "a"), (L, 0, "b")), transaction=True)
    story.add("q", polls=((K, 0, "a"),), sends=((L, 2, "c"),), transaction=True)
    return story.add("r", polls=((L, 0, "b"), (L, 2, "c"), (K, 0, "a")), to_end=(K, L))


CLEAN = (
    Story,
    polled_in_order,
    a_rebalance_goes_back,
    an_aborted_transaction_leaves_a_gap,
    an_unknown_send_may_be_there,
    an_unknown_send_may_be_missing,
    what_was_sent_later_need_not_have_been_polled,
    a_transaction_reads_committed_ones_and_writes,
)


@pytest.mark.parametrize("story", CLEAN, ids=[story.__name__ for story in CLEAN])
def test_a_clean_history_shows_nothing(story: Callable[[], Story]) -> None:
    assert check(story().ops) == []


def faithful_log(seed: int) -> Story:
    """What clients of one list in memory see, with transactions, aborts and readers at random."""
    rng = random.Random(seed)
    log: dict[str, list[str | None]] = {K: [], L: []}
    story, values = Story(), count()
    position = {(reader, key): 0 for reader in ("q", "r") for key in log}
    for _ in range(200):
        if rng.random() < 0.5:
            outcome: Outcome = rng.choices(("ok", "fail"), (4, 1))[0]
            sends: list[Place] = []
            for _ in range(rng.randrange(1, 4)):
                key, value = rng.choice(list(log)), f"v{next(values)}"
                sends.append((key, len(log[key]), value))
                log[key].append(value if outcome == "ok" else None)
            story.add("p", sends=tuple(sends), outcome=outcome, transaction=True)
        else:
            reader, key = rng.choice(list(position))
            start = position[reader, key]
            found = [(key, at, value) for at, value in enumerate(log[key]) if at >= start and value is not None]
            story.add(reader, polls=tuple(found))
            position[reader, key] = len(log[key])
    everything = tuple(
        (key, at, value) for key, values_ in log.items() for at, value in enumerate(values_) if value is not None
    )
    return story.add("end", polls=everything, to_end=(K, L))


@pytest.mark.parametrize("seed", range(20))
def test_a_faithful_log_shows_nothing(seed: int) -> None:
    assert check(faithful_log(seed).ops) == []


@pytest.mark.parametrize("seed", range(20))
def test_a_record_that_is_taken_out_of_a_faithful_log_is_missed(seed: int) -> None:
    ops = faithful_log(seed).ops
    acked = [record for op in ops if op.outcome == "ok" for record in op.sends]
    gone = random.Random(seed).choice(acked)
    without = [
        Op(
            **{
                **{name: getattr(op, name) for name in Op.__slots__},
                "polls": tuple(record for record in op.polls if record.value != gone.value),
            }
        )
        for op in ops
    ]
    lost = [anomaly for anomaly in check(without) if anomaly.kind is Kind.LOST_WRITE]
    assert [anomaly.key for anomaly in lost] == [gone.key]
    assert gone.value in lost[0].text


def test_a_history_is_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    story = a_transaction_reads_committed_ones_and_writes().add("s", polls=((K, 0, "a"),), moved=(K,))
    assert of_lines([to_line(op) for op in story.ops]) == story.ops
    history = History()
    with history.doing("p") as doing:
        doing.sends.append(Record(key=K, offset=0, value="a"))
        doing.outcome = "ok"
    with pytest.raises(ZeroDivisionError), history.doing("p") as doing:
        raise ZeroDivisionError
    history.write(tmp_path / "history.jsonl")
    assert of_lines((tmp_path / "history.jsonl").read_text().splitlines()) == history.ops
    assert [op.outcome for op in history.ops] == ["ok", "info"], "an operation that broke off is of unknown outcome"


def test_the_cycle_that_is_shown_is_a_shortest_one() -> None:
    edges = [(1, 2), (2, 3), (3, 1), (3, 4), (4, 5), (5, 3), (6, 1), (7, 8)]
    (found,) = cycles(Dependency(before=before, after=after, key=K) for before, after in edges)
    assert [step.before for step in found] == [1, 2, 3]
    assert found[-1].after == 1
    chain = (Dependency(before=at, after=at + 1, key=K) for at in range(5000))
    assert list(cycles(chain)) == []
