"""
The topic `_schemas` of any Kafka-protocol cluster, as the registry's log.

Whoever writes first claims the transactional id that all registries of a cluster share, which fences every former
claimant (KIP-98): what a registry decides on stale knowledge is refused by the cluster and decided again. So several
may serve one cluster, each may write, and no id is given twice. Confluent's registry keeps its records in the same
form but knows nothing of this claim: let it not write to the topic at the same time.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from fluvial.registry import errors
from fluvial.registry.model.registry import Registry
from log_broker.errors import BrokerError, ErrorCode
from log_broker.interfaces import InternalRecord

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient

Answer = TypeVar("Answer")

REPLICATION_FACTOR_MAX = 3
REQUEST_SECONDS = 10.0
TRANSACTION_TIMEOUT_MS = 10_000
WATCH_SECONDS = 0.5
"""How long what another registry wrote may stay unseen here by those who do not miss it."""
RETRY_SECONDS_MAX = 5.0
_POLL_SECONDS = 0.2
_BATCH_MAX = 1_000
_VISIBLE_SECONDS = 0.01
_FENCED = "another registry has written meanwhile"

log = logging.getLogger(__name__)


class KafkaLog:
    """
    `InternalLog` over a topic of one partition, and the forwarder's `Primary`: whoever is asked may write.

    `client` holds librdkafka's properties, `bootstrap.servers` among them. Its calls block, so they run in a thread
    of their own, one after the other. Not usable before `open`; `close` it at the end.
    """

    is_led_here = True

    def __init__(self, client: Mapping[str, Any], topic: str) -> None:
        self._client = {**client, "error_cb": lambda error: log.info("%s: %s", topic, error)}
        self._topic = topic
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="registry-log")
        self._admin: AdminClient
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._term = 0
        self._read_to = 0

    async def open(self) -> None:
        """Make the topic where it is missing. Raises BrokerError: no answer, or a topic that would lose schemas."""
        await self._call(self._open)

    async def close(self) -> None:
        """Let go of every connection."""
        await self._call(self._close)
        self._thread.shutdown()

    async def lead(self) -> int:
        """Claim the right to write unless it is held already. See `InternalLog.lead`."""
        return await self._call(self._claim)

    async def append(self, records: Sequence[tuple[bytes | None, bytes | None]], term: int | None = None) -> int:
        """See `InternalLog.append`; the records are one transaction. Raises RefusedError when it was fenced before."""
        return await self._call(lambda: self._append(records, term))

    async def read(self, from_offset: int = 0) -> AsyncIterator[InternalRecord]:
        """See `InternalLog.read`."""
        end = await self._call(self._end)
        position = from_offset
        while position < end:
            found, position = await self._read_some(position, end)
            for each in found:
                yield each
        self._read_to = end

    async def has_new_records(self) -> bool:
        """Say whether there is anything behind what was read last, if only the marker of a transaction."""
        return await self._call(self._end) > self._read_to

    async def primary_url(self) -> str:
        """Nobody else is asked to write."""
        raise errors.unknown_primary("every registry of this cluster writes for itself")

    async def _read_some(self, position: int, end: int) -> tuple[list[InternalRecord], int]:
        return await self._call(lambda: self._consume(position, end))

    async def _call(self, work: Callable[[], Answer]) -> Answer:
        from confluent_kafka import KafkaException

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except KafkaException as error:
            raise _as_broker_error(error.args[0], self._topic) from error

    def _open(self) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic

        self._admin = AdminClient(self._client)
        brokers = len(self._admin.list_topics(topic="", timeout=REQUEST_SECONDS).brokers)
        new = NewTopic(
            self._topic,
            num_partitions=1,
            replication_factor=min(REPLICATION_FACTOR_MAX, brokers),
            config={"cleanup.policy": "compact"},
        )
        try:
            self._admin.create_topics([new], request_timeout=REQUEST_SECONDS)[self._topic].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            self._check()

    def _check(self) -> None:
        from confluent_kafka.admin import ConfigResource, ResourceType

        partitions = self._admin.list_topics(topic=self._topic, timeout=REQUEST_SECONDS).topics[self._topic].partitions
        if len(partitions) != 1:
            count = len(partitions)
            raise BrokerError(
                ErrorCode.INVALID_PARTITIONS,
                f"{self._topic} has {count} partitions, a registry's topic has one: name another with --topic",
            )
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        policy = self._admin.describe_configs([resource])[resource].result()["cleanup.policy"].value
        if policy != "compact":
            raise BrokerError(
                ErrorCode.INVALID_CONFIG,
                f"{self._topic} has cleanup.policy={policy}, under which schemas are lost in time: set it to compact",
            )

    def _close(self) -> None:
        self._drop_producer()
        if self._consumer is not None:
            self._consumer.close()
        # A client goes on dialing for as long as anything holds it.
        self._consumer = None
        vars(self).pop("_admin", None)

    def _claim(self) -> int:
        if self._producer is None:
            from confluent_kafka import Producer

            producer = Producer(
                {
                    **self._client,
                    "transactional.id": f"fluvial-registry-{self._topic}",
                    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                    "linger.ms": 0,
                }
            )
            # It returns once whatever a former claimant had begun is ended.
            producer.init_transactions(REQUEST_SECONDS)
            self._producer = producer
            self._term += 1
        return self._term

    def _append(self, records: Sequence[tuple[bytes | None, bytes | None]], term: int | None) -> int:
        producer = self._producer
        if producer is None or (term is not None and term != self._term):
            raise errors.unknown_primary(_FENCED)
        try:
            first, last = self._write(producer, records)
            producer.commit_transaction(REQUEST_SECONDS)
        except BaseException:
            # What became of it is known once the next claim has ended it: committed whole, or not at all.
            self._drop_producer()
            raise
        # A commit is answered when it is decided; readers see it when its marker is written.
        while self._end() <= last:
            producer.poll(_VISIBLE_SECONDS)
        return first

    def _write(self, producer: "Producer", records: Sequence[tuple[bytes | None, bytes | None]]) -> tuple[int, int]:
        """Begin a transaction and write; return the first and the last offset."""
        from confluent_kafka import KafkaError, KafkaException

        offsets: list[int] = []
        failed: list[KafkaError] = []

        def delivered(error: "KafkaError | None", message: Any) -> None:
            if error is None:
                offsets.append(message.offset())
            else:
                failed.append(error)

        producer.begin_transaction()
        for key, value in records:
            producer.produce(self._topic, key=key, value=value, partition=0, on_delivery=delivered)
        try:
            producer.flush(REQUEST_SECONDS)
        except (KafkaException, SystemError) as error:
            # The client raises a fatal error out of whatever it runs just then, also out of `delivered`: it was fenced.
            raise errors.unknown_primary(_FENCED) from error
        if any(error.code() in {KafkaError._FENCED, KafkaError._PURGE_QUEUE} or error.fatal() for error in failed):
            raise errors.unknown_primary(_FENCED)  # nothing of it was written, so it may be said again
        if failed:
            raise KafkaException(failed[0])
        if len(offsets) < len(records):
            raise BrokerError(ErrorCode.REQUEST_TIMED_OUT, f"{self._topic} did not take a record in time")
        return min(offsets), max(offsets)

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(Exception):
                producer.purge()
                producer.flush(0)

    def _end(self) -> int:
        """The last stable offset."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        place = TopicPartition(self._topic, 0)
        asked = self._admin.list_offsets(
            {place: OffsetSpec.latest()},
            request_timeout=REQUEST_SECONDS,
            isolation_level=IsolationLevel.READ_COMMITTED,
        )
        end: int = asked[place].result().offset
        return end

    def _consume(self, position: int, end: int) -> tuple[list[InternalRecord], int]:
        """Records from `position` on, and where reading goes on: at or beyond `end` when there is nothing more."""
        from confluent_kafka import KafkaError, KafkaException

        consumer = self._consumer_at(position)
        found = []
        first = consumer.poll(_POLL_SECONDS)
        for message in [] if first is None else [first, *consumer.consume(_BATCH_MAX, 0)]:
            error = message.error()
            if error is None:
                offset, (_, timestamp) = message.offset(), message.timestamp()
                found.append(
                    InternalRecord(offset=offset, timestamp=timestamp, key=message.key(), value=message.value())
                )
                position = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                # Behind the last record stand markers at most.
                position = max(position, end)
            else:
                raise KafkaException(error)
        return found, position

    def _consumer_at(self, position: int) -> "Consumer":
        from confluent_kafka import Consumer, TopicPartition

        if self._consumer is None:
            self._consumer = Consumer(
                {
                    **self._client,
                    "group.id": "fluvial-registry",  # never joined: the partition is assigned by hand
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "isolation.level": "read_committed",
                    "auto.offset.reset": "error",
                    "fetch.wait.max.ms": 10,
                    "fetch.queue.backoff.ms": 10,
                }
            )
        self._consumer.assign([TopicPartition(self._topic, 0, position)])
        return self._consumer


async def follow(registry: Registry, schemas: KafkaLog) -> None:
    """Keep a `registry` up to date with what others write, until cancelled."""
    reachable = True
    wait = WATCH_SECONDS
    while True:
        await asyncio.sleep(wait)
        try:
            if await schemas.has_new_records():
                await registry.refresh()
            reachable, wait = True, WATCH_SECONDS
        except BrokerError as error:
            if reachable:
                log.warning("the schemas are not followed: %s", error)
            reachable, wait = False, min(2 * wait, RETRY_SECONDS_MAX)


def _as_broker_error(error: "KafkaError", topic: str) -> BrokerError:
    try:
        code = ErrorCode(error.code())
    except ValueError:
        code = ErrorCode.UNKNOWN_SERVER_ERROR  # librdkafka's own, below zero
    return BrokerError(code, f"{topic}: {error.str()}")
