"""
A broker whose clock is wrong and whose disk may be full: `python -m log_broker`, with these two replaced.

It dials from the address that FLUVIAL_CHAOS_ADDRESS names, by which the proxies of its links know it.

The faults come in at the interfaces that a node is given, its machine's files and its clock; faults.json in the folder
that FLUVIAL_CHAOS_FAULTS names says which, and is looked at again every time: {"clock_ms": 5000, "disk_full": true}.

With FLUVIAL_CHAOS_METER the turns of its event loop are measured in the file of that name (`cost_meter`).

How far each log is on the disk is written down there as well, in synced/, a file of 8 bytes for each: with SIGKILL, the
system keeps what was not synced, and this tells what a power cut would have taken (`chaos_nodes.OurNode.lose_power`).
"""

import errno
import json
import os
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

import log_broker.__main__ as entry
from log_broker.records.batch import Buffer
from log_broker.server.node import Node
from log_broker.server.process.machine import RealMachine, wall_clock_ms
from log_broker.storage.files import File, OsFileSystem
from tests.fuzz.cost_meter import Meter, MeteredLoop

SIZE = struct.Struct(">q")


class Faults:
    """What is wrong now, by a file that the harness replaces."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "faults.json"
        self.synced = folder / "synced"
        self._seen = 0
        self._told: dict[str, Any] = {}

    def get(self, name: str, otherwise: Any) -> Any:
        """One fault's value."""
        changed = self._path.stat().st_mtime_ns
        if changed != self._seen:
            self._told, self._seen = json.loads(self._path.read_text()), changed
        return self._told.get(name, otherwise)

    def clock_ms(self) -> int:
        """The machine's clock, off by what is asked for."""
        return wall_clock_ms() + int(self.get("clock_ms", 0))

    def need_room(self) -> None:
        """Raise what a full disk raises."""
        if self.get("disk_full", False):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class CrampedFile:
    """A file on the disk that may be full; of a log it is noted how far it is synced."""

    def __init__(self, file: File, faults: Faults, ledger: Path | None) -> None:
        self._file = file
        self._faults = faults
        self._lock = threading.Lock()
        self._ledger = None if ledger is None else os.open(ledger, os.O_RDWR | os.O_CREAT, 0o644)
        for name in ("size", "read_at", "send_at", "is_cached"):
            setattr(self, name, getattr(file, name))

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write, if there is room."""
        self._faults.need_room()
        self._file.write_at(position, buffers)

    def sync(self) -> None:
        """Sync, and note what is on the disk from now on."""
        size = self._file.size()
        self._file.sync()
        self._note(lambda synced: max(synced, size))

    def truncate(self, size: int) -> None:
        """Cut, and note that the rest is not on the disk."""
        self._file.truncate(size)
        self._note(lambda synced: min(synced, size))

    def close(self) -> None:
        """Close both."""
        self._file.close()
        with self._lock:
            if self._ledger is not None:
                os.close(self._ledger)
                self._ledger = None

    def _note(self, change: Callable[[int], int]) -> None:
        with self._lock:
            if self._ledger is not None:
                held = os.pread(self._ledger, SIZE.size, 0)
                synced = SIZE.unpack(held)[0] if held else 0
                os.pwrite(self._ledger, SIZE.pack(change(synced)), 0)


class CrampedFileSystem(OsFileSystem):
    """The disk that may be full."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def open(self, path: Path) -> Any:
        """Open a file; a new one needs room."""
        if not path.exists():
            self._faults.need_room()
        return CrampedFile(super().open(path), self._faults, self._ledger(path))

    def _ledger(self, path: Path) -> Path | None:
        if path.suffix != ".log":
            return None
        return self._faults.synced / str(path).replace("/", "%")

    def replace(self, path: Path, content: bytes, *, sync: bool = True) -> None:
        """Replace a file, if there is room."""
        self._faults.need_room()
        super().replace(path, content, sync=sync)


class CrampedMachine(RealMachine):
    """This machine, with that disk."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self.files = CrampedFileSystem(faults)


class Dialling:
    """An event loop's connections come from the node's own address."""

    async def create_connection(self, *words: Any, **settings: Any) -> Any:
        """Connect from there."""
        return await super().create_connection(*words, **settings, local_addr=(os.environ["FLUVIAL_CHAOS_ADDRESS"], 0))


class DiallingLoop(Dialling, uvloop.Loop):
    """The loop of production."""


class MeasuredLoop(Dialling, MeteredLoop):
    """Python's own loop, each turn measured from when the node serves on."""


class MeasuredNode(Node):
    """A node whose start, which keeps nobody waiting, is not counted."""

    async def start(self, *words: Any, **named: Any) -> None:
        """Start, then forget how long turns took until here."""
        await super().start(*words, **named)
        assert isinstance(self.loop, MeasuredLoop)
        self.loop.meter.watch_this_thread()
        self.loop.call_soon(self.loop.meter.reset)


if __name__ == "__main__":
    faults = Faults(Path(os.environ["FLUVIAL_CHAOS_FAULTS"]))
    meter_path = os.environ.get("FLUVIAL_CHAOS_METER")
    kind: type[Node] = Node
    entry.loop_factory = lambda: DiallingLoop
    if meter_path:
        kind = MeasuredNode
        entry.loop_factory = lambda: partial(MeasuredLoop, Meter(Path(meter_path)))
    entry.Node = partial(kind, clock_ms=faults.clock_ms, machine=CrampedMachine(faults))  # type: ignore[assignment, misc]
    sys.exit(entry.main())
