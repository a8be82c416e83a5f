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
    pipeline,
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
from fluvial.tables.declare.streaming import streaming

__all__ = [
    "Compacted",
    "Declaration",
    "DeclarationError",
    "Fold",
    "History",
    "Pipeline",
    "Publication",
    "State",
    "aggregate",
    "collect_set",
    "compacted",
    "count",
    "count_distinct",
    "first",
    "history",
    "last_non_null",
    "latest",
    "max_",
    "mean",
    "min_",
    "pipeline",
    "publish",
    "state",
    "streaming",
    "sum_",
    "top",
]
