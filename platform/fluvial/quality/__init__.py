"""
Checks of the rows a run has written.

`expectations` declares a suite for a table, `validate` runs one on a Spark frame with Great Expectations, and
`contract_expectations` derives a suite from an Avro contract. This package knows Spark and Great Expectations and
nothing of Dagster: `fluvial.orchestration.checks.checks` makes asset checks of it.
"""

from fluvial.quality.batch import Batch, NoBatchError, last_batch, rows_of, whole_table
from fluvial.quality.contract import contract_expectations
from fluvial.quality.engine import validate
from fluvial.quality.failing_rows import keep_failing_rows, kept_table
from fluvial.quality.outcome import Finding, Outcome
from fluvial.quality.suite import Scope, Suite, expectations

__all__ = [
    "Batch",
    "Finding",
    "NoBatchError",
    "Outcome",
    "Scope",
    "Suite",
    "contract_expectations",
    "expectations",
    "keep_failing_rows",
    "kept_table",
    "last_batch",
    "rows_of",
    "validate",
    "whole_table",
]
