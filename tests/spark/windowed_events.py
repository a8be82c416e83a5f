"""
Random events of a topic with several partitions, some of them late, and what windows over them must come to: computed
here in plain Python, one row after the other in the order of the log.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from fluvial.tables import TimeWindows, hopping, session, tumbling
from fluvial.tables.declare.windows import Emit

EVENTS = "history.events"
EVENT_COLUMNS = "_partition int, _offset bigint, id bigint, visitor string, amount int, at timestamp"
BEGINNING = datetime(2025, 3, 1, tzinfo=UTC)
PARTITIONS, VISITORS = 3, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A row of the history; `at` is None where its event has no time."""

    partition: int
    offset: int
    id: int
    visitor: str | None
    amount: int
    at: datetime | None


class Topic:
    """What has been sent so far: offsets and times go on, and now and then an event comes late."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._next = dict.fromkeys(range(PARTITIONS), 0)
        self._now = 0.0
        self._sent = 0

    def sent(self, count: int) -> list[Event]:
        """The next events, in minutes that go on a little with each."""
        return [self._event() for _ in range(count)]

    def _event(self) -> Event:
        random = self._random
        self._now += random.choice((0, 1, 1, 2, 20))
        behind = random.choice((0, 0, 0, 3, 15, 60, 240))
        visitor = random.choice([None, *(f"v{each}" for each in range(VISITORS))])
        partition = random.randrange(PARTITIONS) if visitor is None else int(visitor[1]) % PARTITIONS
        offset = self._next[partition]
        # The log of a topic has holes.
        self._next[partition] += random.choice((1, 1, 3))
        self._sent += 1
        at = BEGINNING + timedelta(minutes=max(0.0, self._now - behind))
        return Event(
            partition=partition,
            offset=offset,
            id=self._sent,
            visitor=visitor,
            amount=random.randrange(10),
            at=None if random.random() < 0.03 else at,
        )


def random_windows(random: Random, kind: str, emit: Emit) -> TimeWindows:
    """Windows of a kind, those that change often with a watermark."""
    words: dict[str, Any] = {}
    if emit == "final" or random.random() < 0.9:
        words["watermark"] = random.choice(("0 minutes", "10 minutes", "30 minutes"))
        if random.random() < 0.6:
            words["lateness"] = random.choice(("0 minutes", "30 minutes", "1 hour"))
        words["emit"] = emit
    match kind:
        case "tumbling":
            return tumbling("at", random.choice(("10 minutes", "1 hour")), **words)
        case "hopping":
            size, every = random.choice((("1 hour", "15 minutes"), ("50 minutes", "20 minutes"), ("1 hour", "1 hour")))
            return hopping("at", size, every, **words)
        case _:
            return session("at", random.choice(("5 minutes", "30 minutes")), **words)


Placed = tuple[Event, datetime, datetime]


Place = tuple[int, int, datetime]
"""Partition and offset of an event, and the beginning of a window."""


def placed(
    windows: TimeWindows, events: Iterable[Event], known_late: Collection[Place] = ()
) -> tuple[list[Placed], list[Placed]]:
    """
    The events with each window that they lie in, of sessions that which they would have alone: in time, and late.
    """
    in_time, late = [], []
    greatest: dict[int, datetime] = {}
    for event in sorted(events, key=lambda each: (each.partition, each.offset)):
        if event.at is None:
            continue
        passed = greatest.get(event.partition)
        for start in _starts(windows, event.at):
            end = start + windows.size
            is_late = (
                windows.watermark is not None
                and passed is not None
                and end + windows.lateness <= passed - windows.watermark
            )
            is_late = is_late or (event.partition, event.offset, start) in known_late
            (late if is_late else in_time).append((event, start, end))
        greatest[event.partition] = event.at if passed is None else max(passed, event.at)
    return in_time, late


def _starts(windows: TimeWindows, at: datetime) -> list[datetime]:
    if windows.is_session:
        return [at]
    start = at - (at - datetime(1970, 1, 1, tzinfo=UTC)) % windows.every
    found = []
    while start + windows.size > at:
        found.append(start)
        start -= windows.every
    return found


def sessions(placed: Sequence[Placed]) -> list[Placed]:
    """The events of each visitor in the sessions that touch."""
    found: list[Placed] = []
    by_visitor: dict[str | None, list[Placed]] = defaultdict(list)
    for each in placed:
        by_visitor[each[0].visitor].append(each)
    for own in by_visitor.values():
        group: list[Placed] = []
        for each in sorted(own, key=lambda each: each[1]):
            if group and each[1] > max(end for _, _, end in group):
                found.extend(_as_one(group))
                group = []
            group.append(each)
        found.extend(_as_one(group))
    return found


def _as_one(group: Sequence[Placed]) -> list[Placed]:
    start, end = min(each[1] for each in group), max(each[2] for each in group)
    return [(event, start, end) for event, _, _ in group]


Row = tuple[str | None, datetime, datetime, int, int, list[int]]


def expected_rows(
    windows: TimeWindows, events: Iterable[Event], known_late: Collection[Place] = (), final: datetime | None = None
) -> list[Row]:
    """By visitor and window, of those that are final: the number of events, the sum of their amounts, and their ids."""
    in_time, _ = placed(windows, events, known_late)
    groups: Mapping[Any, list[Event]] = defaultdict(list)
    for event, start, end in sessions(in_time) if windows.is_session else in_time:
        if windows.emit != "final" or (final is not None and end <= final):
            groups[event.visitor, start, end].append(event)
    rows = [
        (*key, len(own), sum(each.amount for each in own), sorted(each.id for each in own))
        for key, own in groups.items()
    ]
    return sorted(rows, key=str)


def final_until(windows: TimeWindows, events: Sequence[Event]) -> datetime | None:
    """Until when windows are final, as far as these events tell."""
    greatest: dict[int, datetime | None] = {}
    for event in events:
        times = [at for at in (greatest.get(event.partition), event.at) if at is not None]
        greatest[event.partition] = max(times, default=None)
    least = [at for at in greatest.values() if at is not None]
    if windows.watermark is None or not least or len(least) < len(greatest):
        return None
    return min(least) - windows.watermark - windows.lateness - (windows.size if windows.is_session else timedelta())


def late_places(windows: TimeWindows, events: Iterable[Event]) -> list[tuple[int, int, datetime, datetime]]:
    """Of each event that is late for a window: its partition and offset, and the window."""
    _, late = placed(windows, events)
    return sorted((event.partition, event.offset, start, end) for event, start, end in late)
