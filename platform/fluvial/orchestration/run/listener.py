"""Dagster's events of one run, told as progress."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dagster import DagsterEventType

from fluvial.orchestration.assets.graph import table_of
from fluvial.orchestration.assets.metadata import plain
from fluvial.orchestration.run.progress import (
    AssetFinished,
    AssetProgress,
    AssetStarted,
    AssetWarned,
    CheckFinished,
    RunEvent,
    RunSummary,
    Status,
)

if TYPE_CHECKING:
    from dagster import DagsterEvent, EventLogEntry


class RunListener:
    """
    Follows a run; the instance calls it with each event, in order.

    The events in which Dagster plans the run come first and say which step belongs to which table or check.
    """

    def __init__(self, on_event: Callable[[RunEvent], None] | None) -> None:
        self._tell = on_event or (lambda event: None)
        self._tables: dict[str, str] = {}
        self._checks: dict[str, tuple[str, str]] = {}
        self._finished: dict[str, AssetFinished] = {}
        self._evaluated: dict[tuple[str, str], CheckFinished] = {}

    def __call__(self, entry: "EventLogEntry") -> None:
        """Take one event."""
        event = entry.dagster_event
        if event is None and entry.step_key in self._tables:
            is_warning = isinstance(entry.level, int) and entry.level >= logging.WARNING
            kind = AssetWarned if is_warning else AssetProgress
            self._tell(kind(table=self._tables[entry.step_key], message=entry.user_message))
        if event is None or event.step_key is None:
            return
        match event.event_type:
            case DagsterEventType.ASSET_MATERIALIZATION_PLANNED:
                self._tables[event.step_key] = table_of(event.asset_materialization_planned_data.asset_key)
            case DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED:
                planned: Any = event.event_specific_data
                self._checks[event.step_key] = (table_of(planned.asset_key), planned.check_name)
            case DagsterEventType.STEP_START if event.step_key in self._tables:
                self._tell(AssetStarted(table=self._tables[event.step_key]))
            case DagsterEventType.ASSET_MATERIALIZATION:
                self._materialized(event)
            case DagsterEventType.ASSET_CHECK_EVALUATION:
                self._evaluate(event)
            case DagsterEventType.STEP_FAILURE:
                self._failed(event)

    def summary(self, run_id: str, *, succeeded: bool, seconds: float) -> RunSummary:
        """Sum up the run: what was planned and never ran was held back by a failure above it."""
        held_back = [
            AssetFinished(table=table, status=Status.HELD_BACK, metadata={})
            for table in self._tables.values()
            if table not in self._finished
        ]
        return RunSummary(
            run_id=run_id,
            succeeded=succeeded,
            seconds=seconds,
            assets=(*self._finished.values(), *held_back),
            checks=tuple(self._evaluated.values()),
        )

    def _materialized(self, event: "DagsterEvent") -> None:
        materialization = event.step_materialization_data.materialization
        metadata = plain(materialization.metadata)
        status = Status.UNCHANGED if metadata.get("skipped") else Status.MATERIALIZED
        self._finish(AssetFinished(table=table_of(materialization.asset_key), status=status, metadata=metadata))

    def _evaluate(self, event: "DagsterEvent") -> None:
        evaluation = event.asset_check_evaluation_data
        self._conclude(
            CheckFinished(
                table=table_of(evaluation.asset_key),
                name=evaluation.check_name,
                passed=evaluation.passed,
                severity=evaluation.severity.value,
                metadata=plain(evaluation.metadata),
                error=None if evaluation.passed else evaluation.description,
            )
        )

    def _failed(self, event: "DagsterEvent") -> None:
        step, error = str(event.step_key), _reason(event)
        if step in self._tables:
            self._finish(AssetFinished(table=self._tables[step], status=Status.FAILED, metadata={}, error=error))
        elif step in self._checks and self._checks[step] not in self._evaluated:
            table, name = self._checks[step]
            self._conclude(
                CheckFinished(table=table, name=name, passed=False, severity="ERROR", metadata={}, error=error)
            )

    def _finish(self, asset: AssetFinished) -> None:
        self._finished[asset.table] = asset
        self._tell(asset)

    def _conclude(self, check: CheckFinished) -> None:
        self._evaluated[check.table, check.name] = check
        self._tell(check)


def _reason(event: "DagsterEvent") -> str:
    """Return one line: what a `Failure` says, or the first line of the innermost exception."""
    failure = event.step_failure_data
    if failure.user_failure_data is not None and failure.user_failure_data.description:
        return str(failure.user_failure_data.description)
    error = failure.error
    while error is not None and error.cause is not None:
        error = error.cause
    lines = error.message.strip().splitlines() if error is not None else []
    return lines[0] if lines else "failed"
