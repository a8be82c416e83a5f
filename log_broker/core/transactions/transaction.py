"""
The transactions of one transactional id, as its coordinator sees them (KIP-98, KIP-360, KIP-890).

             AddPartitions            End(commit)                    MarkersWritten
    EMPTY ─────────────────▶ ONGOING ─────────────▶ PREPARE_COMMIT ─────────────────▶ COMPLETE_COMMIT
      ▲                       ▲  │                                                         │
      │                       │  │ End(abort), time is up, or another producer begins      │
      │ InitProducer          │  └───────────────▶ PREPARE_ABORT ──MarkersWritten──▶ COMPLETE_ABORT
      └───────────────────────┴────────────────────────────────────────────────────────────┘
                                                                      DEAD: idle for too long, forgotten

`handle(event, now_ms)` returns effects in order. What is decided takes hold with the Persisted of its record and not
before; until then, and while markers are on their way, whoever asks for more is told CONCURRENT_TRANSACTIONS and comes
again. PREPARE_* is the point of no return: found at a start, its markers are written.

An epoch belongs to one producer at a time. It is raised when another producer begins, when a transaction is taken from
its producer, and at the end of each transaction of a client that knows of it; a request with an older one is fenced.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from log_broker.core.transactions.protocol import (
    AddPartitions,
    Answer,
    Effect,
    End,
    Event,
    InitProducer,
    MarkersWritten,
    Persist,
    Persisted,
    Reply,
    WriteMarkers,
)
from log_broker.core.transactions.records import (
    NO_EPOCH,
    NO_ID,
    NO_TIME,
    StoredTransaction,
    TopicPartition,
    TransactionState,
)
from log_broker.errors import ErrorCode

EPOCH_MAX = 2**15 - 1
RETRY_MS = 1_000  # after an end of time that could not be stored
BUMPS_EPOCH_FROM = 2  # transaction.version

_COMPLETE_OF = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}

Outcome = Callable[[ErrorCode], list[Effect]]


class Transaction:
    """
    The machine of one transactional id. `current` is what is durable and what is decided on.

    Always: `current.partitions` is empty except in ONGOING and PREPARE_*; at most one record is being persisted.
    """

    def __init__(self, transactional_id: str, current: StoredTransaction) -> None:
        self.transactional_id = self.name = transactional_id
        self.current = current
        self._last_epoch = NO_EPOCH  # before the last raise that its own producer asked for
        self._pending: tuple[StoredTransaction | None, Outcome] | None = None
        self._retry_ms = 0

    @classmethod
    def fresh(cls, transactional_id: str, producer_id: int, timeout_ms: int) -> "Transaction":
        """Make the machine of an id that was never seen, or forgotten; its first producer gets epoch 0."""
        stored = StoredTransaction(
            producer_id=producer_id, producer_epoch=NO_EPOCH, timeout_ms=timeout_ms, state=TransactionState.EMPTY
        )
        return cls(transactional_id, stored)

    @property
    def state(self) -> TransactionState:
        return self.current.state

    @property
    def is_busy(self) -> bool:
        """Whether something decided is not yet durable, or markers are on their way."""
        return self._pending is not None or self.state.is_prepared

    @property
    def is_unused(self) -> bool:
        """Whether nothing of it is durable, nor about to be."""
        return self.current.producer_epoch == NO_EPOCH and self._pending is None

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing would be lost if the machine did not exist."""
        return not self.is_busy and (self.is_unused or self.state is TransactionState.DEAD)

    @property
    def wants_fresh_id(self) -> bool:
        """Whether the next InitProducer or End may need another producer id, because the epochs are used up."""
        return self.current.producer_epoch >= EPOCH_MAX - 1

    def handle(self, event: Event, now_ms: int) -> Sequence[Effect]:
        """Take one event at the given time and return what must be done, in order."""
        match event:
            case AddPartitions():
                return self._add_partitions(event, now_ms)
            case End():
                return self._end(event, now_ms)
            case InitProducer():
                return self._init(event, now_ms)
            case MarkersWritten():
                return self._complete(now_ms)
            case Persisted():
                return self._persisted(event.error, now_ms)

    def resume(self) -> Sequence[Effect]:
        """Return what is to be done of a transaction that was found in the log."""
        return (WriteMarkers(self.current),) if self.state.is_prepared else ()

    def verify(self, producer_id: int, producer_epoch: int, partition: TopicPartition) -> ErrorCode:
        """Say whether a batch of this producer may be written to a partition now; reads only."""
        current = self.current
        if current.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if current.producer_epoch != producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        if current.state.is_prepared:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return ErrorCode.NONE if partition in current.partitions else ErrorCode.TRANSACTION_ABORTABLE

    # Time.

    def next_deadline_ms(self) -> int | None:
        """When `tick` must be called next: at the end of the transaction's time, unless something is being stored."""
        if self.state is not TransactionState.ONGOING or self._pending is not None:
            return None
        return max(self.current.start_ms + self.current.timeout_ms, self._retry_ms)

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """Abort a transaction whose time is up; its producer is fenced."""
        deadline = self.next_deadline_ms()
        if deadline is None or now_ms < deadline:
            return ()
        return self._abort_and_fence(now_ms, lambda _: [])

    def expire(self, now_ms: int, *, after_ms: int) -> Sequence[Effect]:
        """Forget an id that has had no transaction for so long."""
        idle = self.state not in {TransactionState.ONGOING, TransactionState.DEAD} and not self.is_busy
        if not idle or self.current.last_update_ms + after_ms > now_ms:
            return ()
        return self._persist(None, lambda _: [])

    # Beginning.

    def _init(self, event: InitProducer, now_ms: int) -> Sequence[Effect]:  # noqa: PLR0911 one for each refusal
        current = self.current
        if self.is_busy or self.state is TransactionState.DEAD:
            return _refused(event.token, ErrorCode.CONCURRENT_TRANSACTIONS)
        if event.expected is not None and not self._is_own_producer(*event.expected):
            return _refused(event.token, ErrorCode.PRODUCER_FENCED)
        if current.state is TransactionState.ONGOING:
            if event.expected is not None and event.expected[1] != current.producer_epoch:
                return _refused(event.token, ErrorCode.PRODUCER_FENCED)
            # The answer comes when the producer asks again: the epoch that fences the old one is never handed out.
            return self._abort_and_fence(
                now_ms, lambda error: [Reply(event.token, Answer(error or ErrorCode.CONCURRENT_TRANSACTIONS))]
            )
        epoch_expected = None if event.expected is None else event.expected[1]
        producer_id, epoch, last_epoch = current.producer_id, current.producer_epoch + 1, NO_EPOCH
        if self.wants_fresh_id and epoch_expected in {None, current.producer_epoch}:
            if event.fresh_id == NO_ID:
                return _refused(event.token, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            producer_id, epoch = event.fresh_id, 0
            last_epoch = current.producer_epoch if epoch_expected is not None else NO_EPOCH
        elif epoch_expected is not None and current.producer_epoch != NO_EPOCH:
            if epoch_expected == current.producer_epoch:
                last_epoch = current.producer_epoch
            elif epoch_expected == self._last_epoch:
                # The answer to the same request was lost, and nobody has begun since.
                epoch, last_epoch = current.producer_epoch, self._last_epoch
            else:
                return _refused(event.token, ErrorCode.PRODUCER_FENCED)
        record = StoredTransaction(
            producer_id=producer_id,
            producer_epoch=epoch,
            timeout_ms=event.timeout_ms,
            state=TransactionState.EMPTY,
            last_update_ms=now_ms,
            previous_producer_id=current.producer_id if producer_id != current.producer_id else NO_ID,
        )

        def outcome(error: ErrorCode) -> list[Effect]:
            if error is not ErrorCode.NONE:
                return [Reply(event.token, Answer(error))]
            self._last_epoch = last_epoch
            return [Reply(event.token, Answer(ErrorCode.NONE, producer_id, epoch))]

        return self._persist(record, outcome)

    def _is_own_producer(self, producer_id: int, epoch: int) -> bool:
        """Whether a producer that goes on is the one that was here last."""
        current = self.current
        if current.producer_epoch == NO_EPOCH or producer_id == current.producer_id:
            return True
        return producer_id == current.previous_producer_id and epoch >= EPOCH_MAX - 1

    # Going on.

    def _add_partitions(self, event: AddPartitions, now_ms: int) -> Sequence[Effect]:
        current = self.current
        error = ErrorCode.NONE
        if current.producer_id != event.producer_id:
            error = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        elif current.producer_epoch != event.producer_epoch:
            error = ErrorCode.PRODUCER_FENCED
        elif self.is_busy:
            error = ErrorCode.CONCURRENT_TRANSACTIONS
        if error is not ErrorCode.NONE:
            return _refused(event.token, error)
        is_open = current.state is TransactionState.ONGOING
        if is_open and event.partitions <= current.partitions:
            return (Reply(event.token, Answer(ErrorCode.NONE)),)
        record = replace(
            current,
            state=TransactionState.ONGOING,
            partitions=current.partitions | event.partitions,
            last_update_ms=now_ms,
            start_ms=current.start_ms if is_open else now_ms,
            client_version=0,
        )
        return self._persist(record, lambda error: [Reply(event.token, Answer(error))])

    # Ending.

    def _end(self, event: End, now_ms: int) -> Sequence[Effect]:  # noqa: PLR0911 one for each state
        current = self.current
        is_repeat = self._is_repeated_end(event)
        if current.producer_id != event.producer_id and not is_repeat:
            return _refused(event.token, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if current.producer_epoch != event.producer_epoch and not is_repeat:
            return _refused(event.token, ErrorCode.PRODUCER_FENCED)
        if self._pending is not None:
            return _refused(event.token, ErrorCode.CONCURRENT_TRANSACTIONS)
        bumps = event.client_version >= BUMPS_EPOCH_FROM
        match current.state:
            case TransactionState.ONGOING:
                return self._prepare(event, now_ms)
            case TransactionState.PREPARE_COMMIT | TransactionState.PREPARE_ABORT:
                as_decided = event.committed == (current.state is TransactionState.PREPARE_COMMIT)
                # With the raised epoch it is the end of the next transaction, to which nothing was written yet.
                is_next = current.client_version >= BUMPS_EPOCH_FROM and not is_repeat
                waits = as_decided or is_next
                return _refused(
                    event.token, ErrorCode.CONCURRENT_TRANSACTIONS if waits else ErrorCode.INVALID_TXN_STATE
                )
            case TransactionState.COMPLETE_COMMIT | TransactionState.COMPLETE_ABORT if is_repeat or not bumps:
                if event.committed != (current.state is TransactionState.COMPLETE_COMMIT):
                    return _refused(event.token, ErrorCode.INVALID_TXN_STATE)
                return (Reply(event.token, Answer(ErrorCode.NONE, current.producer_id, current.producer_epoch)),)
            case _ if bumps and not event.committed and current.state is not TransactionState.DEAD:
                # Nothing was written; what may still be on its way is fenced by the new epoch.
                return self._prepare(event, now_ms)
            case _:
                return _refused(event.token, ErrorCode.INVALID_TXN_STATE)

    def _is_repeated_end(self, event: End) -> bool:
        """Whether the answer to this very request was lost: the epoch has been raised by it already."""
        current = self.current
        if current.client_version < BUMPS_EPOCH_FROM or current.state in {
            TransactionState.EMPTY,
            TransactionState.ONGOING,
        }:
            return False
        if current.producer_id == event.producer_id:
            return current.producer_epoch == event.producer_epoch + 1
        return (
            current.previous_producer_id == event.producer_id
            and event.producer_epoch == EPOCH_MAX - 1
            and current.producer_epoch == 0
        )

    def _prepare(self, event: End, now_ms: int) -> Sequence[Effect]:
        current = self.current
        bumps = event.client_version >= BUMPS_EPOCH_FROM
        next_id = NO_ID
        if bumps and self.wants_fresh_id:
            if event.fresh_id == NO_ID:
                return _refused(event.token, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            next_id = event.fresh_id
        is_open = current.state is TransactionState.ONGOING
        record = replace(
            current,
            state=TransactionState.PREPARE_COMMIT if event.committed else TransactionState.PREPARE_ABORT,
            producer_epoch=current.producer_epoch + 1 if bumps else current.producer_epoch,
            next_producer_id=next_id,
            last_update_ms=now_ms,
            start_ms=current.start_ms if is_open else now_ms,
            client_version=event.client_version,
        )
        given_id, given_epoch = (next_id, 0) if next_id != NO_ID else (record.producer_id, record.producer_epoch)

        def outcome(error: ErrorCode) -> list[Effect]:
            if error is not ErrorCode.NONE:
                return [Reply(event.token, Answer(error))]
            if bumps:
                self._last_epoch = event.producer_epoch
            return [Reply(event.token, Answer(ErrorCode.NONE, given_id, given_epoch)), WriteMarkers(record)]

        return self._persist(record, outcome)

    def _abort_and_fence(self, now_ms: int, answer: Outcome) -> Sequence[Effect]:
        record = replace(
            self.current,
            state=TransactionState.PREPARE_ABORT,
            producer_epoch=self.current.producer_epoch + 1,
            last_update_ms=now_ms,
            client_version=0,
        )

        def outcome(error: ErrorCode) -> list[Effect]:
            if error is not ErrorCode.NONE:
                return answer(error)
            self._last_epoch = NO_EPOCH
            return [*answer(error), WriteMarkers(record)]

        return self._persist(record, outcome)

    def _complete(self, now_ms: int) -> Sequence[Effect]:
        return self._persist(_completed(self.current, now_ms), lambda _: [])

    # Making it durable.

    def _persist(self, record: StoredTransaction | None, outcome: Outcome) -> Sequence[Effect]:
        assert self._pending is None, "one record at a time"
        self._pending = (record, outcome)
        return (Persist(record),)

    def _persisted(self, error: ErrorCode, now_ms: int) -> Sequence[Effect]:
        assert self._pending is not None, "a record is reported once"
        (record, outcome), self._pending = self._pending, None
        self._retry_ms = 0 if error is ErrorCode.NONE else now_ms + RETRY_MS
        if error is ErrorCode.NONE:
            self.current = record or replace(self.current, state=TransactionState.DEAD, start_ms=NO_TIME)
        return outcome(error)


def _completed(prepared: StoredTransaction, now_ms: int) -> StoredTransaction:
    """Return what a prepared transaction is once its markers are written."""
    assert prepared.state.is_prepared, "markers are written for a prepared transaction"
    rotates = prepared.next_producer_id != NO_ID
    remembers = prepared.client_version >= BUMPS_EPOCH_FROM
    return replace(
        prepared,
        state=_COMPLETE_OF[prepared.state],
        producer_id=prepared.next_producer_id if rotates else prepared.producer_id,
        producer_epoch=0 if rotates else prepared.producer_epoch,
        partitions=frozenset(),
        last_update_ms=now_ms,
        previous_producer_id=prepared.producer_id if remembers else prepared.previous_producer_id,
        next_producer_id=NO_ID,
    )


def _refused(token: object, error: ErrorCode) -> Sequence[Effect]:
    return (Reply(token, Answer(error)),)
