"""What a user writes in the project of the journey: an owner, five kinds of table, and two suites."""

OWNER = """\
producer = "weather"
contact = "Weather <weather@weather.example>"
subjects = ["readings-value", "days-value"]
compatibility = "BACKWARD"
topics = ["readings", "days"]
"""

TABLES = '''\
"""The tables: what each is made from, and how."""

from pyspark.sql import functions as F

from fluvial.tables import compacted, count, history, latest, max_, min_, pipeline, state, sum_

readings = history("readings")
days = compacted("days")
stations = state(
    "stations",
    topic="readings",
    key="station",
    fields={
        "hours": count(),
        "coldest": min_("temp"),
        "warmest": max_("temp"),
        "cold_hours": count("temp < 45"),
        "last": latest("temp"),
    },
)
bands = state("bands", topic="readings", key="station", fields={"band": latest("band")}, scd2="at")


@pipeline(name="kinds", inputs=["compacted.days"])
def kinds(days):
    found = [F.count("*").alias("days"), F.sum("precipitation").alias("rain"), F.max("temp_max").alias("warmest")]
    return days.groupBy("weather").agg(*found)
'''

CHECKS = '''\
"""What must hold of the tables."""

from fluvial.quality import expectations


@expectations("history.readings")
def usual_temperatures(gxe):
    """No hour is hotter than 75 degrees, and none colder than 39."""
    return [gxe.ExpectColumnValuesToBeBetween(column="temp", min_value=39, max_value=75)]


@expectations("compacted.days", blocking=True)
def sound_days(gxe):
    """Each day is there once, its highest temperature not below its lowest."""
    return [
        gxe.ExpectColumnValuesToBeUnique(column="day"),
        gxe.ExpectColumnPairValuesAToBeGreaterThanB(column_A="temp_max", column_B="temp_min", or_equal=True),
    ]
'''

ANSWERS = '''\
"""Every table as JSON, with times in the time zone of the process."""

import json

from fluvial.config import load_settings
from fluvial.spark.session import build_session, run_sql

QUERIES = {
    "history.readings": "select station, at, temp, band, at = _timestamp as is_timed from history.readings",
    "compacted.days": "select day, at, precipitation, temp_max, temp_min, wind, weather from compacted.days",
    "state.stations": "select station, hours, coldest, warmest, cold_hours, last from state.stations",
    "state.bands": "select station, band, valid_from, valid_to from state.bands",
    "marts.kinds": "select weather, days, rain, warmest from marts.kinds",
}
settings = load_settings()
spark = build_session(settings)
answers = {name: [row.asDict() for row in run_sql(spark, settings, sql).collect()] for name, sql in QUERIES.items()}
print(json.dumps(answers, default=lambda time: time.isoformat()))
'''
