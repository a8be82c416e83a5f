"""Consumer groups of both protocols with librdkafka: sharing, moving from one to the other, and processes that die."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compat_cluster import COPIES
from confluent_kafka import Consumer, ConsumerGroupType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from secured import librdkafka

Eventually = Callable[[Callable[[], bool]], None]

SESSION_MS = "1500"
BROKER_KILLS = int(os.environ.get("FLUVIAL_BROKER_KILLS", "1"))
RECORDS = 100 * BROKER_KILLS  # a partition


def name(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def admin(broker: Any) -> AdminClient:
    return AdminClient(librdkafka(broker.bootstrap_servers))


def create(admin: AdminClient, topic: str, partitions: int) -> None:
    admin.create_topics([NewTopic(topic, partitions, COPIES)])[topic].result(30)


def send(bootstrap_servers: str, topic: str, partitions: int, each: int) -> None:
    producer = Producer(librdkafka(bootstrap_servers))
    for number in range(each):
        for partition in range(partitions):
            producer.produce(topic, f"{partition}: {number}", partition=partition)
    assert producer.flush(60) == 0


@contextlib.contextmanager
def member(bootstrap_servers: str, group: str, protocol: str = "consumer", **config: Any) -> Iterator[Consumer]:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    if protocol == "classic":
        settings["session.timeout.ms"] = SESSION_MS
        settings["heartbeat.interval.ms"] = "300"
    client = Consumer(
        {
            **librdkafka(bootstrap_servers),
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
    )
    try:
        yield client
    finally:
        client.close()


def owned(client: Consumer) -> set[tuple[str, int]]:
    client.poll(0.05)
    return {(place.topic, place.partition) for place in client.assignment()}


def shares(*clients: Consumer) -> list[int]:
    """How many partitions each has, and that none is had twice."""
    all_owned = [owned(client) for client in clients]
    return sorted(len(one) for one in all_owned) if len(set().union(*all_owned)) == sum(map(len, all_owned)) else []


@pytest.mark.parametrize("assignor", ["range", "uniform"])
def test_members_share_what_the_server_assigns(
    broker: Any, admin: AdminClient, eventually: Eventually, assignor: str
) -> None:
    topic, group = name("shared"), name("group")
    create(admin, topic, 4)
    settings = {"group_remote_assignor": assignor}
    with member(broker.bootstrap_servers, group, **settings) as one:
        one.subscribe([topic])
        eventually(lambda: shares(one) == [4])
        with member(broker.bootstrap_servers, group, **settings) as two:
            two.subscribe([topic])
            eventually(lambda: shares(one, two) == [2, 2])
            admin.create_partitions([NewPartitions(topic, 6)])[topic].result(30)
            eventually(lambda: shares(one, two) == [3, 3])
            (described,) = [one.result(30) for one in admin.describe_consumer_groups([group]).values()]
            assert described.partition_assignor == assignor
            assert described.type is ConsumerGroupType.CONSUMER
            assert sorted(len(one.assignment.topic_partitions) for one in described.members) == [3, 3]
        eventually(lambda: shares(one) == [6])
        with pytest.raises(KafkaException):
            admin.delete_consumer_groups([group])[group].result(30)
    listed = {one.group_id: one for one in admin.list_consumer_groups().result(30).valid}
    assert listed[group].type is ConsumerGroupType.CONSUMER
    admin.delete_consumer_groups([group])[group].result(30)
    assert group not in {one.group_id for one in admin.list_consumer_groups().result(30).valid}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_that_come_one_by_one_share_two_topics_evenly(
    broker: Any, admin: AdminClient, eventually: Eventually, protocol: str
) -> None:
    topics, group = [name("first"), name("second")], name("group")
    for topic in topics:
        create(admin, topic, 6)
    # Range would give the first two members one more of each topic.
    settings = {"partition_assignment_strategy": "roundrobin"} if protocol == "classic" else {}
    owners: dict[tuple[str, int], Consumer] = {}
    twice: list[Any] = []

    def assigned(client: Consumer, places: list[TopicPartition]) -> None:
        twice.extend(place for place in places if (place.topic, place.partition) in owners)
        owners.update(((place.topic, place.partition), client) for place in places)

    def revoked(_: Consumer, places: list[TopicPartition]) -> None:
        for place in places:
            owners.pop((place.topic, place.partition), None)

    with contextlib.ExitStack() as stack:
        members: list[Consumer] = []
        for even in ([12], [6, 6], [4, 4, 4], [3, 3, 3, 3]):
            members.append(stack.enter_context(member(broker.bootstrap_servers, group, protocol, **settings)))
            members[-1].subscribe(topics, on_assign=assigned, on_revoke=revoked, on_lost=revoked)
            eventually(lambda even=even: shares(*members) == even)
            assert len(owners) == 12
    assert not twice, "whoever gets a partition is the only one to have it"


def test_each_group_gets_each_record_and_one_member_of_it_does(
    broker: Any, admin: AdminClient, eventually: Eventually
) -> None:
    topic = name("all")
    create(admin, topic, 3)
    with contextlib.ExitStack() as stack:
        groups: dict[str, list[Consumer]] = {}
        for protocol, count in (("consumer", 3), ("classic", 3), ("consumer", 1), ("classic", 1)):
            group = name(f"of-{count}")
            groups[group] = [
                stack.enter_context(member(broker.bootstrap_servers, group, protocol)) for _ in range(count)
            ]
            for client in groups[group]:
                client.subscribe([topic])
        for members in groups.values():
            eventually(lambda members=members: shares(*members) == [3 // len(members)] * len(members))
        for number in range(1, 6):
            producer = Producer(librdkafka(broker.bootstrap_servers))
            producer.produce(topic, f"m{number}", partition=number % 3)
            assert producer.flush(30) == 0
        for members in groups.values():
            got: list[str] = []

            def poll_all(members: list[Consumer] = members, got: list[str] = got) -> bool:
                messages = [client.poll(0.05) for client in members]
                got.extend(message.value().decode() for message in messages if message is not None)
                return len(got) >= 5

            eventually(poll_all)
            poll_all()
            assert sorted(got) == ["m1", "m2", "m3", "m4", "m5"]


def test_readers_that_assign_themselves_make_no_group(broker: Any, admin: AdminClient) -> None:
    topic, group = name("alone"), name("group")
    create(admin, topic, 1)
    send(broker.bootstrap_servers, topic, 1, 3)
    with member(broker.bootstrap_servers, group) as one, member(broker.bootstrap_servers, group) as two:
        for client in (one, two):
            client.assign([TopicPartition(topic, 0, 0)])
            assert [client.poll(30).offset() for _ in range(3)] == [0, 1, 2]
        assert group not in {found.group_id for found in admin.list_consumer_groups().result(30).valid}


def test_a_group_goes_on_where_it_committed(broker: Any, admin: AdminClient) -> None:
    topic, group = name("resume"), name("group")
    create(admin, topic, 1)
    send(broker.bootstrap_servers, topic, 1, 10)
    with member(broker.bootstrap_servers, group) as first:
        first.subscribe([topic])
        assert [first.poll(30).offset() for _ in range(10)] == list(range(10))
        first.commit(offsets=[TopicPartition(topic, 0, 4, "why four")], asynchronous=False)
    with member(broker.bootstrap_servers, group) as second:
        (committed,) = second.committed([TopicPartition(topic, 0)], 30)
        assert (committed.offset, committed.metadata) == (4, "why four")
        second.subscribe([topic])
        assert second.poll(30).offset() == 4


def test_a_regular_expression_finds_topics_old_and_new(broker: Any, admin: AdminClient, eventually: Eventually) -> None:
    prefix, group = name("many"), name("group")
    create(admin, f"{prefix}-a", 1)
    with member(broker.bootstrap_servers, group) as client:
        client.subscribe([f"^{prefix}-.*"])
        eventually(lambda: owned(client) == {(f"{prefix}-a", 0)})
        create(admin, f"{prefix}-b", 1)
        eventually(lambda: owned(client) == {(f"{prefix}-a", 0), (f"{prefix}-b", 0)})


def test_a_static_member_returns_to_its_partitions(broker: Any, admin: AdminClient, eventually: Eventually) -> None:
    topic, group = name("static"), name("group")
    create(admin, topic, 4)
    moved: list[Any] = []
    with member(broker.bootstrap_servers, group) as other:
        with member(broker.bootstrap_servers, group, group_instance_id="i") as first:
            other.subscribe([topic], on_assign=lambda _, places: moved.extend(places))
            first.subscribe([topic])
            eventually(lambda: shares(other, first) == [2, 2])
            before = owned(first)
        moved.clear()
        with member(broker.bootstrap_servers, group, group_instance_id="i") as again:
            again.subscribe([topic])
            eventually(lambda: owned(again) == before)
            assert not moved, "nothing of the other's has changed"
            with member(broker.bootstrap_servers, group, group_instance_id="i") as rival:
                rival.subscribe([topic])
                eventually(lambda: (owned(again), rival.poll(0.05))[0] == before)
                assert not rival.assignment()


def test_a_group_moves_from_one_protocol_to_the_other_and_back(
    broker: Any, admin: AdminClient, eventually: Eventually
) -> None:
    topic, group = name("moving"), name("group")
    create(admin, topic, 4)

    def kind() -> Any:
        return {one.group_id: one.type for one in admin.list_consumer_groups().result(30).valid}.get(group)

    with member(broker.bootstrap_servers, group, "classic") as old:
        old.subscribe([topic])
        eventually(lambda: shares(old) == [4])
        old.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
        assert kind() is ConsumerGroupType.CLASSIC
        with member(broker.bootstrap_servers, group) as new:
            new.subscribe([topic])
            eventually(lambda: shares(old, new) == [2, 2])
            assert kind() is ConsumerGroupType.CONSUMER
            old.commit(offsets=[TopicPartition(*place, 5) for place in owned(old)], asynchronous=False)
            new.commit(offsets=[TopicPartition(*place, 7) for place in owned(new)], asynchronous=False)
        eventually(lambda: shares(old) == [4])
        assert kind() is ConsumerGroupType.CLASSIC
        found = old.committed([TopicPartition(topic, number) for number in range(4)], 30)
        assert sorted(one.offset for one in found) == [5, 5, 7, 7]


def test_the_offsets_of_a_deleted_topic_are_gone(broker: Any, admin: AdminClient, eventually: Eventually) -> None:
    topic, group = name("deleted"), name("group")
    create(admin, topic, 1)
    with member(broker.bootstrap_servers, group) as client:
        client.commit(offsets=[TopicPartition(topic, 0, 9)], asynchronous=False)
        admin.delete_topics([topic])[topic].result(30)
        create(admin, topic, 1)
        eventually(lambda: client.committed([TopicPartition(topic, 0)], 30)[0].offset < 0)


class MemberProcess:
    """One `group_member.py`, and what it has said."""

    def __init__(self, bootstrap_servers: str, group: str, protocol: str, topic: str) -> None:
        settings = {**librdkafka(bootstrap_servers), "group.id": group, "group.protocol": protocol}
        if protocol == "classic":
            settings |= {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": "300"}
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("group_member.py"), json.dumps(settings), topic],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.done: dict[int, list[int]] = {}
        self.assigned: set[int] = set()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            what, *numbers = line.split()
            if what == "done":
                self.done.setdefault(int(numbers[0]), []).append(int(numbers[1]))
            elif what == "assigned":
                self.assigned |= {int(number) for number in numbers}
            else:
                self.assigned -= {int(number) for number in numbers}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def member_processes(count: int, *words: str) -> Iterator[list[MemberProcess]]:
    processes = [MemberProcess(*words) for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()


def highest(processes: list[MemberProcess], partition: int) -> int:
    return max((offset for process in processes for offset in process.done.get(partition, [])), default=-1)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_that_is_killed_is_replaced_where_it_had_committed(
    broker: Any, admin: AdminClient, eventually: Eventually, protocol: str
) -> None:
    topic, group = name("killed"), name("group")
    create(admin, topic, 6)
    send(broker.bootstrap_servers, topic, 6, 20)
    with member_processes(3, broker.bootstrap_servers, group, protocol, topic) as processes:
        eventually(lambda: sorted(len(process.assigned) for process in processes) == [2, 2, 2])
        eventually(lambda: all(highest(processes, partition) == 19 for partition in range(6)))
        killed, *others = processes
        moved = set(killed.assigned)
        killed.kill()
        send(broker.bootstrap_servers, topic, 6, 20)
        eventually(lambda: all(highest(others, partition) == 39 for partition in range(6)))
        assert [len(process.assigned) for process in others] == [3, 3]
        for partition in moved:
            (later,) = [process.done[partition] for process in others if partition in process.assigned]
            assert [offset for offset in later if offset >= 20] == list(range(20, 40)), "it goes on at the last commit"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_broker_killed_in_a_rebalance_loses_no_commit_and_the_group_goes_on(
    own_broker: Any, eventually: Eventually, protocol: str
) -> None:
    topic, group = name("broker"), name("group")
    admin = AdminClient(librdkafka(own_broker.bootstrap_servers))
    create(admin, topic, 4)
    send(own_broker.bootstrap_servers, topic, 4, RECORDS)
    with (
        member_processes(1, own_broker.bootstrap_servers, group, protocol, topic) as first,
        member_processes(2, own_broker.bootstrap_servers, group, protocol, topic) as others,
    ):
        processes = first + others
        eventually(lambda: any(process.done for process in processes))
        for _ in range(BROKER_KILLS):
            own_broker.kill()
            said = {partition: highest(processes, partition) for partition in range(4)}
            own_broker.start()
            places = [TopicPartition(topic, partition) for partition in range(4)]
            with member(own_broker.bootstrap_servers, group, "classic") as asks:
                found = {place.partition: place.offset for place in asks.committed(places, 30)}
            for partition, offset in said.items():
                assert offset < 0 or found[partition] > offset, "a commit that was acknowledged is there"
            before = sum(len(offsets) for process in processes for offsets in process.done.values())
            eventually(
                lambda before=before: (
                    sum(len(offsets) for process in processes for offsets in process.done.values()) > before
                    or all(highest(processes, partition) == RECORDS - 1 for partition in range(4))
                )
            )
        eventually(lambda: all(highest(processes, partition) == RECORDS - 1 for partition in range(4)))
