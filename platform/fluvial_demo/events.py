"""
From the table of flights to the events an airline would have sent: DEPARTED, ARRIVED, CANCELLED.

The table gives times as New York or the destination's clock showed them, without a date for the arrival. Here each
event gets its instant:

- scheduled: `time_hour` (UTC) plus `minute`;
- DEPARTED, for a flight with a `dep_time`: scheduled plus `dep_delay`;
- ARRIVED, for a flight with an `arr_time`: the first time after departure at which the destination's clock shows it;
- CANCELLED, for a flight without a `dep_time`: as scheduled.

Events are in order of event time. Ties go by row of the CSV file, then DEPARTED before ARRIVED.
"""

import numpy as np
import numpy.typing as npt
import pandas as pd

from fluvial_demo.clocks import MINUTE_MS, Millis, first_on_clock_after

DEPARTED, ARRIVED, CANCELLED = "DEPARTED", "ARRIVED", "CANCELLED"

# Destinations that airports.csv does not have: Puerto Rico, and the Virgin Islands on the same clock.
ZONES_ADDED = dict.fromkeys(("SJU", "BQN", "STT", "PSE"), "America/Puerto_Rico")

FIELDS = (
    "event_type",
    "event_time",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "scheduled_time",
    "distance",
    "dep_delay",
    "arr_delay",
    "air_time",
)
MEASURED_BY = {"dep_delay": DEPARTED, "arr_delay": ARRIVED, "air_time": ARRIVED}
"""The one event of a flight that knows a measure, so that no sum over events counts it twice."""


def flight_events(flights: pd.DataFrame, airports: pd.DataFrame) -> pd.DataFrame:
    """
    Return the events of all flights in order, one a row: the columns `FIELDS`, and `row`, the flight's row in the file.

    Times are UTC milliseconds. Raises ValueError for a destination whose time zone is not known.
    """
    scheduled = (flights["time_hour"] + flights["minute"] * MINUTE_MS).to_numpy(np.int64)
    departed = flights["dep_time"].notna().to_numpy()
    arrived = flights["arr_time"].notna().to_numpy()
    departure = scheduled + flights["dep_delay"].fillna(0).to_numpy(np.int64) * MINUTE_MS
    times = [
        (DEPARTED, departed, departure[departed]),
        (ARRIVED, arrived, arrival_times(flights[arrived], departure[arrived], airports)),
        (CANCELLED, ~departed, scheduled[~departed]),
    ]
    events = pd.concat(
        [_events_of_type(name, flights[which], scheduled[which], when) for name, which, when in times],
        ignore_index=True,
    )
    # concat put DEPARTED before ARRIVED; a stable sort keeps that order within one row and minute.
    order = np.lexsort((events["row"].to_numpy(), events["event_time"].to_numpy()))
    return events.iloc[order].reset_index(drop=True)


def arrival_times(flights: pd.DataFrame, departure: Millis, airports: pd.DataFrame) -> Millis:
    """Return the UTC milliseconds at which each flight arrived; raises ValueError for an unknown time zone."""
    zones = flights["dest"].map(airports.set_index("faa")["tzone"].to_dict() | ZONES_ADDED)
    if zones.isna().any():
        raise ValueError(f"no time zone for {sorted(flights['dest'][zones.isna()].unique())}")
    clock = flights["arr_time"].to_numpy(np.int64)
    arrival: npt.NDArray[np.int64] = np.empty(len(flights), dtype=np.int64)
    for zone, positions in zones.groupby(zones.to_numpy()).indices.items():
        arrival[positions] = first_on_clock_after(departure[positions], clock[positions], zone)
    return arrival


def _events_of_type(event_type: str, flights: pd.DataFrame, scheduled: Millis, event_time: Millis) -> pd.DataFrame:
    shared = ("carrier", "flight", "tailnum", "origin", "dest", "distance")
    unknown = pd.array([pd.NA], dtype="Int64").repeat(len(flights))
    measures = {
        name: flights[name].array if measured_by == event_type else unknown for name, measured_by in MEASURED_BY.items()
    }
    columns = {
        "event_type": np.full(len(flights), event_type, dtype=object),
        "event_time": event_time,
        "scheduled_time": scheduled,
        **{name: flights[name].array for name in shared},
        **measures,
        "row": flights.index.to_numpy(),
    }
    return pd.DataFrame(columns)[[*FIELDS, "row"]]
