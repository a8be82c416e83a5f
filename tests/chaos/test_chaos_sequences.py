"""What lies twice: told apart by whether a broker doubled it, or its client sent it again in another epoch."""

import pytest
from chaos_history import Record
from chaos_sequences import Epoch, Written, sent_again, sequences_that_are_wrong
from chaos_storm import Report, judge

from log_broker.core.partition.producers import SEQUENCE_MAX

OLD, NEW, OTHER = (7, 0), (7, 1), (8, 0)
KEY = "idempotent-0"


def log_of(*batches: tuple[Epoch, int, int]) -> list[Written]:
    """Batches of (epoch, first sequence, count), one behind the other."""
    log, offset = [], 0
    for epoch, sequence, count in batches:
        log.append(Written(offset, epoch, sequence, count))
        offset += count
    return log


@pytest.mark.parametrize(
    "batches",
    [
        (),
        ((OLD, 0, 3), (OLD, 3, 2), (OTHER, 0, 1), (OLD, 5, 1)),
        ((OLD, 0, 3), (NEW, 0, 3), (NEW, 3, 1)),
        ((OLD, 0, SEQUENCE_MAX), (OLD, SEQUENCE_MAX, 2), (OLD, 1, 1)),
    ],
)
def test_what_follows_on_is_right(batches: tuple[tuple[Epoch, int, int], ...]) -> None:
    assert list(sequences_that_are_wrong(KEY, log_of(*batches))) == []


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        (((OLD, 0, 3), (OLD, 0, 3)), "has at offset 3 sequence 0 of producer 7 in its epoch 0, where 3 comes next"),
        (((OLD, 0, 3), (OLD, 4, 1)), "sequence 4 of producer 7 in its epoch 0, where 3 comes next"),
        (((OLD, 0, 3), (NEW, 3, 1)), "sequence 3 of producer 7 in its epoch 1, where 0 comes next"),
    ],
)
def test_a_batch_that_is_doubled_missing_or_out_of_order_is_told(
    batches: tuple[tuple[Epoch, int, int], ...], said: str
) -> None:
    (found,) = sequences_that_are_wrong(KEY, log_of(*batches))
    assert said in found


def test_only_what_another_epoch_has_again_is_of_the_client() -> None:
    log = log_of((OLD, 0, 2), (NEW, 0, 1), (NEW, 1, 2))
    values = ("a", "b", "a", "c", "c")
    end = [Record(key=KEY, offset=offset, value=value) for offset, value in enumerate(values)]
    assert sent_again(end, {KEY: log}) == {"a"}
    assert sent_again(end, {}) == frozenset()


def test_a_storm_counts_them_and_breaks_no_promise_by_them() -> None:
    from test_chaos_checker import sent

    ops = sent("a", "b", "a", key=KEY).ops
    blamed, excused = Report(), Report()
    judge(blamed, ops)
    judge(excused, ops, frozenset({"a"}))
    assert (len(blamed.broken), blamed.sent_again) == (1, 0)
    assert (len(excused.broken), excused.sent_again) == (0, 1)
    assert "1 records lie twice" in str(excused)
