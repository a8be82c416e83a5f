"""A project of marts over one topic, each refreshed by another road."""

import os
import time
from typing import Any

from plain_fold import FIELDS, RETURNS, reduce_readings

from fluvial.tables import (
    aggregate,
    compacted,
    count,
    count_distinct,
    history,
    max_,
    mean,
    min_,
    pipeline,
    session,
    state,
    sum_,
    top,
    tumbling,
)

TOPIC = os.environ.get("FRESH_MARTS_TOPIC", "readings")
ID = "CAST(_key AS STRING)"

readings = history(TOPIC, name="readings")
latest = compacted(TOPIC, name="readings", key="id")
folded = state("readings", topic=TOPIC, key="id", fields=FIELDS, with_position=True)
reduced = state("reduced", topic=TOPIC, key="id", reduce=reduce_readings, returns=RETURNS, version="1")

of_rows = aggregate(
    "history.readings",
    name="of_rows",
    by={"id": ID},
    where="amount IS NOT NULL OR weight IS NOT NULL",
    fields={
        "events": count(),
        "total": sum_("amount"),
        "heaviest": max_("weight"),
        "lowest": min_("amount", "kind <> 'flat'"),
        "usual": mean("amount"),
        "best": top("amount", 3),
        "kinds": count_distinct("kind"),
    },
)
# Rows of a state go, too: an entity leaves one group for another, which may be that of null.
of_states = aggregate("state.readings", name="of_states", by="latest_amount", fields={"ids": count()})
by_hour = aggregate(
    "history.readings", name="by_hour", by="kind", fields={"events": count()}, window=tumbling("at", "1 hour")
)


@pipeline(name="kinds", inputs=["history.readings"], key="kind", version="1")
def kinds(readings: Any) -> Any:
    from pyspark.sql import functions as sql

    return readings.groupBy("kind").agg(
        sql.count("*").alias("events"),
        sql.sum("amount").alias("total"),
        sql.countDistinct("_key").alias("ids"),
        sql.max("at").alias("last_at"),
        sql.max(sql.when(sql.col("amount") > 0, sql.col("weight"))).alias("heaviest_up"),
    )


@pipeline(
    name="joined",
    inputs={"compacted.readings": "id", "state.readings": "id", "state.reduced": "id"},
    key="id",
    version="1",
)
def joined(latest: Any, folded: Any, reduced: Any) -> Any:
    both = latest.select("id", "kind", "amount").join(folded.select("id", "events", "highest"), "id")
    return both.join(reduced.select("id", "total"), "id", "left")


@pipeline(
    name="visits",
    inputs={"history.readings": ID},
    key="id",
    windows={"history.readings": session("at", "2 hours")},
    version="1",
)
def visits(readings: Any) -> Any:
    from pyspark.sql import functions as sql

    rows = readings.withColumn("id", sql.expr(ID))
    return rows.groupBy("id", "window_start", "window_end").agg(sql.count("*").alias("events"))


@pipeline(name="ups", inputs=["compacted.readings"], version="1")
def ups(latest: Any) -> Any:
    return latest.where("kind = 'up'").selectExpr("id", "amount", "upper(kind) AS kind", "CAST(at AS DATE) AS day")


@pipeline(name="ranked", inputs=["state.readings"], version="1")
def ranked(folded: Any) -> Any:
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    order = Window.partitionBy("first_kind").orderBy(sql.desc("events"), "id")
    return folded.select("id", "events", sql.row_number().over(order).alias("place"))


@pipeline(name="of_marts", inputs={"marts.kinds": "kind", "history.readings": "kind"}, key="kind", version="1")
def of_marts(kinds: Any, readings: Any) -> Any:
    distinct = readings.select("kind", "_partition").distinct().groupBy("kind").count()
    return kinds.select("kind", "events", "ids").join(distinct, "kind")


if "FRESH_MARTS_ENDLESS" in os.environ:

    @pipeline(name="endless", inputs=["history.readings"], version="1")
    def endless(readings: Any) -> Any:
        while type(readings).__module__.startswith("pyspark.sql.connect"):
            time.sleep(1)
        return readings.select("_partition", "_offset")
