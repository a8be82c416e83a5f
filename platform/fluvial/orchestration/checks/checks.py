"""Suites of expectations as Dagster asset checks."""

from collections.abc import Iterable, Iterator, Mapping
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
    Batch,
    Counts,
    Finding,
    Scope,
    Suite,
    TableCheck,
    added_since,
    check_table,
    contract_expectations,
    keep_failing_rows,
    whole_table,
)
from fluvial.quality.engine import LOCATION, SAMPLE_ROWS_MAX
from fluvial.registry.contracts import Contract
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import Declaration, History

CELL_CHARS_MAX = 200
IDENTITY = "rows_and_suite"
"""What an evaluation was of; the same suite on the same rows gives the same verdict."""
COUNTS = "counts"
"""The rows that failed as of a version, which the next evaluation adds to."""
FAILING_ROWS = "failing_rows"
KEPT = "kept_in"


_SUITES: dict[dg.AssetCheckKey, Suite] = {}


def checks_for(suites: Iterable[Suite]) -> list[dg.AssetChecksDefinition]:
    """Return one asset check for each suite."""
    return [expectations_check(suite) for suite in suites]


def suites_of(definitions: dg.Definitions) -> list[Suite]:
    """Return the suites of which definitions have asset checks, for what evaluates them without Dagster."""
    checks = [each for each in definitions.asset_checks or () if isinstance(each, dg.AssetChecksDefinition)]
    keys = [spec.key for each in checks for spec in each.check_specs]
    return [_SUITES[key] for key in keys if key in _SUITES]


def expectations_check(suite: Suite) -> dg.AssetChecksDefinition:
    """
    Return the asset check that evaluates a suite on its table; it fails while rows that fail are in the table.

    A suite that has passed is not run again before the table's rows change.
    """
    _SUITES[dg.AssetCheckKey(asset_key(suite.table), suite.name)] = suite

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
    warehouse = Warehouse.at(spark.settings.warehouse)
    path = warehouse.path(suite.table)
    try:
        with explain_failures(suite.table, path):
            # Which rows there are is read without Spark where they are on this machine.
            log = TableLog(spark.session if warehouse.local is None else None, path)
            return _evaluated(context, spark, suite, log)
    except FluvialError as error:
        raise failure_of(error) from error


def _evaluated(
    context: dg.AssetCheckExecutionContext, spark: SparkResource, suite: Suite, log: TableLog
) -> dg.AssetCheckResult:
    earlier = _last_evaluation(context.instance, suite)
    counts = None if earlier is None else Counts.of_json(_value(earlier, COUNTS))
    if earlier is not None and earlier.passed and _is_of_same_rows(earlier, counts, suite, log):
        return dg.AssetCheckResult(passed=True, metadata={**earlier.metadata, "note": "passed before on the same rows"})
    found = check_table(spark.session, log, suite, counts)
    kept = None
    if found.fresh is not None and suite.keeps:
        warehouse = Warehouse.at(spark.settings.warehouse)
        kept = keep_failing_rows(spark.session, warehouse, suite, found.fresh, found.outcome)
    passed = found.outcome.passed and (suite.scope is Scope.BATCH or found.limited is None)
    metadata: dict[str, Any] = {IDENTITY: _identity(found.table, suite), **check_metadata(found)}
    if earlier is not None and not passed:
        kept = kept or _value(earlier, KEPT)
        _add_rows_of(earlier, found, metadata)
    if kept is not None:
        metadata[KEPT] = kept
    return dg.AssetCheckResult(
        passed=passed,
        severity=dg.AssetCheckSeverity.ERROR if passed or found.outcome.critical else dg.AssetCheckSeverity.WARN,
        description=None if passed else _shortened("; ".join(_sentences(found)) or found.limited),
        metadata=metadata,
    )


def _identity(table: Batch, suite: Suite) -> str:
    return f"{table.version} {table.commit} {suite.fingerprint}"


def _is_of_same_rows(earlier: dg.AssetCheckEvaluation, counts: Counts | None, suite: Suite, log: TableLog) -> bool:
    if _value(earlier, IDENTITY) == _identity(whole_table(log), suite):
        return True
    if counts is None or counts.suite != suite.fingerprint:
        return False
    added = added_since(log, counts)
    return added is not None and not added.offsets


def _last_evaluation(instance: dg.DagsterInstance, suite: Suite) -> dg.AssetCheckEvaluation | None:
    key = dg.AssetCheckKey(asset_key(suite.table), suite.name)
    done = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}
    records = instance.event_log_storage.get_asset_check_execution_history(key, limit=1, status=done)
    event = records[0].event if records else None
    return event.dagster_event.asset_check_evaluation_data if event and event.dagster_event else None


def _value(evaluation: dg.AssetCheckEvaluation, name: str) -> Any:
    return getattr(evaluation.metadata.get(name), "value", None)


def check_metadata(found: TableCheck) -> dict[str, Any]:
    """Show counts, the verdict on each expectation and, where one failed, some of the rows."""
    outcome = found.outcome
    verdicts = zip(outcome.findings, found.batch_failing, strict=True)
    metadata: dict[str, Any] = {
        "delta_version": found.table.version,
        "looked_at": str(found.batch),
        "rows": found.batch_rows,
        "seconds": round(outcome.seconds, 3),
        "expectations": dg.MetadataValue.table(records=[_verdict(*verdict) for verdict in verdicts], schema=_VERDICTS),
    }
    sample = [_row(finding, row) for finding in outcome.failed for row in finding.sample]
    if sample:
        metadata[FAILING_ROWS] = _rows_table(sample)
    if found.limited is None:
        metadata["failing_in_table"] = sum(finding.unexpected or 0 for finding in outcome.findings)
    if any(failing is not None for failing in found.batch_failing):
        metadata["failing_in_batch"] = sum(failing or 0 for failing in found.batch_failing)
    if found.counts is not None:
        metadata[COUNTS] = dg.MetadataValue.json(found.counts.as_json())
    if found.limited is not None:
        metadata["note"] = found.limited
    return metadata


def _sentences(found: TableCheck) -> Iterator[str]:
    for finding, in_batch in zip(found.outcome.findings, found.batch_failing, strict=True):
        if not finding.passed:
            old = in_batch == 0 and bool(finding.unexpected)
            yield f"{finding}: rows of earlier runs" if old else str(finding)


def _add_rows_of(earlier: dg.AssetCheckEvaluation, found: TableCheck, metadata: dict[str, Any]) -> None:
    """Go on showing rows of earlier runs, which are not read again."""
    before = earlier.metadata.get(FAILING_ROWS)
    if found.counts is None or not isinstance(before, dg.TableMetadataValue):
        return
    failed = {str(finding) for finding in found.outcome.failed}
    shown = list(metadata[FAILING_ROWS].records) if FAILING_ROWS in metadata else []
    for row in before.records:
        name = row.data["expectation"]
        if (
            row not in shown
            and name in failed
            and sum(each.data["expectation"] == name for each in shown) < SAMPLE_ROWS_MAX
        ):
            shown.append(row)
    if shown:
        metadata[FAILING_ROWS] = _rows_table(shown)


def _rows_table(rows: list[dg.TableRecord]) -> dg.TableMetadataValue:
    return dg.MetadataValue.table(records=rows, schema=_FAILING_ROWS)


_VERDICTS = dg.TableSchema(
    columns=[
        dg.TableColumn("expectation"),
        dg.TableColumn("passed", "bool"),
        dg.TableColumn("checked", "int"),
        dg.TableColumn("unexpected", "int", description="in the table"),
        dg.TableColumn("in_batch", "int", description="in the rows added last"),
        dg.TableColumn("observed"),
        dg.TableColumn("error"),
    ]
)
_FAILING_ROWS = dg.TableSchema(columns=[dg.TableColumn(name) for name in ("expectation", "where", "values")])


def _verdict(finding: Finding, in_batch: int | None) -> dg.TableRecord:
    return dg.TableRecord(
        {
            "expectation": str(finding),
            "passed": finding.passed,
            "checked": finding.checked,
            "unexpected": finding.unexpected,
            "in_batch": in_batch,
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
