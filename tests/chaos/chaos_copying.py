"""
Copiers: read a topic as members of a group and write what they read to another, offsets and records in one transaction.

librdkafka 2.16 does not keep to the timeout of `send_offsets_to_transaction`: where the group's coordinator leaves the
metadata (Kafka's and ours do not list a broker that is fenced) while the producer still has it in its cache, the call
can wait for ever for a connection to it (librdkafka issues 5456 and 5511). No broker can end that, so a copier does
what a service does whose health check fails: it is replaced, under the same transactional id, which fences the old.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any, TypeVar

from chaos_history import Doing, History, Record
from chaos_workloads import Workload, key_of, record_of
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

INIT_SECONDS_MAX = 30
CALL_SECONDS_MAX = 8
# How much longer than its own timeout a call may take, for all that a busy machine adds.
GRACE_SECONDS = 15.0
RETRY_SECONDS_MAX = 60
ABORTED_SHARE = 0.2
T = TypeVar("T")


class Copying(Workload):
    """
    One copier, through as many lives as it takes.

    A copy's value names the attempt and the original: "copier 1.17>idempotent:5". Every fifth attempt is aborted.
    """

    def __init__(
        self, servers: str, history: History, source: str, target: str, partitions: int, *, name: str, seed: int
    ) -> None:
        super().__init__(servers, history, name)
        self.source = source
        self.target = target
        self.partitions = partitions
        self.rng = Random(seed)
        self.attempts = count()
        self.given_up = 0  # lives

    def run(self) -> None:
        while not self._stopping.is_set():
            life = Life(self, self._stopping)
            life.start()
            while not life.over.wait(0.5):
                if life.give_up_if_stuck():
                    self.given_up += 1
                    break


class Life:
    """
    One consumer and one producer, in a thread, until a KafkaException ends them: fenced, or in doubt for too long.

    Who is given up while a call does not return does nothing more when it does.
    """

    def __init__(self, copier: Copying, stopping: threading.Event) -> None:
        self.over = threading.Event()
        self.copier = copier
        self._stopping = stopping
        self._moved: list[str] = []
        self._lock = threading.Lock()
        self._given_up = False
        self._due: float | None = None  # the call under way has to return by then
        self.doing: Doing | None = None
        # Who does not poll any more, in whatever call it hangs, loses its place in the group.
        self._consumer = Consumer(
            copier.config(
                group_id=f"copiers of {copier.source}",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=6000,
                max_poll_interval_ms=30_000,
                isolation_level="read_committed",
                fetch_wait_max_ms=100,
            )
        )
        self._producer = Producer(
            copier.config(transactional_id=copier.process.replace(" ", "-"), linger_ms=5, transaction_timeout_ms=20_000)
        )

    def start(self) -> None:
        """Begin to copy."""
        threading.Thread(target=self._live, name=self.copier.process, daemon=True).start()

    def give_up_if_stuck(self) -> bool:
        """Whether the call under way has taken so long that it is given up, and this life with it."""
        with self._lock:
            if self._due is None or time.monotonic() < self._due:
                return False
            self._given_up = True
            doing, self.doing = self.doing, None
        if doing is not None:
            # Who was never asked to commit will not be: nothing is called any more.
            self.copier.history.end(doing, "fail" if doing.commit_began is None else "info")
        return True

    def _live(self) -> None:
        try:
            self._copy_on()
        except GivenUpError:
            pass
        except Exception as error:
            self.copier.problems.append(f"{self.copier.process}: {error!r}")
        finally:
            self.over.set()

    def _copy_on(self) -> None:
        self._consumer.subscribe([self.copier.source], on_assign=self._rebalanced, on_revoke=self._rebalanced)
        try:
            self.call(self._producer.init_transactions, INIT_SECONDS_MAX, seconds_max=INIT_SECONDS_MAX)
            while not self._stopping.is_set():
                self._one()
        except KafkaException:
            # Begin again under the same id, which ends what was left open.
            self._stopping.wait(0.2)
        finally:
            with suppress(KafkaException):
                self.call(self._consumer.close)

    def call(self, what: Callable[..., T], *args: Any, seconds_max: float = CALL_SECONDS_MAX) -> T:
        """Call a client; raises GivenUpError where that took so long that nobody waits for it any more."""
        with self._lock:
            if self._given_up:
                raise GivenUpError
            self._due = time.monotonic() + seconds_max + GRACE_SECONDS
        try:
            return what(*args)
        finally:
            with self._lock:
                self._due = None
                if self._given_up:
                    raise GivenUpError

    def _rebalanced(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        self._moved += [key_of(place) for place in places]

    def _one(self) -> None:
        copier, producer = self.copier, self._producer
        attempt = next(copier.attempts)
        doing = self.doing = copier.history.begin(copier.process, transaction=True)
        try:
            polled = self.call(self._consumer.consume, 40, 0.4)
            messages = [message for message in polled if message.error() is None]
            doing.moved, self._moved = self._moved, []
            if not messages:
                doing.outcome = "ok"
                return
            doing.polls += map(record_of, messages)
            producer.begin_transaction()
            for message in messages:
                self._copy(doing, attempt, message)
            self.call(
                producer.send_offsets_to_transaction,
                self._consumer.position(self._consumer.assignment()),
                self._consumer.consumer_group_metadata(),
                CALL_SECONDS_MAX,
            )
            if copier.rng.random() < ABORTED_SHARE:
                self._abort(doing)
            else:
                doing.commit_began = time.monotonic()
                self._until_done(producer.commit_transaction)
                doing.outcome = "ok"
                copier.done += 1
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            # What is to be aborted has not been committed, whatever became of the request to do so.
            self._abort(doing)
        finally:
            with self._lock:
                doing_still, self.doing = self.doing, None
            if doing_still is not None:
                copier.history.end(doing, doing.outcome)

    def _copy(self, doing: Doing, attempt: int, message: Message) -> None:
        copier = self.copier
        value = f"{copier.process}.{attempt}>{record_of(message).value}"
        partition = copier.rng.randrange(copier.partitions)
        key = f"{copier.target}-{partition}"
        at = len(doing.sends)
        doing.sends.append(Record(key=key, offset=None, value=value))

        def delivered(error: KafkaError | None, acked: Message) -> None:
            offset = acked.offset()
            if error is None and offset is not None and offset >= 0:
                doing.sends[at] = Record(key=key, offset=offset, value=value)

        self._producer.produce(copier.target, value, partition=partition, on_delivery=delivered)

    def _until_done(self, end: Callable[[float], None]) -> None:
        """Commit or abort, again and again while that may be tried again."""
        deadline = time.monotonic() + RETRY_SECONDS_MAX
        while True:
            try:
                self.call(end, CALL_SECONDS_MAX)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def _abort(self, doing: Doing) -> None:
        self._until_done(self._producer.abort_transaction)
        doing.outcome = "fail"
        consumer = self._consumer
        assigned = consumer.assignment()
        if not assigned:
            return
        for place in self.call(consumer.committed, assigned, CALL_SECONDS_MAX):
            begin = place.offset if place.offset >= 0 else OFFSET_BEGINNING
            consumer.seek(TopicPartition(place.topic, place.partition, begin))
            self._moved.append(key_of(place))


class GivenUpError(Exception):
    """Nobody waits any more for what this life was doing."""
