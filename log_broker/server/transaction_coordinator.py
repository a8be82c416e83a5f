"""
The asyncio driver of transactions: runs the effects of `core.transaction` on the partitions of `__transaction_state`.

A transactional id belongs to the partition that its name hashes to, and to whoever leads that.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from log_broker.core.cluster import TRANSACTIONS_TOPIC
from log_broker.core.partition_protocol import AppendResult
from log_broker.core.transaction import BUMPS_EPOCH_FROM, Transaction
from log_broker.core.transaction_protocol import (
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
from log_broker.core.transaction_records import (
    NO_ID,
    StoredTransaction,
    TopicPartition,
    TransactionState,
    decode_transaction,
    decode_transaction_key,
    encode_transaction,
    encode_transaction_key,
)
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.control import EndMarker
from log_broker.records.record import build_batch
from log_broker.server.deadlines import Deadlines
from log_broker.server.internal_log import stored_records
from log_broker.server.partition import PartitionRuntime
from log_broker.server.transaction_markers import Ending, MarkerSender

if TYPE_CHECKING:
    from log_broker.server.node import Node

_log = logging.getLogger(__name__)

# A producer that comes while markers of its last transaction are being written waits here for so long at most: the
# markers take a few ms, and a client that is sent away comes back after 20 to 100.
SETTLE_SECONDS_MAX = 1.0
MARKER_RETRY_SECONDS = 0.1
MARKER_RETRY_SECONDS_MAX = 1.0

Token = asyncio.Future[Answer]


class TransactionCoordinator:
    """All transactional ids whose partition this node leads."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._transactions: dict[str, Transaction] = {}
        self._loaded: set[int] = set()
        self._deadlines = Deadlines(node, self._time_is_up)
        self._markers = MarkerSender(node)
        self._waiting: dict[str, asyncio.Future[None]] = {}
        # Batches of one producer must be appended in the order in which they came, so nobody overtakes.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._expiration: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look for ids that nobody uses any more."""
        seconds = self._node.config.transaction_remove_expired_transaction_cleanup_interval_ms / 1000
        self._expiration = self._node.loop.call_later(seconds, self._expire)

    def stop(self) -> None:
        self._deadlines.drop_all()
        if self._expiration is not None:
            self._expiration.cancel()

    def load(self, runtime: PartitionRuntime) -> None:
        """
        Take over a partition that this node leads now, and finish what had been decided.

        What cannot be read is said in the log and left out.
        """
        if runtime.partition in self._loaded:
            return
        stored: dict[str, StoredTransaction] = {}
        for record in stored_records(runtime):
            if record.key is None:
                continue
            try:
                transactional_id = decode_transaction_key(record.key)
                if transactional_id is None:
                    continue
                if record.value is None:
                    stored.pop(transactional_id, None)
                else:
                    stored[transactional_id] = decode_transaction(record.value)
            except BrokerError as error:
                _log.error("%s-%d offset %d: %s", runtime.topic, runtime.partition, record.offset, error)
        self._loaded.add(runtime.partition)
        for transactional_id, current in stored.items():
            transaction = self._transactions[transactional_id] = Transaction(transactional_id, current)
            self._run(transaction, transaction.resume())

    def unload_all(self) -> None:
        """Forget everything: the topic was deleted."""
        self.stop()
        self._transactions.clear()
        self._loaded.clear()

    def check(self, transactional_id: str) -> ErrorCode:
        """Say whether this node coordinates the transactional id, and if not, why not."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        partition = self._node.transaction_partition(transactional_id)
        return self._node.coordination_error(TRANSACTIONS_TOPIC, partition, self._loaded)

    def find(self, transactional_id: str) -> Transaction | None:
        return self._transactions.get(transactional_id)

    def all(self) -> Iterable[Transaction]:
        return self._transactions.values()

    # What producers ask. The caller has asked `check` before.

    async def init_producer(self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None) -> Answer:
        """Give a producer its id and a new epoch; raises BrokerError when no id can be had."""
        if not 0 < timeout_ms <= self._node.config.transaction_max_timeout_ms:
            return Answer(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        if transactional_id not in self._transactions:
            fresh_id = await self._node.producer_ids.take()
            if transactional_id not in self._transactions:
                fresh = Transaction.fresh(transactional_id, fresh_id, timeout_ms)
                self._transactions[transactional_id] = fresh

        async def event_of(transaction: Transaction, token: Token) -> Event:
            fresh_id = await self._node.producer_ids.take() if transaction.wants_fresh_id else NO_ID
            return InitProducer(token=token, timeout_ms=timeout_ms, expected=expected, fresh_id=fresh_id)

        return await self._settled(transactional_id, event_of)

    async def add_partitions(
        self, transactional_id: str, producer: tuple[int, int], partitions: Iterable[TopicPartition]
    ) -> ErrorCode:
        """Take partitions into the transaction of `producer`, (id, epoch)."""
        wanted = frozenset(partitions)

        async def event_of(_: Transaction, token: Token) -> Event:
            return AddPartitions(token=token, producer_id=producer[0], producer_epoch=producer[1], partitions=wanted)

        return (await self._settled(transactional_id, event_of)).error

    def verify(self, transactional_id: str, producer: tuple[int, int], partition: TopicPartition) -> ErrorCode:
        """Say whether a partition is in the transaction of `producer`, (id, epoch)."""
        error = self.check(transactional_id)
        if error is not ErrorCode.NONE:
            return error
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return transaction.verify(*producer, partition)

    async def end(
        self, transactional_id: str, producer: tuple[int, int], *, committed: bool, client_version: int
    ) -> Answer:
        """Commit or abort; raises BrokerError when an id is needed and cannot be had."""

        async def event_of(transaction: Transaction, token: Token) -> Event:
            fresh_id = NO_ID
            if client_version and transaction.wants_fresh_id:
                fresh_id = await self._node.producer_ids.take()
            return End(
                token=token,
                producer_id=producer[0],
                producer_epoch=producer[1],
                committed=committed,
                client_version=client_version,
                fresh_id=fresh_id,
            )

        return await self._settled(transactional_id, event_of)

    async def _settled(
        self, transactional_id: str, event_of: Callable[[Transaction, Token], Awaitable[Event]]
    ) -> Answer:
        """Ask, and while the transaction is being ended ask again once it has been; one asker after the other."""
        turn = self._turns.get(transactional_id)
        if turn is None:
            turn = self._turns[transactional_id] = asyncio.Lock()
        async with turn:
            return await self._settled_in_turn(transactional_id, event_of)

    async def _settled_in_turn(
        self, transactional_id: str, event_of: Callable[[Transaction, Token], Awaitable[Event]]
    ) -> Answer:
        loop = self._node.loop
        deadline = loop.time() + SETTLE_SECONDS_MAX
        while True:
            transaction = self._transactions.get(transactional_id)
            if transaction is None:
                return Answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            token: Token = loop.create_future()
            event = await event_of(transaction, token)
            self._run(transaction, transaction.handle(event, self._node.clock_ms()))
            answer = await token
            if answer.error is not ErrorCode.CONCURRENT_TRANSACTIONS or loop.time() >= deadline:
                return answer
            if transaction.is_busy:
                waiter: asyncio.Future[None] = loop.create_future()
                self._waiting[transactional_id] = waiter
                await asyncio.wait((waiter,), timeout=deadline - loop.time())

    # Running effects.

    def _run(self, transaction: Transaction, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply(token, answer):
                    if not token.done():
                        token.set_result(answer)
                case Persist(record):
                    self._persist(transaction, record)
                case WriteMarkers(prepared):
                    self._node.run(self._write_markers(transaction, prepared))
        transactional_id = transaction.transactional_id
        if not transaction.is_busy:
            is_gone = transaction.is_unused or transaction.state is TransactionState.DEAD
            if is_gone and self._transactions.get(transactional_id) is transaction:
                del self._transactions[transactional_id]
            waiter = self._waiting.pop(transactional_id, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
        self._set_timer(transactional_id)

    def _persist(self, transaction: Transaction, record: StoredTransaction | None) -> None:
        transactional_id = transaction.transactional_id
        partition = self._node.transaction_partition(transactional_id)
        runtime = None if partition is None else self._node.logs.get(TRANSACTIONS_TOPIC, partition)
        if runtime is None:
            self._persisted(transaction, AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        key = encode_transaction_key(transactional_id)
        value = None if record is None else encode_transaction(record)
        batch = build_batch([(self._node.clock_ms(), key, value, ())])
        runtime.append(batch, acks=-1, done=partial(self._persisted, transaction))

    def _persisted(self, transaction: Transaction, result: AppendResult) -> None:
        if result.error is not ErrorCode.NONE:
            _log.error("transactional id %s could not be stored: %s", transaction.transactional_id, result.message)
        event = Persisted(error=_to_client(result.error))
        self._run(transaction, transaction.handle(event, self._node.clock_ms()))
        if event.error is not ErrorCode.NONE and transaction.state.is_prepared:
            # The markers are there and the note of it is not. They may be written twice.
            self._node.run(self._write_markers(transaction, transaction.current, after_seconds=MARKER_RETRY_SECONDS))

    async def _write_markers(
        self, transaction: Transaction, prepared: StoredTransaction, *, after_seconds: float = 0.0
    ) -> None:
        if after_seconds:
            await asyncio.sleep(after_seconds)
        missing = sorted(prepared.partitions)
        pause = MARKER_RETRY_SECONDS
        while missing:
            outcomes = await asyncio.gather(*(self._mark(transaction, prepared, place) for place in missing))
            missing = [place for place, is_done in zip(missing, outcomes, strict=True) if not is_done]
            if missing:
                await asyncio.sleep(pause)
                pause = min(2 * pause, MARKER_RETRY_SECONDS_MAX)
        if self._transactions.get(transaction.transactional_id) is transaction and transaction.current is prepared:
            self._run(transaction, transaction.handle(MarkersWritten(), self._node.clock_ms()))

    async def _mark(self, transaction: Transaction, prepared: StoredTransaction, place: TopicPartition) -> bool:
        """Write one marker; False when it must be tried again."""
        partition = self._node.transaction_partition(transaction.transactional_id)
        runtime = None if partition is None else self._node.logs.get(TRANSACTIONS_TOPIC, partition)
        epoch = 0 if runtime is None else runtime.leader_epoch
        marker = EndMarker(prepared.state is TransactionState.PREPARE_COMMIT, epoch)
        producer = (prepared.producer_id, prepared.producer_epoch)
        match await self._markers.write(place, Ending(producer, marker, prepared.client_version >= BUMPS_EPOCH_FROM)):
            case ErrorCode.NONE | ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return True  # a topic that was deleted took its transactions with it
            case ErrorCode.INVALID_PRODUCER_EPOCH | ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                _log.warning("%s-%d has seen a newer end of %s's transaction", *place, transaction.transactional_id)
                return True
            case _:
                return False

    # Time.

    def _set_timer(self, transactional_id: str) -> None:
        """See that the transaction's end of time is met; the timer of one that has ended is left for the next."""
        transaction = self._transactions.get(transactional_id)
        deadline = None if transaction is None else transaction.next_deadline_ms()
        if deadline is not None:
            self._deadlines.meet(transactional_id, deadline)

    def _time_is_up(self, transactional_id: str) -> None:
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            return
        effects = transaction.tick(self._node.clock_ms())
        if effects:
            _log.warning("the transaction of %s took longer than its timeout and is aborted", transactional_id)
        self._run(transaction, effects)

    def _expire(self) -> None:
        after_ms = self._node.config.transactional_id_expiration_ms
        for transaction in list(self._transactions.values()):
            self._run(transaction, transaction.expire(self._node.clock_ms(), after_ms=after_ms))
        self.start()


def _to_client(error: ErrorCode) -> ErrorCode:
    """Say what a producer is to make of a failed append to the coordinator's own log."""
    match error:
        case ErrorCode.NONE | ErrorCode.MESSAGE_TOO_LARGE:
            return error
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case _:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
