"""
How far each publication has come: records of a compacted topic that are written in the transaction of the data.

Not offsets of a consumer group: those of a group without members expire (after a week, unless the cluster says
otherwise), and a table that changes once a month would lose its place.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fluvial.config import Settings
from fluvial.kafka.admin import UnreachableError, admin_of, reason
from fluvial.spark.kafka import TopicError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

PROGRESS_TOPIC = "fluvial-publish-progress"
SECONDS_MAX = 30.0
_ASK_SECONDS = 0.05
# A publisher that died just before its commit holds up the readers of all progress until its transaction times out.
_SETTLED_SECONDS_MAX = 90.0
_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}

Answer = TypeVar("Answer")


class UnsettledError(Exception):
    """
    A transaction with progress in it is not decided yet.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of a table; `commit` tells it from the same number of a table that was removed and built again."""

    number: int
    commit: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """
    What a topic holds of a table: all changes up to `done`, None for none yet.

    With `next`, a version so large that it takes several transactions, also those changes of it whose keys are not
    above `after`, in the order of their UTF-8 bytes. `topic_id` and `partitions` are of the topic that was written to.
    `rebuilding` says that the topic and the table are being compared, and what is in the topic is of no one version.
    """

    table: str
    key: str
    topic_id: str | None
    partitions: int
    done: Version | None = None
    next: Version | None = None
    after: str | None = None
    rebuilding: bool = False

    def as_json(self) -> str:
        """The text of its record."""
        body: dict[str, Any] = {
            "table": self.table,
            "key": self.key,
            "topic_id": self.topic_id,
            "partitions": self.partitions,
            "done": _as_list(self.done),
        }
        if self.next is not None:
            body |= {"next": _as_list(self.next), "after": self.after}
        if self.rebuilding:
            body["rebuilding"] = True
        return json.dumps(body)

    @classmethod
    def of(cls, text: bytes) -> "Progress":
        """The progress that a record tells of."""
        body: Mapping[str, Any] = json.loads(text)
        return cls(
            table=body["table"],
            key=body["key"],
            topic_id=body["topic_id"],
            partitions=body["partitions"],
            done=_of_list(body["done"]),
            next=_of_list(body.get("next")),
            after=body.get("after"),
            rebuilding=body.get("rebuilding", False),
        )


def _as_list(version: Version | None) -> list[Any] | None:
    return None if version is None else [version.number, version.commit]


def _of_list(body: list[Any] | None) -> Version | None:
    return None if body is None else Version(number=body[0], commit=body[1])


def read_progress(settings: Settings, name: str, *, wait: bool = True) -> Progress | None:
    """
    How far the publication `name` has come; None where nothing tells.

    It is the last word for one who has begun a transactional producer before, which ends what another had open. A
    transaction that is not decided is waited for; without `wait`, UnsettledError says that there is one. Raises
    TopicError.
    """
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    admin = admin_of(settings.cluster)
    with asked("read how far tables are published"):
        if not has_topic(admin, PROGRESS_TOPIC):
            return None
        end = _end(admin)
        consumer = Consumer(
            settings.cluster.client(
                **{
                    "group.id": PROGRESS_TOPIC,
                    "enable.auto.commit": False,
                    "isolation.level": "read_committed",
                    "enable.partition.eof": True,
                    "fetch.wait.max.ms": 20,
                },
            )
        )
        found: Progress | None = None
        deadline = time.monotonic() + _SETTLED_SECONDS_MAX
        try:
            consumer.assign([TopicPartition(PROGRESS_TOPIC, 0, 0)])
            while True:
                for message in consumer.consume(500, 0.2):
                    error = message.error()
                    if error is None:
                        if message.key() == name.encode():
                            found = read_record(message.value(), name, message.offset())
                    elif error.code() == KafkaError._PARTITION_EOF:
                        if message.offset() >= end:
                            return found
                        if not wait:
                            raise UnsettledError
                    elif not error.retriable():
                        raise TopicError(f"{PROGRESS_TOPIC} cannot be read: {error.str()}")
                if time.monotonic() > deadline:
                    raise TopicError(
                        f"{PROGRESS_TOPIC} has a transaction that is still open, or has no leader: try again later"
                    )
        finally:
            consumer.close()


@contextmanager
def asked(doing: str) -> Iterator[None]:
    """Raise TopicError, which says what was being done, where the cluster does not answer or refuses."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise TopicError(f"cannot {doing}: {reason(error)}") from error
    except UnreachableError as error:
        raise TopicError(str(error)) from error


def has_topic(admin: "AdminClient", topic: str) -> bool:
    """Whether the cluster has a topic; all are listed, as asking for one may create it. Raises KafkaException."""
    return topic in admin.list_topics(timeout=SECONDS_MAX).topics


def make_topic(admin: "AdminClient", topic: str, *, partitions: int = -1, config: Mapping[str, str]) -> None:
    """Make a topic, with the cluster's own numbers of partitions and replicas; another may be first."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic

    wanted = NewTopic(topic, num_partitions=partitions, replication_factor=-1, config=dict(config))
    try:
        admin.create_topics([wanted], operation_timeout=SECONDS_MAX)[topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def once_known(ask: Callable[[], Answer]) -> Answer:
    """
    Ask about a topic that was made a moment ago until the broker that is asked has heard of it.

    Raises what the last question did, TopicError or KafkaException, when that takes too long.
    """
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            return ask()
        except (TopicError, KafkaException):
            if time.monotonic() > deadline:
                raise
            time.sleep(_ASK_SECONDS)


def require_progress_topic(admin: "AdminClient") -> None:
    """Make the topic of all progress where it is not there."""
    if not has_topic(admin, PROGRESS_TOPIC):
        make_topic(admin, PROGRESS_TOPIC, partitions=1, config=_CONFIG)
        once_known(lambda: _end(admin))


def read_record(text: bytes, name: str, offset: int) -> Progress:
    """
    The progress that the record of publication `name` at an offset tells of. Raises TopicError for one that does not.
    """
    try:
        return Progress.of(text)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise TopicError(
            f"the record of {name} at offset {offset} of {PROGRESS_TOPIC} does not tell how far it is published "
            f"({error!r}): if a newer fluvial wrote it, upgrade this one; otherwise send a tombstone with the key "
            f"{name}, and `fluvial run --rebuild {name}` compares the topic with the table"
        ) from error


def _end(admin: "AdminClient") -> int:
    """Where the topic ends, transactions that are not decided included."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    place = TopicPartition(PROGRESS_TOPIC, 0)
    asked = admin.list_offsets(
        {place: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=SECONDS_MAX
    )
    return int(asked[place].result().offset)
