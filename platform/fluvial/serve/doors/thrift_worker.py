"""
The process of `--thrift-port`: Spark's own Thrift server in the JVM of one session, walled in, and the tables' names.

It is started by :mod:`fluvial.serve.doors.thrift`. All clients have the names of one catalog, to which tables that come
later are added.
"""

import select
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from fluvial.config import Settings
from fluvial.errors import FluvialError
from fluvial.serve.doors.door import HOST, DoorError
from fluvial.serve.doors.process import given, say_ready, wall_in
from fluvial.spark.cache import cache_folder
from fluvial.spark.java import require_java
from fluvial.spark.session import build_session, register_tables
from fluvial.spark.warehouse import Warehouse

_LOOKS_EACH_S = 1.0
_ALL_EACH_LOOKS = 30
_LISTENS_WITHIN_S = 60.0
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# What Java is set up by, and what it learns the user's name from.
_OF_JAVA = ("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/ssl/certs/java", "/dev/random")


def main() -> None:
    """
    Serve until stdin ends.
    """
    asked = given()
    walls = wall_in(asked, [Path(asked["warehouse"]), *_java()], None)
    settings = Settings(warehouse=asked["warehouse"], spark_master=asked["spark_master"], spark_conf=_conf(asked))
    try:
        spark, server = _started(settings, Path(asked["scratch"]), asked["port"])
        _wait_for(asked["port"])
    except FluvialError as error:
        sys.exit(str(error))
    say_ready(network=walls.network, files=walls.files)
    _name_tables(spark, settings)
    server.stop()
    spark.stop()


def _started(settings: Settings, scratch: Path, port: int) -> tuple[Any, Any]:
    """The session, whose catalog all clients share, and the server in its JVM. Raises DoorError."""
    from py4j.protocol import Py4JJavaError

    spark: Any = build_session(replace(settings, warehouse=str(scratch / "made")), "fluvial serve")
    register_tables(spark, settings)
    thrift = spark._jvm.org.apache.spark.sql.hive.thriftserver.HiveThriftServer2
    try:
        server = thrift.startWithContext(spark._jsparkSession.sqlContext())
    except Py4JJavaError as error:
        thrown = error.java_exception
        while thrown.getCause() is not None:
            thrown = thrown.getCause()
        raise DoorError(f"{HOST}:{port}: {thrown.getMessage()}") from error
    # When a client leaves, Hive's part of its session looks for a metastore, in an address that cannot be opened.
    server.getHiveConf().set("javax.jdo.option.ConnectionURL", "jdbc:derby:memory:fluvial;create=true")
    return spark, server


def _wait_for(port: int) -> None:
    """The server listens in a thread of its own, a moment after it has started."""
    end = time.monotonic() + _LISTENS_WITHIN_S
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
            return
        time.sleep(0.05)
    raise DoorError(f"nothing listens on port {port}")


def _name_tables(spark: Any, settings: Settings) -> None:
    """Name what comes, until stdin ends; now and then all of them, as a client may have dropped a name."""
    warehouse = Warehouse.at(settings.warehouse)
    named: list[str] = []
    for look in count():
        tables = warehouse.tables()
        if tables != named or look % _ALL_EACH_LOOKS == 0:
            register_tables(spark, settings)
            named = tables
        if select.select([0], [], [], _LOOKS_EACH_S)[0]:
            return


def _java() -> Iterator[Path]:
    yield require_java().program.resolve().parents[1]
    yield cache_folder("jars")
    yield cache_folder("classes")
    yield from (Path(path) for path in _OF_JAVA)
    yield from Path("/etc").glob("java*")


def _conf(asked: dict[str, Any]) -> dict[str, str]:
    scratch, port = asked["scratch"], asked["port"]
    java = f'{asked["spark_conf"].get(_JAVA_OPTIONS, "")} -Djava.io.tmpdir="{scratch}" -Dderby.system.home="{scratch}"'
    ours = {
        "spark.hadoop.hive.server2.thrift.bind.host": "127.0.0.1",
        "spark.hadoop.hive.server2.thrift.port": str(port),
        "spark.hadoop.hive.exec.scratchdir": f"{scratch}/hive",
        "spark.hadoop.hive.exec.local.scratchdir": f"{scratch}/hive",
        "spark.hadoop.hive.server2.logging.operation.log.location": f"{scratch}/logs",
        "spark.local.dir": scratch,
        _JAVA_OPTIONS: java,
    }
    return {**asked["spark_conf"], **ours}


if __name__ == "__main__":
    main()
