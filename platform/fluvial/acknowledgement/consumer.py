"""
A consumer whose records are acknowledged one by one, in any order and from any thread.

It is an ordinary member of an ordinary group, on any cluster: what is done behind the committed offset stands in that
offset's metadata (:mod:`fluvial.acknowledgement.window`). Whoever goes on by the group's offset alone, without knowing
of this, gets some records again and misses none.
"""

import heapq
import itertools
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Literal, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from fluvial.acknowledgement.share import Share
from fluvial.acknowledgement.window import METADATA_MAX, Window
from fluvial.errors import ConfigError

_log = logging.getLogger(__name__)

Order = Literal["none", "key"]
_TopicPartition = tuple[str, int]

COMMIT_INTERVAL_MS = 5000
OPEN_MAX = 1000
# Where there are no wide gaps, a run takes two numbers of three bytes at most: eight characters of metadata.
_RUN_CHARACTERS = 8
# A worker's acknowledgement may free a record while the consumer waits for new ones.
_WAIT_SECONDS = 0.05
_REQUEST_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A record that is to be handled and then acknowledged; `attempt` counts from 1."""

    message: Message
    attempt: int = 1
    _share: "Share[Delivery]" = field(repr=False, compare=False)

    @property
    def offset(self) -> int:
        """Where the record lies in its partition."""
        return int(self.message.offset())

    @property
    def is_open(self) -> bool:
        """Whether it still counts: it is not acknowledged, and its partition is still this member's."""
        return self._share.held and self._share.window.is_open(self.offset)


class SelectiveConsumer:
    """
    A member of a group that acknowledges records and not positions.

    `config` is librdkafka's, with a `group.id`; `auto.commit.interval.ms` (5,000) says how often acknowledgements are
    committed: those since then come again after a crash. With `order="key"` a record is delivered once all earlier
    ones of its key are acknowledged, and a key that is stuck holds up no other. A partition waits while `open_max` of
    its records are open, or while what is done between them has no more room in `metadata_max` characters.

    `poll`, `commit` and `close` belong to one thread; `acknowledge` and `retry` may be called from any. Raises
    ConfigError for a configuration that cannot work.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        order: Order = "none",
        open_max: int = OPEN_MAX,
        metadata_max: int = METADATA_MAX,
    ) -> None:
        given = dict(config)
        if not given.get("group.id"):
            raise ConfigError("group.id is missing: acknowledgements are stored with a group's committed offsets")
        if str(given.get("enable.auto.commit", "false")).lower() == "true":
            raise ConfigError("enable.auto.commit commits what was read, acknowledged or not: leave it out")
        if order not in ("none", "key"):
            raise ConfigError(f'order="{order}" is unknown: use "none" or "key"')
        if open_max < 1 or metadata_max < _RUN_CHARACTERS:
            raise ConfigError(f"open_max must be at least 1, and metadata_max at least {_RUN_CHARACTERS}")
        self._interval = float(given.pop("auto.commit.interval.ms", COMMIT_INTERVAL_MS)) / 1000
        self._consumer = Consumer({**given, "enable.auto.commit": False})
        self._ordered = order == "key"
        self._open_max, self._metadata_max = open_max, metadata_max
        self._runs_max = metadata_max // _RUN_CHARACTERS
        self._lock = Lock()
        self._shares: dict[_TopicPartition, Share[Delivery]] = {}
        self._ready: deque[Delivery] = deque()
        self._later: list[tuple[float, int, Delivery]] = []
        self._numbers = itertools.count()
        self._commit_due = time.monotonic() + self._interval

    def subscribe(self, topics: Sequence[str]) -> None:
        """Join the group for these topics."""
        self._consumer.subscribe(
            list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def poll(self, timeout: float = 1.0) -> Delivery | None:
        """
        The next record to handle, within so many seconds; None when there is none.

        Raises confluent_kafka.KafkaException for what the cluster says of this member or of a partition.
        """
        deadline = time.monotonic() + timeout
        while True:
            now = time.monotonic()
            if now >= self._commit_due:
                self._commit_or_warn()
                self._commit_due = now + self._interval
            self._resume()
            # With a record at hand as well: a member that does not poll is taken out of its group.
            self._take(self._consumer.poll(self._patience(now, deadline)))
            delivery = self._next()
            if delivery is not None or time.monotonic() >= deadline:
                return delivery

    def acknowledge(self, delivery: Delivery) -> bool:
        """
        Say that a record is done. False where that no longer counts: it was done, or its partition is another's now.
        """
        share = delivery._share
        with self._lock:
            if not share.held or not share.window.acknowledge(delivery.offset):
                return False
            following = share.following(delivery.message.key())
            if following is not None:
                self._ready.append(following)
        return True

    def retry(self, delivery: Delivery, after: float = 0.0) -> bool:
        """
        Have a record delivered again in so many seconds. False as with `acknowledge`.
        """
        again = replace(delivery, attempt=delivery.attempt + 1)
        with self._lock:
            if not delivery.is_open:
                return False
            heapq.heappush(self._later, (time.monotonic() + after, next(self._numbers), again))
        return True

    def commit(self) -> None:
        """
        Commit what is acknowledged by now.

        Raises confluent_kafka.KafkaException when the cluster does not take it; it is part of the next commit then.
        """
        self._commit()

    def close(self) -> None:
        """Commit, and leave the group."""
        try:
            self._commit_or_warn()
        finally:
            self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _patience(self, now: float, deadline: float) -> float:
        with self._lock:
            if self._ready:
                return 0.0
            due = self._later[0][0] if self._later else deadline
        return max(min(deadline - now, due - now, _WAIT_SECONDS), 0.0)

    def _next(self) -> Delivery | None:
        with self._lock:
            while self._later and self._later[0][0] <= time.monotonic():
                self._ready.append(heapq.heappop(self._later)[2])
            while self._ready:
                delivery = self._ready.popleft()
                if delivery.is_open:
                    return delivery
        return None

    def _take(self, message: Message | None) -> None:
        if message is None:
            return
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                return
            raise KafkaException(error)
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        with self._lock:
            share = self._shares.get((topic, partition))
            if share is None or offset < share.window.next:
                # It begins again, as a topic does that was made again: what is known is of another record.
                share = self._hold((topic, partition), Window())
            if not share.window.take(offset):
                return
            delivery = Delivery(message=message, _share=share)
            if share.may_go(message.key(), delivery):
                self._ready.append(delivery)
        if not share.paused and share.is_full(self._open_max, self._runs_max):
            share.paused = True
            self._consumer.pause([TopicPartition(topic, partition)])

    def _resume(self) -> None:
        for tp, share in self._shares.items():
            # At half of it, as each pause throws away what was fetched ahead.
            if share.paused and not share.is_full((self._open_max + 1) // 2, (self._runs_max + 1) // 2):
                share.paused = False
                self._consumer.resume([TopicPartition(*tp)])

    def _commit(self) -> None:
        due = []
        with self._lock:
            for tp, share in self._shares.items():
                said = share.window.committed, share.window.metadata(self._metadata_max)
                if said[0] is not None and said != share.said:
                    due.append((share, said, TopicPartition(*tp, said[0], said[1])))
        if not due:
            return
        self._consumer.commit(offsets=[offset for _, _, offset in due], asynchronous=False)
        for share, said, _ in due:
            share.said = said

    def _commit_or_warn(self) -> None:
        try:
            self._commit()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE:
                raise
            # They are part of the next commit, or come again.
            _log.warning("acknowledgements were not committed: %s", error.args[0].str())

    def _hold(self, tp: _TopicPartition, window: Window) -> "Share[Delivery]":
        if (before := self._shares.get(tp)) is not None:
            before.held = False
        self._shares[tp] = Share(window=window, ordered=self._ordered, said=(window.committed, window.metadata()))
        return self._shares[tp]

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            committed = consumer.committed(partitions, _REQUEST_SECONDS)
        except KafkaException as error:
            # What was acknowledged behind the offset comes again then.
            _log.warning("the acknowledgements of earlier members cannot be read: %s", error.args[0].str())
            committed = []
        known = {
            (each.topic, each.partition): Window(each.offset, each.metadata or "")
            for each in committed
            if each.error is None and each.offset >= 0
        }
        with self._lock:
            for each in partitions:
                tp = each.topic, each.partition
                self._hold(tp, known.get(tp) or Window())

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit_or_warn()
        self._on_lost(_consumer, partitions)

    def _on_lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        with self._lock:
            for each in partitions:
                share = self._shares.pop((each.topic, each.partition), None)
                if share is not None:
                    share.held = False
