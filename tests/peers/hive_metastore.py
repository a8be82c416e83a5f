"""A Hive metastore, from the jars that PySpark brings, with a Derby database in its memory."""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

JARS = Path(pyspark.__file__).parent / "jars"
START_SECONDS_MAX = 180.0

_SITE = """<configuration>
<property><name>javax.jdo.option.ConnectionURL</name><value>jdbc:derby:memory:metastore;create=true</value></property>
<property><name>datanucleus.schema.autoCreateAll</name><value>true</value></property>
<property><name>hive.metastore.schema.verification</name><value>false</value></property>
<property><name>hive.metastore.warehouse.dir</name><value>{folder}/warehouse</value></property>
</configuration>
"""
# Its own choice of a logger needs a jar that PySpark does not bring.
_LOGGER = "-Dlog4j2.contextSelector=org.apache.logging.log4j.core.selector.ClassLoaderContextSelector"


class HiveMetastoreError(RuntimeError):
    """It did not come up."""


@contextmanager
def hive_metastore(folder: Path, port: int) -> Iterator[str]:
    """Run a metastore that keeps nothing; gives its address."""
    (folder / "hive-site.xml").write_text(_SITE.format(folder=folder))
    main = "org.apache.hadoop.hive.metastore.HiveMetaStore"
    command = ["java", "-Xmx512m", _LOGGER, "-cp", f"{folder}:{JARS}/*", main, "-p", str(port)]
    with (
        (folder / "metastore.log").open("w") as log,
        subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            _wait_until_it_listens(port, process)
            yield f"thrift://127.0.0.1:{port}"
        finally:
            process.kill()


def _wait_until_it_listens(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise HiveMetastoreError(f"the metastore did not come up: {process.poll()}")
