"""
Dagster assets made from declarations.

A code location takes `assets_for`, `checks_for` and `SparkResource`; `fluvial.orchestration.run.materialize_all` runs
a project's assets in this process, and `fluvial.orchestration.ui.ui_command` shows them.
"""

from fluvial.orchestration.assets import assets_for
from fluvial.orchestration.checks import checks_for, contract_suites, expectations_check
from fluvial.orchestration.spark_resource import SparkResource

__all__ = ["SparkResource", "assets_for", "checks_for", "contract_suites", "expectations_check"]
