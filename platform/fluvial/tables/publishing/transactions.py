"""
The producer of a publication: records and the progress that they make, in one transaction.

Of all producers of one publication the latest to begin is the only one that is heard.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fluvial.config import Settings
from fluvial.delta.errors import TableError
from fluvial.kafka.admin import reason
from fluvial.spark.kafka import TopicError
from fluvial.tables.publishing.progress import PROGRESS_TOPIC, Progress

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

RECORDS_MAX = 50_000
"""Of one transaction; a version with more changes takes several."""
VERSION_HEADER = "fluvial.version"
"""The version of the table that a record is of, in digits."""

_SECONDS_MAX = 60.0
_QUEUE_KBYTES_MAX = 64 << 10

Record = tuple[str, bytes | None]
"""A key, and a value or None for a tombstone."""


class FencedError(TableError):
    """
    Another run publishes the same table; nothing that this one had not committed will ever be seen.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name}: another run began to publish it after this one, which was ended: leave it to that run"
        )


def transactional_id(name: str) -> str:
    """
    The transactional id of a publication.
    """
    return f"fluvial.{name}"


class Publisher:
    """
    A transactional producer; making it ends whatever an earlier one had open.

    Every method raises FencedError or TopicError.
    """

    def __init__(self, settings: Settings, name: str, topic: str) -> None:
        from confluent_kafka import Producer

        self._name = name
        self._topic = topic
        self._producer = Producer(
            settings.cluster.client(
                **{
                    "transactional.id": transactional_id(name),
                    # Where Java's producers would put a key, so that others may write to topics joined with this one.
                    "partitioner": "murmur2_random",
                    "linger.ms": 5,
                    "compression.type": "lz4",
                    "queue.buffering.max.kbytes": _QUEUE_KBYTES_MAX,
                },
            )
        )
        with self._explained():
            self._producer.init_transactions(_SECONDS_MAX)

    def claim(self, progress: Progress) -> None:
        """
        Say that the topic is this publication's before the first record is in it.
        """
        with self._transaction():
            self._say(progress)

    def publish(
        self,
        records: Iterable[Record],
        *,
        version: int,
        done: Progress,
        under_way: Callable[[str], Progress],
        records_max: int | None = None,
    ) -> int:
        """
        Write records in transactions of at most `records_max` (RECORDS_MAX); returns how many there were.

        The last transaction also says `done`, those before it `under_way` of the last key that they hold. `records`
        must ascend by the UTF-8 bytes of their keys where there may be more than one transaction.
        """
        most = RECORDS_MAX if records_max is None else records_max
        header = [(VERSION_HEADER, str(version).encode())]
        coming: Iterator[Record] = iter(records)
        following = next(coming, None)
        count = 0
        while True:
            with self._transaction():
                last = ""
                for _ in range(most):
                    if following is None:
                        break
                    last = following[0]
                    self._produce(self._topic, key=last.encode(), value=following[1], headers=header)
                    count += 1
                    following = next(coming, None)
                # The progress comes last: while it is undecided, other publications cannot read theirs.
                self._flush()
                self._say(done if following is None else under_way(last))
            if following is None:
                return count

    def _say(self, progress: Progress) -> None:
        self._produce(PROGRESS_TOPIC, key=self._name.encode(), value=progress.as_json().encode(), partition=0)

    def _produce(self, topic: str, **record: Any) -> None:
        while True:
            try:
                # Nobody asks after each record: a transaction of which one was refused cannot be committed.
                self._producer.produce(topic, **record)
            except BufferError:
                self._producer.poll(0.1)
                continue
            self._producer.poll(0)
            return

    def _flush(self) -> None:
        from confluent_kafka import KafkaError, KafkaException

        if self._producer.flush(_SECONDS_MAX):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._explained():
            self._producer.begin_transaction()
            try:
                yield
                self._flush()
                self._commit()
            except BaseException as error:
                self._abort(error)
                raise

    def _commit(self) -> None:
        from confluent_kafka import KafkaException

        try:
            self._producer.commit_transaction(_SECONDS_MAX)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            # The answer did not come: asking again is asking for the same.
            self._producer.commit_transaction(_SECONDS_MAX)

    def _abort(self, error: BaseException) -> None:
        from confluent_kafka import KafkaException

        cause = error.args[0] if isinstance(error, KafkaException) else None
        if cause is not None and cause.fatal():
            return
        try:
            self._producer.abort_transaction(_SECONDS_MAX)
        except KafkaException as second:
            # The broker ends it when its time is up, or the next publisher when it begins.
            error.add_note(f"and the transaction could not be aborted: {reason(second)}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        from confluent_kafka import KafkaError, KafkaException

        try:
            yield
        except KafkaException as error:
            cause = self._cause(error)
            if cause.code() in {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}:
                raise FencedError(self._name) from error
            raise TopicError(f"{self._name} cannot be published: {reason(error)}") from error

    def _cause(self, error: Exception) -> "KafkaError":
        from confluent_kafka import KafkaError, KafkaException

        cause: KafkaError = error.args[0]
        if cause.code() == KafkaError._FATAL:
            # It says only that there was a fatal error, which is still to be heard.
            try:
                self._producer.poll(0)
            except KafkaException as first:
                cause = first.args[0]
        return cause
