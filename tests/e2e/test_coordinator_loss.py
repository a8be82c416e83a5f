"""
Transactions, groups of both kinds and the registry on three nodes, each of which is killed in turn and started again.

All at once on one cluster, with stock clients. `FLUVIAL_COORDINATOR_ROUNDS` says how often each node is killed (1).
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.free_ports import free_ports_in_a_row

NODES = 3
PARTITIONS = 3
ROUNDS = int(os.environ.get("FLUVIAL_COORDINATOR_ROUNDS", "1"))
SECONDS_MAX = 120.0
STUCK_SECONDS = 25.0
QUICK = {
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "600",
    "broker.heartbeat.interval.ms": "200",
    "broker.session.timeout.ms": "2000",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    "num.partitions": str(PARTITIONS),
}


class Nodes:
    """Three processes, each a broker, a voter and a registry."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        first = free_ports_in_a_row(2 * NODES)
        ports = range(first, first + 2 * NODES)
        self.ports, self.registry_ports = ports[:NODES], ports[NODES:]
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def url(self, number: int) -> str:
        return f"http://127.0.0.1:{self.registry_ports[number % NODES]}"

    def start(self, *numbers: int) -> None:
        """Start nodes and return when they are ready."""
        told: list[int] = []
        for number in numbers:
            reading, notify = os.pipe()
            voters = ",".join(f"{each}@127.0.0.1:{port}" for each, port in enumerate(self.ports))
            words = [sys.executable, "-m", "fluvial.node", "--node-id", str(number), "--notify-fd", str(notify)]
            words += ["--port", str(self.ports[number]), "--registry-port", str(self.registry_ports[number])]
            words += ["--data-dir", str(self._folder / f"n{number}"), "--controller-quorum-voters", voters]
            for name, text in QUICK.items():
                words += ["--set", f"{name}={text}"]
            with (self._folder / f"log-{number}").open("ab") as log:
                self._running[number] = subprocess.Popen(words, stderr=log, pass_fds=[notify])
            os.close(notify)
            told.append(reading)
        for reading in told:
            with os.fdopen(reading, "rb") as words_of_it:
                assert words_of_it.read() == b"ready", "the node says why in its log"

    def kill(self, number: int) -> None:
        process = self._running.pop(number)
        process.send_signal(signal.SIGKILL)
        process.wait(30)

    def close(self) -> None:
        for number in list(self._running):
            self.kill(number)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    started = Nodes(tmp_path)
    try:
        started.start(*range(NODES))
        yield started
    finally:
        started.close()


class Work:
    """Threads that go on until `ending` is set; what one of them fails with fails the test."""

    def __init__(self) -> None:
        self.ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def begin(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._errors.append(error)
                self.ending.set()

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        self.ending.set()
        for thread in self._threads:
            thread.join(SECONDS_MAX)
            if thread.is_alive():
                frame = sys._current_frames().get(thread.ident or 0)
                raise AssertionError("it hangs: " + "".join(traceback.format_stack(frame)))
        if self._errors:
            raise self._errors[0]


def client(nodes: Nodes, **more: Any) -> dict[str, Any]:
    named = {name.replace("_", "."): value for name, value in more.items()}
    return {"bootstrap.servers": nodes.servers, "log_level": 0, "reconnect.backoff.max.ms": 500, **named}


def produce_input(nodes: Nodes, work: Work, sent: list[int]) -> None:
    """Write numbers until the end; all of them arrive, each once."""
    producer = Producer(client(nodes, enable_idempotence=True))
    failed: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    while not work.ending.is_set():
        number = len(sent)
        producer.produce("in", key=b"%d" % number, value=b"%d" % number, on_delivery=delivered)
        sent.append(number)
        producer.poll(0.01)
    assert producer.flush(60) == 0
    assert not failed


def copy(nodes: Nodes, sent: list[int], done: Callable[[], bool]) -> int:
    """Copy `in` to `out` in transactions until all is there; return how often it had to begin again."""
    restarts = 0
    while True:
        reader = Consumer(
            client(nodes, group_id="copiers", auto_offset_reset="earliest", enable_auto_commit=False)
            | {"isolation.level": "read_committed", "session.timeout.ms": 6000}
        )
        reader.subscribe(["in"])
        try:
            producer = Producer(client(nodes, transactional_id="copier", transaction_timeout_ms=10_000))
            until_done(lambda producer=producer: producer.init_transactions(10))
            while not (done() and committed_total(reader) == len(sent)):
                messages = [each for each in reader.consume(200, 0.2) if each.error() is None]
                if not messages:
                    continue
                producer.begin_transaction()
                for each in messages:
                    producer.produce("out", key=each.key(), value=each.value())
                places = [place for place in reader.position(reader.assignment()) if place.offset >= 0]
                metadata = reader.consumer_group_metadata()
                send = partial(producer.send_offsets_to_transaction, places, metadata, 10)
                until_done(lambda send=send: give_up_if_stuck(send))
                until_done(lambda producer=producer: producer.commit_transaction(10))
        except (KafkaException, StuckError):
            restarts += 1  # the next producer of this id ends what is open, the next reader begins behind what counts
            assert restarts < 50
        else:
            return restarts
        finally:
            reader.close()


def until_done(step: Callable[[], object]) -> None:
    for _ in range(10):
        try:
            step()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return
    raise AssertionError("it does not come to an end")


class StuckError(Exception):
    """A call of a client has not returned long after its own timeout."""


def give_up_if_stuck(call: Callable[[], object]) -> None:
    """
    Call, in a thread that is left alone where the call does not return.

    librdkafka can wait for ever for the group's coordinator when that leaves the metadata (its issues 5456 and 5511).
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(STUCK_SECONDS)
    if thread.is_alive():
        raise StuckError
    if errors:
        raise errors[0]


def committed_total(reader: Consumer) -> int:
    places = reader.committed([TopicPartition("in", partition) for partition in range(PARTITIONS)], 10)
    return sum(max(place.offset, 0) for place in places)


def read_in_a_group(nodes: Nodes, work: Work, protocol: str, assigned: list[int]) -> None:
    """Read and commit in a group of one; note each assignment."""
    settings = client(nodes, group_id=f"readers-{protocol}", auto_offset_reset="earliest", enable_auto_commit=False)
    reader = Consumer({**settings, "group.protocol": protocol})
    reader.subscribe(["in"], on_assign=lambda _, places: assigned.append(len(places)))
    while not work.ending.is_set():
        if reader.consume(100, 0.2):
            with contextlib.suppress(KafkaException):
                reader.commit(asynchronous=False)
    reader.close()


def watch_offsets(nodes: Nodes, work: Work, group: str, seen: Counter[str]) -> None:
    """See that what a group has committed never moves back, whoever coordinates it."""
    # A consumer that does not subscribe is no member.
    watcher = Consumer(client(nodes, group_id=group, isolation_level="read_committed"))
    latest = dict.fromkeys(range(PARTITIONS), -1)
    while not work.ending.is_set():
        with contextlib.suppress(KafkaException):
            for place in watcher.committed([TopicPartition("in", partition) for partition in latest], 3):
                if place.error is None:
                    assert place.offset >= latest[place.partition] or latest[place.partition] < 0, f"{group}: {place}"
                    latest[place.partition] = place.offset
                    seen[group] += 1
        time.sleep(0.1)
    watcher.close()


def schema(number: int) -> str:
    fields = [{"name": f"f{at}", "type": ["null", "int"], "default": None} for at in range(number % 7 + 1)]
    return json.dumps({"type": "record", "name": f"R{number}", "fields": fields})


def register(nodes: Nodes, work: Work, first: int, given: dict[int, set[int]]) -> None:
    """Register one schema after the other at one node, or at the next while that does not answer."""
    number = 0
    with httpx.Client(timeout=20) as http:
        while not work.ending.is_set():
            for attempt in range(NODES):
                path = f"{nodes.url(first + attempt)}/subjects/s{number}/versions"
                with contextlib.suppress(httpx.HTTPError):
                    answer = http.post(path, json={"schema": schema(number)})
                    if answer.status_code == 200:
                        given.setdefault(number, set()).add(answer.json()["id"])
                        number += 1
                        break
                    assert answer.status_code >= 500, answer.text
            time.sleep(0.02)


def read_all(nodes: Nodes, topic: str) -> list[int]:
    """Read what is committed in a topic, to its end."""
    reader = Consumer(client(nodes, group_id="none", isolation_level="read_committed", enable_partition_eof=True))
    reader.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: list[int] = []
    ended: set[int] = set()
    deadline = time.monotonic() + SECONDS_MAX
    while len(ended) < PARTITIONS and time.monotonic() < deadline:
        for message in reader.consume(500, 0.5):
            if message.error() is not None:
                ended.add(message.partition())
            else:
                found.append(int(message.value()))
    reader.close()
    assert len(ended) == PARTITIONS, "a transaction hangs"
    return found


@pytest.mark.rota
def test_each_node_is_killed_in_turn_and_nobody_notices_but_by_waiting(nodes: Nodes) -> None:
    admin = AdminClient(client(nodes))
    for created in admin.create_topics([NewTopic("in", PARTITIONS, 3), NewTopic("out", PARTITIONS, 3)]).values():
        created.result(30)
    work, copying = Work(), Work()
    sent: list[int] = []
    assigned: dict[str, list[int]] = {"classic": [], "consumer": []}
    given: list[dict[int, set[int]]] = [{} for _ in range(NODES)]
    seen: Counter[str] = Counter()
    restarts: list[int] = []
    work.begin(lambda: produce_input(nodes, work, sent))
    copying.begin(lambda: restarts.append(copy(nodes, sent, copying.ending.is_set)))
    for protocol, found in assigned.items():
        work.begin(lambda protocol=protocol, found=found: read_in_a_group(nodes, work, protocol, found))
    groups = ["copiers", *(f"readers-{protocol}" for protocol in assigned)]
    for group in groups:
        work.begin(lambda group=group: watch_offsets(nodes, work, group, seen))
    for number, ids in enumerate(given):
        work.begin(lambda number=number, ids=ids: register(nodes, work, number, ids))
    time.sleep(2)
    for number in [*range(NODES)] * ROUNDS:
        nodes.kill(number)
        time.sleep(3)  # longer than its session: others take over
        nodes.start(number)
        time.sleep(1)
    work.end()
    copying.end()

    assert sorted(read_all(nodes, "out")) == sent, "each number once, none missing"
    assert len(sent) > 100
    for protocol, found in assigned.items():
        assert found == [PARTITIONS], f"the member of the {protocol} group goes on without a rebalance"
    assert all(seen[group] > 10 for group in groups)

    ids: dict[int, set[int]] = {}
    for each in given:
        for number, found in each.items():
            ids.setdefault(number, set()).update(found)
    assert len(ids) > 20
    assert all(len(found) == 1 for found in ids.values()), "the same schema has the same id"
    assert len({min(found) for found in ids.values()}) == len(ids), "no id is given twice"
    with httpx.Client(timeout=20) as http:
        for number, found in ids.items():
            for at in range(NODES):
                answer = http.get(f"{nodes.url(at)}/schemas/ids/{min(found)}").json()
                assert json.loads(answer["schema"]) == json.loads(schema(number)), "none is lost"
