"""
Two ways to handle records by calls that may never return, without losing the membership or a record.

A member that does not poll within `max.poll.interval.ms` is taken out of its group, and the next one takes the same
record. So either the call gets a time limit, and what exceeds it a topic of its own; or other threads make the calls,
and the one that owns the consumer goes on polling.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as CallTimeoutError
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

Call = Callable[[bytes], object]


def handle_within(
    consumer: Consumer, call: Call, *, pool: ThreadPoolExecutor, seconds: float, producer: Producer, retry_topic: str
) -> bool | None:
    """
    Handle one record, or send it to `retry_topic` when the call takes longer; None when no record came.

    The offset is committed once the call is done or the record is safe elsewhere, so a crash repeats and loses nothing.
    """
    message: Any = consumer.poll(0.1)
    if message is None or message.error() is not None:
        return None
    done = pool.submit(call, message.value())
    try:
        done.result(seconds)
    except CallTimeoutError:
        place = f"{message.topic()}-{message.partition()}@{message.offset()}"
        producer.produce(retry_topic, message.value(), message.key(), headers=[("from", place.encode())])
        if producer.flush(30):
            raise RuntimeError(f"{place} could not be put aside") from None
    consumer.commit(message, asynchronous=False)
    return not done.running()


class HandOff:
    """
    Calls made by workers while the consumer goes on polling.

    A partition is committed up to its first record that is not done; with `ahead` calls under way no more is taken.
    """

    def __init__(self, consumer: Consumer, call: Call, pool: ThreadPoolExecutor, *, ahead: int = 8) -> None:
        self._consumer = consumer
        self._call = call
        self._pool = pool
        self._ahead = ahead
        self._waiting: dict[tuple[str, int], dict[int, Future[object]]] = {}

    @property
    def under_way(self) -> int:
        """How many calls have not returned."""
        return sum(not call.done() for calls in self._waiting.values() for call in calls.values())

    def turn(self) -> None:
        """Take what has come, and commit what is done; to be called again and again."""
        places = self._consumer.assignment()
        (self._consumer.pause if self.under_way >= self._ahead else self._consumer.resume)(places)
        message: Any = self._consumer.poll(0.02)
        if message is not None and message.error() is None:
            calls = self._waiting.setdefault((message.topic(), message.partition()), {})
            calls[message.offset()] = self._pool.submit(self._call, message.value())
        for (topic, partition), calls in self._waiting.items():
            self._commit(topic, partition, calls)

    def _commit(self, topic: str, partition: int, calls: dict[int, "Future[object]"]) -> None:
        up_to = None
        for offset in sorted(calls):
            if not calls[offset].done():
                break
            calls.pop(offset).result()  # what went wrong stops the program: the record comes again
            up_to = offset + 1
        if up_to is not None:
            self._consumer.commit(offsets=[TopicPartition(topic, partition, up_to)], asynchronous=False)
