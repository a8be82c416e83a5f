"""The simulator's own parts: time, network, disk, nodes and faults do what their docstrings say."""

import errno
from collections import Counter
from pathlib import Path

import pytest

from log_broker.core.raft.log import Entry, EntryKind, OffsetAndEpoch
from log_broker.core.raft.messages import FetchRequest, FetchResponse
from log_broker.core.raft.voters import ReplicaKey
from log_broker.sim.kernel.brief import brief
from log_broker.sim.kernel.disk import SimulatedDisk
from log_broker.sim.kernel.kernel import Kernel
from log_broker.sim.kernel.nemesis import KINDS, LEADER, draw_faults
from log_broker.sim.kernel.network import Message, Network, Weather
from log_broker.sim.kernel.node import Node


class Echo:
    """A process that answers every request and notes what it sees."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.seen: list[Message] = []
        self.ticks: list[int] = []

    def start(self) -> None:
        self.node.wake_at(self.node.now_ms() + 10)

    def receive(self, message: Message) -> None:
        self.seen.append(message)
        if not message.is_answer:
            self.node.answer(message, "echo")

    def tick(self) -> None:
        self.ticks.append(self.node.kernel.now_us)


def echoes(count: int = 2) -> tuple[Kernel, Network, list[Node]]:
    kernel = Kernel(1)
    network = Network(kernel)
    nodes = [Node(kernel, network, address, Echo) for address in range(count)]
    for node in nodes:
        node.start()
    return kernel, network, nodes


def process(node: Node) -> Echo:
    assert isinstance(node.process, Echo)
    return node.process


def test_events_come_in_the_order_of_time_then_of_asking() -> None:
    kernel = Kernel(0)
    seen: list[str] = []
    for when, name in ((5, "b"), (3, "a"), (5, "c"), (9, "late")):
        kernel.at(when, lambda name=name: seen.append(name))  # type: ignore[misc]
    assert not kernel.run_until(8)
    assert (seen, kernel.now_us) == (["a", "b", "c"], 8)


def test_streams_depend_on_seed_and_name_only() -> None:
    draws = {(seed, name): Kernel(seed).stream(name).random() for seed in (1, 2) for name in "ab"}
    assert len(set(draws.values())) == 4
    assert draws[1, "a"] == Kernel(1).stream("a").random()


def test_a_request_is_answered_over_the_network() -> None:
    kernel, _, (one, other) = echoes()
    one.send_request(other.address, 7, "hello")
    kernel.run_until(100_000)
    assert [message.body for message in process(other).seen] == ["hello"]
    assert [(message.body, message.id) for message in process(one).seen] == [("echo", 7)]


def test_an_answer_does_not_reach_a_later_process() -> None:
    kernel, _, (one, other) = echoes()
    one.send_request(other.address, 7, "hello")
    one.kill()
    one.start()
    kernel.run_until(100_000)
    assert len(process(other).seen) == 1
    assert process(one).seen == []


def test_a_link_is_cut_in_one_direction_as_often_as_it_was_cut() -> None:
    kernel, network, (one, other) = echoes()
    network.cut_link(0, 1)
    network.cut_link(0, 1)
    network.repair_link(0, 1)
    one.send_request(1, 1, "lost")
    other.send_request(0, 1, "arrives")
    kernel.run_until(50_000)
    assert process(other).seen == []
    assert [message.body for message in process(one).seen] == ["arrives"]
    network.repair_link(0, 1)
    one.send_request(1, 2, "arrives")
    kernel.run_until(100_000)
    assert [message.body for message in process(other).seen] == ["arrives"]


def test_bad_weather_loses_doubles_and_reorders() -> None:
    kernel, network, (one, other) = echoes()
    network.weather = Weather(loss=0.2, duplication=0.2, straggling=0.2)
    for number in range(300):
        one.send_request(1, number, number)
    kernel.run_until(10_000_000)
    bodies = [message.body for message in process(other).seen]
    counts = Counter(bodies)
    assert 200 < len(counts) < 280
    assert max(counts.values()) == 2
    assert bodies != sorted(bodies)


def test_a_paused_node_does_everything_later() -> None:
    kernel, _, (one, other) = echoes()
    other.pause()
    one.send_request(1, 1, "hello")
    kernel.run_until(1_000_000)
    assert (process(other).seen, process(other).ticks) == ([], [])
    other.resume()
    assert len(process(other).seen) == 1
    assert process(other).ticks == [1_000_000]


def test_a_clock_that_leaps_wakes_its_node_early() -> None:
    kernel, _, (one, other) = echoes()
    kernel.at(1_000, lambda: other.jump_clock(5_000_000))
    kernel.run_until(1_000_000)
    assert process(one).ticks[0] >= 10_000 - 1_000
    assert process(other).ticks == [1_000]


def test_a_disk_does_its_jobs_in_order_and_a_kill_drops_the_rest() -> None:
    kernel = Kernel(3)
    disk = SimulatedDisk(kernel, "d")
    done: list[int] = []
    for number in range(5):
        disk.submit(lambda number=number: done.append(number), lambda error: None)  # type: ignore[misc]
    kernel.run_until(2 * disk.job_us[1])
    disk.kill()
    kernel.run_until(1_000_000)
    assert done == list(range(len(done)))
    assert 2 <= len(done) < 5


def test_power_that_fails_leaves_synced_bytes_and_any_part_of_the_rest() -> None:
    lengths = set()
    for seed in range(40):
        disk = SimulatedDisk(Kernel(seed), "d")
        file = disk.files.open(Path("f"))
        file.write_at(0, [b"synced"])
        file.sync()
        disk.files.sync_directory(Path())
        file.write_at(6, [b" unsynced"])
        disk.cut_power()
        content = disk.files.read(Path("f"))
        assert content is not None
        assert content.startswith(b"synced")
        lengths.add(len(content))
    assert {6, 15} <= lengths
    assert len(lengths) > 5


def test_a_full_disk_ends_the_process() -> None:
    kernel, _, (one, _) = echoes()
    one.disk.room_max = 100
    errors: list[int | None] = []
    one.store(lambda: one.disk.files.open(Path("f")).write_at(0, [b"x" * 1_000]), lambda: errors.append(None))
    kernel.run_until(1_000_000)
    assert (one.is_up, errors) == (False, [])
    one.disk.submit(
        lambda: one.disk.files.open(Path("f")).write_at(0, [b"x" * 1_000]),
        lambda error: errors.append(None if error is None else error.errno),
    )
    kernel.run_until(2_000_000)
    assert errors == [errno.ENOSPC]


@pytest.mark.parametrize(
    ("kinds", "drawn"),
    [(None, set(KINDS) - {"cut both ways"}), (dict.fromkeys(KINDS, 1), set(KINDS))],
    ids=["of the quorum", "as told"],
)
def test_a_schedule_is_drawn_from_every_kind_of_fault(kinds: dict[str, int] | None, drawn: set[str]) -> None:
    faults = [
        fault
        for seed in range(30)
        for fault in draw_faults(
            Kernel(seed).stream("nemesis"), [1, 2, 3], count=20, until_us=1_000_000, lasts_us=(10, 20), kinds=kinds
        )
    ]
    assert {fault.kind for fault in faults} == drawn
    assert all(fault.at_us <= 1_000_000 and 10 <= fault.lasts_us <= 20 for fault in faults)
    assert {target for fault in faults for target in fault.targets} == {LEADER, 1, 2, 3}


def test_a_story_is_told_in_few_words() -> None:
    replica = ReplicaKey(2, "d2.0")
    fetch = FetchRequest(epoch=3, replica=replica, log_end=OffsetAndEpoch(17, 3), high_watermark=16)
    assert brief(fetch) == "FetchRequest(epoch=3, replica=2/d2.0, log_end=17/3, high_watermark=16)"
    entries = (Entry(3, EntryKind.DATA, b"x" * 100),) * 5
    answer = brief(FetchResponse(epoch=3, leader_id=1, entries=entries))
    assert answer.startswith("FetchResponse(epoch=3, leader_id=1, entries=[3/DATA/xxx")
    assert answer.endswith("… 5 in all])")
