"""
What a cluster's topics hold already, so that a publisher that was killed goes on where the log ends.

Nothing is remembered in a file: an offset counts records, and which record stands where follows from the feed.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from fluvial.errors import FluvialError

REQUEST_TIMEOUT_S = 30.0
TRY_S = 5.0
FAILOVER_TIMEOUT_S = 90.0
VALIDATION = {"fluvial.value.schema.validation": "payload", "fluvial.schema.violation": "quarantine"}

# A killed publisher's last requests may still be on their way into the log. They come from a closed connection, so a
# log whose ends stand still this long has taken them all.
SETTLED_AFTER_S = 0.5
SETTLE_POLL_S = 0.1
_COMMITTED, _UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


class PublishError(FluvialError):
    """The events could not be brought into the log."""


class ForeignLogError(PublishError):
    """A topic holds something else than the feed at that place."""

    def __init__(self, topic: str, partition: int, found: str) -> None:
        super().__init__(
            f"topic {topic} partition {partition} {found}: it was not written by this publisher from this data. "
            f"Delete it (fluvial topic delete {topic}) and publish again"
        )
        self.topic = topic
        self.partition = partition


PASSING = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._DESTROY_BROKER,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""Errors of a topic that is being made, of a broker that restarts, or of one that is gone while others take over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """One record as the log gives it back."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


def ensure_topic(admin: AdminClient, topic: str, *, partitions: int, compacted: bool) -> int:
    """
    Create a topic if it is missing, and return how many partitions it has.

    Its records are kept for ever, because they carry times of 2013. Where the cluster knows no validation of schema ids
    (it is not ours), the topic is made without it. Raises `PublishError`.
    """
    try:
        existing = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics.get(topic)
    except KafkaException as error:
        raise PublishError(f"the cluster does not answer: {error.args[0].str()}") from error
    if existing is not None:
        return len(existing.partitions)
    config = {"retention.ms": "-1", "cleanup.policy": "compact" if compacted else "delete"}
    refused = _create(admin, NewTopic(topic, num_partitions=partitions, config=config | VALIDATION))
    if refused is not None and refused.code() == KafkaError.INVALID_CONFIG:
        refused = _create(admin, NewTopic(topic, num_partitions=partitions, config=config))
    if refused is not None and refused.code() != KafkaError.TOPIC_ALREADY_EXISTS:
        raise PublishError(f"topic {topic} could not be created: {refused.str()}")
    return partitions


def puts_aside(admin: AdminClient, topic: str) -> bool:
    """Whether records of a topic that break its contract go to quarantine; raises `PublishError`."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        config = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource].result()
    except KafkaException as error:
        raise PublishError(f"the settings of topic {topic} could not be read: {error.args[0].str()}") from error
    return all(name in config and config[name].value == text for name, text in VALIDATION.items())


def _create(admin: AdminClient, topic: NewTopic) -> KafkaError | None:
    created = admin.create_topics([topic], operation_timeout=REQUEST_TIMEOUT_S)[topic.topic]
    try:
        created.result()
    except KafkaException as error:
        reason: KafkaError = error.args[0]
        return reason
    return None


def settled_ends(consumer: Consumer, topic: str, partitions: int, expected: Sequence[int]) -> list[int]:
    """Return each partition's end offset once it stands still; a log that is empty or complete does so already."""
    ends = end_offsets(consumer, topic, partitions)
    if all(end == 0 for end in ends) or ends == list(expected):
        return ends
    return _unchanged_for(SETTLED_AFTER_S, lambda: end_offsets(consumer, topic, partitions), ends)


def _unchanged_for(seconds: float, read: Callable[[], list[int]], value: list[int]) -> list[int]:
    since = time.monotonic()
    while time.monotonic() - since < seconds:
        time.sleep(SETTLE_POLL_S)
        newer = read()
        if newer != value:
            value, since = newer, time.monotonic()
    return value


def end_offsets(consumer: Consumer, topic: str, partitions: int) -> list[int]:
    """
    Return the offset after the last record of each partition.

    Waits for what passes, such as leaders of a topic that was made just now; raises `PublishError` when it does not.
    """
    deadline = time.monotonic() + FAILOVER_TIMEOUT_S
    return [_end_offset(consumer, TopicPartition(topic, partition), deadline) for partition in range(partitions)]


def begins_of(consumer: Consumer, topic: str, partitions: int, time_ms: int) -> dict[int, int]:
    """
    Return the offset of each partition's first record that is at least as late, for those that have one.

    The cluster's answer may be a transaction's marker, which has the time of its writing; from there it is looked.
    """
    places = [TopicPartition(topic, partition, time_ms) for partition in range(partitions)]
    try:
        answer = consumer.offsets_for_times(places, timeout=REQUEST_TIMEOUT_S)
    except KafkaException as error:
        raise PublishError(f"topic {topic} could not be searched by time: {error.args[0].str()}") from error
    starts = {place.partition: place.offset for place in answer if place.offset >= 0}
    found = read_at(consumer, topic, starts, lambda record: record.timestamp_ms >= time_ms) if starts else {}
    return {partition: record.offset for partition, record in found.items()}


def decided_ends(admin: AdminClient, topic: str, partitions: int) -> list[int]:
    """
    Return the offset after the last record or marker of each partition once every transaction in it is decided.

    A commit is answered before its markers are written. Raises `PublishError` when they do not come.
    """
    places = [TopicPartition(topic, partition) for partition in range(partitions)]
    deadline = time.monotonic() + FAILOVER_TIMEOUT_S
    while True:
        try:
            stable, written = (_latest(admin, places, level) for level in (_COMMITTED, _UNCOMMITTED))
            if stable == written:
                return written
            reason = "a transaction is not decided"
        except KafkaException as error:
            if error.args[0].code() not in PASSING:
                raise PublishError(f"the end of topic {topic} could not be read: {error.args[0].str()}") from error
            reason = error.args[0].str()
        if time.monotonic() > deadline:
            raise PublishError(f"the end of topic {topic} does not stand still: {reason}")
        time.sleep(SETTLE_POLL_S)


def _latest(admin: AdminClient, places: Sequence[TopicPartition], level: IsolationLevel) -> list[int]:
    wanted = {place: OffsetSpec.latest() for place in places}
    asked = admin.list_offsets(wanted, isolation_level=level, request_timeout=REQUEST_TIMEOUT_S)
    return [asked[place].result().offset for place in places]


def _end_offset(consumer: Consumer, partition: TopicPartition, deadline: float) -> int:
    while True:
        try:
            # Briefly, and again: a request that waits for a leader that is gone does not hear of the next one.
            _, end = consumer.get_watermark_offsets(partition, timeout=TRY_S)
            return int(end)
        except KafkaException as error:
            reason = error.args[0]
            if reason.code() not in PASSING or time.monotonic() > deadline:
                raise PublishError(f"the end of topic {partition.topic} could not be read: {reason.str()}") from error
        time.sleep(SETTLE_POLL_S)
        with suppress(KafkaException):
            consumer.list_topics(partition.topic, timeout=REQUEST_TIMEOUT_S)


def read_at(
    consumer: Consumer,
    topic: str,
    offsets: Mapping[int, int],
    is_wanted: Callable[[StoredRecord], bool] = lambda record: True,
) -> dict[int, StoredRecord]:
    """
    Return, for each partition of `offsets`, the first record at or after its offset, of those that are wanted.

    A partition is missing from the answer where there is none, as in a log whose last records are control records.
    """
    consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in offsets.items()])
    found: dict[int, StoredRecord] = {}
    at_end: set[int] = set()
    deadline = time.monotonic() + REQUEST_TIMEOUT_S
    while len(found.keys() | at_end) < len(offsets):
        if time.monotonic() > deadline:
            raise PublishError(f"the last records of topic {topic} could not be read within {REQUEST_TIMEOUT_S:.0f} s")
        message = consumer.poll(0.5)
        if message is None:
            continue
        error = message.error()
        if error is None:
            record = _stored(message)
            if is_wanted(record):
                found.setdefault(message.partition(), record)
        elif error.code() == KafkaError._PARTITION_EOF:
            at_end.add(message.partition())
        elif error.code() not in PASSING:
            raise PublishError(f"the last records of topic {topic} could not be read: {error.str()}")
    consumer.unassign()
    return found


def _stored(message: Message) -> StoredRecord:
    return StoredRecord(
        offset=message.offset(), key=message.key(), value=message.value(), timestamp_ms=message.timestamp()[1]
    )
