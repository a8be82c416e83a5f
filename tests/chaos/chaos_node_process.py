"""
A broker whose clock is wrong and whose disk may be full: `python -m log_broker`, with these two replaced.

The faults come in at the interfaces that a node is given, its machine's files and its clock; the file that
FLUVIAL_CHAOS_FAULTS names says which, and is looked at again every time: {"clock_ms": 5000, "disk_full": true}.
"""

import errno
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import log_broker.__main__ as entry
from log_broker.records.batch import Buffer
from log_broker.server.machine import RealMachine
from log_broker.server.node import Node, wall_clock_ms
from log_broker.storage.files import File, OsFileSystem


class Faults:
    """What is wrong now, by a file that the harness replaces."""

    def __init__(self, path: Path) -> None:
        self._path = path
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
    """A file on the disk that may be full."""

    def __init__(self, file: File, faults: Faults) -> None:
        self._file = file
        self._faults = faults
        for name in ("size", "read_at", "truncate", "sync", "close"):
            setattr(self, name, getattr(file, name))

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write, if there is room."""
        self._faults.need_room()
        self._file.write_at(position, buffers)


class CrampedFileSystem(OsFileSystem):
    """The disk that may be full."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def open(self, path: Path) -> Any:
        """Open a file; a new one needs room."""
        if not path.exists():
            self._faults.need_room()
        return CrampedFile(super().open(path), self._faults)

    def replace(self, path: Path, content: bytes, *, sync: bool = True) -> None:
        """Replace a file, if there is room."""
        self._faults.need_room()
        super().replace(path, content, sync=sync)


class CrampedMachine(RealMachine):
    """This machine, with that disk."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self.files = CrampedFileSystem(faults)


if __name__ == "__main__":
    faults = Faults(Path(os.environ["FLUVIAL_CHAOS_FAULTS"]))
    entry.Node = partial(Node, clock_ms=faults.clock_ms, machine=CrampedMachine(faults))  # type: ignore[assignment, misc]
    sys.exit(entry.main())
