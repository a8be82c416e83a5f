"""
Whether a table has nothing to do, told by its own log, its topic's ends and its contract's versions; no Spark starts.
"""

from dataclasses import replace
from typing import Any, cast

from fluvial.config import Settings
from fluvial.delta.erasures import read_erasures
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import read_position
from fluvial.errors import FluvialError
from fluvial.spark.avro import Contract, read_contract
from fluvial.spark.kafka import show_position, topic_bounds
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import Compacted, Declaration, History, Pipeline, Publication, State
from fluvial.tables.drive.evolve import earlier_contract
from fluvial.tables.drive.runner import group_of
from fluvial.tables.plan.checks import check_definition
from fluvial.tables.plan.fit import check_fit
from fluvial.tables.plan.growth import in_order
from fluvial.tables.plan.planning import has_new_records, plan_span
from fluvial.tables.plan.result import RunResult
from fluvial.tables.publishing.run import PublicationRun
from fluvial.tables.publishing.table import DeltaSource
from fluvial.tables.refresh.transforms import skipped_pipeline


def up_to_date(declaration: Declaration, settings: Settings, contract: Contract | None = None) -> RunResult | None:
    """
    Return the result of a run that would do nothing; None where there is something to do, or where it is not certain.

    It is decided as `fluvial.tables.drive.runner.materialize` decides, by `contract` where it was read and checked
    already. An error is left to the run, which meets it too.
    """
    local = Warehouse.at(settings.warehouse).local
    if local is None:
        return None
    here = replace(settings, warehouse=str(local))
    try:
        match declaration:
            case Pipeline():
                return skipped_pipeline(declaration, Warehouse.at(here.warehouse))
            case Publication():
                return _publication(declaration, here)
            case _:
                return _of_topic(declaration, here, contract)
    except FluvialError:
        return None


def _publication(declaration: Publication, settings: Settings) -> RunResult | None:
    # Which versions there are is read without either, as the table is on this machine.
    nothing = cast("Any", None)
    source = DeltaSource(declaration=declaration, settings=settings, spark=nothing, schemas=nothing)
    return PublicationRun(declaration=declaration, settings=settings, source=source).skipped(source.newest())


def _of_topic(
    declaration: History | Compacted | State, settings: Settings, contract: Contract | None
) -> RunResult | None:
    position = read_position(
        TableLog(None, Warehouse.at(settings.warehouse).path(declaration.table)), declaration.table
    )
    stamp = position.stamp
    if stamp is None:
        return None
    bounds = topic_bounds(settings.cluster, declaration.topic)
    span = plan_span(declaration.table, position, bounds)
    if has_new_records(span):
        return None
    root = Warehouse.at(settings.warehouse).root
    if read_erasures(None, root, bounds.topic, bounds.topic_id).after(stamp.erased):
        return None
    if declaration.needs_order:
        age_ms = settings.metadata_max_age_ms
        _, growth = in_order(declaration.table, span, bounds, position, cluster=settings.cluster, age_ms=age_ms)
        if growth is not None or stamp.growth is not None:
            return None
    if contract is None:
        with settings.registry.client() as schemas:
            contract = read_contract(schemas, declaration.topic)
        check_fit(declaration, contract)
    check_definition(declaration, stamp, contract)
    if earlier_contract(contract, stamp) is not None or contract.is_older_than(stamp.schema):
        return None
    show_position(settings.cluster, group_of(declaration.table), declaration.topic, position.ends)
    return RunResult(
        table=declaration.table,
        kind=declaration.kind,
        skipped=True,
        version_before=position.version,
        version_after=position.version,
        offsets={partition: (end, end) for partition, end in position.ends.items()},
        lag_before=0,
    )
