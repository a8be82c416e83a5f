"""The Dagster code location: the tables, the topics and contracts they come from, their checks."""

from pathlib import Path

import dagster as dg

from fluvial.orchestration import (
    SparkResource,
    assets_for,
    checks_for,
    contract_suites,
    declarations_in,
    offsets_sensor,
)
from fluvial.registry.contracts import load_contracts
from fluvial.tables.declare.project import load_project
from my_platform.checks import sound_customers

declarations = load_project("my_platform.tables")
contracts = load_contracts(Path(__file__).parent.parent / "schemas")


def _with_components(components: dg.Definitions) -> dg.Definitions:
    declared = dg.Definitions(
        assets=assets_for(declarations, contracts=contracts),
        asset_checks=checks_for([*contract_suites(declarations, contracts), sound_customers]),
        # Switched on under Automation on the page, it starts a run whenever new events are there.
        sensors=[offsets_sensor({**declarations, **declarations_in(components)}, running=False)],
        resources={"spark": SparkResource()},
        # One process, so that the assets of a run share one Spark session.
        executor=dg.in_process_executor,
    )
    return dg.Definitions.merge(declared, components)


# The components are what `dg scaffold defs` writes into the folder defs.
defs = _with_components(dg.load_from_defs_folder(path_within_project=Path(__file__)))
