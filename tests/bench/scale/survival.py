"""One of three brokers gets SIGKILL under a producer: are all acknowledged records read, and do writes go on?"""

import time
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer

from tests.bench.broker.measuring import stored
from tests.bench.clients.measure import PATIENCE_SECONDS, Nodes, producer, reader

PARTITIONS = 12
SEND_SECONDS = 0.0005


class Survival(NamedTuple):
    """What was left after the kill."""

    acknowledged: int  # records, with the default durability and acks=all
    afterwards: int  # of them, sent after the kill
    missing: int  # of them, not read
    seconds: float  # from the kill until each partition had acknowledged a record that was sent after it


class _Writer:
    """A stock idempotent producer that writes numbers into each partition in turn."""

    def __init__(self, client: Producer, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._sent = 0
        self._killed_from: int | None = None
        self._back: set[int] = set()  # partitions that acknowledged what was sent after the kill
        self.acknowledged: set[int] = set()
        self.errors: list[str] = []

    def write(self) -> None:
        """Send the next record and take the answers that are there."""
        number = self._sent
        self._sent += 1

        def told(error: Any, message: Any) -> None:
            if error is not None:
                self.errors.append(error.str())
                return
            self.acknowledged.add(number)
            if self._killed_from is not None and number >= self._killed_from:
                self._back.add(message.partition())

        self._client.produce(self._topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=told)
        self._client.poll(SEND_SECONDS)

    def mark_kill(self) -> None:
        self._killed_from = self._sent

    @property
    def is_back(self) -> bool:
        return len(self._back) == PARTITIONS

    @property
    def afterwards(self) -> int:
        assert self._killed_from is not None
        return sum(1 for number in self.acknowledged if number >= self._killed_from)

    def finish(self) -> None:
        if self._client.flush(PATIENCE_SECONDS) or self.errors:
            raise RuntimeError(f"records were not acknowledged: {self.errors[:3]}")


def killed(running: Nodes, seconds: float) -> Survival:
    """
    Write for so many seconds, kill the leader of the first partition, and write on for as long once all are led again.

    The node stays dead. Raises RuntimeError when a record is never acknowledged.
    """
    topic = running.topic(PARTITIONS, copies=3, min_insync_replicas="2")
    leader = running.leaders(topic)[0]
    victim = next(member for member in running.members if member.address == leader)
    writer = _Writer(producer(running, enable_idempotence=True, linger_ms=0), topic)
    _write(writer, seconds)
    writer.mark_kill()
    victim.kill()
    began = time.monotonic()
    while not writer.is_back:
        if time.monotonic() - began > PATIENCE_SECONDS:
            raise RuntimeError(f"{topic} takes no records after the kill: {writer.errors[:3]}")
        writer.write()
    took = time.monotonic() - began
    _write(writer, seconds)
    writer.finish()
    read = _numbers(running, topic)
    return Survival(len(writer.acknowledged), writer.afterwards, len(writer.acknowledged - read), took)


def _write(writer: _Writer, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        writer.write()


def _numbers(running: Nodes, topic: str) -> set[int]:
    """Read the topic to its end, and return what stands in its records."""
    left = stored(running, topic, range(PARTITIONS))  # type: ignore[arg-type]  # only the address is asked
    client: Consumer = reader(running, topic, PARTITIONS)
    deadline = time.monotonic() + PATIENCE_SECONDS
    found: set[int] = set()
    try:
        while left > 0:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{left} records of {topic} cannot be read")
            messages = [message for message in client.consume(10_000, 0.1) if message.error() is None]
            found.update(int(message.value()) for message in messages)
            left -= len(messages)
    finally:
        client.close()
    return found
