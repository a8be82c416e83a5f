"""
A part of a table made again, whatever kind of table it is.

What that means differs by what a row is made of. Of a history the rows of the range are written again from their
records. Of a compacted table or a state the keys that have a record in the range are folded again from all of their
records. Of a pipeline's table with a key the windows or keys that the range touches are computed again from the inputs.
Whichever it is, the part may be made again in any order and as often as one likes.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from fluvial.spark.avro import SchemaSource
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import (
    Compacted,
    Declaration,
    DeclarationError,
    History,
    Pipeline,
    Publication,
    State,
)
from fluvial.tables.plan.result import RunResult
from fluvial.tables.replay.history import materialize_window, rewrite
from fluvial.tables.replay.keys import replay_keys
from fluvial.tables.replay.mart import check_replayed, replay_mart
from fluvial.tables.replay.stretch import Stretch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fluvial.config import Settings


def check_parts(declaration: Declaration) -> None:
    """
    Raise DeclarationError for a table of which no part can be made again.
    """
    if isinstance(declaration, Publication):
        raise DeclarationError(
            f"{declaration.table} is a topic, to which the changes of {declaration.source} are written once: replay "
            f"{declaration.source}, and the next run publishes what is different by it"
        )
    if isinstance(declaration, Pipeline):
        check_replayed(declaration)


def replay(
    declaration: Declaration,
    settings: "Settings",
    spark: "SparkSession",
    stretch: Stretch,
    *,
    declared: Iterable[Declaration] = (),
    schemas: SchemaSource | None = None,
    progress: Callable[[str], None] | None = None,
) -> RunResult:
    """
    Make a part of a table again: what it holds of the stretch, in the place of what stands there, in one commit.

    `declared` are the tables that there are: a history among them may hold what the log has lost. A history, and a
    table with a key, is brought up to date first as far as the stretch needs it. Raises a
    :class:`~fluvial.errors.FluvialError` with one clear line where that part cannot be made again.
    """
    say = progress or (lambda _line: None)
    check_parts(declaration)
    began = time.monotonic()
    warehouse = Warehouse.at(settings.warehouse)
    warehouse.require_writable()
    with ExitStack() as opened:
        match declaration:
            case History():
                done = _history(declaration, settings, spark, stretch, schemas=schemas, say=say)
            case Compacted() | State():
                known = schemas or opened.enter_context(settings.registry.client())
                histories = [each for each in declared if isinstance(each, History)]
                done = replay_keys(declaration, settings, spark, stretch, histories=histories, schemas=known, say=say)
            case Pipeline():
                done = replay_mart(declaration, warehouse, spark, stretch, say)
    return replace(done, seconds=time.monotonic() - began)


def _history(
    declaration: History,
    settings: "Settings",
    spark: "SparkSession",
    stretch: Stretch,
    *,
    schemas: SchemaSource | None,
    say: Callable[[str], None],
) -> RunResult:
    if stretch.window is not None:
        return materialize_window(declaration, settings, spark, stretch.window, schemas=schemas, progress=say)
    ranges = stretch.offsets.get(declaration.topic, {})
    return rewrite(declaration, settings, spark, ranges, schemas=schemas, progress=say)
