"""Events from the table of flights: how many, when, in which order, and with which measures."""

from datetime import datetime

import pandas as pd
import pytest

from fluvial_demo import events


def millis(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def times_of_row(all_events: pd.DataFrame, row: int) -> dict[str, int]:
    of_flight = all_events[all_events["row"] == row]
    return dict(zip(of_flight["event_type"], of_flight["event_time"], strict=True))


def test_one_event_for_each_departure_arrival_and_cancellation(all_events: pd.DataFrame) -> None:
    assert all_events["event_type"].value_counts().to_dict() == {
        "DEPARTED": 328_521,
        "ARRIVED": 328_063,
        "CANCELLED": 8_255,
    }


def test_events_are_in_order_of_time_then_row_then_type(all_events: pd.DataFrame) -> None:
    order = all_events["event_type"].map({"DEPARTED": 0, "CANCELLED": 0, "ARRIVED": 1})
    places = list(zip(all_events["event_time"], all_events["row"], order, strict=True))
    assert places == sorted(places)


def test_arrivals_are_after_their_departures_and_soon(all_events: pd.DataFrame) -> None:
    times = all_events.pivot(index="row", columns="event_type", values="event_time").dropna(subset="ARRIVED")
    minutes = (times["ARRIVED"] - times["DEPARTED"]) / 60_000
    assert minutes.min() > 0
    # A clock shows each time within a day, or within two where it skips it.
    assert (minutes > 24 * 60).sum() < 10
    assert minutes.max() <= 48 * 60


def test_arrivals_fit_the_time_in_the_air(all_events: pd.DataFrame) -> None:
    """
    The instants agree with a column that they were not made from.

    Between leaving one gate and reaching the other an aircraft is in the air and taxies; a wrong time zone would shift
    all flights of a destination by an hour.
    """
    departed = all_events[all_events["event_type"] == "DEPARTED"].set_index("row")["event_time"]
    arrived = all_events[(all_events["event_type"] == "ARRIVED") & all_events["air_time"].notna()].set_index("row")
    taxi = (arrived["event_time"] - departed.loc[arrived.index]) / 60_000 - arrived["air_time"].astype(float)
    by_destination = taxi.groupby(arrived["dest"]).median()
    assert by_destination.min() > 10
    assert by_destination.max() < 45


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        pytest.param(
            {"carrier": "UA", "flight": 1545, "time_hour": "2013-01-01T10:00Z"},
            {"DEPARTED": "2013-01-01T10:17Z", "ARRIVED": "2013-01-01T14:30Z"},
            id="to Chicago's clock",
        ),
        pytest.param(
            {"carrier": "HA", "flight": 51, "time_hour": "2013-01-01T14:00Z"},
            {"DEPARTED": "2013-01-01T13:57Z", "ARRIVED": "2013-01-02T01:16Z"},
            id="to Hawaii, before its schedule",
        ),
        pytest.param(
            {"carrier": "B6", "flight": 725, "time_hour": "2013-01-01T10:00Z"},
            {"DEPARTED": "2013-01-01T10:44Z", "ARRIVED": "2013-01-01T14:04Z"},
            id="to Puerto Rico, missing from airports",
        ),
    ],
)
def test_known_flights(
    flights: pd.DataFrame, all_events: pd.DataFrame, where: dict[str, object], expected: dict[str, str]
) -> None:
    found = flights
    for column, value in where.items():
        found = found[found[column] == (millis(str(value)) if column == "time_hour" else value)]
    (row,) = found.index
    assert times_of_row(all_events, row) == {kind: millis(time) for kind, time in expected.items()}


def test_a_flight_that_arrives_at_2400_arrives_at_midnight(flights: pd.DataFrame, all_events: pd.DataFrame) -> None:
    rows = flights.index[flights["arr_time"] == 2400]
    assert len(rows) == 150
    midnight = all_events[(all_events["event_type"] == "ARRIVED") & all_events["row"].isin(rows)]
    assert (midnight["event_time"] % 3_600_000 == 0).all()


def test_a_measure_stands_on_one_event_of_its_flight(flights: pd.DataFrame, all_events: pd.DataFrame) -> None:
    for name, measured_by in events.MEASURED_BY.items():
        known = all_events[all_events[name].notna()]
        assert set(known["event_type"]) == {measured_by}
        assert len(known) == flights[name].count()
        assert known[name].sum() == flights[name].sum()


def test_a_cancelled_flight_is_cancelled_at_its_scheduled_time(all_events: pd.DataFrame) -> None:
    cancelled = all_events[all_events["event_type"] == "CANCELLED"]
    assert (cancelled["event_time"] == cancelled["scheduled_time"]).all()
    assert cancelled["tailnum"].isna().sum() == 2512 == all_events["tailnum"].isna().sum()


def test_the_same_flights_give_the_same_events(
    flights: pd.DataFrame, airports: pd.DataFrame, all_events: pd.DataFrame
) -> None:
    pd.testing.assert_frame_equal(events.flight_events(flights, airports), all_events)


def test_a_destination_on_no_known_clock_is_named(flights: pd.DataFrame, airports: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match="IAH"):
        events.flight_events(flights.head(10), airports[airports["faa"] != "IAH"])
