"""Dagster assets made from declarations: one real asset a table, external ones for the topics and contracts above."""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Protocol

import dagster as dg

from fluvial.config import Settings
from fluvial.entities import Compacted, Declaration, History, Pipeline, State
from fluvial.errors import FluvialError
from fluvial.orchestration.graph import asset_key, owners_of, source_specs, topic_of, upstream_keys, value_contracts
from fluvial.orchestration.lag import end_offsets, lag_behind
from fluvial.orchestration.metadata import column_schema, run_metadata
from fluvial.orchestration.spark_resource import SparkResource
from fluvial.registry.contracts import Contract

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fluvial.entities.result import RunResult


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
    ) -> "RunResult":
        """Return what was done; `progress` hears a line when a step begins."""
        ...


RETRIES = dg.RetryPolicy(max_retries=2, delay=2, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS)
"""For the faults that pass: a broker that restarts, a commit that another writer won."""


def assets_for(
    declarations: Mapping[str, Declaration],
    *,
    contracts: Iterable[Contract] = (),
    retry_policy: dg.RetryPolicy = RETRIES,
    run: Runner | None = None,
) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """
    Return the assets of a project: its tables, and the topics and contracts they come from.

    Contracts are read from files, so that loading the definitions connects to nothing. `run` executes a declaration;
    it is `fluvial.entities.runner.materialize` unless given.
    """
    known = tuple(contracts)
    of_values = value_contracts(known)
    tables = [
        _table_asset(declaration, owners_of(of_values.get(topic_of(declaration) or "")), retry_policy, run)
        for declaration in declarations.values()
    ]
    return [*source_specs(declarations.values(), known), *tables]


def _table_asset(
    declaration: Declaration, owners: Sequence[str] | None, retry_policy: dg.RetryPolicy, run: Runner | None
) -> dg.AssetsDefinition:
    database = declaration.table.partition(".")[0]

    @dg.asset(
        key=asset_key(declaration.table),
        deps=upstream_keys(declaration),
        group_name=database,
        kinds={"spark", "delta"},
        owners=owners,
        description=_description(declaration),
        metadata={"dagster/table_name": declaration.table},
        code_version=code_version(declaration),
        retry_policy=retry_policy,
    )
    def table(context: dg.AssetExecutionContext, spark: SparkResource) -> dg.MaterializeResult[Any]:
        return _materialize(context, spark, declaration, run)

    return table


def _materialize(
    context: dg.AssetExecutionContext, spark: SparkResource, declaration: Declaration, run: Runner | None
) -> dg.MaterializeResult[Any]:
    try:
        result = (run or _runner())(declaration, spark.settings, spark.session, progress=context.log.info)
    except FluvialError as error:
        # Ours says what is wrong and how to mend it; trying again changes neither.
        raise dg.Failure(description=str(error), allow_retries=False) from error
    metadata = run_metadata(result, lag=_lag(declaration, spark.settings, result))
    if result.version_after is not None:
        metadata["dagster/column_schema"] = column_schema(spark.session.table(declaration.table).schema)
    return dg.MaterializeResult(metadata=metadata, data_version=_data_version(result))


def _runner() -> Runner:
    from fluvial.entities.runner import materialize

    return materialize


def _lag(declaration: Declaration, settings: Settings, result: "RunResult") -> int | None:
    topic = topic_of(declaration)
    if topic is None or not result.offsets:
        return None
    ends = end_offsets(settings, topic)
    return (
        None if ends is None else lag_behind(ends, {partition: end for partition, (_, end) in result.offsets.items()})
    )


def _data_version(result: "RunResult") -> dg.DataVersion | None:
    """Name the table version, so that a run with nothing new leaves what reads the table up to date."""
    return None if result.version_after is None else dg.DataVersion(f"delta-{result.version_after}")


def code_version(declaration: Declaration) -> str:
    """
    Return a digest of what decides the rows: the declared values and, for a pipeline, its version or its module's text.

    Addresses in memory stay out of it: the same declaration has the same version in every process.
    """
    if isinstance(declaration, Pipeline):
        described = declaration.version or _module_text(declaration.transform)
    else:
        described = "\n".join(
            f"{field.name}={_stable(getattr(declaration, field.name))}" for field in fields(declaration)
        )
    return hashlib.sha256(f"{declaration.table}\n{described}".encode()).hexdigest()[:12]


def _module_text(transform: Callable[..., Any]) -> str:
    module = inspect.getmodule(transform)
    try:
        return inspect.getsource(module or transform)
    except (OSError, TypeError):  # typed into a console: there is no text to read
        return f"{transform.__module__}.{transform.__qualname__}"


def _stable(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {item!r}" for name, item in value.items()) + "}"
    return repr(value)


def _description(declaration: Declaration) -> str | None:
    match declaration:
        case History(topic=topic):
            return f"Every record of the topic {topic}, with its place in the log."
        case Compacted(topic=topic):
            return f"The latest record of each key of the topic {topic}."
        case State(topic=topic, key=key, fields=folds):
            columns = "\n".join(f"- `{column}`: {fold}" for column, fold in folds.items())
            return f"One row for each {key}, folded from the topic {topic}.\n\n{columns}"
        case Pipeline(transform=transform):
            return inspect.getdoc(transform)
