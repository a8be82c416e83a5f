"""Idempotent producers: what is a repeat, what is a gap, who is fenced."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from log_broker.core.partition.producers import CACHED_BATCHES, SEQUENCE_MAX, ProducerStates, advance
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records import BatchHeader, build_batch, read_header
from log_broker.records.batch import NO_TIMESTAMP, TRANSACTIONAL
from log_broker.records.quarantined import without


def header(sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 7, offset: int = 0) -> BatchHeader:
    batch = build_batch(
        [(1000, None, b"v", ())] * count,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        base_offset=offset,
    )
    return read_header(batch)


def refusal(states: ProducerStates, batch: BatchHeader) -> ErrorCode:
    with pytest.raises(BrokerError) as error:
        states.check(batch)
    return error.value.code


def stored(*batches: BatchHeader) -> ProducerStates:
    states = ProducerStates()
    for offset, batch in enumerate(batches):
        states.record(batch, 100 * offset, 1000)
    return states


def test_an_unknown_producer_may_start_anywhere() -> None:
    assert ProducerStates().check(header(sequence=41)) is None


def test_the_next_batch_follows_the_last_sequence() -> None:
    states = stored(header(0, count=3))
    assert states.check(header(3)) is None
    assert refusal(states, header(4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_repeat_is_known_by_epoch_and_range() -> None:
    states = stored(header(0, count=3), header(3, count=2))
    repeat = states.check(header(0, count=3))
    assert repeat is not None
    assert repeat.first_offset == 0
    repeat = states.check(header(3, count=2))
    assert repeat is not None
    assert repeat.first_offset == 100
    assert refusal(states, header(0, count=2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_last_five_batches_are_remembered_and_no_more() -> None:
    states = stored(*(header(sequence) for sequence in range(CACHED_BATCHES + 1)))
    assert refusal(states, header(0)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for sequence in range(1, CACHED_BATCHES + 1):
        assert states.check(header(sequence)) is not None


def test_zero_follows_the_largest_sequence() -> None:
    states = stored(header(SEQUENCE_MAX))
    assert states.check(header(0)) is None

    states = stored(header(SEQUENCE_MAX - 1, count=4))  # ends at sequence 1
    entry = states.get(7)
    assert entry is not None
    assert (entry.batches[-1].first_sequence, entry.batches[-1].last_sequence) == (SEQUENCE_MAX - 1, 1)
    assert states.check(header(2)) is None
    assert states.check(header(SEQUENCE_MAX - 1, count=4)) is not None


def test_an_older_epoch_is_fenced_and_a_newer_one_starts_at_zero() -> None:
    states = stored(header(0, epoch=3))
    assert refusal(states, header(1, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(states, header(1, epoch=4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(header(0, epoch=4)) is None
    states.record(header(0, epoch=4), 5, 1000)
    assert refusal(states, header(0, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_what_is_undone_was_never_there() -> None:
    states = stored(header(0))
    before = list(states.rows())
    first = states.record(header(1), 1, 1000)
    second = states.record(header(0, epoch=1), 2, 1000)
    states.restore(7, second)
    states.restore(7, first)
    assert list(states.rows()) == before

    fresh = ProducerStates()
    fresh.restore(9, fresh.record(header(0, producer_id=9), 0, 1000))
    assert len(fresh) == 0


def test_silent_producers_are_forgotten() -> None:
    states = ProducerStates()
    states.record(header(0, producer_id=1), 0, 1000)
    states.record(header(0, producer_id=2), 1, 2000)
    assert states.expire(2000) == 1
    assert states.get(1) is None
    assert states.check(header(500, producer_id=1)) is None


def test_replaying_what_a_snapshot_holds_changes_nothing() -> None:
    batches = [header(sequence, offset=sequence) for sequence in range(8)]
    states = ProducerStates()
    for batch in batches:
        states.replay(batch, 1000)
    rows = list(states.rows())
    for batch in batches:
        states.replay(batch, 1000)
    assert list(states.rows()) == rows


def test_a_batch_that_is_quarantined_whole_opens_its_transaction_at_a_replay() -> None:
    """An empty batch without a time is otherwise one that compaction emptied, whose transaction has ended."""
    records = [(NO_TIMESTAMP, b"k", b"v", ())] * 2
    batch = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
    states = ProducerStates()
    states.replay(read_header(without(batch, read_header(batch), {0, 1})), 1000)
    assert states.open_transactions == {7: 0}


@given(
    counts=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    start=st.integers(0, SEQUENCE_MAX),
)
def test_a_producer_that_keeps_the_rules_is_always_taken(counts, start) -> None:
    states = ProducerStates()
    sequence, offset = start, 0
    for count in counts:
        batch = header(sequence, count)
        assert states.check(batch) is None
        states.record(batch, offset, 1000)
        repeat = states.check(batch)
        assert repeat is not None
        assert repeat.first_offset == offset
        sequence, offset = advance(sequence, count), offset + count

    loaded = ProducerStates()
    loaded.load(states.rows())
    assert list(loaded.rows()) == list(states.rows())
