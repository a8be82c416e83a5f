"""
A node in a process of its own, on a loop whose turns are measured, and the handle by which the cost fuzzer holds it.

    python tests/fuzz/cost_node.py <folder>        as `python -m fluvial.node`; says its ports, then answers "numbers"

The process may take 4 GiB of address space and five seconds of CPU for one turn: beyond that it is ended.
"""

import asyncio
import contextlib
import gc
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "platform")]

from cost_meter import Meter, MeteredLoop, limit_memory

from tests.free_ports import free_ports

ADDRESS_SPACE = 4 << 30
TURN_SECONDS_KILLED = 5.0
START_SECONDS_MAX = 60.0
MEMORY_SLACK = 16 << 20
REQUEST_BYTES_MAX = 16 << 20
BUDGET_BYTES = 64 << 20
SETTINGS = {
    # Small, so that what goes beyond them shows at sizes that harm nobody.
    "socket.request.max.bytes": REQUEST_BYTES_MAX,
    "queued.max.request.bytes": BUDGET_BYTES,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": 0,
}


class DeadNodeError(Exception):
    """The node ended, or was ended because a turn took too long or it did not answer."""


class CostNode:
    """The handle. What it says of turns and memory is since the last `reset`."""

    def __init__(self, folder: Path | None = None, settings: Mapping[str, object] = {}, *, port: int = 0) -> None:
        self._settings = {**settings, **({"port": port} if port else {})}
        self._own = folder is None
        # In memory: what is measured is not the disk.
        self.folder = folder or Path(
            tempfile.mkdtemp(prefix="cost-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        )
        self.meter = Meter(self.folder / "meter")
        self.killed_at = 0.0  # CPU seconds of the turn for which it was ended
        self.port = self.registry_port = 0
        self._base = 0

    async def start(self) -> None:
        self.killed_at = 0.0
        self._log = (self.folder / "node.log").open("ab")
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__)),
            str(self.folder),
            json.dumps(self._settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        async with asyncio.timeout(START_SECONDS_MAX):
            line = await self._line()
        self.port, self.registry_port = line["port"], line["registry_port"]
        self._watchdog = asyncio.create_task(self._watch())

    async def _line(self) -> Any:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            raise DeadNodeError(self.why())
        return json.loads(line)

    async def _watch(self) -> None:
        while self.process.returncode is None:
            await asyncio.sleep(0.05)
            spent = self.meter.current(self.process.pid)
            if spent > TURN_SECONDS_KILLED:
                self.killed_at = spent
                with contextlib.suppress(ProcessLookupError):
                    self.process.kill()
                return

    def why(self) -> str:
        """Say how it ended."""
        if self.killed_at:
            return f"ended after {self.killed_at:.1f} s of CPU in one turn"
        tail = (self.folder / "node.log").read_text(errors="replace").splitlines()[-1:]
        return f"the process ended with status {self.process.returncode}: {''.join(tail)[:300]}"

    @property
    def is_running(self) -> bool:
        return self.process.returncode is None

    async def stop(self, *, clean: bool = False) -> None:
        self._watchdog.cancel()
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM if clean else signal.SIGKILL)
        await self.process.wait()
        self._log.close()

    def remove(self) -> None:
        if self._own:
            shutil.rmtree(self.folder, ignore_errors=True)

    async def numbers(self) -> dict[str, int]:
        """What it holds that outlives a restart, and what grows with use: see `numbers_of`."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"numbers\n")
        async with asyncio.timeout(TURN_SECONDS_KILLED * 6):
            numbers: dict[str, int] = await self._line()
        return numbers

    # Costs.

    def reset(self) -> None:
        self.meter.reset()
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        self._base = self.memory()

    def memory(self) -> int:
        return self._status("VmRSS")

    def growth(self) -> int:
        """By how much memory was above what it was at `reset`, at most."""
        return max(self._status("VmHWM") - self._base, 0)

    def _status(self, name: str) -> int:
        try:
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith(name):
                    return int(line.split()[1]) << 10
        except OSError:
            pass
        return 0

    def cpu(self) -> float:
        """CPU seconds of the whole process so far."""
        try:
            words = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            return 0.0
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def files(self) -> tuple[int, int]:
        """How many files and folders its data has, and their bytes on the disk."""
        count = size = 0
        for root, folders, names in os.walk(self.folder / "data"):
            count += len(names) + len(folders)
            for name in names:
                with contextlib.suppress(OSError):
                    size += os.stat(os.path.join(root, name)).st_blocks * 512
        return count, size

    def saved_numbers(self) -> dict[str, int]:
        """Every number that stands in a JSON file of the data directory."""
        found: dict[str, int] = {}
        for root, _, names in os.walk(self.folder / "data"):  # not rglob, which fails when a folder goes meanwhile
            if "quorum-state" not in names:
                continue
            with contextlib.suppress(OSError, ValueError):
                for name, value in json.loads(Path(root, "quorum-state").read_text()).items():
                    if isinstance(value, int):
                        found[name] = value
        return found


@contextlib.contextmanager
def temporary_node() -> Iterator[CostNode]:
    node = CostNode()
    try:
        yield node
    finally:
        node.remove()


# The process itself.


def numbers_of(connection: Any) -> dict[str, int]:
    """Read by the names of this code base's objects; what a version does not have is left out."""
    node = connection._node
    image = node.cluster
    numbers = {
        "quorum epoch": node.quorum.epoch,
        "image version": image.version,
        "next producer id": image.next_producer_id,
        "topics": len(image.topics),
        "partitions": sum(len(topic.partitions) for topic in image.topics.values()),
        "brokers": len(image.brokers),
        "broker epoch": max((broker.epoch for broker in image.brokers.values()), default=0),
        "leader epoch": max(
            (each.leader_epoch for topic in image.topics.values() for each in topic.partitions), default=0
        ),
        "partition epoch": max(
            (each.partition_epoch for topic in image.topics.values() for each in topic.partitions), default=0
        ),
        "connections": len(node.connections),
        "tasks": len(node.tasks),
        "held bytes": node.memory.held,
    }
    numbers["offsets"] = sum(runtime.log_end_offset for runtime in node.logs.partitions())
    return numbers


async def _serve(folder: Path, loop: MeteredLoop, told: TextIO) -> None:
    from fluvial.node import NodeOptions, run
    from log_broker.config.broker import BrokerConfig

    own = json.loads(sys.argv[2])
    ports = free_ports(2)
    ports[0] = own.pop("port", ports[0])
    config = BrokerConfig(data_dir=folder / "data", port=ports[0], node_id=own.pop("node.id", 0)).with_settings(
        {name: str(value) for name, value in {**SETTINGS, **own}.items()}
    )

    def ready() -> None:
        gc.collect()
        gc.freeze()
        loop.add_reader(sys.stdin.fileno(), asked)
        print(json.dumps({"port": ports[0], "registry_port": ports[1]}), file=told, flush=True)

    def asked() -> None:
        if not os.read(sys.stdin.fileno(), 100):
            os._exit(0)  # whoever started this is gone
        print(json.dumps(numbers_of(loop.servers[0]())), file=told, flush=True)  # type: ignore[operator]

    await run(NodeOptions(broker=config, registry_port=ports[1]), ready)


def main() -> None:
    folder = Path(sys.argv[1])
    limit_memory(ADDRESS_SPACE)
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what else is printed belongs to the log
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    meter = Meter(folder / "meter")
    meter.watch_this_thread()
    with asyncio.Runner(loop_factory=lambda: MeteredLoop(meter)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, MeteredLoop)
        runner.run(_serve(folder, loop, told))


if __name__ == "__main__":
    main()
