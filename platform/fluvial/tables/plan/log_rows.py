"""
The rows of a table from all of its records at once: what batches must come to.
"""

from typing import TYPE_CHECKING

from fluvial.spark.avro import Contract
from fluvial.tables.declare.declarations import Compacted, History, State
from fluvial.tables.plan import frames
from fluvial.tables.plan.changes import is_stepwise, state_rows
from fluvial.tables.plan.checks import compacted_key
from fluvial.tables.plan.guards import EVERYTHING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def rows_of_log(declaration: History | Compacted | State, decoded: "DataFrame", contract: Contract) -> "DataFrame":
    """
    The rows of a table that holds these records and no others.
    """
    if isinstance(declaration, History):
        return frames.history_rows(decoded, contract, EVERYTHING)
    if isinstance(declaration, Compacted):
        key = compacted_key(declaration, contract, decoded.sparkSession)
        return frames.compacted_rows(decoded, contract, EVERYTHING, key=key).where("NOT _deleted").drop("_deleted")
    if is_stepwise(declaration):
        return state_rows(frames.keyed_events(decoded, contract, EVERYTHING), declaration)
    partials = frames.state_partials(frames.state_events(decoded, contract, EVERYTHING), declaration)
    return frames.state_rows(partials, declaration)
