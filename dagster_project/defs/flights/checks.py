"""What must hold of the flights' tables."""

from typing import Any

from fluvial.quality import expectations

EVENT_TYPES = ["DEPARTED", "ARRIVED", "CANCELLED"]
NEW_YORK_AIRPORTS = ["EWR", "JFK", "LGA"]


@expectations("history.flight_events", blocking=True)
def known_events(gxe: Any) -> list[Any]:
    """Every event is of a known type, at a known time, of a flight from a New York airport."""
    return [
        gxe.ExpectColumnValuesToBeInSet(column="event_type", value_set=EVENT_TYPES),
        gxe.ExpectColumnValuesToBeInSet(column="origin", value_set=NEW_YORK_AIRPORTS),
        gxe.ExpectColumnValuesToNotBeNull(column="event_time"),
    ]


@expectations("state.aircraft", blocking=True)
def one_row_an_aircraft(gxe: Any) -> list[Any]:
    """Each tail number has one row, and nothing is counted below zero."""
    counts = ["departures", "arrivals", "cancellations"]
    return [
        gxe.ExpectColumnValuesToNotBeNull(column="tailnum"),
        gxe.ExpectColumnValuesToBeUnique(column="tailnum"),
        *(gxe.ExpectColumnValuesToBeBetween(column=count, min_value=0) for count in counts),
    ]


SUITES = [known_events, one_row_an_aircraft]
