"""The transactions of one transactional id: states, epochs, fencing, time, and what a restart finds."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from log_broker.core.transactions.protocol import (
    AddPartitions,
    Answer,
    Effect,
    End,
    InitProducer,
    MarkersWritten,
    Persist,
    Persisted,
    Reply,
    WriteMarkers,
)
from log_broker.core.transactions.records import StoredTransaction, TransactionState, decode_transaction
from log_broker.core.transactions.records import encode_transaction as encode
from log_broker.core.transactions.transaction import EPOCH_MAX, RETRY_MS, Transaction
from log_broker.errors import ErrorCode

NONE = ErrorCode.NONE
A, B = ("t", 0), ("t", 1)
State = TransactionState


class Coordinator:
    """A transaction with a log that keeps what is persisted, and markers that are written when asked for."""

    def __init__(self, producer_id: int = 7) -> None:
        self.now_ms = 1_000
        self.transaction = Transaction.fresh("x", producer_id, 60_000)
        self.log: list[StoredTransaction | None] = []
        self.markers: list[StoredTransaction] = []
        self.fail: ErrorCode = NONE

    def run(self, effects: Sequence[Effect]) -> Answer | None:
        """Run effects until nothing is left but markers; return the answer."""
        answer = None
        for effect in effects:
            match effect:
                case Reply():
                    answer = effect.answer
                case Persist(record):
                    if self.fail is NONE:
                        self.log.append(record)
                    event = Persisted(error=self.fail)
                    answer = self.run(self.transaction.handle(event, self.now_ms)) or answer
                case WriteMarkers(prepared):
                    self.markers.append(prepared)
        return answer

    def ask(self, event) -> Answer:
        answer = self.run(self.transaction.handle(event, self.now_ms))
        assert answer is not None
        return answer

    def init(self, expected: tuple[int, int] | None = None, fresh_id: int = 99) -> Answer:
        return self.ask(InitProducer(token=1, timeout_ms=60_000, expected=expected, fresh_id=fresh_id))

    def add(self, *places, epoch: int | None = None, producer_id: int | None = None) -> ErrorCode:
        current = self.transaction.current
        return self.ask(
            AddPartitions(
                token=1,
                producer_id=current.producer_id if producer_id is None else producer_id,
                producer_epoch=current.producer_epoch if epoch is None else epoch,
                partitions=frozenset(places),
            )
        ).error

    def end(self, committed: bool, *, version: int = 0, epoch: int | None = None, fresh_id: int = 99) -> Answer:
        current = self.transaction.current
        return self.ask(
            End(
                token=1,
                producer_id=current.producer_id,
                producer_epoch=current.producer_epoch if epoch is None else epoch,
                committed=committed,
                client_version=version,
                fresh_id=fresh_id,
            )
        )

    def write_markers(self) -> None:
        self.run(self.transaction.handle(MarkersWritten(), self.now_ms))

    @property
    def state(self) -> State:
        return self.transaction.state

    @property
    def epoch(self) -> int:
        return self.transaction.current.producer_epoch


@pytest.fixture
def coordinator() -> Coordinator:
    made = Coordinator()
    assert made.init() == Answer(NONE, 7, 0)
    return made


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_goes_through_its_states(coordinator, committed) -> None:
    assert coordinator.add(A) is NONE
    assert coordinator.add(B) is NONE
    assert coordinator.end(committed).error is NONE
    prepared = State.PREPARE_COMMIT if committed else State.PREPARE_ABORT
    assert [(p.state, p.partitions) for p in coordinator.markers] == [(prepared, {A, B})]
    coordinator.write_markers()
    done = State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT
    assert [record.state for record in coordinator.log if record] == [
        State.EMPTY,
        State.ONGOING,
        State.ONGOING,
        prepared,
        done,
    ]
    assert not coordinator.transaction.current.partitions
    assert coordinator.epoch == 0


def test_partitions_that_are_known_need_no_record(coordinator) -> None:
    coordinator.add(A, B)
    records = len(coordinator.log)
    assert coordinator.add(B) is NONE
    assert len(coordinator.log) == records


def test_a_new_producer_fences_the_old_one_and_aborts_its_transaction(coordinator) -> None:
    coordinator.add(A)
    assert coordinator.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert (coordinator.state, coordinator.epoch) == (State.PREPARE_ABORT, 1)
    assert coordinator.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.write_markers()
    assert coordinator.init() == Answer(NONE, 7, 2)
    for epoch in (0, 1):
        assert coordinator.add(A, epoch=epoch) is ErrorCode.PRODUCER_FENCED
        assert coordinator.end(True, epoch=epoch).error is ErrorCode.PRODUCER_FENCED
    assert coordinator.add(A) is NONE
    assert coordinator.add(A, producer_id=8) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_while_markers_are_written_the_producer_is_sent_away(coordinator) -> None:
    coordinator.add(A)
    coordinator.end(True)
    assert coordinator.add(B) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.end(True).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.end(False).error is ErrorCode.INVALID_TXN_STATE
    assert coordinator.transaction.verify(7, 0, A) is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.write_markers()
    assert coordinator.end(True).error is NONE, "a repeat of an answer that was lost"
    assert coordinator.end(False).error is ErrorCode.INVALID_TXN_STATE
    assert coordinator.add(B) is NONE


def test_without_a_transaction_there_is_nothing_to_end(coordinator) -> None:
    for committed in (True, False):
        assert coordinator.end(committed).error is ErrorCode.INVALID_TXN_STATE
    assert coordinator.end(True, version=2).error is ErrorCode.INVALID_TXN_STATE


def test_a_partition_that_was_not_added_is_told_from_one_that_was(coordinator) -> None:
    coordinator.add(A)
    verify = coordinator.transaction.verify
    assert verify(7, 0, A) is NONE
    assert verify(7, 0, B) is ErrorCode.TRANSACTION_ABORTABLE
    assert verify(7, 1, A) is ErrorCode.PRODUCER_FENCED
    assert verify(8, 0, A) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


# Epochs that are raised with each transaction.


def test_the_end_of_a_transaction_raises_the_epoch(coordinator) -> None:
    coordinator.add(A)
    assert coordinator.end(True, version=2) == Answer(NONE, 7, 1)
    assert coordinator.markers[-1].producer_epoch == 1
    assert coordinator.end(True, version=2, epoch=0).error is ErrorCode.CONCURRENT_TRANSACTIONS, "a repeat"
    assert coordinator.end(False, version=2, epoch=0).error is ErrorCode.INVALID_TXN_STATE
    assert coordinator.end(False, version=2, epoch=1).error is ErrorCode.CONCURRENT_TRANSACTIONS, "the next one's end"
    coordinator.write_markers()
    assert coordinator.end(True, version=2, epoch=0) == Answer(NONE, 7, 1), "a repeat"
    assert coordinator.end(False, version=2, epoch=0).error is ErrorCode.INVALID_TXN_STATE
    assert coordinator.add(A, epoch=0) is ErrorCode.PRODUCER_FENCED
    assert coordinator.add(A, epoch=1) is NONE
    assert coordinator.end(True, version=2, epoch=0).error is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("begun", [False, True])
def test_an_abort_of_nothing_raises_the_epoch_too(coordinator, begun) -> None:
    if begun:
        coordinator.add(A)
        coordinator.end(True, version=2)
        coordinator.write_markers()
    epoch = coordinator.epoch
    assert coordinator.end(False, version=2) == Answer(NONE, 7, epoch + 1)
    assert not coordinator.markers[-1].partitions
    coordinator.write_markers()
    assert (coordinator.state, coordinator.epoch) == (State.COMPLETE_ABORT, epoch + 1)


def exhausted(epoch: int = EPOCH_MAX - 1) -> Coordinator:
    coordinator = Coordinator()
    coordinator.init()
    current = replace(coordinator.transaction.current, producer_epoch=epoch)
    coordinator.transaction = Transaction("x", current)
    return coordinator


def test_used_up_epochs_bring_another_producer_id_at_the_end_of_a_transaction() -> None:
    coordinator = exhausted()
    coordinator.add(A)
    assert coordinator.transaction.wants_fresh_id
    assert coordinator.end(True, version=2, fresh_id=50) == Answer(NONE, 50, 0)
    assert (coordinator.markers[-1].producer_id, coordinator.markers[-1].producer_epoch) == (7, EPOCH_MAX)
    coordinator.write_markers()
    assert (coordinator.transaction.current.producer_id, coordinator.epoch) == (50, 0)
    repeat = End(token=1, producer_id=7, producer_epoch=EPOCH_MAX - 1, committed=True, client_version=2)
    assert coordinator.ask(repeat) == Answer(NONE, 50, 0)
    assert not coordinator.transaction.wants_fresh_id


def test_used_up_epochs_bring_another_producer_id_at_the_next_start() -> None:
    coordinator = exhausted()
    assert coordinator.init(fresh_id=50) == Answer(NONE, 50, 0)
    coordinator = exhausted()
    assert coordinator.init(expected=(7, EPOCH_MAX - 1), fresh_id=50) == Answer(NONE, 50, 0)
    assert coordinator.init(expected=(7, EPOCH_MAX - 1), fresh_id=51) == Answer(NONE, 50, 0), "a repeat"


def test_there_is_always_an_epoch_left_to_fence_with() -> None:
    coordinator = exhausted()
    coordinator.add(A)
    assert coordinator.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.epoch == EPOCH_MAX
    coordinator.write_markers()
    assert coordinator.init(fresh_id=50) == Answer(NONE, 50, 0)


def test_a_producer_goes_on_in_a_new_epoch_after_an_error(coordinator) -> None:
    assert coordinator.init(expected=(7, 0)) == Answer(NONE, 7, 1)
    assert coordinator.init(expected=(7, 0)) == Answer(NONE, 7, 1), "a repeat"
    assert coordinator.init(expected=(7, 1)) == Answer(NONE, 7, 2)
    assert coordinator.init(expected=(7, 0)).error is ErrorCode.PRODUCER_FENCED
    assert coordinator.init(expected=(6, 2)).error is ErrorCode.PRODUCER_FENCED
    assert coordinator.init() == Answer(NONE, 7, 3)
    assert coordinator.init(expected=(7, 2)).error is ErrorCode.PRODUCER_FENCED, "another has begun since"


def test_a_fenced_producer_does_not_abort_its_successor(coordinator) -> None:
    coordinator.init()
    coordinator.add(A)
    assert coordinator.init(expected=(7, 0)).error is ErrorCode.PRODUCER_FENCED
    assert coordinator.state is State.ONGOING


# Time.


def test_a_transaction_whose_time_is_up_is_aborted_and_its_producer_fenced(coordinator) -> None:
    assert coordinator.transaction.next_deadline_ms() is None
    coordinator.add(A)
    deadline = coordinator.transaction.next_deadline_ms()
    assert deadline == 61_000
    coordinator.now_ms = deadline - 1
    assert coordinator.add(B) is NONE
    assert coordinator.transaction.next_deadline_ms() == deadline, "more partitions give no more time"
    assert not coordinator.transaction.tick(coordinator.now_ms)
    coordinator.run(coordinator.transaction.tick(deadline))
    assert (coordinator.state, coordinator.epoch) == (State.PREPARE_ABORT, 1)
    for version in (0, 2):
        for committed in (True, False):
            assert coordinator.end(committed, version=version, epoch=0).error is ErrorCode.PRODUCER_FENCED
    coordinator.write_markers()
    assert coordinator.transaction.next_deadline_ms() is None
    for version in (0, 2):
        for committed in (True, False):
            assert coordinator.end(committed, version=version, epoch=0).error is ErrorCode.PRODUCER_FENCED


def test_an_end_of_time_that_is_being_stored_is_not_asked_for_again(coordinator) -> None:
    """Found in simulation: for as long as the record took, the broker did nothing but look."""
    coordinator.add(A)
    deadline = coordinator.transaction.next_deadline_ms()
    under_way = coordinator.transaction.tick(deadline)
    assert coordinator.transaction.next_deadline_ms() is None
    coordinator.run(under_way)
    assert coordinator.state is State.PREPARE_ABORT


def test_an_id_that_is_not_used_is_forgotten(coordinator) -> None:
    expire = coordinator.transaction.expire
    assert not expire(1_000 + 499, after_ms=500)
    coordinator.add(A)
    assert not expire(10**9, after_ms=500), "a transaction is open"
    coordinator.end(True)
    assert not expire(10**9, after_ms=500), "its markers are on their way"
    coordinator.write_markers()
    coordinator.run(expire(1_500, after_ms=500))
    assert coordinator.log[-1] is None
    assert coordinator.state is State.DEAD


# Failures and restarts.


def test_what_cannot_be_stored_has_not_happened(coordinator) -> None:
    coordinator.fail = ErrorCode.NOT_COORDINATOR
    before = coordinator.transaction.current
    assert coordinator.add(A) is ErrorCode.NOT_COORDINATOR
    assert coordinator.init().error is ErrorCode.NOT_COORDINATOR
    assert coordinator.transaction.current == before
    coordinator.fail = NONE
    coordinator.add(A)
    coordinator.fail = ErrorCode.NOT_COORDINATOR
    assert coordinator.end(True).error is ErrorCode.NOT_COORDINATOR
    assert coordinator.init().error is ErrorCode.NOT_COORDINATOR
    coordinator.run(coordinator.transaction.tick(10**9))
    assert (coordinator.state, coordinator.epoch) == (State.ONGOING, 0)
    assert not coordinator.markers


def test_an_end_of_time_that_cannot_be_stored_is_tried_again_after_a_moment(coordinator) -> None:
    coordinator.add(A)
    deadline = coordinator.transaction.next_deadline_ms()
    coordinator.now_ms = deadline
    coordinator.fail = ErrorCode.COORDINATOR_NOT_AVAILABLE
    coordinator.run(coordinator.transaction.tick(deadline))
    assert coordinator.state is State.ONGOING
    assert coordinator.transaction.next_deadline_ms() == deadline + RETRY_MS
    assert not coordinator.transaction.tick(deadline + RETRY_MS - 1)
    coordinator.fail = NONE
    coordinator.run(coordinator.transaction.tick(deadline + RETRY_MS))
    assert coordinator.state is State.PREPARE_ABORT


def test_while_something_is_being_stored_nothing_else_is_decided(coordinator) -> None:
    (persist,) = coordinator.transaction.handle(
        AddPartitions(token=1, producer_id=7, producer_epoch=0, partitions=frozenset({A})), 1_000
    )
    assert isinstance(persist, Persist)
    assert coordinator.add(B) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.end(True).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.state is State.EMPTY
    assert coordinator.run(coordinator.transaction.handle(Persisted(), 1_000)) == Answer(NONE)
    assert coordinator.transaction.current.partitions == {A}


class Lives(RuleBasedStateMachine):
    """
    Producers of one id come and go, requests fail to be stored, the coordinator restarts from its log.

    The model: one producer at a time, known by (id, epoch), has a set of partitions that it has added since the last
    end. Every transaction with partitions ends exactly once, with markers for them all, and never by another's word.
    """

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator()
        self.producer: tuple[int, int] | None = None
        self.old: list[tuple[int, int]] = []
        self.added: frozenset[tuple[str, int]] = frozenset()
        self.fresh_ids = iter(range(100, 10**6))
        self.decided: bool | None = None

    def event_for(self, producer: tuple[int, int], committed: bool, version: int) -> End:
        return End(
            token=1,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=committed,
            client_version=version,
            fresh_id=next(self.fresh_ids),
        )

    def replaced(self, producer: tuple[int, int] | None) -> None:
        if self.producer is not None and self.producer != producer:
            self.old.append(self.producer)
        self.producer = producer

    @rule()
    def begin(self) -> None:
        was_open = self.coordinator.state is State.ONGOING
        answer = self.coordinator.init(fresh_id=next(self.fresh_ids))
        if answer.error is NONE:
            given = (answer.producer_id, answer.producer_epoch)
            assert given not in self.old, "an epoch is given out once"
            assert given != self.producer
            self.replaced(given)
            assert not self.added
        elif was_open and self.coordinator.fail is NONE:
            self.replaced(None)
            self.decided = False

    @precondition(lambda self: self.producer is not None)
    @rule(places=st.frozensets(st.sampled_from([A, B, ("u", 0)]), min_size=1))
    def add(self, places) -> None:
        error = self.coordinator.add(*places, epoch=self.producer[1], producer_id=self.producer[0])
        if error is NONE:
            self.added |= places
        else:
            assert error in {ErrorCode.CONCURRENT_TRANSACTIONS, self.coordinator.fail}

    @precondition(lambda self: self.producer is not None)
    @rule(committed=st.booleans(), version=st.sampled_from([0, 2]))
    def end(self, committed, version) -> None:
        markers = len(self.coordinator.markers)
        answer = self.coordinator.ask(self.event_for(self.producer, committed, version))
        if len(self.coordinator.markers) > markers:
            assert answer.error is NONE
            self.decided = committed
            if version == 2:
                self.replaced((answer.producer_id, answer.producer_epoch))

    @precondition(lambda self: self.old)
    @rule(data=st.data(), version=st.sampled_from([0, 2]))
    def a_zombie_stirs(self, data, version) -> None:
        zombie = data.draw(st.sampled_from(self.old))
        before = self.coordinator.transaction.current
        assert self.coordinator.add(A, epoch=zombie[1], producer_id=zombie[0]) is not NONE
        for committed in (True, False):
            self.coordinator.ask(self.event_for(zombie, committed, version))
        self.coordinator.init(expected=zombie) if data.draw(st.booleans()) and not self.may_repeat(zombie) else None
        assert self.coordinator.transaction.current == before, "nothing that a zombie asks for changes anything"

    def may_repeat(self, producer: tuple[int, int]) -> bool:
        """Whether this is the last epoch before the current one: its producer may be asking again for what it got."""
        current = self.coordinator.transaction.current
        return current.producer_id == producer[0] and current.producer_epoch == producer[1] + 1

    @precondition(lambda self: self.coordinator.state.is_prepared)
    @rule()
    def markers_are_written(self) -> None:
        prepared = self.coordinator.transaction.current
        assert prepared.partitions == self.added
        assert self.decided == (prepared.state is State.PREPARE_COMMIT)
        self.coordinator.write_markers()
        if self.coordinator.fail is NONE:
            self.added = frozenset()
            self.decided = None

    @rule()
    def time_is_up(self) -> None:
        deadline = self.coordinator.transaction.next_deadline_ms()
        if deadline is not None:
            self.coordinator.now_ms = max(deadline, self.coordinator.now_ms)
            self.coordinator.run(self.coordinator.transaction.tick(self.coordinator.now_ms))
            if self.coordinator.fail is NONE:
                self.replaced(None)
                self.decided = False

    @rule(fails=st.booleans())
    def the_disk_changes_its_mind(self, fails) -> None:
        self.coordinator.fail = ErrorCode.NOT_COORDINATOR if fails else NONE

    @precondition(lambda self: self.coordinator.log)
    @rule()
    def the_coordinator_restarts(self) -> None:
        last = self.coordinator.log[-1]
        assert last is not None
        assert last == self.coordinator.transaction.current
        self.coordinator.transaction = Transaction("x", decode_transaction(encode(last)))
        effects = self.coordinator.transaction.resume()
        assert bool(effects) == last.state.is_prepared
        self.coordinator.run(effects)

    @invariant()
    def partitions_are_those_that_were_added(self) -> None:
        current = self.coordinator.transaction.current
        assert current.partitions == self.added
        assert current.state.is_prepared == (self.decided is not None)
        if current.state in {State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}:
            assert not current.partitions


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
