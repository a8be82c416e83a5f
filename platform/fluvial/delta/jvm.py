"""
How the classes of Delta and Scala are reached from here.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def delta_log(session: "SparkSession", path: str) -> Any:
    """The `DeltaLog` of the table at `path`."""
    return session._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, path)


def forget_log(session: "SparkSession", path: str) -> None:
    """Let Delta's cache go of a table whose files were moved away."""
    where = session._jvm.org.apache.hadoop.fs.Path(path)
    scala_object(session, "org.apache.spark.sql.delta.DeltaLog").invalidateCache(session._jsparkSession, where)


def be_active(session: "SparkSession") -> None:
    """Delta takes the session that it works in from the thread that it runs on."""
    session._jvm.org.apache.spark.sql.SparkSession.setActiveSession(session._jsparkSession)


def delta_version(session: "SparkSession") -> str:
    """The version of Delta whose classes the session has."""
    return str(scala_object(session, "io.delta.package").VERSION())


def scala_object(session: "SparkSession", name: str) -> Any:
    """The Scala object of this full name."""
    package, _, last = name.rpartition(".")
    holder = session._jvm
    for part in package.split("."):
        holder = getattr(holder, part)
    return getattr(getattr(holder, f"{last}$"), "MODULE$")


def converters(session: "SparkSession") -> Any:
    """What turns Scala's collections into Java's, and back."""
    return session._jvm.scala.jdk.javaapi.CollectionConverters


def none(session: "SparkSession") -> Any:
    """Scala's `None`."""
    return session._jvm.scala.Option.empty()
