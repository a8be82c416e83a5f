"""Transforms from tables to tables: DataFrames in, one DataFrame out, nothing read or written."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NEW_YORK = "America/New_York"
LATE_MINUTES = 15

# Visibility in miles, each band from its lower bound on; the worst first.
BANDS = ((0.0, "under 1 mi"), (1.0, "1 to 3 mi"), (3.0, "3 to 5 mi"), (5.0, "5 to 10 mi"), (10.0, "10 mi"))
NO_REPORT = "no report"


def delay_by_hour_and_visibility(flight_events: "DataFrame", weather: "DataFrame") -> "DataFrame":
    """
    Say how late flights leave New York, for each hour of its day and each band of visibility at the airport.

    One row for each `hour` (scheduled, 0 to 23 on New York's clock) and `visibility`, with the number of `departures`
    and of `cancellations`, the mean `dep_delay` in minutes and `late`, the share of departures that left 15 minutes
    late or more. A flight is joined with the report of its origin and scheduled hour; visibility says where there is
    none.
    """
    from pyspark.sql import functions as sf

    departed = sf.col("event_type") == "DEPARTED"
    left = flight_events.where(departed | (sf.col("event_type") == "CANCELLED")).select(
        "event_type",
        "origin",
        "dep_delay",
        sf.hour(sf.convert_timezone(None, sf.lit(NEW_YORK), sf.col("scheduled_time"))).alias("hour"),
        _hours_since_1970("scheduled_time").alias("at"),
    )
    # Of several reports for one hour the last one counts, so that a correction doubles no flight.
    reports = weather.groupBy("origin", _hours_since_1970("time_hour").alias("at")).agg(
        sf.max_by("visib", "_offset").alias("visib")
    )
    return (
        left.join(sf.broadcast(reports), ["origin", "at"], "left")
        .groupBy("hour", visibility_band(sf.col("visib")).alias("visibility"))
        .agg(
            sf.count_if(departed).alias("departures"),
            sf.count_if(~departed).alias("cancellations"),
            sf.avg("dep_delay").alias("mean_dep_delay"),
            sf.avg((sf.col("dep_delay") >= LATE_MINUTES).cast("int")).alias("late"),
        )
    )


def visibility_band(miles: "Column") -> "Column":
    """Return the name of the band of a visibility in miles."""
    from pyspark.sql import functions as sf

    band = sf.when(miles.isNull(), NO_REPORT)
    for lower, name in reversed(BANDS):
        band = band.when(miles >= lower, name)
    return band


def _hours_since_1970(column: str) -> "Column":
    """Return whole hours in UTC; unlike `date_trunc` they do not depend on the session's time zone."""
    from pyspark.sql import functions as sf

    return sf.floor(sf.unix_millis(column) / 3_600_000)
