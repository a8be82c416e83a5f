"""
A topic of one cluster kept in another one, each record once: `python -m examples.mirror --from A --to B orders`.

Copies and the position that they end at go into one transaction of the target, so that a mirror that is killed goes on
where its copies end. Position and topic have the names that they have in the source; partitions, order, keys, values,
headers and timestamps stay, offsets do not.
"""

import argparse
import time
from collections.abc import Callable, Iterable
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

REQUEST_SECONDS = 30.0
BATCH_MAX = 5_000


class Mirror:
    """
    Copies `topic`. A second mirror of this topic takes the place of the first, which is refused from then on.

    Raises ValueError where both are one cluster, and confluent_kafka.KafkaException for what one of them says.
    """

    def __init__(self, source: str, target: str, topic: str, *, replication_factor: int = -1) -> None:
        name = f"mirror-{topic}"
        self._source = Consumer(
            {
                "bootstrap.servers": source,
                "group.id": name,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            }
        )
        cluster = self._source.list_topics(topic, REQUEST_SECONDS)
        if cluster.cluster_id == AdminClient({"bootstrap.servers": target}).list_topics(timeout=30).cluster_id:
            raise ValueError(f"{source} and {target} are one cluster, {cluster.cluster_id}")
        known = cluster.topics[topic]
        if known.error is not None:
            raise KafkaException(known.error)
        self._partitions = sorted(known.partitions)
        self._topic = topic
        _make(target, NewTopic(topic, len(self._partitions), replication_factor))
        self._position = Consumer({"bootstrap.servers": target, "group.id": name, "enable.auto.commit": False})
        self._target = Producer({"bootstrap.servers": target, "transactional.id": name, "linger.ms": 5})
        # Whoever mirrored before is fenced by this; what it left open is aborted, and only then is the position read.
        self._target.init_transactions(REQUEST_SECONDS)
        self._source.assign([_from(each) for each in self._position.committed(self._places(), REQUEST_SECONDS)])

    def step(self, timeout: float = 1.0) -> int:
        """Copy what has come, in one transaction; how many records that were."""
        # One is waited for, and what has come with it goes along.
        found = self._source.consume(1, timeout)
        records = [each for each in (*found, *self._source.consume(BATCH_MAX, 0.005)) if not _failed(each)]
        if not records:
            return 0
        self._target.begin_transaction()
        for record in records:
            self._target.produce(
                self._topic,
                record.value(),
                record.key(),
                partition=record.partition(),
                timestamp=record.timestamp()[1],
                headers=record.headers(),
            )
            self._target.poll(0)
        ends = {record.partition(): record.offset() + 1 for record in records}
        self._target.send_offsets_to_transaction(
            [TopicPartition(self._topic, partition, end) for partition, end in ends.items()],
            self._position.consumer_group_metadata(),
            REQUEST_SECONDS,
        )
        self._target.commit_transaction(REQUEST_SECONDS)
        return len(records)

    def lag(self) -> int:
        """How many offsets of the source are not in the target yet."""
        positions = self._position.committed(self._places(), REQUEST_SECONDS)
        lag = 0
        for place in positions:
            start, end = self._source.get_watermark_offsets(place, REQUEST_SECONDS)
            lag += end - max(place.offset, start)
        return lag

    def run(self, stop: Callable[[], bool]) -> None:
        """Go on until told to stop."""
        while not stop():
            self.step()

    def close(self) -> None:
        self._source.close()
        self._position.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _places(self) -> list[TopicPartition]:
        return [TopicPartition(self._topic, partition) for partition in self._partitions]


def _from(committed: TopicPartition) -> TopicPartition:
    # No position yet: librdkafka's -1001 then stands for where auto.offset.reset says.
    return TopicPartition(committed.topic, committed.partition, committed.offset)


def _failed(record: Any) -> bool:
    if record.error() is not None:
        raise KafkaException(record.error())
    return False


def _make(servers: str, topic: NewTopic) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    if topic.topic not in admin.list_topics(timeout=REQUEST_SECONDS).topics:
        admin.create_topics([topic])[topic.topic].result(REQUEST_SECONDS)


def main(words: Iterable[str] | None = None) -> None:
    """Mirror until interrupted, and say each second how far behind it is."""
    parser = argparse.ArgumentParser(prog="python -m examples.mirror", description=(__doc__ or "").split("\n")[1])
    parser.add_argument("--from", dest="source", required=True, help="bootstrap servers of the cluster to copy from")
    parser.add_argument("--to", dest="target", required=True, help="bootstrap servers of the cluster to copy to")
    parser.add_argument("topic")
    options = parser.parse_args(None if words is None else list(words))
    try:
        with Mirror(options.source, options.target, options.topic) as mirror:
            said = 0.0
            while True:
                mirror.step()
                if time.monotonic() - said >= 1:
                    print(f"{options.topic}: {mirror.lag()} behind", flush=True)
                    said = time.monotonic()
    except KeyboardInterrupt:
        print(f"{options.topic}: stopped; it goes on from here when it is started again")
    except ValueError as error:
        raise SystemExit(str(error)) from error
    except KafkaException as error:
        raise SystemExit(f"{options.topic}: {error.args[0].str()}") from error


if __name__ == "__main__":
    main()
