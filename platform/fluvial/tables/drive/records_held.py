"""
The records that a table holds, read in the log again.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fluvial.delta.erasures import read_erasures
from fluvial.delta.stamp import Range, Stamp
from fluvial.spark.avro import Contract, decode
from fluvial.spark.kafka import Span, read_span
from fluvial.spark.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fluvial.config import Settings


def records_held(
    session: "SparkSession", settings: "Settings", contract: Contract, stamp: Stamp, ranges: Mapping[int, Range]
) -> "DataFrame":
    """
    The decoded records of these ranges of a table's topic, but for those that `stamp` says it leaves out.
    """
    root = Warehouse.at(settings.warehouse).root
    erased = read_erasures(session, root, stamp.topic, stamp.topic_id).until(stamp.erased).places()
    span = Span(topic=stamp.topic, ranges=ranges, skipped=stamp.skipped, erased=erased)
    return decode(read_span(session, settings.cluster, span), contract)
