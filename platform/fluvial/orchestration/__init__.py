"""
Dagster assets made from declarations.

A code location takes `assets_for`, `checks_for` and `SparkResource`, or makes its assets one by one with `topic`,
`schema`, `history`, `compacted`, `state`, `pipeline` and `publish`; `Policy` says how they are run and watched. Runs
are started by `offsets_sensor`, `schedule`, or the conditions `when_inputs_change` and `at_times`.
`fluvial.orchestration.run.materialize_all` runs a project's assets in this process, and
`fluvial.orchestration.ui.ui_command` shows them.
"""

from fluvial.orchestration.assets import assets_for, declaration_of, declarations_in
from fluvial.orchestration.checks import checks_for, contract_suites, expectations_check
from fluvial.orchestration.continuous import continuous_job
from fluvial.orchestration.delta_io import DeltaIOManager
from fluvial.orchestration.factories import compacted, history, pipeline, publish, schema, state, topic
from fluvial.orchestration.log_checks import Alert, Allowed, lag_checks, lag_sensor, reconciliation_checks, webhook
from fluvial.orchestration.pipes import Submit
from fluvial.orchestration.policies import Policy
from fluvial.orchestration.sensors import offsets_sensor
from fluvial.orchestration.spark_resource import SparkResource
from fluvial.orchestration.triggers import at_times, schedule, when_inputs_change

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
    "compacted",
    "continuous_job",
    "contract_suites",
    "declaration_of",
    "declarations_in",
    "expectations_check",
    "history",
    "lag_checks",
    "lag_sensor",
    "offsets_sensor",
    "pipeline",
    "publish",
    "reconciliation_checks",
    "schedule",
    "schema",
    "state",
    "topic",
    "webhook",
    "when_inputs_change",
]
