"""The first time a clock shows something: midnight, the next day, summer time coming and going."""

from datetime import UTC, datetime

import numpy as np
import pytest

from fluvial_demo.clocks import first_on_clock_after


def arrival(departed: str, hhmm: int, zone: str) -> str:
    instant = int(datetime.fromisoformat(departed).timestamp() * 1000)
    found = first_on_clock_after(np.array([instant]), np.array([hhmm]), zone)
    return datetime.fromtimestamp(found[0] / 1000, UTC).strftime("%Y-%m-%dT%H:%M")


@pytest.mark.parametrize(
    ("departed", "hhmm", "zone", "expected"),
    [
        pytest.param("2013-01-01T10:17Z", 830, "America/Chicago", "2013-01-01T14:30", id="same day"),
        pytest.param("2013-01-02T03:00Z", 15, "America/New_York", "2013-01-02T05:15", id="after midnight"),
        pytest.param("2013-07-02T01:00Z", 2400, "America/New_York", "2013-07-02T04:00", id="2400 is midnight"),
        pytest.param("2013-01-01T05:00Z", 2400, "America/New_York", "2013-01-02T05:00", id="strictly later"),
        pytest.param("2013-01-01T15:00Z", 1000, "America/New_York", "2013-01-02T15:00", id="the instant itself"),
        pytest.param("2013-01-01T15:00Z", 1530, "Pacific/Honolulu", "2013-01-02T01:30", id="Hawaii"),
        pytest.param("2013-07-01T15:00Z", 1500, "America/Puerto_Rico", "2013-07-01T19:00", id="no summer time"),
        pytest.param("2013-07-01T15:00Z", 900, "America/Phoenix", "2013-07-01T16:00", id="Arizona"),
        # 2013-03-10: 01:59 EST is followed by 03:00 EDT.
        pytest.param("2013-03-10T06:30Z", 310, "America/New_York", "2013-03-10T07:10", id="over the gap"),
        pytest.param("2013-03-10T06:30Z", 230, "America/New_York", "2013-03-11T06:30", id="a time that is skipped"),
        pytest.param("2013-03-09T08:00Z", 230, "America/New_York", "2013-03-11T06:30", id="skipped, two days on"),
        # 2013-11-03: 01:59 EDT is followed by 01:00 EST.
        pytest.param("2013-11-03T04:00Z", 130, "America/New_York", "2013-11-03T05:30", id="shown twice: the first"),
        pytest.param("2013-11-03T05:40Z", 130, "America/New_York", "2013-11-03T06:30", id="shown twice: the second"),
        pytest.param("2013-11-03T05:30Z", 130, "America/New_York", "2013-11-03T06:30", id="at the first of two"),
        pytest.param("2013-11-03T06:30Z", 130, "America/New_York", "2013-11-04T06:30", id="at the second of two"),
    ],
)
def test_first_showing_after_departure(departed: str, hhmm: int, zone: str, expected: str) -> None:
    assert arrival(departed, hhmm, zone) == expected


def test_columns_are_answered_row_by_row() -> None:
    departed = np.array([1_362_897_000_000, 1_383_456_600_000])
    together = first_on_clock_after(departed, np.array([310, 130]), "America/New_York")
    apart = [
        first_on_clock_after(departed[row : row + 1], np.array([clock]), "America/New_York")[0]
        for row, clock in enumerate((310, 130))
    ]
    assert together.tolist() == apart
