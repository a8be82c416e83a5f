"""The one Spark session of a process of tests."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fluvial.config import Settings

# A plan of a test runs once or twice on a few rows: compiling Java for it takes a fifth of all processor time (84 s of
# some tests, 69 s so). End-to-end tests run the generated code.
SHORT_PLANS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

_sessions: list["SparkSession"] = []


def shared_session(settings: "Settings") -> "SparkSession":
    """
    The session of this process, started by the first test that wants it, or again after another test stopped it.

    To build it anew means another look at Java, the jars and all names of tables: half a second for each test.
    """
    from fluvial.spark.session import build_session

    if not _sessions or is_stopped(_sessions[-1]):
        _sessions.append(build_session(settings, "fluvial tests"))
    return _sessions[-1]


def is_stopped(session: "SparkSession") -> bool:
    """Whether its context has been stopped, here or elsewhere."""
    return bool(session._jsc.sc().isStopped())
