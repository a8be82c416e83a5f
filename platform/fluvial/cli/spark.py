"""Spark for a command."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fluvial.cli import terminal
from fluvial.config import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_of(settings: Settings) -> "Iterator[tuple[SparkSession, Callable[[str], None]]]":
    """A session that ends with this, and what tells the terminal what the command is at."""
    from fluvial.spark.session import build_session

    with terminal.stderr().status("starting Spark …") as status:
        spark = build_session(settings, say=status.update, borrow=True)
        try:
            yield spark, status.update
        finally:
            spark.stop()
