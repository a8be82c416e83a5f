"""
`fluvial serve --keep-spark`: a Spark session that runs already when a command of the same user needs one.
"""

import os

from fluvial.config import Settings
from fluvial.serve.doors.door import Door, demand_local_spark
from fluvial.spark.jars import Say, prepare_jars
from fluvial.spark.java import require_java

TITLE = "the kept Spark session"


def kept_spark(settings: Settings, program: str, *, say: Say | None) -> Door:
    """
    The process that keeps the session of these settings; `say` hears when jars are fetched. Raises FluvialError.

    `program` is the module that runs commands: see :func:`~fluvial.serve.doors.forks.start_forks`.
    """
    demand_local_spark(settings, "--keep-spark")
    require_java()
    prepare_jars(say)
    return Door(
        title=TITLE,
        module="fluvial.serve.doors.kept_spark_worker",
        given={
            "program": program,
            "data_dir": str(settings.data_dir),
            "warehouse": settings.warehouse,
            "spark_master": settings.spark_master,
            "spark_conf": dict(settings.spark_conf),
        },
        told=lambda said: "Spark is kept running for the commands of this user",
        # Jobs run as they would in a command's own JVM.
        cwd=os.getcwd(),
        environment=dict(os.environ),
    )
