"""
Iceberg's runtime for Spark, from its Maven artifact, for the benchmark that measures our tables beside Iceberg's.

It is fetched once into the user's cache; nothing that users run needs it.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.peers.kafka_jars import KafkaJarsError, cache_folder, fetched

VERSION = "1.10.0"
ARTIFACTS = (f"org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:{VERSION}",)


class IcebergJarError(RuntimeError):
    """Iceberg cannot be had here; the message says why."""


def require_iceberg_jar(say: Callable[[str], None] = lambda _line: None) -> Path:
    """Return the jar, fetched first where it has to be (50 MB). Raises IcebergJarError."""
    folder = cache_folder(f"iceberg-{VERSION}")
    if not folder.exists() and shutil.which("mvn") is None:
        raise IcebergJarError("Iceberg's jar is fetched by Maven, and there is no `mvn` on PATH: apt-get install maven")
    try:
        (jar,) = fetched(folder, ARTIFACTS, f"Apache Iceberg {VERSION}", say).glob("iceberg-spark-runtime-*.jar")
    except KafkaJarsError as error:
        raise IcebergJarError(str(error)) from error
    return jar
