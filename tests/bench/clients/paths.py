"""Reading paths: near the end and far back, forward and at random, cold; system calls; garbage; random beside tail."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition

from tests.bench.broker.arena import fresh
from tests.bench.broker.servers import ROOT, Broker, Kafka, Ours
from tests.bench.clients.measure import Figure, Nodes, nodes, producer, quantile, rate, read, reader
from tests.free_ports import free_ports

MIB = 1 << 20
_WARMING = 2_000  # records that Java compiles by
_JUMPS_AFTER_S = 2.0


def _fill(running: Nodes, records: int, size: int = 1_000) -> str:
    topic = running.topic()
    client = producer(running, batch_size=64 << 10, linger_ms=5)
    for at in range(records):
        client.produce(topic, os.urandom(size))
        if at % 500 == 0:
            client.poll(0)
    if client.flush(120):
        raise RuntimeError("not everything was acknowledged")
    return topic


def _drop_caches(running: Nodes, topic: str) -> None:
    """Have the system forget the pages of a topic's files; what is on the disk is all there is then."""
    os.sync()
    for member in running.members:
        _forget(str(path) for path in (member.data_dir / f"{topic}-0").iterdir())


def _forget(files: Iterable[str]) -> None:
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def distance(size: float) -> Iterator[Figure]:
    """One record read at a distance from the end: the end itself is in memory, all else was dropped from it."""
    records = int(200_000 * size)
    with nodes(1) as running:
        topic = _fill(running, records)
        for back in (0.0, 0.1, 0.5, 0.9):
            client, times = reader(running, topic, offset=records - 1), []
            read(client, 1)
            for at in range(40):
                if back:
                    _drop_caches(running, topic)
                offset = max(0, int(records * (1 - back)) - 1 - at * 97)
                began = time.perf_counter()
                client.seek(TopicPartition(topic, 0, offset))
                read(client, 1)
                times.append((time.perf_counter() - began) * 1000)
            client.close()
            choice = f"{back:.0%} back, not in memory" if back else "at the end, in memory"
            for share in (0.5, 0.9):
                yield Figure(
                    group="distance", choice=choice, what=f"p{share * 100:.0f} ms", value=quantile(sorted(times), share)
                )


def order(size: float) -> Iterator[Figure]:
    """The same batches forward and at random places, from a cold cache."""
    records = int(300_000 * size)
    with nodes(1) as running:
        topic = _fill(running, records)
        asked = max(60, int(600 * size))
        step = records // asked
        rates = {}
        for choice in ("forward", "at random"):
            _drop_caches(running, topic)
            offsets = [at * step for at in range(asked)]
            if choice == "at random":
                random.Random(1).shuffle(offsets)
            client = reader(running, topic)
            began = time.perf_counter()
            if choice == "forward":
                read(client, asked * step)
                found = asked * step
            else:
                found = 0
                for offset in offsets:
                    client.seek(TopicPartition(topic, 0, offset))
                    while not (messages := client.consume(1, 1)):
                        pass
                    found += len(messages)
            rates[choice] = found / (time.perf_counter() - began)
            client.close()
            yield Figure(group="order", choice=choice, what="records/s", value=rates[choice])
        yield Figure(
            group="order", choice="forward to random", what="times", value=rates["forward"] / rates["at random"]
        )


def calls(size: float) -> Iterator[Figure]:
    """System calls and CPU time for each MiB that a file gives to a socket, by the ways there are to do it."""
    count = max(8, int(200 * size))
    here, there = socket.socketpair()
    drained = threading.Thread(target=_drain, args=(there, count * 3 * MIB))
    drained.start()
    with tempfile.TemporaryFile() as stored, here:
        stored.write(os.urandom(MIB))
        stored.flush()
        file = stored.fileno()
        ways: dict[str, Callable[[], int]] = {
            "read 1 MiB, then send": lambda: _read_and_send(file, here, MIB),
            "read 64 KiB, then send": lambda: sum(_read_and_send(file, here, 64 << 10, at) for at in range(16)),
            "sendfile": lambda: _sendfile(file, here),
        }
        for choice, way in ways.items():
            cpu, made = time.process_time(), 0
            for _ in range(count):
                made += way()
            cpu = time.process_time() - cpu
            yield Figure(group="calls", choice=choice, what="system calls a MiB", value=made / count)
            yield Figure(group="calls", choice=choice, what="CPU µs a MiB, reader included", value=cpu / count * 1e6)
    drained.join()


def _read_and_send(file: int, to: socket.socket, length: int, at: int = 0) -> int:
    """Copy into the process and out of it again; return the system calls that took."""
    data = memoryview(os.pread(file, length, at * length))
    made = 1
    while data:
        data = data[to.send(data) :]
        made += 1
    return made


def _sendfile(file: int, to: socket.socket) -> int:
    """Have the kernel pass the pages on; return the system calls that took."""
    at = made = 0
    while at < MIB:
        at += os.sendfile(to.fileno(), file, at, MIB - at)
        made += 1
    return made


def _drain(link: socket.socket, count: int) -> None:
    buffer = bytearray(MIB)
    while count > 0 and (got := link.recv_into(buffer)):
        count -= got
    link.close()


GARBAGE = """
import atexit, gc, json, runpy, sys, time
began, total, count, longest = [0.0], [0.0], [0], [0.0]
def note(phase, info):
    if phase == "start":
        began[0] = time.perf_counter()
    else:
        took = time.perf_counter() - began[0]
        total[0] += took; count[0] += 1; longest[0] = max(longest[0], took)
gc.callbacks.append(note)
path = sys.argv[1]
atexit.register(lambda: open(path, "w").write(json.dumps([total[0], count[0], longest[0]])))
sys.argv = ["log_broker", *sys.argv[2:]]
runpy.run_module("log_broker", run_name="__main__")
"""


def garbage(size: float) -> Iterator[Figure]:
    """The time that the collector of the broker's interpreter takes while it is written to and read from."""
    with tempfile.TemporaryDirectory(prefix="bench-clients-") as folder:
        told, (port,) = Path(folder) / "told", free_ports(1)
        words = [sys.executable, "-c", GARBAGE, str(told), "--data-dir", f"{folder}/data", "--port", str(port)]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        with subprocess.Popen(
            words, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            began = time.perf_counter()
            running = _At(f"127.0.0.1:{port}")
            for _ in range(3):
                rate(running, running.topic(), int(200_000 * size))
            seconds = time.perf_counter() - began
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        total, count, longest = json.loads(told.read_text())
    choice = "a broker under load"
    yield Figure(group="garbage", choice=choice, what="% of the time in collections", value=total / seconds * 100)
    yield Figure(group="garbage", choice=choice, what="collections", value=count)
    yield Figure(group="garbage", choice=choice, what="longest ms", value=longest * 1000)


class _At(Nodes):
    """A node that somebody else has started."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.members = []
        self._topics = 0

    @property
    def address(self) -> str:
        return self._address

    def topic(self, partitions: int = 1, *, copies: int | None = None, **config: str) -> str:
        return super().topic(partitions, copies=1, **config)


def disturbed(size: float) -> Iterator[Figure]:
    """A tail reader's waiting time, alone and beside one that jumps about in what is not in memory; Kafka's too."""
    sides: tuple[tuple[type[Broker], dict[str, dict[str, str]]], ...] = (
        (Ours, {"ours, fsync": {}, "ours, memory": {"fluvial_durability": "memory"}}),
        (Kafka, {"Kafka, flush.messages=1": {"flush_messages": "1"}, "Kafka": {}}),
    )
    records = int(200_000 * size)
    for kind, topics in sides:
        with fresh(kind, None) as broker:
            broker.start()
            running = _At(broker.address)
            old = _fill(running, records)
            os.sync()
            files = [str(path) for path in (broker.data_dir / f"{old}-0").iterdir()]
            for side, config in topics.items():
                topic = running.topic(**config)
                _tail(running, topic, _WARMING)
                for beside in (None, files):
                    with nullcontext() if beside is None else _jumping(broker.address, old, records, beside):
                        times = _tail(running, topic, max(100, int(1_000 * size)))
                    choice = f"{side}, {'alone' if beside is None else 'beside random reads of old data'}"
                    for share in (0.5, 0.99):
                        what = f"p{share * 100:.0f} ms"
                        yield Figure(group="disturbed", choice=choice, what=what, value=quantile(times, share))


@contextmanager
def _jumping(address: str, topic: str, records: int, files: list[str]) -> Iterator[None]:
    """Somebody who reads at random places, in a process that takes no time from the one that measures."""
    jumping = get_context("spawn").Process(target=_jump, args=(address, topic, records, files), daemon=True)
    jumping.start()
    try:
        time.sleep(_JUMPS_AFTER_S)
        yield
    finally:
        jumping.kill()
        jumping.join()


def _jump(address: str, topic: str, records: int, files: list[str]) -> None:
    client, dice = reader(_At(address), topic), random.Random(3)
    while True:
        _forget(files)
        client.seek(TopicPartition(topic, 0, dice.randrange(records)))
        client.consume(500, 0.2)


def _tail(running: Nodes, topic: str, count: int) -> list[float]:
    """Send records one after the other, each when a reader has seen the one before; return the times in ms, sorted."""
    sink: Any = reader(running, topic, offset=-1)
    sink.poll(1)
    client = producer(running, linger_ms=0)
    times = []
    for at in range(count):
        began = time.perf_counter()
        client.produce(topic, b"%d" % at)
        client.poll(0)
        while (message := sink.poll(1)) is None or message.error() is not None:
            pass
        times.append((time.perf_counter() - began) * 1000)
    client.flush(30)
    sink.close()
    return sorted(times)


def traced(size: float) -> Iterator[Figure]:
    """What strace counts in the broker while a reader takes 100 MiB that are in the page cache."""
    with nodes(1) as running:
        records = int(100_000 * size)
        topic = _fill(running, records)
        (member,) = running.members
        words = ["strace", "-c", "-f", "-p", str(member.process.pid)]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as tracing:
            time.sleep(1)
            client = reader(running, topic)
            read(client, records)
            client.close()
            tracing.send_signal(signal.SIGINT)
            assert tracing.stderr is not None
            told = tracing.stderr.read()
        found = re.findall(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", told, re.MULTILINE)
        for count, name in found:
            if name in {
                "pread64",
                "sendto",
                "sendmsg",
                "write",
                "writev",
                "sendfile",
                "epoll_wait",
                "recvfrom",
                "read",
            }:
                yield Figure(group="traced", choice=name, what="calls a MiB", value=int(count) / (records / 1000))
