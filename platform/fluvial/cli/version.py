"""`fluvial version`: the versions of what runs here, as a report of a bug needs them."""

import platform
from importlib import metadata

import typer

from fluvial.cli import terminal
from fluvial.extras import MissingExtraError, needed

CORE = ("confluent-kafka", "fastavro", "cramjam", "crc32c", "uvloop")
EXTRAS = ("pyspark", "delta-spark", "dagster")


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial version")(version)


def version() -> None:
    """Print the version of fluvial and of what it stands on: Python, compiled libraries, Spark, its jars, Java."""
    import confluent_kafka

    from log_broker.records.compiled import walk
    from log_broker.server.process.sync_pool import compiled

    terminal.answer(f"fluvial {metadata.version('fluvial')}")
    terminal.answer(f"python {platform.python_version()} on {platform.platform()}")
    terminal.answer(f"librdkafka {confluent_kafka.libversion()[0]}")
    terminal.answer(f"records are checked by {'Python' if walk is None else 'compiled code'}")
    terminal.answer(f"logs are written by {'Python' if compiled is None else 'compiled code'}")
    for name in (*CORE, *EXTRAS):
        try:
            with needed():
                terminal.answer(f"{name} {metadata.version(name)}")
        except MissingExtraError as error:
            terminal.answer(str(error))
    terminal.answer(f"jars {_jars()}")
    terminal.answer(f"java {_java()}")


def _jars() -> str:
    from fluvial.spark.jars import locked_coordinates

    locked = locked_coordinates()
    there = f"in {locked.folder}" if locked.folder.exists() else "not fetched yet"
    return f"{', '.join(package.partition(':')[2] for package in locked.packages)}: {there}"


def _java() -> str:
    from fluvial.spark.java import JavaError, require_java

    try:
        java = require_java()
    except JavaError as error:
        return str(error)
    return f"{java.major} at {java.program}"
