"""
What the sensor on new offsets decides, and what it remembers between its ticks. Pure: nothing is asked or done here.

A table is due when the log has moved on beyond it. A run that did not bring the table on is tried again later and
later; a run that did is followed by another as soon as there is something new.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from fluvial.orchestration.checks.lag import Offsets, lag_of

RETRY_SECONDS_MIN = 10.0
RETRY_SECONDS_MAX = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A run was asked for with the table at `position`, for the `attempts`-th time; not again before `retry_at`."""

    position: Offsets
    attempts: int
    retry_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """What a tick leaves for the next: the number of runs asked for so far, and the tables they were to bring on."""

    runs: int = 0
    asked: Mapping[str, Asked] = field(default_factory=dict)

    def as_text(self) -> str:
        """The text that Dagster keeps."""
        asked = {
            table: {"position": each.position, "attempts": each.attempts, "retry_at": each.retry_at}
            for table, each in sorted(self.asked.items())
        }
        return json.dumps({"runs": self.runs, "asked": asked})

    def without(self, tables: Collection[str]) -> "Cursor":
        """The cursor that does not count a run of these tables: none was asked for."""
        return replace(self, asked={table: each for table, each in self.asked.items() if table not in tables})

    @classmethod
    def of(cls, text: str | None) -> "Cursor":
        """The cursor of a kept text; one that is none of ours is begun again, as the tables say where they are."""
        try:
            kept = json.loads(text or "{}")
            return cls(
                runs=int(kept.get("runs", 0)),
                asked={
                    table: Asked(
                        position={int(partition): int(end) for partition, end in each["position"].items()},
                        attempts=int(each["attempts"]),
                        retry_at=float(each["retry_at"]),
                    )
                    for table, each in kept.get("asked", {}).items()
                },
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a table and the log of its topic stand now."""

    position: Offsets
    ends: Offsets

    @property
    def lag(self) -> int:
        """The records that the log holds beyond the table."""
        return lag_of(self.ends, self.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The tables to run now, why others are not, and what to remember."""

    due: tuple[str, ...]
    reasons: tuple[str, ...]
    cursor: Cursor


def decide(cursor: Cursor, standings: Mapping[str, Standing], *, now: float, lag_min: int) -> Decision:
    """
    Say which tables are due at `now`, in seconds of any clock that `cursor` was written by.

    A lag below `lag_min` records waits for more, and records that came after a failure do not shorten its wait.
    """
    due, reasons, asked = [], [], {}
    for table, standing in standings.items():
        if standing.lag == 0:
            continue
        if standing.lag < lag_min:
            reasons.append(f"{table}: {standing.lag:,} new records, and {lag_min:,} are waited for")
            continue
        before = cursor.asked.get(table)
        stuck = before is not None and before.position == standing.position
        if before is not None and stuck and now < before.retry_at:
            asked[table] = before
            reasons.append(
                f"{table}: {before.attempts} runs did not advance it; the next in {before.retry_at - now:.0f} s"
            )
            continue
        attempts = before.attempts + 1 if before is not None and stuck else 1
        wait = min(RETRY_SECONDS_MIN * 2 ** (attempts - 1), RETRY_SECONDS_MAX)
        asked[table] = Asked(position=standing.position, attempts=attempts, retry_at=now + wait)
        due.append(table)
    return Decision(
        due=tuple(due),
        reasons=tuple(reasons),
        cursor=Cursor(runs=cursor.runs + 1 if due else cursor.runs, asked=asked),
    )
