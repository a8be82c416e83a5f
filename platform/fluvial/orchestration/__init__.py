"""
Dagster assets made from the declarations of `fluvial.tables`.

A code location takes `assets_for`, `checks_for` and `SparkResource`; `Policy` says how assets are run and watched. Runs
are started by `offsets_sensor`, `schedule`, or the conditions `when_inputs_change` and `at_times`.
`fluvial.orchestration.run.run.materialize_all` runs a project's assets in this process, and
`fluvial.orchestration.run.ui.ui_command` shows them.
"""

from typing import Never

from fluvial.extras import needed

with needed():
    import dagster  # noqa: F401

from fluvial.orchestration.assets.assets import assets_for, declaration_of, declarations_in
from fluvial.orchestration.assets.continuous import continuous_job
from fluvial.orchestration.assets.delta_io import DeltaIOManager
from fluvial.orchestration.assets.graph import contract_spec, topic_spec
from fluvial.orchestration.assets.pipes import Submit
from fluvial.orchestration.assets.policies import Policy
from fluvial.orchestration.checks.checks import checks_for, contract_suites, expectations_check
from fluvial.orchestration.checks.log_checks import (
    Alert,
    Allowed,
    lag_checks,
    lag_sensor,
    reconciliation_checks,
    webhook,
)
from fluvial.orchestration.run.spark_resource import SparkResource
from fluvial.orchestration.sensors.sensors import offsets_sensor
from fluvial.orchestration.sensors.triggers import at_times, schedule, when_inputs_change

__all__ = [
    "Alert",
    "Allowed",
    "DeltaIOManager",
    "Policy",
    "SparkResource",
    "Submit",
    "assets_for",
    "at_times",
    "checks_for",
    "continuous_job",
    "contract_spec",
    "contract_suites",
    "declaration_of",
    "declarations_in",
    "expectations_check",
    "lag_checks",
    "lag_sensor",
    "offsets_sensor",
    "reconciliation_checks",
    "schedule",
    "topic_spec",
    "webhook",
    "when_inputs_change",
]


def __getattr__(name: str) -> Never:
    if name in {"compacted", "history", "pipeline", "publish", "state"}:
        raise ImportError(f"declare it with fluvial.tables.{name}: assets_for([declaration]) makes its asset")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
