"""
Spark Connect: sessions on a Spark that runs elsewhere, reached by its address `sc://host:port`, without a JVM here.

A client has no way into the JVM, so what others reach there is asked for in another way: a session of a table's own is
a session of its own on the server, and how far work is cut up is read from the server's settings. For everything else
a session of either kind will do.
"""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fluvial.errors import FluvialError
from fluvial.extras import pip_install

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEME = "sc://"
_PORT_DEFAULT = 15002
_ANSWER_S = 10.0
# A server takes these when it starts, and needs both for Delta's tables.
_DELTA_CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
# A server gives each session a loader of classes of its own, for which all code is compiled again. We send it none.
_SHARED_CODE = {
    "spark.sql.artifact.isolation.enabled": "false",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "false",
}
# Of these most can be set in a session; all others are the server's own.
_OF_A_SESSION = ("spark.sql.", "spark.databricks.")


def is_local(master: str) -> bool:
    """
    Whether a master is a Spark within the driver's own process.
    """
    return master.startswith("local")


class ConnectError(FluvialError):
    """
    A Spark Connect server cannot be used.
    """


def is_remote(master: str) -> bool:
    """
    Whether a master is the address of a Spark Connect server.
    """
    return master.startswith(SCHEME)


def is_client(session: "SparkSession") -> bool:
    """
    Whether a session is a client of Spark Connect.
    """
    return not hasattr(session, "_jsparkSession")


def connect(address: str, conf: Mapping[str, str]) -> "SparkSession":
    """
    The session of this process on the server at `address`, with those settings of `conf` that a session may have.

    Raises :class:`ConnectError` when nothing answers, Delta is not there, or this Python lacks the client's packages.
    """
    try:
        # What it imports is there only with the extra.
        import pyspark.sql.connect.session  # noqa: F401
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConnectError(
            f"Spark Connect needs packages that are not installed: {pip_install('connect')} ({_sentence(error)})"
        ) from error
    _require_answer(address)
    try:
        session = SparkSession.builder.remote(address).getOrCreate()
        for key, wanted in _DELTA_CONF.items():
            found = session.conf.get(key, None)
            if found is None or wanted not in found:
                raise ConnectError(
                    f"the Spark Connect server at {address} has no Delta: start it with the settings of "
                    f"infra/spark/spark-defaults.conf and fluvial's jars ({key} is {found or 'not set'} there)"
                )
        _apply(session, _SHARED_CODE | {key: value for key, value in conf.items() if key.startswith(_OF_A_SESSION)})
    except PySparkException as error:
        raise ConnectError(f"no session on the Spark Connect server at {address}: {_sentence(error)}") from error
    return session


@contextmanager
def session_of_its_own(spark: "SparkSession") -> Iterator["SparkSession"]:
    """
    A session beside `spark`, with the same settings, which may be changed in it; for a ``with``.
    """
    if not is_client(spark):
        yield spark.newSession()
        return
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.session import SparkSession

    client: Any = spark
    own: Any = SparkSession(connection=client.client._builder)
    try:
        theirs = own.conf.getAll
        _apply(own, {key: value for key, value in client.conf.getAll.items() if theirs.get(key) != value})
        yield own
    finally:
        # Neither stop() nor what the end of the object calls: close() shuts the one pool of threads by which all
        # sessions of this process give their answers back.
        with suppress(PySparkException):
            own.client.release_session()
        own.client._channel.close()
        own.client.close = lambda: None


def parallelism(session: "SparkSession") -> int:
    """
    How many tasks run at once, as far as it is known here.
    """
    if not is_client(session):
        return int(session.sparkContext.defaultParallelism)
    given = session.conf.get("spark.default.parallelism", None)
    return int(given or session.conf.get("spark.sql.shuffle.partitions") or 1)


def list_files(session: "SparkSession", pattern: str) -> list[str]:
    """
    The paths that a pattern of a file system of Spark's stands for; nothing of the files themselves is read.
    """
    from pyspark.errors import AnalysisException

    try:
        return [row[0] for row in session.read.format("binaryFile").load(pattern).select("path").collect()]
    except AnalysisException as error:
        if (error.getCondition() or "").startswith("PATH_NOT_FOUND"):
            return []
        raise


def _apply(session: Any, conf: Mapping[str, str]) -> None:
    """Set what can be set in a session; the rest is the server's."""
    if conf:
        session.conf._set_all(configs=dict(conf), silent=True)


def _require_answer(address: str) -> None:
    """Without this the client itself would try for minutes."""
    place = urlsplit(address)
    try:
        host, port = place.hostname, place.port or _PORT_DEFAULT
    except ValueError as error:
        raise ConnectError(f"{address} is no address of a Spark Connect server: write sc://host:port") from error
    if host is None:
        raise ConnectError(f"{address} is no address of a Spark Connect server: write sc://host:port")
    if "session_id=" in place.path:
        raise ConnectError(f"{address} names a session: leave session_id out, each table has sessions of its own")
    try:
        socket.create_connection((host, port), timeout=_ANSWER_S).close()
    except OSError as error:
        raise ConnectError(
            f"no Spark Connect server answers at {host}:{port} ({error.strerror or error}): start it, or repair the "
            "address"
        ) from error


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
