"""Scenarios of producers that retry, of transactions and groups under faults, and of links that are too slow."""

import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil
from chaos_cluster import Cluster
from chaos_links import Answer, Break, Taps
from chaos_nodes import BEHIND_PROXY
from chaos_scenarios import Sending, Stage, acked, client, expect, killed, read, scenario, send, values_of
from chaos_wire import ask
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, Producer, TopicPartition
from scenarios_leaders import placed

PRODUCE, FETCH, FIND_COORDINATOR, ELECT_LEADERS = 0, 1, 10, 43
HOLD_SECONDS = 60.0
OFFERED_BYTES_MIN = 100 << 20


class ProduceTap:
    """
    Looks at the Produce requests of one zone, in the order in which they are sent for the first time, and lets what is
    planned befall them: "refuse" answers in the broker's place that it does not lead, "lose ack" breaks the connection
    when the answer comes.
    """

    def __init__(self, plan: dict[int, str]) -> None:
        self.plan = plan
        self.seen = 0
        self._awaited: dict[int, str] = {}

    async def request(self, frame: bytes) -> Answer | Break | None:
        """Called with each request."""
        api, version, correlation_id = struct.unpack_from(">hhi", frame)
        if api != PRODUCE:
            return None
        self.seen += 1
        befalls = self.plan.pop(self.seen, "")
        if befalls == "refuse":
            return Answer(refusal(frame, version, correlation_id))
        if befalls == "lose ack":
            self._awaited[correlation_id] = befalls
        return None

    async def answer(self, frame: bytes) -> Answer | Break | None:
        """Called with each answer."""
        (correlation_id,) = struct.unpack_from(">i", frame)
        return Break() if self._awaited.pop(correlation_id, None) else None


def refusal(frame: bytes, version: int, correlation_id: int) -> bytes:
    """The answer NOT_LEADER_OR_FOLLOWER to a Produce request of one partition."""
    from log_broker.wire import control

    body = frame[8:]
    (length,) = struct.unpack_from(">h", body)
    at = 2 + max(length, 0) + (1 if version >= 9 else 0)
    request = control.read_request(PRODUCE, version, memoryview(body)[at:])
    (topic,) = request.topic_data
    partition = {
        "index": topic.partition_data[0].index,
        "error_code": 6,
        "base_offset": -1,
        "log_append_time": -1,
        "log_start_offset": -1,
        "record_errors": [],
        "error_message": None,
    }
    values = {"responses": [{"name": topic.name, "partition_responses": [partition]}], "throttle_time": 0}
    return bytes(control.write_response(PRODUCE, version, correlation_id, values))


@scenario("F-13", "pipelined sends are reordered and doubled, unless the producer is idempotent")
def pipelined(stage: Stage) -> None:
    cluster = stage.cluster()
    for idempotent in (False, True):
        topic = stage.topic("on" if idempotent else "off")
        cluster.create_topic(topic, placed=placed(cluster, cluster.brokers[0]))
        zone = f"tapped-{topic}"
        tap = ProduceTap({2: "refuse", 4: "lose ack"})
        cluster.links.tap(zone, Taps(request=tap.request, answer=tap.answer))
        sending = Sending(
            cluster.bootstrap,
            topic,
            zone=zone,
            acks="all",
            enable_idempotence=idempotent,
            batch_num_messages=1,
            max_in_flight=5,
            message_timeout_ms=60_000,
            retry_backoff_ms=300,
        )
        # The leader knows the producer: of one that it has never heard of Kafka takes any batch as the first.
        assert acked(sending.send(["0"]).wait()) == ["0"]
        assert sorted(acked(sending.send(["1", "2", "3"]).wait())) == ["0", "1", "2", "3"]
        if idempotent:
            expect(cluster, topic, ["0", "1", "2", "3"])
        found = read(cluster.bootstrap, topic)
        if not idempotent:
            assert found.index("2") < found.index("1")
            assert found.count("3") == 2
        stage.note(f"idempotence {'on' if idempotent else 'off'}: {' '.join(found)}")
        cluster.links.heal()


def crash_before_append(cluster: Cluster, leader: int, sending: Sending) -> None:
    """The request never reaches the leader."""
    cluster.links.cut(["crash"], [str(leader)])
    sending.send(["r"]).wait(1)
    cluster.kill(leader)


def crash_before_replicate(cluster: Cluster, leader: int, sending: Sending) -> None:
    """The leader has appended, no follower has it."""
    cluster.isolate(leader)
    sending.send(["r"]).wait(1)
    cluster.kill(leader)


def crash_before_ack(cluster: Cluster, leader: int, sending: Sending) -> None:
    """All have it; the acknowledgement does not reach the producer."""
    cluster.links.cut([str(leader)], ["crash"], both_ways=False)
    sending.send(["r"]).wait(2)
    cluster.kill(leader)


CRASH_POINTS: dict[str, Callable[[Cluster, int, Sending], None]] = {
    "before append": crash_before_append,
    "before replicate": crash_before_replicate,
    "before ack": crash_before_ack,
}
RETRYING = {
    "no retry": {"retries": 0},
    "retry": {},
    "retry, idempotent": {"enable_idempotence": True},
}
COPIES = {"no retry": {0, 1}, "retry": {1, 2}, "retry, idempotent": {1}}


@scenario("F-14", "the broker dies before it acknowledges: stored or not?")
def crash_points(stage: Stage) -> None:
    cluster = stage.cluster(separate_voters=3)
    stage.note("copies stored   before append, before replicate, before ack")
    for retrying, config in RETRYING.items():
        copies = []
        for at, crash in enumerate(CRASH_POINTS.values()):
            topic = stage.topic(f"{retrying}-{at}".replace(",", "").replace(" ", "-"))
            leader = cluster.brokers[at]
            cluster.create_topic(topic, placed=placed(cluster, leader))
            sending = Sending(cluster.bootstrap, topic, zone="crash", acks="all", message_timeout_ms=90_000, **config)
            assert acked(sending.send(["first"]).wait()) == ["first"]
            expect(cluster, topic, ["first"])
            crash(cluster, leader, sending)
            cluster.links.heal()
            cluster.await_leader(topic, cluster.others(leader))
            sending.wait(60)
            cluster.restart(leader)
            cluster.await_isr(topic, cluster.brokers)
            count = read(cluster.bootstrap, topic).count("r")
            copies.append(count)
        stage.note(f"{retrying:<18}{', '.join(map(str, copies))}")
        # Whoever does not retry cannot tell a lost record from a stored one, and whoever does stores some twice.
        assert set(copies) == COPIES[retrying], f"{retrying}: {copies}"


@scenario("F-20", "a read from a copy that the write has not reached")
def stale_copy(stage: Stage) -> None:
    cluster = stage.cluster(separate_voters=3)
    topic = stage.topic()
    leader, _, behind = cluster.brokers
    cluster.create_topic(topic, placed=placed(cluster, leader))
    sending = Sending(cluster.bootstrap, topic, acks="1").send(["first"])
    assert acked(sending.wait()) == ["first"]
    expect(cluster, topic, ["first"])
    cluster.links.cut([str(leader)], [str(behind)])
    sending.send(["r"]).wait()
    told = fetch(cluster, behind, topic, 1)
    assert told in (b"", None), "not yet, and never wrong"
    # Shown once the copy that lacks it is in sync no more; then a reader goes from copy to copy.
    cluster.await_isr(topic, cluster.others(behind))
    cluster.eventually(lambda: bool(fetch(cluster, leader, topic, 1)), "the leader shows it")
    seen: list[tuple[int, bytes]] = []
    for copy in (leader, behind, *cluster.others(behind), behind):
        seen += read_on(cluster, copy, topic, len(seen))
        assert [offset for offset, _ in seen] == [0, 1], "nothing again, and nothing of before"
    cluster.links.heal()
    cluster.eventually(lambda: bool(fetch(cluster, behind, topic, 1)), "the copy has it once it is replicated")
    assert b"r" in (fetch(cluster, behind, topic, 1) or b"")
    assert b"first" in (fetch(cluster, behind, topic, 0) or b"")
    assert acked(sending.send(["s"]).wait())[-1] == "s"
    cluster.eventually(lambda: bool(fetch(cluster, behind, topic, 2)), "the copy goes on with what is new")
    for copy in (behind, leader, behind):
        seen += read_on(cluster, copy, topic, len(seen))
    assert [offset for offset, _ in seen] == [0, 1, 2]
    assert seen == read_on(cluster, leader, topic, 0), "the same records, whichever copy they came from"
    stage.note(
        "the copy answered not-yet while it lacked the record, and the record afterwards; a reader that went from copy "
        "to copy saw each record once and in order"
    )


def read_on(cluster: Cluster, number: int, topic: str, place: int) -> list[tuple[int, bytes]]:
    """The batches of one record each, with their offsets, that one node has for a reader who stands at `place`."""
    from log_broker.records import batches_in

    told = fetch(cluster, number, topic, place) or b""
    batches = [(header.base_offset, told[at : at + header.size]) for at, header in batches_in(told)]
    return [(offset, batch) for offset, batch in batches if offset >= place]


def fetch(cluster: Cluster, number: int, topic: str, offset: int) -> bytes | None:
    """Fetch v11 from one node as a consumer that knows no leader; None for an error."""
    values = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": 0,
                        "current_leader_epoch": -1,
                        "fetch_offset": offset,
                        "log_start_offset": -1,
                        "partition_max_bytes": 1 << 20,
                    }
                ],
            }
        ],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    answer = ask((BEHIND_PROXY, cluster.node(number).port), FETCH, 11, values)
    partition = answer.responses[0].partitions[0]
    return None if partition.error_code else bytes(partition.records or b"")


@scenario("F-21", "a transaction over three leaders, with deaths at each step")
def transaction_over_leaders(stage: Stage) -> None:
    cluster = stage.cluster(separate_voters=3)
    topic = stage.topic()
    brokers = cluster.brokers
    cluster.create_topic(topic, placed=[[*brokers[at:], *brokers[:at]] for at in range(3)])
    committed: list[str] = []
    told = []
    for step in ("produced", "offsets sent", "committing"):
        for who in ("leader", "coordinator", "producer"):
            name = f"{step}-{who}".replace(" ", "-")
            outcome = one_transaction(stage, cluster, topic, step, who, name)
            told.append(f"{name}: {outcome}")
            committed += [f"{name}-{part}" for part in range(3)] if outcome == "committed" else []
            for at_partition in range(3):
                cluster.await_isr(topic, brokers, at_partition)
            expected = 1 if outcome == "committed" else OFFSET_INVALID
            assert committed_offset(cluster, f"{stage.name}-{name}-group", topic) == expected, f"{name}: {outcome}"
    found = [value for partition in range(3) for value in read(cluster.bootstrap, topic, partition)]
    assert sorted(found) == sorted([*committed, *(value for value in found if value.startswith("again-"))])
    stage.note("; ".join(told))
    stage.note("read_committed saw each transaction whole and once, or nothing of it; none blocked the readers")


def one_transaction(stage: Stage, cluster: Cluster, topic: str, step: str, who: str, name: str) -> str:
    """Write to three partitions and commit offsets in one transaction; someone dies at a step of it."""
    transactional_id = f"{stage.name}-{name}"
    producer = Producer(
        client(bootstrap_servers=cluster.bootstrap, transactional_id=transactional_id, transaction_timeout_ms=10_000)
    )
    group = Consumer(client(bootstrap_servers=cluster.bootstrap, group_id=f"{transactional_id}-group"))
    producer.init_transactions(60)
    dead: list[int] = []

    def strike() -> None:
        if who == "producer":
            return
        dead.append(cluster.leader(topic, 1) if who == "leader" else coordinator(cluster, transactional_id))
        cluster.kill(dead[0])

    try:
        producer.begin_transaction()
        for partition in range(3):
            producer.produce(topic, f"{name}-{partition}", partition=partition)
        producer.flush(20)
        if step == "produced":
            strike()
        if step == "produced" and who == "producer":
            return give_up(cluster, producer, transactional_id, topic)
        until(
            lambda: producer.send_offsets_to_transaction(
                [TopicPartition(topic, 0, 1)], group.consumer_group_metadata(), 20
            )
        )
        if step == "offsets sent":
            strike()
            if who == "producer":
                return give_up(cluster, producer, transactional_id, topic)
        if step == "committing":
            strike()
            if who == "producer":
                return give_up(cluster, producer, transactional_id, topic)
        until(lambda: producer.commit_transaction(20))
        return "committed"
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
        until(lambda: producer.abort_transaction(20))
        return "aborted"
    finally:
        group.close()
        if dead:
            cluster.restart(*dead)


def committed_offset(cluster: Cluster, group_id: str, topic: str) -> int:
    """Return the group's offset in partition 0; OFFSET_INVALID when it has none."""
    consumer = Consumer(client(bootstrap_servers=cluster.bootstrap, group_id=group_id))
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=60)
    finally:
        consumer.close()
    assert found.error is None, found.error
    return int(found.offset)


def until(act: Callable[[], object], seconds: float = 90.0) -> None:
    """Try again what may be tried again."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            act()
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


def give_up(cluster: Cluster, producer: Producer, transactional_id: str, topic: str) -> str:
    """The producer dies; another of its id takes over, which fences it, and the old one cannot write any more."""
    successor = Producer(client(bootstrap_servers=cluster.bootstrap, transactional_id=transactional_id))
    until(lambda: successor.init_transactions(60))
    successor.begin_transaction()
    successor.produce(topic, f"again-{transactional_id}", partition=0)
    until(lambda: successor.commit_transaction(30))
    with suppress(KafkaException):
        producer.commit_transaction(15)
        raise AssertionError("a fenced producer has committed")
    return "aborted by its successor"


def coordinator(cluster: Cluster, transactional_id: str) -> int:
    """The transaction coordinator of an id."""
    values = {"key_type": 1, "coordinator_keys": [transactional_id]}
    for number in cluster.brokers:
        answer = ask((BEHIND_PROXY, cluster.node(number).port), FIND_COORDINATOR, 4, values)
        if answer.coordinators[0].node_id >= 0:
            return int(answer.coordinators[0].node_id)
    raise AssertionError("no coordinator")


COPIER = """
import sys
from confluent_kafka import Producer, Consumer, TopicPartition
servers, topic, source, transactional_id, die_at = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": servers, "group.id": transactional_id, "enable.auto.commit": False,
                     "auto.offset.reset": "earliest", "isolation.level": "read_committed"})
producer = Producer({"bootstrap.servers": servers, "transactional.id": transactional_id})
producer.init_transactions(60)
place = TopicPartition(source, 0)
(found,) = consumer.committed([place], timeout=30)
place.offset = max(found.offset, 0)
consumer.assign([place])
done = place.offset
while done < 100:
    messages = [m for m in consumer.consume(10, 5) if m.error() is None]
    producer.begin_transaction()
    for message in messages:
        producer.produce(topic, message.value(), partition=0)
        done = message.offset() + 1
        if done == int(die_at):
            producer.flush(10)
            print("half", flush=True)
            sys.stdin.readline()
    producer.send_offsets_to_transaction([TopicPartition(source, 0, done)], consumer.consumer_group_metadata(), 30)
    producer.commit_transaction(60)
print("done", flush=True)
"""


@scenario("F-36", "a producer dies in the middle of a batch and is started again under its transactional id")
def producer_restarts(stage: Stage) -> None:
    cluster = stage.cluster()
    source, target = stage.topic("source"), stage.topic("target")
    for topic in (source, target):
        cluster.create_topic(topic, 1)
    values = values_of(stage, 100)
    assert len(acked(send(cluster.bootstrap, source, values))) == 100

    def copier(die_at: int) -> "subprocess.Popen[str]":
        words = [sys.executable, "-c", COPIER, cluster.bootstrap, target, source, stage.name, str(die_at)]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    for die_at, says in ((35, "half"), (75, "half"), (0, "done")):
        with copier(die_at) as process:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == says
            process.send_signal(signal.SIGKILL)
    expect(cluster, target, values)
    stage.note("killed twice in the middle of a transaction: 100 records, none twice, none missing")


@scenario("F-34", "the links between brokers are saturated")
def saturated(stage: Stage) -> None:
    cluster = stage.cluster(separate_voters=3)
    topic = stage.topic()
    leader = cluster.brokers[0]
    cluster.create_topic(topic, placed=placed(cluster, leader), min_insync_replicas="1")
    for other in cluster.others(leader):
        cluster.links.rule(str(leader), str(other), bytes_per_second=20_000.0)
    sending = Sending(cluster.bootstrap, topic, acks="1", message_timeout_ms=120_000, queue_buffering_max_kbytes=8_192)
    block = "x" * 10_000
    count, deadline = 0, time.monotonic() + 120
    process = psutil.Process(cluster.node(leader).pid)
    before = peak = process.memory_info().rss
    while cluster.isr(topic) != {leader} or count * len(block) < OFFERED_BYTES_MIN:
        assert time.monotonic() < deadline, "the in-sync set shrinks"
        for _ in range(20):
            with suppress(BufferError):
                sending.send([f"{count} {block}"])
                count += 1
        sending.wait(0.2)
        peak = max(peak, process.memory_info().rss)
    cluster.links.heal()
    assert len(acked(sending.wait(120))) == count
    cluster.await_isr(topic, cluster.brokers)
    cluster.await_equal_logs(topic)
    assert len(read(cluster.bootstrap, topic, seconds=90)) == count
    if stage.is_ours:
        assert peak - before < count * len(block) / 4, "it reads for the followers from its log as they take it"
    stage.note(
        f"{count} records of 10 kB at 20 kB/s: the in-sync set shrank to the leader, which took {peak - before >> 20} "
        f"MiB more for the {count // 100} MB offered; uncapped, the followers caught up"
    )


@scenario("F-35", "a broker crashes with very many partitions")
def many_partitions(stage: Stage) -> None:
    cluster = stage.cluster(separate_voters=3)
    victim, admin = cluster.brokers[0], cluster.admin()
    asked = cluster.others(victim)[0]
    for count in (10, 100, 1000):
        topic = stage.topic(str(count))
        cluster.create_topic(topic, count, seconds=180)

        def of_victim(topic: str = topic) -> int:
            return sum(each.leader_id == victim for each in partitions_of(cluster, topic, asked))

        def victim_leads_its_share(topic: str = topic, count: int = count) -> bool:
            # It may have lost some while so many were made.
            if of_victim(topic) < count // 3:
                places = ({"topic": topic, "partitions": range(count)},)
                wanted = {"election_type": 0, "topic_partitions": places, "timeout": 30_000}
                ask((BEHIND_PROXY, cluster.node(asked).port), ELECT_LEADERS, 2, wanted)
            return of_victim(topic) >= count // 3 and in_sync(cluster, topic, asked)

        cluster.eventually(victim_leads_its_share, "all are in sync and the victim leads its share", 180)
        led_by_victim = of_victim()
        with killed(cluster, victim):
            began = time.monotonic()
            cluster.eventually(
                lambda topic=topic: all(
                    each.leader_id not in (-1, victim) for each in partitions_of(cluster, topic, asked)
                ),
                "all lead again",
                180,
            )
            led = time.monotonic() - began
        began = time.monotonic()
        cluster.eventually(lambda topic=topic: in_sync(cluster, topic, asked), "all are in sync again", 180)
        synced = time.monotonic() - began
        stage.note(
            f"{count:>5} partitions, {led_by_victim} led by the victim: all led {led:.1f} s after the kill,"
            f" all in sync {synced:.1f} s after the return"
        )
        admin.delete_topics([topic])[topic].result(60)


def partitions_of(cluster: Cluster, topic: str, asking: int) -> Any:
    """The partitions of a topic by one broker's word."""
    (found,) = cluster.metadata(asking, [topic]).topics
    return found.partitions


def in_sync(cluster: Cluster, topic: str, asking: int) -> bool:
    return all(len(each.isr_nodes) == 3 for each in partitions_of(cluster, topic, asking))
