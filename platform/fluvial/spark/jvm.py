"""
Starting the JVM of a session, with a warning left out of what it says on stderr.

PySpark's launcher always adds a module that Java still calls incubating, and Java has no option to be silent about it.
"""

import os
from collections.abc import Callable, Mapping
from threading import Thread
from typing import Any

WARNING = b"WARNING: Using incubator modules: jdk.incubator.vector\n"
_CHUNK_BYTES = 65_536
# Spark's launcher is a JVM that does nothing but put together the command of another one.
_OF_LAUNCHER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# What PySpark and this package ask for hundreds of times in a batch. Py4J asks the JVM each time, for each part of the
# path, and the JVM looks through all jars for a class `org`, `org.apache`, …: a tenth of what its driver's thread does.
_ASKED_OFTEN = (
    "io.delta.package$",
    "java.util.ArrayList",
    "org.apache.hadoop.fs.Path",
    "org.apache.spark.sql.SparkSession",
    "org.apache.spark.sql.delta.DeltaLog",
    "py4j.reflection.TypeUtil",
    "scala.Option",
    "scala.Some",
    "scala.jdk.javaapi.CollectionConverters",
)
# Those that PySpark asks for by their last name, or by the whole name as if it were one word.
_OF_PYSPARK = (
    "org.apache.spark.api.python.PythonRDD",
    "org.apache.spark.api.python.PythonUtils",
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.functions",
)


def has_jvm() -> bool:
    """
    Whether this process has its JVM: an earlier session's, or the one of `spark-submit`.
    """
    from pyspark import SparkContext

    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def start_jvm(conf: Mapping[str, str]) -> None:
    """
    Start this process's JVM as PySpark would for a session of `conf`; nothing where there is one already.

    Raises PySparkException where it does not start; what it said of it is on stderr by then.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if has_jvm():
        return
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", _OF_LAUNCHER)
    reading, writing = os.pipe()
    passing_on = Thread(target=pass_on, args=(reading,), name="jvm-stderr", daemon=True)
    passing_on.start()
    try:
        gateway = launch_gateway(SparkConf().setAll(list(conf.items())), {"stderr": writing})
    except BaseException:
        os.close(writing)
        passing_on.join(timeout=1)
        raise
    os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)
    know_classes(gateway.jvm)


def know_classes(jvm: Any) -> None:
    """
    Make the classes that are asked for often, and their packages, attributes of `jvm`.
    """
    from py4j.java_gateway import JavaClass, JavaPackage

    client = jvm._gateway_client
    for name in _ASKED_OFTEN:
        holder, (*packages, last) = jvm, name.split(".")
        for depth, part in enumerate(packages, 1):
            if part not in vars(holder):
                setattr(holder, part, JavaPackage(".".join(packages[:depth]), client, jvm._id))
            holder = vars(holder)[part]
        setattr(holder, last, JavaClass(name, client))
    for name in _OF_PYSPARK:
        for asked in (name, name.rpartition(".")[2]):
            setattr(jvm, asked, JavaClass(name, client))


def pass_on(pipe: int, write: Callable[[bytes], object] = lambda said: os.write(2, said)) -> None:
    """
    Write what comes out of a pipe, until it is closed, but for the first occurrence of the warning.
    """
    held, waiting = b"", True
    with open(pipe, "rb", buffering=0) as said:
        while chunk := said.read(_CHUNK_BYTES):
            held += chunk
            if waiting:
                before, warning, after = held.partition(WARNING)
                held, waiting = before + after, not warning
            size = len(held) - (_begun(held) if waiting else 0)
            write(held[:size])
            held = held[size:]
    write(held)


def _begun(said: bytes) -> int:
    """How many bytes at the end may be the begin of the warning."""
    return next((size for size in range(min(len(said), len(WARNING) - 1), 0, -1) if said.endswith(WARNING[:size])), 0)
