"""
`fluvial serve --thrift-port`: the warehouse for JDBC and ODBC, by the Thrift server that Spark brings.

Its clients are asked nothing, and Spark reads what a statement names by a path. So it listens on 127.0.0.1 alone, and
its process sees the warehouse, which it cannot write, and its own programs.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from fluvial.config import Settings
from fluvial.serve.doors.door import HOST, Door, demand_local_spark, free_port, passed_on, walled
from fluvial.spark.jars import Say, prepare_jars
from fluvial.spark.java import require_java

TITLE = "Spark's Thrift server"


def thrift_door(settings: Settings, warehouse: str, port: int, *, allow_unconfined: bool, say: Say) -> Door:
    """
    The door of a warehouse on this machine; `say` hears when the jars are fetched. Raises FluvialError.
    """
    demand_local_spark(settings, "--thrift-port")
    port = free_port("--thrift-port", port)
    confined = walled(TITLE, allow_unconfined=allow_unconfined)
    # Behind the walls nothing is fetched and nothing is kept.
    require_java()
    prepare_jars(say)
    conf = dict(settings.spark_conf)
    return Door(
        title=TITLE,
        module="fluvial.serve.doors.thrift_worker",
        given={
            "port": port, "warehouse": warehouse, "confined": confined,
            "spark_master": settings.spark_master, "spark_conf": conf,
        },
        told=partial(_told, port),
        environment=passed_on("HOME", "JAVA_HOME", "XDG_CACHE_HOME", "SPARK_HOME"),
    )  # fmt: skip


def _told(port: int, walls: Mapping[str, Any]) -> str:
    """What the user is told of a port, and what its clients may do there."""
    bounds = (
        "it reads the warehouse alone"
        if walls["files"]
        else "warning: its clients' statements run as you, and nothing keeps them from your files"
    )
    return f"JDBC is served at jdbc:hive2://{HOST}:{port}: {bounds}"
