"""The tables of the flights: declared here, built by fluvial, under the names that SQL uses."""

from fluvial.tables import compacted, count, history, last_non_null, latest, max_, mean, pipeline, state, sum_
from pipelines.flights import transforms

flight_events = history("flight_events")
weather = history("weather")
planes_history = history("planes")
airports_history = history("airports")
airlines_history = history("airlines")

planes = compacted("planes", key="tailnum")
airports = compacted("airports", key="faa")
airlines = compacted("airlines", key="carrier")

aircraft = state(
    "aircraft",
    topic="flight_events",
    key="tailnum",
    order="event_time",  # what was repaired stands in the log behind what came later
    fields={
        "last_airport": last_non_null("case event_type when 'ARRIVED' then dest when 'DEPARTED' then origin end"),
        "last_event_time": latest("event_time"),
        "departures": count("event_type = 'DEPARTED'"),
        "arrivals": count("event_type = 'ARRIVED'"),
        "cancellations": count("event_type = 'CANCELLED'"),
        "miles": sum_("distance", "event_type = 'ARRIVED'"),
        "max_arr_delay": max_("arr_delay"),
        "mean_arr_delay": mean("arr_delay"),
    },
)

delay_by_hour_and_visibility = pipeline(
    name="delay_by_hour_and_visibility", inputs=["history.flight_events", "history.weather"]
)(transforms.delay_by_hour_and_visibility)
