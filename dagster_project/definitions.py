"""
The Dagster code location: every table that `pipelines` declares, the contracts and topics they come from, their checks.

Loading it starts no Spark and connects to nothing.
"""

from pathlib import Path

import dagster as dg

from dagster_project.defs import SUITES
from dagster_project.resources import RESOURCES
from fluvial.entities.project import load_project
from fluvial.orchestration import assets_for, checks_for, contract_suites, offsets_sensor
from fluvial.registry.contracts import load_contracts

declarations = load_project("pipelines")
contracts = load_contracts(Path(__file__).parent.parent / "schemas")

defs = dg.Definitions(
    assets=assets_for(declarations, contracts=contracts),
    asset_checks=checks_for([*contract_suites(declarations, contracts), *SUITES]),
    sensors=[offsets_sensor(declarations)],
    resources=RESOURCES,
    # One process, so that the assets of a run share one Spark session.
    executor=dg.in_process_executor,
)
