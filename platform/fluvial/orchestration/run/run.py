"""
Materialising a project's assets in this process, in dependency order, on one Spark session.

The run is kept in the Dagster home of the data directory, where the web page shows it. Nothing of Dagster's log goes to
the terminal; it is in the page and in `<home>/logs/run.log`.
"""

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import dagster as dg

from fluvial.config import Settings
from fluvial.errors import FluvialError
from fluvial.orchestration.assets.graph import asset_key, table_of
from fluvial.orchestration.run.code_location import definitions_of
from fluvial.orchestration.run.instance import RUN_TAG, close_dead_runs, home_of, open_instance, run_lock
from fluvial.orchestration.run.listener import RunListener
from fluvial.orchestration.run.progress import MaterializationError, RunEvent, RunSummary
from fluvial.orchestration.run.spark_resource import SparkResource

if TYPE_CHECKING:
    from dagster import EventLogEntry

    from fluvial.spark.avro import Contract

LOG_BYTES_MAX = 5_000_000
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


class SelectionError(FluvialError):
    """A selected table is none of the project's."""


def materialize_all(
    settings: Settings,
    selection: Sequence[str] | None = None,
    on_event: Callable[[RunEvent], None] | None = None,
    *,
    definitions: dg.Definitions | None = None,
    spark: SparkResource | None = None,
    contracts: "Mapping[str, Contract]" = MappingProxyType({}),
) -> RunSummary:
    """
    Materialise the assets of the project, or those of the tables in `selection`, and evaluate their checks.

    The definitions are those of the project in the working directory unless given, and `spark` is the resource that
    `settings` describe, which does not read `contracts`, by table, again. A Spark session that this process has already
    is used and left running; otherwise one is started for the run and stopped after it.

    Raises SelectionError for an unknown table, and MaterializationError when an asset or a check of error severity
    fails; what does not depend on it is materialised all the same.
    """
    defs = _with_spark(definitions or definitions_of(settings), spark or SparkResource.of(settings, contracts))
    job = defs.resolve_implicit_global_asset_job_def()
    selected = _selected(defs, selection)
    home = home_of(settings.data_dir)
    run_id = str(uuid.uuid4())
    started = time.monotonic()
    listener = RunListener(on_event)
    with open_instance(home) as instance, run_lock(home, run_id), _log_file(home) as log:
        close_dead_runs(instance, home)
        instance.add_event_listener(run_id, log)
        instance.add_event_listener(run_id, listener)
        result = job.execute_in_process(
            instance=instance,
            run_id=run_id,
            run_config=_QUIET,
            asset_selection=selected,
            tags={RUN_TAG: "cli"},
            raise_on_error=False,
        )
    summary = listener.summary(run_id, succeeded=result.success, seconds=time.monotonic() - started)
    if not summary.succeeded:
        raise MaterializationError(summary)
    return summary


def _with_spark(defs: dg.Definitions, spark: SparkResource) -> dg.Definitions:
    """
    Return the assets and checks of `defs` on this resource.

    A resource given to the run itself would clash with the one the assets are bound to as soon as some are selected.
    """
    return dg.Definitions(
        assets=defs.assets,
        asset_checks=defs.asset_checks,
        resources={**(defs.resources or {}), "spark": spark},
        executor=dg.in_process_executor,
    )


def _selected(defs: dg.Definitions, selection: Sequence[str] | None) -> list[dg.AssetKey] | None:
    if selection is None:
        return None
    executable = defs.resolve_asset_graph().executable_asset_keys
    keys = [asset_key(table) for table in selection]
    for table, key in zip(selection, keys, strict=True):
        if key not in executable:
            tables = ", ".join(sorted(table_of(known) for known in executable))
            raise SelectionError(f"no table {table!r} in this project; it has {tables}")
    return keys


@contextmanager
def _log_file(home: Path) -> Iterator[Callable[["EventLogEntry"], None]]:
    """Give a listener that appends the run's events, errors with their stack, to the log file of the home."""
    path = home / "logs" / "run.log"
    path.parent.mkdir(exist_ok=True)
    handler = RotatingFileHandler(path, maxBytes=LOG_BYTES_MAX, backupCount=1, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def write(entry: "EventLogEntry") -> None:
        record = logging.makeLogRecord(
            {
                "created": entry.timestamp,
                "levelno": entry.level,
                "levelname": logging.getLevelName(entry.level),
                "msg": f"{entry.run_id} {entry.step_key or '-'} {entry.message}",
            }
        )
        handler.emit(record)

    try:
        yield write
    finally:
        handler.close()
