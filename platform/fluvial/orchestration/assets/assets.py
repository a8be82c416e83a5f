"""Dagster assets made from declarations: one real asset a table, external ones for the topics and contracts above."""

import hashlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import partial, wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast

import dagster as dg
from dagster._core.definitions.metadata.metadata_value import ObjectMetadataValue

from fluvial.config import Settings
from fluvial.delta.errors import TableError
from fluvial.delta.failures import explain_failures
from fluvial.errors import FluvialError
from fluvial.orchestration.assets.graph import (
    asset_key,
    group_of,
    links_of,
    owners_of,
    source_specs,
    tags_of,
    topic_of,
    upstream_keys,
    value_contracts,
)
from fluvial.orchestration.assets.lineage import column_descriptions, known_columns, pipeline_lineage
from fluvial.orchestration.assets.metadata import column_schema, plain, plain_columns, run_metadata
from fluvial.orchestration.assets.pipes import Submit, Told, run_submitted
from fluvial.orchestration.assets.policies import RETRIES, Policy
from fluvial.orchestration.assets.sources import observe_sources, report_windows
from fluvial.orchestration.assets.windows import window_of
from fluvial.orchestration.run.spark_resource import SparkResource
from fluvial.registry.contracts import Contract
from fluvial.tables import Compacted, Declaration, DeclarationError, History, Pipeline, Publication, State
from fluvial.tables.declare.source_code import source_digest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fluvial.spark.avro import Contract as TableContract
    from fluvial.spark.offset_times import Window
    from fluvial.tables.plan.result import RunResult


COLUMNS = "dagster/column_schema"
LINEAGE = "dagster/column_lineage"
DECLARATION = "fluvial/declaration"
"""The metadata of an asset that holds its declaration, in the process that made it."""


class Runner(Protocol):
    """What brings a declared table up to date."""

    def __call__(
        self,
        declaration: Declaration,
        settings: Settings,
        spark: "SparkSession",
        /,
        *,
        progress: Callable[[str], None] | None = None,
        **window: "Window",
    ) -> "RunResult":
        """Return what was done; `progress` hears a line when a step begins, `window` is there in a run of one."""
        ...


def assets_for(
    declarations: Mapping[str, Declaration] | Iterable[Declaration],
    *,
    contracts: Iterable[Contract] = (),
    policy: Policy | None = None,
    policies: Mapping[str, Policy] = MappingProxyType({}),
    retry_policy: dg.RetryPolicy | None = None,
    run: Runner | None = None,
) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """
    Return the assets of a project: its tables, and the topics and contracts they come from.

    Contracts are read from files, so that loading the definitions connects to nothing. `policy` holds for every table,
    and `policies` for those that they name instead; `retry_policy` alone changes that part of the usual one. `run`
    executes a declaration; it is `fluvial.tables.drive.runner.materialize` unless given.

    Raises DeclarationError when `policies` name a table that is none of `declarations`.
    """
    usual = policy or Policy(retry=retry_policy or RETRIES)
    declared = [*declarations.values()] if isinstance(declarations, Mapping) else [*declarations]
    tables = [each.table for each in declared]
    for table in policies:
        if table not in tables:
            raise DeclarationError(
                f"policies name {table}, which is not declared; the declared tables are {', '.join(tables)}"
            )
    known = tuple(contracts)
    of_values = value_contracts(known)
    assets = [
        table_asset(
            each,
            contract=of_values.get(topic_of(each) or ""),
            policy=policies.get(each.table, usual),
            run=run,
        )
        for each in declared
    ]
    return [*source_specs(declared, known), *assets]


def table_asset(
    declaration: Declaration,
    *,
    contract: Contract | None,
    policy: Policy,
    run: Runner | None = None,
) -> dg.AssetsDefinition:
    """Return the asset that brings one declared table up to date."""
    policy.check(declaration)
    database = declaration.table.partition(".")[0]

    is_topic = isinstance(declaration, Publication)
    described = column_descriptions(declaration, contract)

    with warnings.catch_warnings():
        # Dagster says so of the backfill policy.
        warnings.simplefilter("ignore", dg.BetaWarning)

        @dg.asset(
            key=asset_key(declaration.table),
            deps=upstream_keys(declaration),
            group_name=policy.group or group_of(contract, database),
            kinds={"spark", "kafka"} if is_topic else {"spark", "delta"},
            owners=policy.owners if policy.owners is not None else owners_of(contract),
            tags={**tags_of(contract), **policy.tags},
            description=_description(declaration),
            metadata={
                **({} if is_topic else {"dagster/table_name": declaration.table}),
                **known_columns(declaration, contract),
                **_explained_by(declaration),
                **links_of(contract),
                **policy.link_metadata,
                DECLARATION: ObjectMetadataValue(declaration),
            },
            code_version=code_version(declaration),
            retry_policy=policy.retry,
            pool=policy.pool_of(declaration),
            partitions_def=policy.partitions,
            # Windows that follow each other are one range of offsets.
            backfill_policy=None if policy.partitions is None else dg.BackfillPolicy.single_run(),
            freshness_policy=policy.freshness,
            automation_condition=policy.automation,
        )
        def table(context: dg.AssetExecutionContext, spark: SparkResource) -> dg.MaterializeResult[Any]:
            return _materialize(
                context, spark, declaration, contract=contract, described=described, run=run, submit=policy.submit
            )

    return table


def declaration_of(asset: dg.AssetsDefinition) -> Declaration | None:
    """Return the declaration that an asset was made from; None for an asset that was not made here."""
    for spec in asset.specs:
        kept = spec.metadata.get(DECLARATION)
        if isinstance(kept, ObjectMetadataValue):
            return cast("Declaration", kept.instance)
    return None


def declarations_in(definitions: dg.Definitions) -> dict[str, Declaration]:
    """Return the declarations, by table, that the assets of `definitions` were made from; components' among them."""
    made = (declaration_of(each) for each in definitions.assets or () if isinstance(each, dg.AssetsDefinition))
    return {declaration.table: declaration for declaration in made if declaration is not None}


def _materialize(
    context: dg.AssetExecutionContext,
    spark: SparkResource,
    declaration: Declaration,
    *,
    contract: Contract | None,
    described: Mapping[str, str],
    run: Runner | None,
    submit: Submit | None,
) -> dg.MaterializeResult[Any]:
    try:
        window = window_of(context)
        known = spark.contracts.get(declaration.table)
        skipped = _skipped(declaration, spark.settings, known) if run is None and window is None else None
        if skipped is not None:
            outcome = Told(result=skipped, columns=(), lineage={})
        elif submit is not None:
            span = None if window is None else (window.start_ms, window.end_ms)
            outcome = run_submitted(context, submit, declaration.table, spark.settings, span)
        else:
            outcome = _run_here(context, spark, declaration, run or partial(run_declaration, contract=known), window)
    except FluvialError as error:
        raise failure_of(error) from error
    if submit is None or skipped is not None:
        spark.register(declaration, outcome.result, context.log.warning)
    lag = observe_sources(context, declaration, spark.settings, outcome.result, contract)
    report_windows(context, declaration, spark.settings, outcome.result)
    metadata = run_metadata(outcome.result, lag=lag)
    if skipped is not None:
        metadata |= _shown_before(context, skipped)
    if outcome.columns:
        metadata[COLUMNS] = column_schema(outcome.columns, described)
    if outcome.lineage:
        metadata[LINEAGE] = pipeline_lineage(outcome.lineage)
    return dg.MaterializeResult(metadata=metadata, data_version=_data_version(outcome.result))


def _skipped(declaration: Declaration, settings: Settings, known: "TableContract | None") -> "RunResult | None":
    # Loading the definitions does not need what it imports.
    from fluvial.orchestration.assets.up_to_date import up_to_date

    return up_to_date(declaration, settings, known)


def _shown_before(context: dg.AssetExecutionContext, result: "RunResult") -> dict[str, Any]:
    """Return the columns and their lineage as the last run of the same version told them."""
    event = context.instance.get_latest_materialization_event(context.asset_key)
    told = event.asset_materialization if event is not None else None
    if told is None or plain(told.metadata).get("delta_version") != result.version_after:
        return {}
    return {name: told.metadata[name] for name in (COLUMNS, LINEAGE) if name in told.metadata}


def failure_of(error: FluvialError) -> dg.Failure:
    """Return what the page shows of an error of ours, which says how to repair it: few are gone when tried again."""
    return dg.Failure(description=str(error), allow_retries=isinstance(error, TableError) and error.retriable)


def _run_here(
    context: dg.AssetExecutionContext,
    spark: SparkResource,
    declaration: Declaration,
    run: Runner,
    window: "Window | None",
) -> Told:
    lineage: dict[str, list[tuple[str, str]]] = {}
    session = spark.session
    _show_spark(context, session)
    result = run(
        observed(declaration, lineage),
        spark.settings,
        session,
        progress=context.log.info,
        **({} if window is None else {"window": window}),
    )
    return Told(result=result, columns=columns_of(declaration, result, session), lineage=lineage)


def columns_of(declaration: Declaration, result: "RunResult", session: "SparkSession") -> tuple[Mapping[str, Any], ...]:
    """Return the columns that a table has after a run; none where there is no table."""
    if result.version_after is None or isinstance(declaration, Publication):
        return ()
    with explain_failures(declaration.table):
        return plain_columns(session.table(declaration.table).schema)


def run_declaration(
    declaration: Declaration,
    settings: Settings,
    spark: "SparkSession",
    /,
    *,
    contract: "TableContract | None" = None,
    progress: Callable[[str], None] | None = None,
    window: "Window | None" = None,
) -> "RunResult":
    """Bring a table up to date, or make the part of it that is of a stretch of time; `contract` is read already."""
    from fluvial.tables.drive.runner import materialize
    from fluvial.tables.replay.replay import replay
    from fluvial.tables.replay.stretch import Stretch

    if window is None:
        return materialize(declaration, settings, spark, contract=contract, progress=progress)
    return replay(declaration, settings, spark, Stretch(window=window), progress=progress)


def _show_spark(context: dg.AssetExecutionContext, session: "SparkSession") -> None:
    """Say where Spark's own page is, while it is there; it is served where `spark.ui.enabled` is true."""
    driver = getattr(session, "sparkContext", None)
    address = driver.uiWebUrl if driver is not None else None
    if address:
        context.log_event(dg.AssetObservation(context.asset_key, metadata={"spark_ui": dg.MetadataValue.url(address)}))


def observed(declaration: Declaration, columns: dict[str, list[tuple[str, str]]]) -> Declaration:
    """Return the declaration; when a pipeline's transform is called, `columns` gets what its columns are made from."""
    if not isinstance(declaration, Pipeline):
        return declaration
    transform = declaration.transform

    @wraps(transform)
    def observed(*frames: Any) -> Any:
        answer = transform(*frames)
        if hasattr(answer, "_jdf"):
            from fluvial.spark.lineage import column_sources

            columns.update(column_sources(answer, dict(zip(declaration.inputs, frames, strict=True))))
        return answer

    return replace(declaration, transform=observed)


def _data_version(result: "RunResult") -> dg.DataVersion | None:
    """Name the table version, so that a run with nothing new leaves what reads the table up to date."""
    return None if result.version_after is None else dg.DataVersion(f"delta-{result.version_after}")


def code_version(declaration: Declaration) -> str:
    """
    Return a digest of what decides the rows: the declared values and, for a pipeline, its version or its code.

    Addresses in memory stay out of it: the same declaration has the same version in every process.
    """
    if isinstance(declaration, Pipeline):
        described = declaration.version or _code(declaration.transform)
    else:
        described = "\n".join(
            f"{field.name}={_stable(getattr(declaration, field.name))}" for field in fields(declaration)
        )
    return hashlib.sha256(f"{declaration.table}\n{described}".encode()).hexdigest()[:12]


def _code(transform: Callable[..., Any]) -> str:
    try:
        return source_digest(transform)
    except (OSError, TypeError):  # typed into a console: there is no text to read
        return f"{transform.__module__}.{transform.__qualname__}"


def _stable(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {item!r}" for name, item in value.items()) + "}"
    return repr(value)


def _explained_by(declaration: Declaration) -> dict[str, dg.MetadataValue[Any]]:
    """The command that tells which records made a row."""
    if not isinstance(declaration, History | Compacted | State):
        return {}
    return {"explain_row": dg.MetadataValue.md(f"`fluvial table explain-row {declaration.table} KEY`")}


def _description(declaration: Declaration) -> str | None:
    match declaration:
        case History(topic=topic):
            return f"Every record of the topic {topic}, with its place in the log."
        case Compacted(topic=topic):
            return f"The latest record of each key of the topic {topic}."
        case State(topic=topic, key=key, reducer=reducer):
            outcome = declaration.fields.items() if reducer is None else reducer.columns
            columns = "\n".join(f"- `{column}`: {what}" for column, what in outcome)
            by = "" if reducer is None else f" by `{reducer}`"
            rows = "One row for each" if declaration.scd2 is None else "A row for each version of each"
            return f"{rows} {key}, folded from the topic {topic}{by}.\n\n{columns}"
        case Publication(source=source, key=key):
            return f"The changes of {source}: one record for each {key} that changed, a tombstone for one that is gone."
        case Pipeline(aggregation=aggregation) if aggregation is not None:
            columns = "\n".join(f"- `{column}`: {fold}" for column, fold in aggregation.fields.items())
            return f"One row for each {', '.join(declaration.key)} of {declaration.inputs[0]}.\n\n{columns}"
        case Pipeline(transform=transform):
            return getattr(transform, "description", None) or inspect.getdoc(transform)
