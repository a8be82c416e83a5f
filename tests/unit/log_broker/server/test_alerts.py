"""
Each alert is fired by its fault, made on real nodes, and by nothing before it.

A node's metrics are read before the fault and in it. Prometheus' own `promtool` is given ten minutes of the first and
half an hour of the second, in which counters grow each minute as they grew from the one to the other.
"""

import asyncio
import errno
import resource
import shutil
import struct
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from confluent_kafka import Producer
from node_cluster import NodeCluster, cluster_of, eventually

import log_broker
from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.controller import CreateTopic
from log_broker.records import build_batch
from log_broker.server.metrics_page import families_of
from log_broker.server.node import Node
from log_broker.server.ops.exposition import metrics_registry
from log_broker.server.process.machine import RealMachine
from log_broker.server.replication import replica_fetches
from log_broker.storage.files import File, OsFile, OsFileSystem

RULES = Path(__file__).parents[4] / "infra" / "prometheus" / "rules.yml"
HEALTHY, FAULTY = 40, 120  # samples, every 15 s
MIB = 1 << 20

Scrape = Mapping[str, float] | None  # by a metric with its labels, `name,label="value"`; None: the node does not answer
Scrapes = dict[str, Scrape]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What nodes said of themselves, by their names."""

    before: Scrapes
    after: Scrapes
    growth: dict[str, float] = field(default_factory=dict)
    """By how much a gauge grows each second in the fault."""

    def series(self) -> Iterator[dict[str, str]]:
        for node, before in self.before.items():
            after = self.after[node]
            yield {
                "series": f'up{{job="fluvial",instance="{node}"}}',
                "values": f"{int(before is not None)}x{HEALTHY} {int(after is not None)}x{FAULTY}",
            }
            first, then = before or {}, after or {}
            for name in sorted(first.keys() | then.keys()):
                metric, _, labels = name.partition(",")
                series = f'{metric}{{job="fluvial",instance="{node}",{labels}}}'
                yield {"series": series, "values": self._values(metric, first.get(name), then.get(name))}

    def _values(self, metric: str, first: float | None, then: float | None) -> str:
        begun = f"_x{HEALTHY}" if first is None else f"{first}x{HEALTHY}"
        if then is None:
            return f"{begun} _x{FAULTY}"
        step = self.growth.get(metric, 0.0) * 15
        if metric.endswith(("_total", "_bucket", "_count", "_sum")):
            step = max(then - (first or 0.0), 0.0) / 4  # less: the node was started again
        return f"{begun} {then}+{step}x{FAULTY}"


def samples(families: Any) -> dict[str, float]:
    return {
        ",".join([sample.name, *(f'{label}="{value}"' for label, value in sample.labels.items())]): sample.value
        for family in families
        for sample in family.samples
    }


def read(node: Node) -> Scrape:
    """Read in the loop that the node runs in."""
    return samples(metrics_registry(node).collect())


def read_all(cluster: NodeCluster) -> Scrapes:
    return {
        f"n{node}": read(cluster.nodes[node]) if node in cluster.nodes else None for node in range(len(cluster.ports))
    }


def embedded(broker: Any) -> Scrapes:
    return {"n0": samples(families_of(broker))}


async def make_topic(cluster: NodeCluster, *replicas: int, **overrides: str) -> None:
    """Make the topic `t` of one partition, and wait until its replicas are there."""
    settings = {name.replace("_", "."): value for name, value in overrides.items()}
    made = CreateTopic(name="t", topic_id=uuid4().hex, assignments={0: replicas}, overrides=settings)
    await cluster.controller.ensure_topic(made)
    for holder in replicas:
        await eventually(lambda n=cluster.nodes[holder]: n.logs.get("t", 0) is not None)
    await eventually(lambda: cluster.nodes[replicas[0]].logs.led("t", 0) is not None)


async def append(node: Node, count: int) -> None:
    """Append at the leader, one batch a record, and wait for nobody else."""
    runtime = node.logs.led("t", 0)
    assert runtime is not None
    answers = [asyncio.get_running_loop().create_future() for _ in range(count)]
    for answer in answers:
        batch = build_batch([(node.clock_ms(), None, b"a record", ())])
        runtime.append(batch, acks=1, done=answer.set_result)
    await asyncio.gather(*answers)


def isr(cluster: NodeCluster) -> tuple[int, ...]:
    return tuple(cluster.controller.cluster.topics["t"].partitions[0].isr)


async def a_node_ends(folder: Path) -> Seen:
    async with cluster_of(folder, 3) as cluster:
        before = read_all(cluster)
        await cluster.kill(1)
        await cluster.has_controller()
        return Seen(before=before, after=read_all(cluster))


async def two_voters_of_three_end(folder: Path) -> Seen:
    async with cluster_of(folder, 3) as cluster:
        before = read_all(cluster)
        await cluster.kill(1, 2)
        await eventually(lambda: not cluster.nodes[0].authority.is_active)
        return Seen(before=before, after=read_all(cluster))


async def the_only_replica_ends(folder: Path) -> Seen:
    async with cluster_of(folder, 3) as cluster:
        await make_topic(cluster, 2)
        before = read_all(cluster)
        await cluster.stop(2)
        await cluster.has_controller()
        await eventually(lambda: not cluster.controller.cluster.is_alive(2))
        return Seen(before=before, after=read_all(cluster))


async def one_of_three_needed_replicas_ends(folder: Path) -> Seen:
    async with cluster_of(folder, 3) as cluster:
        await make_topic(cluster, 0, 1, 2, min_insync_replicas="3")
        before = read_all(cluster)
        await cluster.stop(2)
        await cluster.has_controller()
        await eventually(lambda: len(isr(cluster)) == 2)
        await eventually(lambda: len(cluster.nodes[0].cluster.topics["t"].partitions[0].isr) == 2)
        return Seen(before=before, after=read_all(cluster))


async def a_replica_that_lacks_records_is_made_leader(folder: Path) -> Seen:
    async with cluster_of(folder, 5) as cluster:
        await make_topic(cluster, 3, 4, unclean_leader_election_enable="true", min_insync_replicas="1")
        before = read_all(cluster)
        await cluster.stop(4)
        await cluster.has_controller()
        await eventually(lambda: isr(cluster) == (3,))
        await cluster.kill(3)
        await cluster.has_controller()
        await eventually(lambda: not cluster.controller.cluster.is_alive(3))
        await cluster.start(4)
        await eventually(lambda: any(node.counters.unclean_elections for node in cluster.nodes.values()))
        return Seen(before=before, after=read_all(cluster))


async def a_batch_is_damaged_on_its_way(folder: Path) -> Seen:
    async with cluster_of(folder, 3) as cluster:
        await make_topic(cluster, 0, 1)
        before = read_all(cluster)
        undamaged = replica_fetches._read

        def damaged(wanted: Any) -> Any:
            found = undamaged(wanted)
            if not found.chunks or wanted[0] is not cluster.nodes[0].logs.get("t", 0).leading:
                return found
            first, *rest = found.chunks
            return found._replace(chunks=(bytes(first[:-2]) + bytes([first[-2] ^ 4]) + bytes(first[-1:]), *rest))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(replica_fetches, "_read", damaged)
            await append(cluster.nodes[0], 1)
            await eventually(lambda: cluster.nodes[1].replicas.fetchers.corrupt_fetches > 0)
        return Seen(before=before, after=read_all(cluster))


async def a_follower_is_slower_than_its_leader(folder: Path) -> Seen:
    async with cluster_of(folder, 3, {"replica.fetch.max.bytes": "1"}) as cluster:
        await make_topic(cluster, 0, 1)
        before = read_all(cluster)
        writing = asyncio.create_task(append(cluster.nodes[0], 5_000))
        await eventually(lambda: any(lag > 1_000 for *_, lag in cluster.nodes[1].replicas.fetchers.lags()))
        after = read_all(cluster)
        await writing
        return Seen(before=before, after=after)


class FailingMachine(RealMachine):
    """One whose disk takes no more writes to the topic `t` once it has failed."""

    def __init__(self) -> None:
        super().__init__()
        self.files = disk = FailingDisk()
        self.fail = disk.fail


class FailingDisk(OsFileSystem):
    failed = False

    def fail(self) -> None:
        self.failed = True

    def open(self, path: Path) -> File:
        return FailingFile(path, self) if path.parent.name == "t-0" else super().open(path)


class FailingFile(OsFile):
    def __init__(self, path: Path, disk: FailingDisk) -> None:
        super().__init__(path)
        self._disk = disk

    def write_at(self, position: int, buffers: Any) -> None:
        if self._disk.failed:
            raise OSError(errno.EIO, "Input/output error")
        super().write_at(position, buffers)

    def truncate(self, size: int) -> None:
        if self._disk.failed:
            raise OSError(errno.EIO, "Input/output error")
        super().truncate(size)


@asynccontextmanager
async def lone_node(folder: Path, machine: RealMachine | None = None, **settings: str) -> Any:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    node = Node(BrokerConfig(data_dir=folder, port=0).with_settings(names), machine=machine)
    await node.start()
    try:
        await node.ensure_topic(CreateTopic(name="t", topic_id=uuid4().hex, partitions=1))
        await eventually(lambda: node.logs.led("t", 0) is not None)
        yield node
    finally:
        await node.stop()


async def the_disk_refuses_writes(folder: Path) -> Seen:
    machine = FailingMachine()
    async with lone_node(folder, machine) as node:
        before = read(node)
        machine.fail()
        node.logs.disk.stop()  # or the log is tried again, once, as soon as a trial beside it has gone well
        await append(node, 1)
        return Seen(before={"n0": before}, after={"n0": read(node)})


async def the_loop_is_held_up(folder: Path) -> Seen:
    async with lone_node(folder) as node:
        await asyncio.sleep(0.3)
        before = read(node)
        time.sleep(0.8)  # noqa: ASYNC251 - the fault
        await asyncio.sleep(0.3)
        return Seen(before={"n0": before}, after={"n0": read(node)})


async def clients_hold_all_of_the_memory(folder: Path) -> Seen:
    limits = {"socket_request_max_bytes": str(4 * MIB), "queued_max_request_bytes": str(8 * MIB)}
    async with lone_node(folder, **limits) as node:
        before = read(node)
        begun = struct.pack(">i", 3 * MIB) + bytes(3 * MIB - 1)
        half = [await asyncio.open_connection("127.0.0.1", node.port) for _ in range(5)]
        for _, writer in half:
            writer.write(begun)
        await eventually(lambda: node.memory.waiting > 0)
        after = read(node)
        for _, writer in half:
            writer.transport.abort()
        return Seen(before={"n0": before}, after={"n0": after})


async def the_limit_of_open_files_is_low(folder: Path) -> Seen:
    async with lone_node(folder) as node:
        before = read(node)
        assert before is not None
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        with ExitStack() as after_all:
            after_all.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
            resource.setrlimit(resource.RLIMIT_NOFILE, (int(before["process_open_fds"] * 1.2), limits[1]))
            return Seen(before={"n0": before}, after={"n0": read(node)})


async def nothing_is_synced(folder: Path) -> Seen:
    with log_broker.embedded(fluvial_durability="memory") as broker:
        before = embedded(broker)
        await asyncio.to_thread(send, broker, "t")
        first, begun = embedded(broker), time.monotonic()
        await asyncio.sleep(0.5)
        after, seconds = embedded(broker), time.monotonic() - begun
        age = "log_broker_all_unsynced_seconds"
        growth = ((after["n0"] or {})[age] - (first["n0"] or {})[age]) / seconds
        return Seen(before=before, after=after, growth={age: growth})


async def a_producer_sends_no_keys(folder: Path) -> Seen:
    with log_broker.embedded() as broker:
        broker.create_topic("t", config={"cleanup.policy": "compact"})
        before = embedded(broker)
        await asyncio.to_thread(send, broker, "t")
        return Seen(before=before, after=embedded(broker))


def send(broker: Any, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for _ in range(10):
        producer.produce(topic, b"a record")
    assert producer.flush(30) == 0


FAULTS: dict[str, Callable[[Path], Awaitable[Seen]]] = {
    "FluvialNodeDown": a_node_ends,
    "FluvialNoController": two_voters_of_three_end,
    "FluvialLeaderlessPartitions": the_only_replica_ends,
    "FluvialUnderMinIsr": one_of_three_needed_replicas_ends,
    "FluvialUnderReplicated": one_of_three_needed_replicas_ends,
    "FluvialOfflinePartitions": the_disk_refuses_writes,
    "FluvialStorageErrors": the_disk_refuses_writes,
    "FluvialUncleanElection": a_replica_that_lacks_records_is_made_leader,
    "FluvialCorruptBatches": a_batch_is_damaged_on_its_way,
    "FluvialReplicaLagging": a_follower_is_slower_than_its_leader,
    "FluvialEventLoopLate": the_loop_is_held_up,
    "FluvialUnsyncedRecords": nothing_is_synced,
    "FluvialConnectionsWait": clients_hold_all_of_the_memory,
    "FluvialFilesNearLimit": the_limit_of_open_files_is_low,
    "FluvialRecordsRefused": a_producer_sends_no_keys,
}


def test_each_alert_has_its_fault() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert list(FAULTS) == [rule["alert"] for rule in rules]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool (Debian's package prometheus)")
@pytest.mark.parametrize("alert", FAULTS)
async def test_an_alert_is_fired_by_its_fault(alert: str, tmp_path: Path) -> None:
    seen = await FAULTS[alert](tmp_path / "nodes")
    firing = {"expr": 'count(ALERTS{alertstate="firing"}) > bool 0', "eval_time": "9m", "exp_samples": []}
    fired = {
        "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > bool 0',
        "eval_time": "35m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }
    case = {"interval": "15s", "input_series": list(seen.series()), "promql_expr_test": [firing, fired]}
    test = tmp_path / "test.yml"
    test.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": [case]}))
    done = await asyncio.to_thread(
        subprocess.run,
        ["promtool", "test", "rules", str(test)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
