"""
Checks of tables.

`expectations` declares a suite for a table, `check_table` evaluates one on it, `validate` on any Spark frame, and
`contract_expectations` derives a suite from an Avro contract. This package knows Spark and Great Expectations and
nothing of Dagster: `fluvial.orchestration.checks.checks` makes asset checks of it.
"""

from fluvial.quality.batch import Batch, NoBatchError, last_batch, rows_of, whole_table
from fluvial.quality.contract import contract_expectations
from fluvial.quality.counts import Counts, added_since
from fluvial.quality.engine import validate
from fluvial.quality.failing_rows import keep_failing_rows, kept_table
from fluvial.quality.outcome import Finding, Outcome
from fluvial.quality.running import RunningChecks, SuiteFailedError
from fluvial.quality.suite import Scope, Suite, expectations
from fluvial.quality.table_check import TableCheck, check_table

__all__ = [
    "Batch",
    "Counts",
    "Finding",
    "NoBatchError",
    "Outcome",
    "RunningChecks",
    "Scope",
    "Suite",
    "SuiteFailedError",
    "TableCheck",
    "added_since",
    "check_table",
    "contract_expectations",
    "expectations",
    "keep_failing_rows",
    "kept_table",
    "last_batch",
    "rows_of",
    "validate",
    "whole_table",
]
