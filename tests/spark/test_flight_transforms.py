"""The flights' transforms on a handful of rows."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from pipelines.flights.declarations import delay_by_hour_and_visibility
from pipelines.flights.transforms import visibility_band

pytestmark = pytest.mark.spark

# (event_type, origin, scheduled_time, dep_delay)
EVENTS = [
    ("DEPARTED", "JFK", "2013-01-15T18:10Z", 0),
    ("DEPARTED", "JFK", "2013-01-15T18:59Z", 30),
    ("CANCELLED", "JFK", "2013-01-15T18:30Z", None),
    ("ARRIVED", "JFK", "2013-01-15T18:10Z", None),
    # 13:00 in New York again, but in summer, and in fog.
    ("DEPARTED", "JFK", "2013-07-15T17:00Z", 15),
    ("DEPARTED", "LGA", "2013-01-15T18:10Z", -5),
    ("CANCELLED", "LGA", "2013-01-15T05:30Z", None),
]

# (origin, time_hour, visib, _offset): JFK's report of the afternoon was corrected.
WEATHER = [
    ("JFK", "2013-01-15T18:00Z", 0.5, 7),
    ("JFK", "2013-01-15T18:00Z", 10.0, 9),
    ("JFK", "2013-07-15T17:00Z", 0.25, 12),
]


def millis(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.fixture(params=["UTC", "Asia/Kolkata"])
def session(spark: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A session with its own time zone, one of them half an hour off: no answer may depend on it."""
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", request.param)
    return own


def test_delay_by_hour_and_visibility(session: Any) -> None:
    events = session.createDataFrame(
        [(kind, origin, millis(time), delay) for kind, origin, time, delay in EVENTS],
        "event_type string, origin string, at long, dep_delay int",
    ).selectExpr("event_type", "origin", "timestamp_millis(at) scheduled_time", "dep_delay")
    weather = session.createDataFrame(
        [(origin, millis(time), visib, offset) for origin, time, visib, offset in WEATHER],
        "origin string, at long, visib double, _offset long",
    ).selectExpr("origin", "timestamp_millis(at) time_hour", "visib", "_offset")

    found = {
        (row.hour, row.visibility): tuple(row)[2:] for row in delay_by_hour_and_visibility(events, weather).collect()
    }

    assert found == {
        (13, "10 mi"): (2, 1, 15.0, 0.5),
        (13, "under 1 mi"): (1, 0, 15.0, 1.0),
        (13, "no report"): (1, 0, -5.0, 0.0),
        (0, "no report"): (0, 1, None, None),
    }


@pytest.mark.parametrize(
    ("miles", "band"),
    [
        (0.0, "under 1 mi"),
        (1.0, "1 to 3 mi"),
        (4.9, "3 to 5 mi"),
        (5.0, "5 to 10 mi"),
        (10.0, "10 mi"),
        (None, "no report"),
    ],
)
def test_a_band_begins_at_its_lower_bound(spark: Any, miles: float | None, band: str) -> None:
    frame = spark.createDataFrame([(miles,)], "miles double")
    assert frame.select(visibility_band(frame.miles)).first()[0] == band
