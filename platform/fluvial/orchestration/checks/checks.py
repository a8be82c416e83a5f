"""Suites of expectations as Dagster asset checks."""

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from fluvial.delta.failures import explain_failures
from fluvial.delta.log import TableLog
from fluvial.errors import FluvialError
from fluvial.orchestration.assets.assets import failure_of
from fluvial.orchestration.assets.graph import asset_key, value_contracts
from fluvial.orchestration.run.spark_resource import SparkResource
from fluvial.quality import (
    Finding,
    Outcome,
    Scope,
    Suite,
    contract_expectations,
    keep_failing_rows,
    last_batch,
    rows_of,
    validate,
    whole_table,
)
from fluvial.quality.engine import LOCATION
from fluvial.registry.contracts import Contract
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import Declaration, History

CELL_CHARS_MAX = 200
IDENTITY = "rows_and_suite"
"""What an evaluation was of; the same suite on the same rows gives the same verdict."""


def checks_for(suites: Iterable[Suite]) -> list[dg.AssetChecksDefinition]:
    """Return one asset check for each suite."""
    return [expectations_check(suite) for suite in suites]


def expectations_check(suite: Suite) -> dg.AssetChecksDefinition:
    """
    Return the asset check that runs a suite on the batch its table's last run wrote, or on the whole table.

    A suite that has passed on a table version is not run on that version again: its rows cannot have changed.
    """

    @dg.asset_check(
        asset=asset_key(suite.table),
        name=suite.name,
        blocking=suite.blocking,
        description=suite.description,
        metadata={"scope": suite.scope.value},
    )
    def check(context: dg.AssetCheckExecutionContext, spark: SparkResource) -> dg.AssetCheckResult:
        return _check(context, spark, suite)

    return check


def contract_suites(declarations: Mapping[str, Declaration], contracts: Iterable[Contract]) -> list[Suite]:
    """Return a suite for each history table whose topic has a contract: what it says must hold of the table's rows."""
    of_values = value_contracts(contracts)
    return [
        Suite(
            table=declaration.table,
            name="contract",
            build=contract_expectations(of_values[declaration.topic].schema),
            blocking=False,
            scope=Scope.BATCH,
            description=f"The fields that the contract of {declaration.topic} requires are there, and its enums hold.",
        )
        for declaration in declarations.values()
        if isinstance(declaration, History) and declaration.topic in of_values
    ]


def _check(context: dg.AssetCheckExecutionContext, spark: SparkResource, suite: Suite) -> dg.AssetCheckResult:
    path = Warehouse.at(spark.settings.warehouse).path(suite.table)
    try:
        with explain_failures(suite.table, path):
            return _evaluated(context, spark, suite, TableLog(spark.session, path))
    except FluvialError as error:
        raise failure_of(error) from error


def _evaluated(
    context: dg.AssetCheckExecutionContext, spark: SparkResource, suite: Suite, log: TableLog
) -> dg.AssetCheckResult:
    batch = last_batch(log) if suite.scope is Scope.BATCH else whole_table(log)
    about = {"looked_at": str(batch), IDENTITY: f"{batch.version} {batch.commit} {suite.fingerprint}"}
    earlier = _last_evaluation(context.instance, suite)
    if earlier is not None and earlier.passed and _text(earlier, IDENTITY) == about[IDENTITY]:
        return dg.AssetCheckResult(passed=True, metadata={**about, "note": "passed before on the same rows"})
    outcome = validate(rows_of(spark.session, batch), suite.build)
    kept = keep_failing_rows(spark.session, Warehouse.at(spark.settings.warehouse), suite, batch, outcome)
    if kept is not None:
        about["kept_in"] = kept
    return dg.AssetCheckResult(
        passed=outcome.passed,
        severity=dg.AssetCheckSeverity.ERROR if outcome.passed or outcome.critical else dg.AssetCheckSeverity.WARN,
        description=_shortened("; ".join(str(finding) for finding in outcome.failed)) or None,
        metadata={**about, **outcome_metadata(outcome)},
    )


def _last_evaluation(instance: dg.DagsterInstance, suite: Suite) -> dg.AssetCheckEvaluation | None:
    key = dg.AssetCheckKey(asset_key(suite.table), suite.name)
    done = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}
    records = instance.event_log_storage.get_asset_check_execution_history(key, limit=1, status=done)
    event = records[0].event if records else None
    return event.dagster_event.asset_check_evaluation_data if event and event.dagster_event else None


def _text(evaluation: dg.AssetCheckEvaluation, name: str) -> Any:
    return getattr(evaluation.metadata.get(name), "value", None)


def outcome_metadata(outcome: Outcome) -> dict[str, Any]:
    """Show counts, the verdict on each expectation and, where one failed, some of the rows."""
    metadata: dict[str, Any] = {
        "rows": outcome.rows,
        "seconds": round(outcome.seconds, 3),
        "expectations": dg.MetadataValue.table(records=[_verdict(finding) for finding in outcome.findings]),
    }
    sample = [_row(finding, row) for finding in outcome.failed for row in finding.sample]
    if sample:
        metadata["failing_rows"] = dg.MetadataValue.table(records=sample, schema=_FAILING_ROWS)
    return metadata


_FAILING_ROWS = dg.TableSchema(columns=[dg.TableColumn(name) for name in ("expectation", "where", "values")])


def _verdict(finding: Finding) -> dg.TableRecord:
    return dg.TableRecord(
        {
            "expectation": str(finding),
            "passed": finding.passed,
            "checked": finding.checked,
            "unexpected": finding.unexpected,
            "observed": None if finding.observed is None else _shortened(finding.observed),
            "error": finding.error and _shortened(finding.error),
        }
    )


def _row(finding: Finding, row: Mapping[str, Any]) -> dg.TableRecord:
    where = " ".join(f"{name.removeprefix('_')} {value}" for name, value in row.items() if name in LOCATION)
    values = {name: value for name, value in row.items() if name not in LOCATION}
    return dg.TableRecord({"expectation": str(finding), "where": where, "values": _shortened(values)})


def _shortened(value: Any) -> str:
    text = str(value)
    return text if len(text) <= CELL_CHARS_MAX else f"{text[: CELL_CHARS_MAX - 1]}…"
