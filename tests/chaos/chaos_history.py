"""
What clients did and were told, one operation a JSON line: the evidence on which a cluster is judged.

A key is one partition, "topic-0"; a value is sent once only, so it tells who sent it.
"""

import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

# ok: acknowledged or committed. fail: certainly not done or aborted. info: nobody knows.
Outcome = Literal["ok", "fail", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record as it was sent or polled; the offset of a sent one is None where the broker told none."""

    key: str
    offset: int | None
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """
    One operation of one process: a send, a poll, or a transaction of polls and sends. Times are of one monotonic clock.

    `moved` names the keys whose position was set again within or right before it (assignment, rebalance, seek): no
    order with what the process polled before is to be expected there. `to_end` names the keys of which the process
    has polled everything from the first offset to the end with this poll, which began after the last send.
    """

    number: int
    process: str
    began: float
    ended: float
    outcome: Outcome
    transaction: bool = False
    commit_began: float | None = None
    sends: tuple[Record, ...] = ()
    polls: tuple[Record, ...] = ()
    moved: tuple[str, ...] = ()
    to_end: tuple[str, ...] = ()


@dataclass
class Doing:
    """An operation under way: what a workload fills in until it knows the outcome."""

    number: int
    process: str
    began: float
    outcome: Outcome = "info"
    transaction: bool = False
    commit_began: float | None = None
    sends: list[Record] = field(default_factory=list)
    polls: list[Record] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    to_end: list[str] = field(default_factory=list)

    def done(self, ended: float) -> Op:
        """The operation as it ended."""
        return Op(
            number=self.number,
            process=self.process,
            began=self.began,
            ended=ended,
            outcome=self.outcome,
            transaction=self.transaction,
            commit_began=self.commit_began,
            sends=tuple(self.sends),
            polls=tuple(self.polls),
            moved=tuple(self.moved),
            to_end=tuple(self.to_end),
        )


class History:
    """Operations of many threads in the order in which they ended; kept in memory, written to `path` when asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ops: list[Op] = []
        self._begun = 0

    @property
    def ops(self) -> list[Op]:
        """All that have ended so far."""
        with self._lock:
            return list(self._ops)

    def begin(self, process: str, *, transaction: bool = False) -> Doing:
        """Begin an operation; whoever began it ends it."""
        with self._lock:
            self._begun += 1
            return Doing(self._begun, process, time.monotonic(), transaction=transaction)

    def end(self, doing: Doing, outcome: Outcome) -> None:
        """Record an operation with what became of it."""
        doing.outcome = outcome
        op = doing.done(time.monotonic())
        with self._lock:
            self._ops.append(op)

    @contextmanager
    def doing(self, process: str, *, transaction: bool = False) -> Iterator[Doing]:
        """An operation whose outcome is what its block sets; it is recorded however the block ends."""
        doing = self.begin(process, transaction=transaction)
        try:
            yield doing
        finally:
            self.end(doing, doing.outcome)

    def write(self, path: Path) -> None:
        """Write it as JSON lines."""
        with path.open("w") as out:
            for op in self.ops:
                out.write(to_line(op) + "\n")


def to_line(op: Op) -> str:
    """One operation as a line of JSON; what is empty is left out."""
    told = {name: value for name, value in asdict(op).items() if value not in ((), None, False)}
    for name in ("sends", "polls"):
        if name in told:
            told[name] = [[each["key"], each["offset"], each["value"]] for each in told[name]]
    return json.dumps(told)


def of_lines(lines: Iterable[str]) -> list[Op]:
    """Read what `to_line` has written."""
    return [_op(json.loads(line)) for line in lines if line.strip()]


def _op(told: dict[str, Any]) -> Op:
    for name in ("sends", "polls"):
        told[name] = tuple(Record(key=key, offset=offset, value=value) for key, offset, value in told.get(name, ()))
    for name in ("moved", "to_end"):
        told[name] = tuple(told.get(name, ()))
    return Op(**told)
