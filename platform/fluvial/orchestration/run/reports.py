"""What a command did without a run of Dagster's, on Dagster's page."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fluvial.config import Settings
from fluvial.orchestration.assets.continuous import batch_event
from fluvial.orchestration.assets.graph import asset_key
from fluvial.orchestration.assets.sources import completed
from fluvial.orchestration.run.code_location import definitions_of
from fluvial.orchestration.run.instance import home_of, open_instance
from fluvial.tables.declare.project import load_project

if TYPE_CHECKING:
    from fluvial.tables.plan.result import RunResult


def report_results(settings: Settings, results: "Iterable[RunResult]") -> None:
    """
    Report the results of the project's tables as materialisations, with the time windows that are complete by them.

    Raises HomeError for a Dagster home that is damaged, and what an import of the project's definitions raises.
    """
    declared = load_project(settings.project)
    graph = definitions_of(settings).resolve_asset_graph()
    with open_instance(home_of(settings.data_dir)) as instance:
        for result in results:
            key = asset_key(result.table)
            instance.report_runless_asset_event(batch_event(result))
            partitions = graph.get(key).partitions_def if graph.has(key) else None
            for event in completed(instance, partitions, declared[result.table], settings, result):
                instance.report_runless_asset_event(event)
