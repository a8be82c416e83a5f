"""Scenarios of consumers that fail, hang, sleep or come late."""

import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import closing

from chaos_scenarios import Stage, acked, client, scenario, send, values_of
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

MEMBER = """
import sys
from confluent_kafka import Consumer, KafkaException
servers, topic, group, count = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest",
                     "enable.auto.commit": False, "session.timeout.ms": 3000, "heartbeat.interval.ms": 500,
                     "max.poll.interval.ms": 60000, "log_level": 0})
consumer.subscribe([topic])
read = 0
while read < int(count):
    message = consumer.poll(1)
    if message is not None and message.error() is None:
        read += 1
print("read", read, flush=True)
sys.stdin.readline()
try:
    consumer.commit(message, asynchronous=False)
    print("committed", flush=True)
except KafkaException as error:
    print("refused", error.args[0].name(), flush=True)
"""


def group_of(stage: Stage, servers: str, **more: object) -> Consumer:
    """A member that says itself when it commits."""
    return Consumer(
        client(
            bootstrap_servers=servers,
            group_id=stage.name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=500,
            **{"session_timeout_ms": 3000, "max_poll_interval_ms": 60_000, **more},
        )
    )


def take(consumer: Consumer, count: int, seconds: float = 60.0) -> list[str]:
    """Poll so many records."""
    found: list[str] = []
    deadline = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append((message.value() or b"").decode())
    return found


@scenario("F-10", "processing fails, nothing is committed, and the record comes again")
def redelivery(stage: Stage) -> None:
    cluster = stage.cluster()
    topic = stage.topic()
    cluster.create_topic(topic, 1)
    values = values_of(stage, 20)
    send(cluster.bootstrap, topic, values)
    with closing(group_of(stage, cluster.bootstrap)) as first:
        first.subscribe([topic])
        assert take(first, 8) == values[:8], "0 to 6 are handled, 7 raises"
        first.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    with closing(group_of(stage, cluster.bootstrap)) as second:
        second.subscribe([topic])
        assert take(second, 13) == values[7:]
    stage.note("7 came again, nothing was skipped")


@scenario("F-25", "partitions are raised under a keyed topic: the stock harm")
def partitions_raised(stage: Stage) -> None:
    cluster = stage.cluster()
    topic = stage.topic()
    cluster.create_topic(topic, 3)
    places: dict[str, set[int]] = defaultdict(set)
    events: dict[str, list[int]] = defaultdict(list)
    producer = Producer(
        client(
            bootstrap_servers=cluster.bootstrap,
            partitioner="murmur2_random",
            topic_metadata_refresh_interval_ms=200,
            linger_ms=0,
        )
    )

    def write(number: int) -> None:
        key = f"key{number % 10}"
        events[key].append(number)
        producer.produce(
            topic, str(number), key, on_delivery=lambda error, message: places[key].add(message.partition())
        )
        producer.poll(0.005)

    def split() -> list[str]:
        return sorted(key for key, found in places.items() if min(found) < 3 <= max(found))

    admin, number = cluster.admin(), 0
    raised = None
    deadline = time.monotonic() + 60
    while not split() or number % 10:
        assert time.monotonic() < deadline, "the producer has noticed that there are more partitions"
        if number == 200:
            # It writes on while they are made.
            raised = admin.create_partitions([NewPartitions(topic, 6)])[topic]
        write(number)
        number += 1
    assert producer.flush(30) == 0
    assert raised is not None
    raised.result(30)
    cluster.eventually(lambda: cluster.partition(topic, 5).leader >= 0, "there are six partitions")
    # Of two members one has the old partitions and one the new, and nothing has either wait for the other.
    seen: dict[str, list[int]] = defaultdict(list)
    left = number
    for partitions in ((3, 4, 5), (0, 1, 2)):
        with closing(group_of(stage, cluster.bootstrap, enable_partition_eof=True)) as member:
            member.assign([TopicPartition(topic, partition, 0) for partition in partitions])
            ended: set[int | None] = set()
            while len(ended) < len(partitions):
                message = member.poll(30)
                assert message is not None
                if message.error() is not None:
                    assert message.error().code() == KafkaError._PARTITION_EOF
                    ended.add(message.partition())
                    continue
                seen[(message.key() or b"").decode()].append(int(message.value() or b""))
                left -= 1
    assert left == 0
    assert {key: sorted(found) for key, found in seen.items()} == events, "nothing is lost"
    disordered = sorted(key for key, found in seen.items() if found != events[key])
    assert disordered == split(), "those that have events in old and new partitions, and no others"
    stage.note(
        f"{len(disordered)} of {len(places)} keys have events in old and new partitions, and are seen out of order; "
        "the safe way is a feature of its own"
    )


@scenario("F-26", "a live-locked member: its heartbeat goes on, its handler does not end")
def live_locked(stage: Stage) -> None:
    cluster = stage.cluster()
    topic = stage.topic()
    cluster.create_topic(topic, 1)
    values = values_of(stage, 5)
    send(cluster.bootstrap, topic, values)
    with closing(group_of(stage, cluster.bootstrap, max_poll_interval_ms=3000)) as locked:
        locked.subscribe([topic])
        assert take(locked, 1) == values[:1]
        with closing(group_of(stage, cluster.bootstrap)) as healthy:
            healthy.subscribe([topic])
            assert take(healthy, 5) == values
            error = None
            while error is None:
                message = locked.poll(1)
                error = message.error() if message is not None else None
            assert error.code() == KafkaError._MAX_POLL_EXCEEDED
    stage.note("evicted after max.poll.interval.ms; the next member took the same record")


@scenario("F-28", "two consumers on one partition between failures")
def two_consumers(stage: Stage) -> None:
    cluster = stage.cluster()
    topic = stage.topic()
    cluster.create_topic(topic, 1)
    values = values_of(stage, 30)
    send(cluster.bootstrap, topic, values)
    words = [sys.executable, "-c", MEMBER, cluster.bootstrap, topic, stage.name, "10"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as zombie:
        assert zombie.stdout is not None
        assert zombie.stdin is not None
        try:
            assert zombie.stdout.readline().split() == ["read", "10"]
            zombie.send_signal(signal.SIGSTOP)
            with closing(group_of(stage, cluster.bootstrap)) as second:
                second.subscribe([topic])
                assert take(second, 20) == values[:20]
                second.commit(offsets=[TopicPartition(topic, 0, 20)], asynchronous=False)
                zombie.send_signal(signal.SIGCONT)
                zombie.stdin.write("\n")
                zombie.stdin.flush()
                said = zombie.stdout.readline().split()
                assert said[0] == "refused", said
                (held,) = second.committed([TopicPartition(topic, 0)], timeout=30)
                assert held.offset == 20
        finally:
            zombie.kill()
    stage.note(f"the zombie's commit was refused ({said[1]}), the other's stands")


@scenario("F-33", "consumers come late: they get what is retained and are told of the gap")
def late_consumers(stage: Stage) -> None:
    cluster = stage.cluster(settings={"log.retention.check.interval.ms": "500"})
    topic = stage.topic()
    limit = 1 << 20
    cluster.create_topic(topic, 1, segment_bytes=str(limit), retention_bytes=str(limit))
    block = "x" * 100_000
    values = [f"{stage.name}-{number} {block}" for number in range(40)]
    assert len(acked(send(cluster.bootstrap, topic, values))) == 40
    place = TopicPartition(topic, 0)
    loud = Consumer(client(bootstrap_servers=cluster.bootstrap, group_id="loud", auto_offset_reset="error"))
    with closing(loud):

        def is_at_rest() -> bool:
            # A segment goes when the limit is kept without it, so what stays is the limit and less than one more.
            kept = 40 - loud.get_watermark_offsets(place, timeout=10)[0]
            return kept * len(block) < 2 * limit

        cluster.eventually(is_at_rest, "all segments are gone that have to go", seconds=120)
        loud.assign([TopicPartition(topic, 0, 0)])
        error = None
        while error is None:
            message = loud.poll(1)
            error = message.error() if message is not None else None
        assert error.code() == KafkaError._AUTO_OFFSET_RESET
        begin = loud.get_watermark_offsets(place, timeout=10)[0]
    with closing(group_of(stage, cluster.bootstrap)) as late:
        late.subscribe([topic])
        assert take(late, 40 - begin) == values[begin:]
    stage.note(
        f"{40 - begin} of 40 records were retained and came; the gap of {begin} was an error, not a silent reset"
    )
