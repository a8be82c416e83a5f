"""
A session in the JVM of `fluvial serve --keep-spark`: with the SQL settings and temporary views of nobody else.
"""

import os
from typing import Any, ClassVar

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.context import SQLContext

from fluvial.spark.jvm import know_classes
from fluvial.spark.kept import Lease

_GATEWAY = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")


class LentSession(SparkSession):  # type: ignore[misc]
    """
    A session whose `stop` gives its JVM back, and leaves it running.
    """

    # Of the process: PySpark makes further sessions of a session's class by itself.
    _lease: ClassVar[Lease | None] = None

    def stop(self) -> None:
        """
        Give the session back. This process has no session and no JVM then.
        """
        # Else the context would be stopped in the JVM, for everyone who comes later.
        self._sc._jsc = None
        self._sc.stop()
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        SQLContext._instantiatedContext = None
        gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
        if gateway is not None:
            gateway.shutdown_callback_server()
            gateway.close()
        lease, LentSession._lease = LentSession._lease, None
        if lease is not None:
            lease.close()


def attach(lease: Lease) -> LentSession | None:
    """
    A new session in the JVM of this lease; None where that has ended since.
    """
    try:
        gateway = _gateway(lease)
    except Py4JError:
        lease.close()
        return None
    SparkContext._ensure_initialized(gateway=gateway)
    jvm: Any = gateway.jvm
    know_classes(jvm)
    kept = SparkSession._get_j_spark_session_class(jvm).getDefaultSession().get()
    java_context = jvm.JavaSparkContext.fromSparkContext(kept.sparkContext())
    context = SparkContext(conf=SparkConf(_jconf=java_context.getConf()), gateway=gateway, jsc=java_context)
    LentSession._lease = lease
    return LentSession(context, kept.newSession())


def _gateway(lease: Lease) -> Any:
    """PySpark's own connection to a JVM that runs already; it learns of that by the environment alone."""
    os.environ.update(zip(_GATEWAY, (str(lease.port), lease.secret), strict=True))
    try:
        return launch_gateway()
    finally:
        for name in _GATEWAY:
            del os.environ[name]
