"""
Delivers batches to a sink as a reader of a log does, in this process or in one that is killed.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

BATCHES = 16
ROWS_A_BATCH = 10
_START_SECONDS_MAX = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One event; its id is its offset, and its key its own."""

    id: int
    key: str
    value: str

    @property
    def offset(self) -> int:
        """Where it stands in the log."""
        return self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """
    The rows of the offsets [start, end). `number` counts batches; one that is delivered again has the number it had.
    """

    number: int
    start: int
    end: int
    rows: tuple[Row, ...]


class Sink(Protocol):
    """
    What is tried. It may also have `position() -> int | None`: the first offset that it lacks, kept with its rows.
    """

    def write(self, batch: Batch) -> None:
        """Take in a batch; an error refuses it."""
        ...

    def ids(self) -> Iterable[int]:
        """The ids of the rows that a reader sees now, each as often as it is there."""
        ...


def events(start: int, end: int, number: int) -> Batch:
    """The batch of these offsets."""
    rows = tuple(Row(id=each, key=f"key {each}", value=f"value {each}") for each in range(start, end))
    return Batch(number=number, start=start, end=end, rows=rows)


def load_sink(name: str) -> Callable[[Path], Sink]:
    """What makes a sink from a folder: `module:name` or `path/to/file.py:name`."""
    home, _, attribute = name.rpartition(":")
    if not home:
        raise ValueError("a name has a colon in it")
    if not home.endswith(".py"):
        made: Callable[[Path], Sink] = getattr(importlib.import_module(home), attribute)
        return made
    spec = importlib.util.spec_from_file_location("fluvial_certified_sink", home)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found: Callable[[Path], Sink] = getattr(module, attribute)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A reader of the log with its sink, and the position that it keeps for a sink which keeps none."""

    sink: Sink
    folder: Path
    commit_first: bool

    @classmethod
    def at(cls, sink: str | Callable[[Path], Sink], folder: Path, *, commit_first: bool) -> "Driver":
        """The driver of the sink that lives in a folder."""
        make = load_sink(sink) if isinstance(sink, str) else sink
        home = folder / "sink"
        home.mkdir(exist_ok=True)
        return cls(sink=make(home), folder=folder, commit_first=commit_first)

    @property
    def keeps_position(self) -> bool:
        """Whether the sink says itself how far it is."""
        return hasattr(self.sink, "position")

    @property
    def position(self) -> int:
        """The first offset that is not done."""
        if self.keeps_position:
            return int(getattr(self.sink, "position")() or 0)  # noqa: B009
        try:
            return int((self.folder / "committed").read_text())
        except FileNotFoundError:
            return 0

    def left(self) -> Iterator[Batch]:
        """The batches from the position on."""
        start = self.position
        while start < BATCHES * ROWS_A_BATCH:
            number = start // ROWS_A_BATCH
            end = (number + 1) * ROWS_A_BATCH
            yield events(start, end, number)
            start = end

    def deliver(self, batch: Batch, at: Callable[[str], None] = lambda moment: None) -> None:
        """Have the sink write a batch, and commit; `at` hears of each moment."""
        at("before writing")
        if self.commit_first:
            self._commit(batch)
            at("after committing")
        at("while writing")
        self.sink.write(batch)
        at("after writing")
        if not self.commit_first:
            self._commit(batch)
            at("after committing")

    def try_write(self, batch: Batch) -> None:
        """Have the sink write a batch that it may well refuse."""
        # A refusal is what is hoped for; what the attempt left is looked at all the same.
        with contextlib.suppress(Exception):
            self.sink.write(batch)

    def _commit(self, batch: Batch) -> None:
        if self.keeps_position:
            return
        new = self.folder / f"committed.{os.getpid()}"
        new.write_text(str(batch.end))
        new.replace(self.folder / "committed")


def _killer(word: str) -> Callable[[str], None]:
    """What kills this process at a moment of the n-th batch from now; while writing, after a part of a few ms."""
    if not word:
        return lambda moment: None
    wanted, batch, share = word.rsplit(" ", 2)
    waiting = [int(batch)]

    def at(moment: str) -> None:
        if moment != wanted:
            return
        waiting[0] -= 1
        if waiting[0] >= 0:
            return
        if moment == "while writing":
            threading.Thread(target=_kill_after, args=(float(share) * 0.01,), daemon=True).start()
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    return at


def _kill_after(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def waits_at(start: Path, pid: int) -> Path:
    """The file that says that a process waits for the file `start`."""
    return start.with_name(f"{start.name}.{pid}")


def main(order: dict[str, Any]) -> None:
    """Deliver what is left, as `order` says."""
    driver = Driver.at(order["sink"], Path(order["place"]), commit_first=order["commit_first"])
    if order["start"]:
        start, until = Path(order["start"]), time.monotonic() + _START_SECONDS_MAX
        waits_at(start, os.getpid()).touch()
        while not start.exists() and time.monotonic() < until:
            time.sleep(0.001)
    at = _killer(order["kill"])
    for batch in driver.left():
        driver.deliver(batch, at)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
