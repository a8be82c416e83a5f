"""
The asyncio driver of transactions: runs the effects of `core.transaction` on the partitions of `__transaction_state`.

A transactional id belongs to the partition that its name hashes to, and to whoever leads that.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

from log_broker.core.cluster.image import TRANSACTIONS_TOPIC
from log_broker.core.partition.protocol import AppendResult
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
    NO_ID,
    StoredTransaction,
    TopicPartition,
    TransactionState,
    decode_transaction,
    decode_transaction_key,
    encode_transaction,
    encode_transaction_key,
)
from log_broker.core.transactions.transaction import BUMPS_EPOCH_FROM, Transaction
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import BatchHeader
from log_broker.records.control import EndMarker
from log_broker.records.record import Record, build_batch
from log_broker.server.coordinators.internal_topics import transaction_partition
from log_broker.server.coordinators.markers import Ending, MarkerHost, MarkerSender
from log_broker.server.coordinators.runtime import CoordinatorRuntime
from log_broker.server.coordinators.shards import Shard, ShardHost
from log_broker.server.process.log_limiter import RateLimitedLog

_log = logging.getLogger(__name__)

# A producer that comes while markers of its last transaction are being written waits here for so long at most: the
# markers take a few ms, and a client that is sent away comes back after 20 to 100.
SETTLE_SECONDS_MAX = 1.0
MARKER_RETRY_SECONDS = 0.1
MARKER_RETRY_SECONDS_MAX = 1.0

Token = asyncio.Future[Answer]
TransactionShard = Shard[Transaction]


class ProducerIdSource(Protocol):
    """Where new producer ids come from."""

    async def take(self) -> int:
        """Return an id that nobody had; raises BrokerError."""
        ...


class TransactionHost(MarkerHost, ShardHost, Protocol):
    """What the coordinator asks of its node."""

    @property
    def producer_ids(self) -> ProducerIdSource: ...


class TransactionCoordinator:
    """All transactional ids whose partition this node leads."""

    def __init__(self, node: TransactionHost) -> None:
        self._node = node
        self._runtime: CoordinatorRuntime[Transaction] = CoordinatorRuntime(
            node, self, TRANSACTIONS_TOPIC, transaction_partition
        )
        self._trouble = RateLimitedLog(_log, node.loop.time, logging.ERROR)
        self._markers = MarkerSender(node)
        self._waiting: dict[str, asyncio.Future[None]] = {}
        # Batches of one producer must be appended in the order in which they came, so nobody overtakes.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # Asked of the runtime as they are.
        self.start = self._runtime.start
        self.stop = self._runtime.stop
        self.follow = self._runtime.shards.follow
        self.find = self._runtime.find
        self.all = self._runtime.all

    # What the runtime asks.

    @property
    def expiry_interval_ms(self) -> int:
        return self._node.config.transaction_remove_expired_transaction_cleanup_interval_ms

    def replay(self, shard: TransactionShard, header: BatchHeader, content: Record | EndMarker) -> None:
        if isinstance(content, EndMarker) or content.key is None:
            return
        try:
            transactional_id = decode_transaction_key(content.key)
            if transactional_id is None:
                return
            if content.value is None:
                shard.items.pop(transactional_id, None)
            else:
                stored = decode_transaction(content.value)
                shard.items[transactional_id] = Transaction(transactional_id, stored)
        except BrokerError as error:
            _log.error("%s-%d offset %d: %s", TRANSACTIONS_TOPIC, shard.partition, content.offset, error)

    def replayed(self, shard: TransactionShard) -> Iterator[None]:
        return iter(())

    def resume(self, transaction: Transaction) -> Sequence[Effect]:
        return transaction.resume()

    def perform(self, shard: TransactionShard, transaction: Transaction, effect: Effect) -> None:
        match effect:
            case Reply(token, value):
                shard.answer(token, value)
            case Persist(record):
                self._persist(shard, transaction, record)
            case WriteMarkers(prepared):
                self._node.run(self._write_markers(shard, transaction, prepared))

    def settled(self, shard: TransactionShard, transaction: Transaction) -> None:
        """Let whoever waits for the end of the last transaction ask again."""
        if transaction.is_busy and not shard.is_resigned:
            return
        waiter = self._waiting.pop(transaction.transactional_id, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def tick(self, transaction: Transaction, now_ms: int) -> Sequence[Effect]:
        effects = transaction.tick(now_ms)
        if effects:
            name = transaction.transactional_id
            _log.warning("the transaction of %s took longer than its timeout and is aborted", name)
        return effects

    def expire(self, transaction: Transaction, now_ms: int) -> Sequence[Effect]:
        return transaction.expire(now_ms, after_ms=self._node.config.transactional_id_expiration_ms)

    def not_coordinator(self, event: Event) -> Answer:
        return Answer(ErrorCode.NOT_COORDINATOR)

    # What is known here.

    def check(self, transactional_id: str) -> ErrorCode:
        """Say whether this node coordinates the transactional id, and if not, why not."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        return self._runtime.check(transactional_id)

    # What producers ask. The caller has asked `check` before.

    async def init_producer(self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None) -> Answer:
        """Give a producer its id and a new epoch; raises BrokerError when no id can be had."""
        if not 0 < timeout_ms <= self._node.config.transaction_max_timeout_ms:
            return Answer(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        if self.find(transactional_id) is None:
            fresh_id = await self._node.producer_ids.take()
            shard = self._runtime.shard_of(transactional_id)
            if shard is None:
                return Answer(ErrorCode.NOT_COORDINATOR)
            if transactional_id not in shard.items:
                shard.items[transactional_id] = Transaction.fresh(transactional_id, fresh_id, timeout_ms)

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
        transaction = self.find(transactional_id)
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
            shard = self._runtime.shard_of(transactional_id)
            if shard is None:
                return Answer(ErrorCode.NOT_COORDINATOR)
            transaction = shard.items.get(transactional_id)
            if transaction is None:
                return Answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            token: Token = loop.create_future()
            event = await event_of(transaction, token)
            if shard.is_resigned:
                return Answer(ErrorCode.NOT_COORDINATOR)
            self._runtime.ask(shard, transaction, token, event)
            settled = await token
            if settled.error is not ErrorCode.CONCURRENT_TRANSACTIONS or loop.time() >= deadline:
                return settled
            if transaction.is_busy:
                waiter: asyncio.Future[None] = loop.create_future()
                self._waiting[transactional_id] = waiter
                await asyncio.wait((waiter,), timeout=deadline - loop.time())

    # Running effects.

    def _persist(self, shard: TransactionShard, transaction: Transaction, record: StoredTransaction | None) -> None:
        if not shard.may_append:
            self._persisted(shard, transaction, AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        key = encode_transaction_key(transaction.transactional_id)
        value = None if record is None else encode_transaction(record)
        batch = build_batch([(self._node.clock_ms(), key, value, ())])
        shard.runtime.append(batch, acks=-1, done=partial(self._persisted, shard, transaction))

    def _persisted(self, shard: TransactionShard, transaction: Transaction, result: AppendResult) -> None:
        if shard.is_resigned:
            return  # whoever coordinates the id now has read what was stored; here nobody waits for it any more
        if result.error is not ErrorCode.NONE:
            self._trouble.failed(
                "transactional id %s could not be stored: %s", transaction.transactional_id, result.message
            )
        event = Persisted(error=_to_client(result.error))
        self._runtime.handle(shard, transaction, event)
        if event.error is not ErrorCode.NONE and transaction.state.is_prepared:
            # The markers are there and the note of it is not. They may be written twice.
            work = self._write_markers(shard, transaction, transaction.current, after_seconds=MARKER_RETRY_SECONDS)
            self._node.run(work)

    async def _write_markers(
        self,
        shard: TransactionShard,
        transaction: Transaction,
        prepared: StoredTransaction,
        *,
        after_seconds: float = 0.0,
    ) -> None:
        if after_seconds:
            await asyncio.sleep(after_seconds)
        missing = sorted(prepared.partitions)
        pause = MARKER_RETRY_SECONDS
        while missing and not shard.is_resigned:
            outcomes = await asyncio.gather(*(self._mark(shard, transaction, prepared, place) for place in missing))
            missing = [place for place, is_done in zip(missing, outcomes, strict=True) if not is_done]
            if missing:
                await asyncio.sleep(pause)
                pause = min(2 * pause, MARKER_RETRY_SECONDS_MAX)
        if transaction.current is prepared:
            self._runtime.handle(shard, transaction, MarkersWritten())

    async def _mark(
        self, shard: TransactionShard, transaction: Transaction, prepared: StoredTransaction, place: TopicPartition
    ) -> bool:
        """Write one marker; False when it must be tried again, by whoever coordinates the id then."""
        marker = EndMarker(prepared.state is TransactionState.PREPARE_COMMIT, shard.epoch)
        producer = (prepared.producer_id, prepared.producer_epoch)
        match await self._markers.write(place, Ending(producer, marker, prepared.client_version >= BUMPS_EPOCH_FROM)):
            case ErrorCode.NONE | ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return True  # a topic that was deleted took its transactions with it
            case ErrorCode.INVALID_PRODUCER_EPOCH:
                _log.warning("%s-%d has seen a newer end of %s's transaction", *place, transaction.transactional_id)
                return True
            case ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                _log.warning("%s-%d has heard of a newer coordinator of %s", *place, transaction.transactional_id)
                return False
            case _:
                return False


def _to_client(error: ErrorCode) -> ErrorCode:
    """Say what a producer is to make of a failed append to the coordinator's own log."""
    match error:
        case ErrorCode.NONE | ErrorCode.MESSAGE_TOO_LARGE:
            return error
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case _:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
