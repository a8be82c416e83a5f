"""What a run says beside its materialisation: of its topic, of its contract, and which windows are complete."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import dagster as dg

from fluvial.config import Settings
from fluvial.delta.errors import TableError
from fluvial.errors import FluvialError
from fluvial.orchestration.assets.graph import asset_key, contract_key, topic_key, topic_of
from fluvial.orchestration.assets.windows import completed_windows, window_keys, windows_begun
from fluvial.orchestration.checks.lag import Offsets, end_offsets, lag_of
from fluvial.registry.contracts import Contract
from fluvial.spark.kafka import TopicError
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import Declaration, Pipeline

if TYPE_CHECKING:
    from fluvial.tables.plan.result import RunResult

# A run reports so many windows at most, the oldest first: each is an event. The next run goes on.
WINDOWS_MAX = 1000

logger = logging.getLogger(__name__)


def topic_observation(topic: str, ends: Offsets, lag: Mapping[str, int]) -> dg.AssetObservation:
    """Return what was seen of a topic: the end of each partition, and the lag of tables in records."""
    rows = [dg.TableRecord({"partition": number, "end_offset": end}) for number, end in sorted(ends.items())]
    columns = [dg.TableColumn("partition", "int"), dg.TableColumn("end_offset", "long")]
    return dg.AssetObservation(
        topic_key(topic),
        metadata={
            "offsets": dg.MetadataValue.table(records=rows, schema=dg.TableSchema(columns=columns)),
            **{f"lag/{table}": records for table, records in lag.items()},
        },
    )


def observe_sources(
    context: dg.AssetExecutionContext,
    declaration: Declaration,
    settings: Settings,
    result: "RunResult",
    contract: Contract | None,
) -> int | None:
    """
    Log observations of the topic that a run has read and of its contract; return the table's lag in records.

    None where the table reads no topic or the log does not answer: this is a remark on the run, no reason to fail.
    """
    topic = topic_of(declaration)
    if topic is None or not result.offsets:
        return None
    if contract is not None and (seen := _contract_observation(contract, settings)) is not None:
        context.log_event(seen)
    ends = end_offsets(settings, topic)
    if ends is None:
        return None
    lag = lag_of(ends, _position(result))
    context.log_event(topic_observation(topic, ends, {declaration.table: lag}))
    return lag


def report_windows(
    context: dg.AssetExecutionContext, declaration: Declaration, settings: Settings, result: "RunResult"
) -> None:
    """
    Log a materialisation for each window of a table with partitions that is in it now and that Dagster lacks.

    A run without a partition, such as that of `fluvial run`, completes windows; one of a window those before it.
    """
    partitions = context.assets_def.partitions_def
    for event in completed(context.instance, partitions, declaration, settings, result, beside=window_keys(context)):
        context.log_event(event)


def completed(
    instance: dg.DagsterInstance,
    partitions: dg.PartitionsDefinition | None,
    declaration: Declaration,
    settings: Settings,
    result: "RunResult",
    *,
    beside: Iterable[str] = (),
) -> Iterator[dg.AssetMaterialization]:
    """
    Return a materialisation for each time window that is in a table as of `result` and that `instance` lacks.

    Those in `beside` are left out, and so are all where the log does not answer: the next run reports them.
    """
    if not isinstance(partitions, dg.TimeWindowPartitionsDefinition):
        return
    key = asset_key(declaration.table)
    known = {*instance.get_materialized_partitions(key), *beside}
    try:
        found = _completed(partitions, declaration, settings, result, known)
    except (TopicError, TableError) as error:
        logger.warning("which partitions of %s are complete is not known: %s", declaration.table, error)
        return
    for window in found[:WINDOWS_MAX]:
        yield dg.AssetMaterialization(key, partition=window, description="Complete as of this run.")


def _completed(
    partitions: dg.TimeWindowPartitionsDefinition,
    declaration: Declaration,
    settings: Settings,
    result: "RunResult",
    known: Collection[str],
) -> list[str]:
    topic = topic_of(declaration)
    if topic is not None:
        return completed_windows(settings, topic, partitions, _position(result), known) if result.offsets else []
    warehouse = Warehouse.at(settings.warehouse)
    is_read = isinstance(declaration, Pipeline) and warehouse.local is not None and result.version_after is not None
    return windows_begun(warehouse.path(declaration.table), partitions, known) if is_read else []


def _contract_observation(contract: Contract, settings: Settings) -> dg.AssetObservation | None:
    try:
        with settings.registry.client() as registry:
            latest = registry.latest(contract.subject)
    except FluvialError as error:
        logger.warning("the version of %s is not known: %s", contract.subject, error)
        return None
    return dg.AssetObservation(
        contract_key(contract.subject), metadata={"version": latest.version, "schema_id": latest.id}
    )


def _position(result: "RunResult") -> dict[int, int]:
    return {partition: end for partition, (_, end) in result.offsets.items()}
