"""
One broker under three times what it can take: it stays up, slows producers down, loses nothing and recovers.

    python tests/chaos/overload_run.py                 a minute of overload
    python tests/chaos/overload_run.py --minutes 10

First it is found out how many records a second the broker takes from producers that wait for it; these share the
machine with it. Then come a third of that, three times as many from sources that do not wait, and a third again. A
reader follows all the while, and a client sends one record a second. The times are said and not judged.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # before what is installed, which may be of another checkout

import psutil
from overload_clients import Reader, SmallClient
from overload_load import Done, Load, Task

from log_broker.server.net.memory_budget import FREE_BYTES
from log_broker.server.process.memory import KEPT_BYTES_MAX
from tests.bench.broker.measuring import create_topic
from tests.bench.broker.servers import Ours

MIB = 1 << 20
TOPIC, SMALL_TOPIC = "overload", "small"
PARTITIONS = 4
PROCESSES, PRODUCERS = 2, 10  # each process has so many
VALUE_BYTES = 10_000
TIMES = 3
CAPACITY_SECONDS = 8
SETTINGS = {
    # Less than the producers may have on their way: 20 with five requests of a megabyte each.
    "queued.max.request.bytes": 16 * MIB,
    "socket.request.max.bytes": 4 * MIB,
}
TOPIC_SETTINGS = {"segment.bytes": str(64 * MIB), "file.delete.delay.ms": "0"}
MEMORY_SLACK = 16 * MIB
"""What code and tables may take beside the budget of requests, as `make fuzz FUZZ=--cost` has it."""


class Bounded(Ours):
    """Our broker with a small budget for the bytes of requests."""

    settings = SETTINGS


class Memory:
    """Looks at a broker all the time: the most resident memory, and the most connections."""

    def __init__(self, broker: Ours) -> None:
        self._process = psutil.Process(broker.process.pid)
        self.before = self.most = self._process.memory_info().rss
        self._connections = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def bound(self) -> int:
        """What is allowed: the budget, the free first bytes of each connection, and what the process keeps of freed."""
        budget = SETTINGS["queued.max.request.bytes"] + FREE_BYTES * self._connections
        return self.before + budget + KEPT_BYTES_MAX + MEMORY_SLACK

    def finish(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(0.1):
            try:
                self.most = max(self.most, self._process.memory_info().rss)
                self._connections = max(self._connections, len(self._process.net_connections("tcp")))
            except psutil.Error:
                return  # it is gone, which others say


class Sources:
    """The processes that offer records, as one."""

    def __init__(self, address: str, folder: Path) -> None:
        self.files = [folder / f"taken-{number}" for number in range(PROCESSES)]
        loads = [
            Load(address, TOPIC, number, PRODUCERS, VALUE_BYTES, str(file)) for number, file in enumerate(self.files)
        ]
        self._processes = [
            subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("overload_load.py")), json.dumps(load._asdict())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for load in loads
        ]

    def offer(self, rate: float | None, seconds: float) -> Done:
        """Have all of them work on their share, and return what they did together."""
        task = Task(None if rate is None else rate / PROCESSES, seconds)
        for process in self._processes:
            assert process.stdin is not None
            print(json.dumps(task), file=process.stdin, flush=True)
        return _together([Done(*json.loads(self._line(process))) for process in self._processes])

    def drain(self) -> Done:
        """Wait until all that was taken is acknowledged."""
        return self.offer(None, 0)

    def finish(self) -> None:
        """End them; what they took is in their files."""
        for process in self._processes:
            process.communicate(timeout=60)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _line(self, process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        if not (line := process.stdout.readline()):
            raise RuntimeError("a process of producers has died")
        return line


class Overload:
    """What is done to one broker; `say` gets a line of each."""

    def __init__(self, sources: Sources, small: SmallClient, say: Callable[[str], None]) -> None:
        self._sources = sources
        self._small = small
        self._say = say
        self.findings: list[str] = []

    def run(self, seconds: int) -> None:
        capacity = self._capacity()
        calm_seconds = max(seconds // 6, 2)
        before = self._phase("a third of it", calm_seconds, lambda _: capacity / TIMES)
        # What it takes may turn out to be more than was found first.
        during = self._phase("three times as many", seconds, lambda taken: TIMES * max(capacity, taken))
        self._expect(during.refused > 0, "no producer was slowed down: it was no overload")
        began = time.monotonic()
        self._expect(not self._sources.drain().failures, "records failed that were taken before")
        self._say(f"all that was taken is acknowledged {time.monotonic() - began:.1f} s later")
        after = self._phase("a third again", calm_seconds, lambda _: capacity / TIMES)
        times = _quantile(after.latencies_ms, 0.99) / _quantile(before.latencies_ms, 0.99)
        self._say(f"p99 after the overload is {times:.2f} times that before")

    def _capacity(self) -> float:
        """Records a second that are acknowledged to producers that wait."""
        self._sources.offer(None, 1)
        rate = self._sources.offer(None, CAPACITY_SECONDS).acknowledged / CAPACITY_SECONDS
        self._sources.drain()
        self._say(f"it takes {rate:,.0f} records of {VALUE_BYTES:,} B a second, {rate * VALUE_BYTES / MIB:.0f} MiB")
        return rate

    def _phase(self, what: str, seconds: int, rate: Callable[[float], float]) -> Done:
        """Offer second by second, at a rate that follows from how many a second were taken so far."""
        parts: list[Done] = []
        small = len(self._small.latencies_ms)
        for number in range(seconds):
            taken = sum(each.acknowledged for each in parts) / max(number, 1)
            parts.append(self._sources.offer(rate(taken), 1))
        done = _together(parts)
        self._say(
            f"{what}, {seconds} s: offered {done.offered / seconds:,.0f}/s, refused {done.refused / seconds:,.0f}/s, "
            f"acknowledged {done.acknowledged / seconds:,.0f}/s, {_times(done.latencies_ms)}; "
            f"of one record a second {_times(self._small.latencies_ms[small:])}"
        )
        self._expect(not done.failures, f"{len(done.failures)} records failed: {done.failures[:2]}")
        return done

    def _expect(self, condition: bool, finding: str) -> None:
        if not condition:
            self.findings.append(finding)


def overload(folder: Path, seconds: int, say: Callable[[str], None]) -> list[str]:
    """Overload a broker of its own for so long; return what should not have happened."""
    broker = Bounded(folder)
    broker.start()
    sources = None
    try:
        for name, partitions in ((TOPIC, PARTITIONS), (SMALL_TOPIC, 1)):
            create_topic(broker, name, partitions, TOPIC_SETTINGS.items())
        sources = Sources(broker.address, folder)
        memory, reader = Memory(broker), Reader(broker.address, TOPIC, PARTITIONS)
        small = SmallClient(broker.address, SMALL_TOPIC)
        run = Overload(sources, small, say)
        try:
            run.run(seconds)
        finally:
            sources.finish()
            unanswered = small.finish()
            reader.finish()
            memory.finish()
        say(
            f"resident memory: {memory.before / MIB:.0f} MiB before, at most {memory.most / MIB:.0f} MiB, "
            f"{memory.bound / MIB:.0f} MiB are allowed"
        )
        findings = [*run.findings, *unanswered, *reader.errors, *reader.counts.findings(sources.files)]
        if memory.most > memory.bound:
            findings.append(f"{memory.most / MIB:.0f} MiB of memory, {memory.bound / MIB:.0f} MiB are allowed")
        if broker.process.poll() is not None:
            findings.append(f"the broker ended with {broker.process.returncode}")
        if "Traceback" in broker.log_text():
            findings.append(f"the broker's log has a traceback: {broker.log_text()[-2000:]}")
        return findings
    finally:
        if sources is not None:
            sources.kill()
        broker.kill()


def _together(parts: list[Done]) -> Done:
    return Done(
        sum(each.offered for each in parts),
        sum(each.refused for each in parts),
        sum(each.acknowledged for each in parts),
        [failure for each in parts for failure in each.failures],
        [latency for each in parts for latency in each.latencies_ms],
    )


def _times(latencies_ms: list[float]) -> str:
    return f"p50 {_quantile(latencies_ms, 0.5):.1f} ms, p99 {_quantile(latencies_ms, 0.99):.1f} ms"


def _quantile(latencies_ms: list[float], share: float) -> float:
    ordered = sorted(latencies_ms)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else float("nan")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument("--seconds", type=int, default=60, help="how long it is overloaded (default: 60)")
    parser.add_argument("--minutes", type=int, default=0, help="the same in minutes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds = options.minutes * 60 or options.seconds
        findings = overload(Path(folder), seconds, lambda line: print(line, flush=True))
    print("\n".join(findings) or "as it should be")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
