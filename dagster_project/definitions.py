"""
The Dagster code location: every table that `pipelines` declares, the contracts and topics they come from, their checks.

Loading it starts no Spark and connects to nothing.
"""

from datetime import timedelta
from pathlib import Path

import dagster as dg

from dagster_project.defs import SUITES
from dagster_project.resources import RESOURCES
from fluvial.orchestration import Policy, assets_for, checks_for, contract_suites, declarations_in, offsets_sensor
from fluvial.registry.contracts import load_contracts
from fluvial.tables.declare.project import load_project

declarations = load_project("pipelines")
contracts = load_contracts(Path(__file__).parent.parent / "schemas")
# For each table, beside the retries and the pool that it has anyway.
policy = Policy(freshness=dg.FreshnessPolicy.time_window(fail_window=timedelta(days=1)))


def _with_components(components: dg.Definitions) -> dg.Definitions:
    declared = dg.Definitions(
        assets=assets_for(declarations, contracts=contracts, policy=policy),
        asset_checks=checks_for([*contract_suites(declarations, contracts), *SUITES]),
        sensors=[offsets_sensor({**declarations, **declarations_in(components)})],
        resources=RESOURCES,
        # One process, so that the assets of a run share one Spark session.
        executor=dg.in_process_executor,
    )
    return dg.Definitions.merge(declared, components)


# The components are what `dg scaffold defs` writes into the folder defs.
defs = _with_components(dg.load_from_defs_folder(path_within_project=Path(__file__)))
