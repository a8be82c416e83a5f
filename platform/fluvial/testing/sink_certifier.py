"""
Finds out what a sink promises, by doing to it what happens to sinks, and looking what is in it afterwards.

    class Ledger:
        def __init__(self, folder: Path) -> None: ...
        def write(self, batch: Batch) -> None: ...
        def ids(self) -> Iterable[int]: ...    # of the rows that a reader of the sink sees, as often as they are there
        def position(self) -> int | None: ...  # if the sink keeps it with its rows: the first offset that it lacks

    print(certify("my_sinks:Ledger"))

Every attack has a sink of its own, in a folder of its own. Where the sink keeps no position, it is kept for it as the
offsets of a consumer group would be: committed once `write` has returned or, with `commit_first`, before it is called.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from fluvial.errors import FluvialError
from fluvial.testing.sink_driver import BATCHES, ROWS_A_BATCH, Driver, Sink, events, waits_at

KILLS = 12
SECONDS_MAX = 120.0
_SHOWN = 5


class CertifyError(FluvialError):
    """
    A sink cannot be tried: it is not there, or fails undisturbed.
    """


class Class(StrEnum):
    """
    What a sink was seen to keep.
    """

    AT_MOST_ONCE = "at most once"
    AT_LEAST_ONCE = "at least once"
    EFFECTIVELY_ONCE = "effectively exactly once (idempotent)"
    EXACTLY_ONCE = "exactly once"
    NOTHING = "no promise: rows are lost and doubled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """
    What one attack did. `torn` says when a reader saw other rows than the position tells, in the middle of it.
    """

    attack: str
    lost: tuple[int, ...] = ()
    doubled: tuple[int, ...] = ()
    torn: str | None = None

    def __str__(self) -> str:
        parts = [
            f"{len(ids)} rows {what} ({', '.join(map(str, ids[:_SHOWN]))}{' …' if len(ids) > _SHOWN else ''})"
            for what, ids in (("lost", self.lost), ("doubled", self.doubled))
            if ids
        ]
        if self.torn:
            parts.append(self.torn)
        return f"{self.attack}: {'; '.join(parts) or 'every row once'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """
    The verdict on a sink, and what it rests on.
    """

    sink: str
    evidence: tuple[Evidence, ...]

    @property
    def verdict(self) -> Class:
        """
        The strongest promise that no attack broke.
        """
        lost = any(each.lost for each in self.evidence)
        doubled = any(each.doubled for each in self.evidence)
        if lost and doubled:
            return Class.NOTHING
        if lost:
            return Class.AT_MOST_ONCE
        if doubled:
            return Class.AT_LEAST_ONCE
        if any(each.torn for each in self.evidence):
            return Class.EFFECTIVELY_ONCE
        return Class.EXACTLY_ONCE

    def as_json(self) -> dict[str, Any]:
        """
        For programs.
        """
        return {
            "sink": self.sink,
            "verdict": self.verdict.value,
            "evidence": [
                {"attack": each.attack, "lost": list(each.lost), "doubled": list(each.doubled), "torn": each.torn}
                for each in self.evidence
            ],
        }

    def __str__(self) -> str:
        return "\n".join([f"{self.sink}: {self.verdict}", *(f"  {each}" for each in self.evidence)])


def certify(
    sink: str | Callable[[Path], Sink],
    *,
    commit_first: bool = False,
    attacks: Sequence[str] | None = None,
    kills: int = KILLS,
    seed: int = 1,
    folder: Path | None = None,
) -> Certificate:
    """
    Try a sink: `module:name` or `path/to/file.py:name` of what makes one from a folder, and say what it promises.

    A callable instead of a name is not tried by killing its process. With `commit_first` only the attacks are made that
    such a reader can suffer: nothing is ever delivered to it again. `folder` is where the sinks live, instead of a
    temporary one. Raises CertifyError.
    """
    possible = [name for name in ATTACKS if not (commit_first and name in _DELIVERED_AGAIN)]
    if not isinstance(sink, str):
        possible = [name for name in possible if name not in _OF_PROCESSES]
    unknown = set(attacks or ()) - set(possible)
    if unknown:
        raise CertifyError(f"there is no attack {', '.join(sorted(unknown))} on it: choose from {', '.join(possible)}")
    with tempfile.TemporaryDirectory(prefix="fluvial-certify-") as temporary:
        home = folder or Path(temporary)
        trial = _Trial(sink=sink, commit_first=commit_first, kills=kills, seed=seed)
        found = []
        for name in possible:
            if name == UNDISTURBED or attacks is None or name in attacks:
                folder = home / name.replace(" ", "-")
                folder.mkdir(parents=True)
                found.append(ATTACKS[name](trial, folder))
                if name == UNDISTURBED and (found[0].lost or found[0].doubled):
                    raise CertifyError(f"{trial.name} does not even hold what it is given undisturbed: {found[0]}")
    return Certificate(sink=trial.name, evidence=tuple(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    sink: str | Callable[[Path], Sink]
    commit_first: bool
    kills: int
    seed: int

    @property
    def name(self) -> str:
        return self.sink if isinstance(self.sink, str) else getattr(self.sink, "__name__", repr(self.sink))

    def driver(self, folder: Path) -> Driver:
        try:
            return Driver.at(self.sink, folder, commit_first=self.commit_first)
        except (ImportError, AttributeError, FileNotFoundError, ValueError) as error:
            raise CertifyError(f"there is no sink {self.name}: {error}; name it module:name or file.py:name") from error

    def seen(self, folder: Path, attack: str, torn: str | None = None) -> Evidence:
        counts = Counter(self.driver(folder).sink.ids())
        expected = range(BATCHES * ROWS_A_BATCH)
        return Evidence(
            attack=attack,
            lost=tuple(each for each in expected if not counts[each]),
            doubled=tuple(sorted(each for each, times in counts.items() if times > 1)),
            torn=torn,
        )

    def worker(self, folder: Path, *, kill: str = "", start: Path | None = None) -> "subprocess.Popen[bytes]":
        """The driver in a process of its own, which is killed where `kill` says."""
        assert isinstance(self.sink, str), "a callable has no process of its own"
        order = {
            "sink": self.sink,
            "place": str(folder),
            "commit_first": self.commit_first,
            "kill": kill,
            "start": str(start or ""),
        }
        return subprocess.Popen(
            [sys.executable, "-m", "fluvial.testing.sink_driver", json.dumps(order)],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(each or "." for each in sys.path)},
        )


def _undisturbed(trial: _Trial, folder: Path) -> Evidence:
    driver = trial.driver(folder)
    for batch in driver.left():
        driver.deliver(batch)
    return trial.seen(folder, UNDISTURBED)


def _killed(trial: _Trial, folder: Path) -> Evidence:
    dice = random.Random(trial.seed)  # noqa: S311 - moments, no secrets
    torn = None
    for number in range(trial.kills):
        # Each part of a batch in turn, some batches after where it stands.
        moment = MOMENTS[number % len(MOMENTS)]
        batch = dice.randrange(2)
        worker = trial.worker(folder, kill=f"{moment} {batch} {dice.random():.3f}")
        if worker.wait(SECONDS_MAX) not in {0, -signal.SIGKILL}:
            raise CertifyError(f"{trial.name} failed: its process ended with {worker.returncode}")
        torn = torn or _torn(trial.driver(folder), moment)
    _finish(trial, folder)
    return trial.seen(folder, KILLED, torn)


def _torn(driver: Driver, moment: str) -> str | None:
    held, position = set(driver.sink.ids()), driver.position
    below = set(range(position))
    if held == below:
        return None
    kept = "its own position" if driver.keeps_position else "the committed position, which is not its own,"
    extra, missing = len(held - below), len(below - held)
    what = " and ".join(
        f"{count} rows {where}" for count, where in ((extra, "beyond"), (missing, "missing below")) if count
    )
    return f"killed {moment} a reader saw {what} {kept} {position}"


def _finish(trial: _Trial, folder: Path) -> None:
    worker = trial.worker(folder)
    if worker.wait(SECONDS_MAX) != 0:
        raise CertifyError(f"{trial.name} failed: its process ended with {worker.returncode}")


def _repeated(trial: _Trial, folder: Path) -> Evidence:
    driver = trial.driver(folder)
    for batch in driver.left():
        driver.deliver(batch)
        driver.sink.write(batch)
        # And by one that knows nothing of the first.
        trial.driver(folder).sink.write(batch)
    return trial.seen(folder, REPEATED)


def _cut_otherwise(trial: _Trial, folder: Path) -> Evidence:
    dice = random.Random(trial.seed)  # noqa: S311 - moments, no secrets
    driver, end = trial.driver(folder), BATCHES * ROWS_A_BATCH
    start, number = 0, 0
    while start < end:
        stop = min(end, start + dice.randrange(2, ROWS_A_BATCH * 2))
        driver.deliver(events(start, stop, number))
        # The commit of the last one is lost: some of its rows come again, in a batch of the same number.
        again = max(0, stop - dice.randrange(0, ROWS_A_BATCH))
        stop = min(end, stop + dice.randrange(0, ROWS_A_BATCH))
        driver.deliver(events(again, stop, number))
        start, number = stop, number + 1
    return trial.seen(folder, CUT_OTHERWISE)


def _late(trial: _Trial, folder: Path) -> Evidence:
    driver = trial.driver(folder)
    batches = list(driver.left())
    for number, batch in enumerate(batches):
        driver.deliver(batch)
        if number >= 2:
            # One that was paused goes on with what it had, and hears afterwards that it is out.
            trial.driver(folder).try_write(batches[number - 2])
    return trial.seen(folder, LATE)


def _two_at_once(trial: _Trial, folder: Path) -> Evidence:
    start = folder / "start"
    workers = [trial.worker(folder, start=start) for _ in range(2)]
    deadline = time.monotonic() + SECONDS_MAX
    while any(worker.poll() is None and not waits_at(start, worker.pid).exists() for worker in workers):
        if time.monotonic() > deadline:
            raise CertifyError(f"{trial.name} is not opened in {SECONDS_MAX:g} s")
        time.sleep(0.01)
    start.touch()
    for worker in workers:
        worker.wait(SECONDS_MAX)
    # One that was refused has ended with an error, as it should.
    _finish(trial, folder)
    return trial.seen(folder, TWO_AT_ONCE)


UNDISTURBED, KILLED, REPEATED = "undisturbed", "killed", "repeated"
CUT_OTHERWISE, LATE, TWO_AT_ONCE = "cut otherwise", "late", "two at once"
MOMENTS = ("before writing", "while writing", "after writing", "after committing")
ATTACKS: dict[str, Callable[[_Trial, Path], Evidence]] = {
    UNDISTURBED: _undisturbed,
    KILLED: _killed,
    REPEATED: _repeated,
    CUT_OTHERWISE: _cut_otherwise,
    LATE: _late,
    TWO_AT_ONCE: _two_at_once,
}
_DELIVERED_AGAIN = frozenset({REPEATED, CUT_OTHERWISE, LATE, TWO_AT_ONCE})
_OF_PROCESSES = frozenset({KILLED, TWO_AT_ONCE})
