"""
What users write: declarations of the tables that a topic settles into.

    from fluvial.tables import compacted, count, history, last_non_null, pipeline, state, sum_

    flights = history("flight_events")
    planes = compacted("planes", key="tailnum")
    aircraft = state(
        "aircraft",
        topic="flight_events",
        key="tailnum",
        fields={
            "departures": count("event_type = 'DEPARTED'"),
            "miles": sum_("distance", "event_type = 'ARRIVED'"),
        },
    )

    @pipeline(name="delays", inputs=["history.flight_events"])
    def delays(flight_events):
        return flight_events.groupBy("origin").avg("arr_delay").withColumnRenamed("avg(arr_delay)", "delay")

    fleet = publish("state.aircraft", topic="aircraft-state", key="tailnum")

A declaration is a frozen value; `fluvial.tables.drive.runner.materialize` brings its table up to date. Importing this
package imports no Spark.
"""

from fluvial.tables.declare.aggregates import aggregate
from fluvial.tables.declare.declarations import (
    Compacted,
    Declaration,
    DeclarationError,
    History,
    Pipeline,
    Publication,
    State,
    compacted,
    history,
    publish,
    state,
)
from fluvial.tables.declare.folds import (
    Fold,
    collect_set,
    count,
    count_distinct,
    first,
    last_non_null,
    latest,
    max_,
    mean,
    min_,
    sum_,
    top,
)
from fluvial.tables.declare.joins import as_of, interval_join
from fluvial.tables.declare.pipelines import pipeline
from fluvial.tables.declare.streaming import streaming
from fluvial.tables.declare.windows import TimeWindows, hopping, session, tumbling

__all__ = [
    "Compacted",
    "Declaration",
    "DeclarationError",
    "Fold",
    "History",
    "Pipeline",
    "Publication",
    "State",
    "TimeWindows",
    "aggregate",
    "as_of",
    "collect_set",
    "compacted",
    "count",
    "count_distinct",
    "first",
    "history",
    "hopping",
    "interval_join",
    "last_non_null",
    "latest",
    "max_",
    "mean",
    "min_",
    "pipeline",
    "publish",
    "session",
    "state",
    "streaming",
    "sum_",
    "top",
    "tumbling",
]
