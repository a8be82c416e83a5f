"""What each topic of the demo holds: its records in order, from the CSV files alone."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fluvial_demo import source
from fluvial_demo.events import flight_events
from fluvial_demo.project import CONTRACTS

TOPICS = ("planes", "airports", "airlines", "weather", "flight_events")
PARTITIONS = {"flight_events": 6, "weather": 3}

FIRST_DAY_END = datetime(2013, 1, 2, tzinfo=UTC)
DAMAGED_EVENTS = (100, 300, 500, 700, 902)
"""Events of the first day that arrive damaged, as records of a faulty producer would."""

REFERENCE_TIME = datetime(2013, 1, 1, tzinfo=UTC)
"""The timestamp of every record of planes, airports and airlines: their files say of no row when it was written."""


@dataclass(frozen=True, kw_only=True)
class Feed:
    """A topic, and the records it must hold; two feeds of the same data are equal record for record."""

    topic: str
    contract: str
    """The text of the contract that the producer has given."""
    partitions: int
    """How many a new topic gets; one that exists keeps its own number."""
    compacted: bool
    records: pd.DataFrame
    """One record a row, in order; the contract's fields are columns."""
    key: str
    """The column of the key, UTF-8; null where it is null."""
    timestamps: npt.NDArray[np.int64]
    """UTC milliseconds, one a record."""
    rows: npt.NDArray[np.int64]
    """Numbers that place the records without a key, one a record."""
    damaged: frozenset[int] = frozenset()
    """Which records, by their place in the feed, a faulty producer damages on their way: all of the first day."""

    @cached_property
    def first_day(self) -> int:
        """How many records are of the first day; what was damaged of them is repaired before the others follow."""
        return int(np.searchsorted(self.timestamps, _millis(FIRST_DAY_END))) if self.damaged else 0

    def __len__(self) -> int:
        return len(self.records)

    @property
    def subject(self) -> str:
        """The contract's name in the registry."""
        return f"{self.topic}-value"

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        """The contract, as fastavro takes it."""
        schema: Mapping[str, Any] = json.loads(self.contract)
        return schema

    @cached_property
    def keys(self) -> list[bytes | None]:
        """The key of each record."""
        codes, distinct = pd.factorize(self.records[self.key], use_na_sentinel=False)
        encoded = [None if pd.isna(text) else text.encode() for text in distinct.tolist()]
        return [encoded[code] for code in codes.tolist()]


def all_feeds(until: datetime | None = None) -> list[Feed]:
    """Return every feed, reference data first; of events and weather only what is before `until`."""
    return [
        _reference("planes", "aircraft_registry", key="tailnum"),
        _reference("airports", "airline_operations", key="faa"),
        _reference("airlines", "airline_operations", key="carrier"),
        _weather(until),
        _flight_events(until),
    ]


def contract_of(producer: str, topic: str) -> str:
    """Return the text of a contract."""
    return (CONTRACTS / producer / f"{topic}.avsc").read_text(encoding="utf-8")


def _reference(topic: str, producer: str, *, key: str) -> Feed:
    records = source.read(topic)
    return Feed(
        topic=topic,
        contract=contract_of(producer, topic),
        partitions=1,
        compacted=True,
        records=records,
        key=key,
        timestamps=np.full(len(records), _millis(REFERENCE_TIME)),
        rows=np.arange(len(records)),
    )


def _weather(until: datetime | None) -> Feed:
    """The reports in order of time; those of one hour in the file's order: EWR, JFK, LGA."""
    records = source.read("weather").sort_values("time_hour", kind="stable", ignore_index=True)
    if until is not None:
        records = records[records["time_hour"] < _millis(until)]
    return Feed(
        topic="weather",
        contract=contract_of("weather_service", "weather"),
        partitions=PARTITIONS["weather"],
        compacted=False,
        records=records,
        key="origin",
        timestamps=records["time_hour"].to_numpy(np.int64),
        rows=np.arange(len(records)),
    )


def _flight_events(until: datetime | None) -> Feed:
    records = flight_events(source.read("flights"), source.read("airports"))
    if until is not None:
        records = records[records["event_time"] < _millis(until)]
    return Feed(
        topic="flight_events",
        contract=contract_of("airline_operations", "flight_events"),
        partitions=PARTITIONS["flight_events"],
        compacted=False,
        records=records,
        key="tailnum",
        timestamps=records["event_time"].to_numpy(np.int64),
        rows=records["row"].to_numpy(np.int64),
        # A log that ends within the first day cannot be told from one to which repaired records were added.
        damaged=frozenset(DAMAGED_EVENTS) if until is None or until >= FIRST_DAY_END else frozenset(),
    )


def _millis(instant: datetime) -> int:
    return int(instant.timestamp() * 1000)
